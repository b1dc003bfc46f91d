"""Policy files are read back as they were, and broken ones are named."""

from __future__ import annotations

import pytest

from infopt.errors import ConfigError
from infopt.select.routing import (
    POLICIES,
    TRAINERS,
    RouteRequest,
    read_policy,
    train_policy,
    write_policy,
)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("kind", TRAINERS.names())
def test_a_policy_is_read_back(tmp_path, make_items, kind, suffix):
    policy = train_policy(kind, make_items(60), "small", "large")
    path = write_policy(policy, tmp_path / f"policy.{suffix}")
    again = read_policy(path)
    assert again == policy
    request = make_items(1)[0].request
    assert again.decide(request) == policy.decide(request)


def test_every_policy_can_be_trained(make_items):
    kinds = {train_policy(k, make_items(60), "small", "large").kind for k in TRAINERS}
    assert kinds == set(POLICIES)


def test_a_file_written_by_hand(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\nkind: classes\ncheap: a\nstrong: b\n"
        "classes:\n  - {name: code, pattern: '^def ', model: coder}\n"
    )
    policy = read_policy(path)
    assert policy.decide(RouteRequest("def f")).model == "coder"
    assert policy.models == ("a", "b", "coder")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping"),
        ("kind: length", "version must be 1, got None"),
        ("version: 2\nkind: length", "version must be 1, got 2"),
        ("version: 1\nkind: lengths", "Did you mean 'length'"),
        ("version: 1\nkind: length\ncheap: a\nstrong: b", "lacks 'threshold'"),
        ("version: 1\nkind: length\ncheap: a\nstrong: b\nthreshold: x", "finite number"),
        ("version: 1\nkind: random\ncheap: a\nstrong: b\nsede: 1", "Did you mean 'seed'"),
        ("version: 1\nkind: classes\ncheap: a\nstrong: b\nclasses: 3", "classes"),
        ("version: [", "cannot be read"),
        ("!!python/object/apply:os.getcwd []", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_policy(path)
    assert "policy.yaml" in str(error.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_policy(tmp_path / "absent.yaml")
