"""Profiles: what they name exists, and on a cluster every timing job has its node to itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.parent.name for path in (ROOT / "profiles").glob("*/profile.yaml"))
RULE = re.compile(
    r"^(?:use rule (?P<base>\w+) as (?P<child>\w+) with|(?:rule|checkpoint) (?P<rule>\w+)):", re.M
)


def timing_rules() -> set[str]:
    """Return the rules that hold the resource ``measure``, those made of another one included."""
    return rules_with(r"^\s+measure=", "resources:")


def rules_with(pattern: str, part: str) -> set[str]:
    """Return the rules whose text has a pattern, or which inherit that part from one that has."""
    having: set[str] = set()
    inherited: list[tuple[str, str]] = []
    for file in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = file.read_text("utf-8")
        found = list(RULE.finditer(text))
        ends = [*(match.start() for match in found[1:]), len(text)]
        for match, end in zip(found, ends, strict=False):  # no rule, no end
            if match["child"] and part not in text[match.start() : end]:
                inherited.append((match["base"], match["child"]))
            elif re.search(pattern, text[match.start() : end], re.M):
                having.add(match["child"] or match["rule"])
    return having | {child for base, child in inherited if base in having}


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


def test_no_job_asks_for_the_cores_of_the_node_it_lands_on() -> None:
    """Pins: a notebook's job was submitted for 1 core; inside, its rule counted those of the node.

    Slurm refused the step: more processors requested than permitted.
    """
    counting = rules_with(r"threads: measure_threads\(\)", "threads:")
    assert "execute_notebook" in counting
    assert set(profile("slurm")["set-threads"]) == counting


def test_every_rule_has_its_place_on_a_cluster() -> None:
    """A new rule of a second would otherwise be a job that waits in a queue, or one that measures
    would run on the login node."""
    rules = {
        match["child"] or match["rule"]
        for file in [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
        for match in RULE.finditer(file.read_text("utf-8"))
    }
    [local] = re.findall(r"^localrules:\n((?:    \w+,\n)+)", (ROOT / "Snakefile").read_text(), re.M)
    here = set(re.findall(r"\w+", local))
    assert here | timing_rules() | {"execute_notebook"} == rules
    assert not here & timing_rules()


def test_the_cluster_needs_no_accounting_and_no_gpu() -> None:
    slurm = profile("slurm")
    assert slurm["slurm-status-command"] == "squeue"
    assert "gpu" not in (ROOT / "profiles/slurm/profile.yaml").read_text("utf-8").lower()


@pytest.mark.parametrize("name", PROFILES)
def test_configurations_of_profiles_exist(name: str) -> None:
    for file in profile(name).get("configfile", []):
        assert (ROOT / file).is_file()


def test_a_killed_job_is_tried_again_on_a_cluster() -> None:
    """It goes on after its last record, so a second try costs little; nobody need be there."""
    assert profile("slurm")["retries"] == 1


def test_the_job_for_kubernetes_fits_together() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    block = re.search(r"```yaml\n(.*?)```", text, re.S)
    assert block is not None
    pod = yaml.safe_load(block[1])["spec"]["template"]["spec"]
    [container] = pod["containers"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]  # or its cores are not its own
    assert f"CORES={resources['limits']['cpu']}" in container["command"]
    # A killed pod leaves Snakemake's lock behind.
    assert "ARGS=--nolock" in container["command"]
    assert [m["name"] for m in container["volumeMounts"]] == [v["name"] for v in pod["volumes"]]
