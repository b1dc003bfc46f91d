"""Profiles: what they name exists, and on a cluster every timing job has its node to itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.parent.name for path in (ROOT / "profiles").glob("*/profile.yaml"))
RULE = re.compile(r"^(?:use rule (?P<base>\w+) as (?P<child>\w+) with|rule (?P<rule>\w+)):", re.M)


def timing_rules() -> set[str]:
    """Return the rules that hold the resource ``measure``, those made of another one included."""
    measuring: set[str] = set()
    inherited: list[tuple[str, str]] = []
    for file in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = file.read_text("utf-8")
        found = list(RULE.finditer(text))
        ends = [*(match.start() for match in found[1:]), len(text)]
        for match, end in zip(found, ends, strict=False):  # no rule, no end
            if match["child"] and "resources:" not in text[match.start() : end]:
                inherited.append((match["base"], match["child"]))
            elif re.search(r"^\s+measure=", text[match.start() : end], re.M):
                measuring.add(match["child"] or match["rule"])
    return measuring | {child for base, child in inherited if base in measuring}


def profile(name: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / "profiles" / name / "profile.yaml").read_text("utf-8"))


def test_timing_jobs_have_a_node_of_their_own_on_a_cluster() -> None:
    """A new rule that measures would otherwise share its node with other people's jobs."""
    slurm = profile("slurm")
    exclusive = {
        rule
        for rule, resources in slurm["set-resources"].items()
        if "--exclusive" in resources["slurm_extra"]
    }
    assert {
        "baseline_slice",
        "power_slice",
        "batching_slice",
        "finalists",
        "validation",
    } <= timing_rules()
    assert exclusive == timing_rules()
    assert set(slurm["set-threads"]) == timing_rules()


def test_the_cluster_needs_no_accounting_and_no_gpu() -> None:
    slurm = profile("slurm")
    assert slurm["slurm-status-command"] == "squeue"
    assert "gpu" not in (ROOT / "profiles/slurm/profile.yaml").read_text("utf-8").lower()


@pytest.mark.parametrize("name", PROFILES)
def test_configurations_of_profiles_exist(name: str) -> None:
    for file in profile(name).get("configfile", []):
        assert (ROOT / file).is_file()
