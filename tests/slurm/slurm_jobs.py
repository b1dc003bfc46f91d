"""Says what is wrong with the jobs of a run on Slurm, and prints them as a table.

squeue --states=all --noheader --sort=i --Format="$(python tests/slurm/slurm_jobs.py --format)" |
    python tests/slurm/slurm_jobs.py kv_cache_slice/compression=CANCELLED
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

PROFILE = Path(__file__).parents[2] / "profiles" / "slurm" / "profile.yaml"
# Columns of fixed width, as squeue prints them: a comment or an absent value shifts nothing.
_WIDTHS = {
    "Comment": 120,
    "State": 14,
    "NumCPUs": 8,
    "OverSubscribe": 10,
    "tres-per-job": 24,
    "tres-per-node": 24,
    "TimeUsed": 14,
    "StartTime": 22,
    "EndTime": 22,
}
FORMAT = ",".join(f"{field}:{width}" for field, width in _WIDTHS.items())


@dataclass(frozen=True, slots=True)
class Job:
    """One submitted job.

    Attributes:
        rule: Rule of the workflow.
        wildcards: Values of its wildcards, joined; empty without.
        state: COMPLETED, FAILED, CANCELLED, ...
        cpus: Allocated CPUs.
        exclusive: Whether it had its node to itself.
        gpus: GPUs it asked for, as Slurm writes them; empty for none.
        elapsed: Time used, as Slurm writes it.
        start: Beginning, ISO 8601, to the second.
        end: End.
    """

    rule: str
    wildcards: str
    state: str
    cpus: int
    exclusive: bool
    gpus: str
    elapsed: str
    start: str
    end: str

    @property
    def name(self) -> str:
        """Rule and wildcards."""
        return f"{self.rule}/{self.wildcards}" if self.wildcards else self.rule


def parse(text: str) -> list[Job]:
    """Return the jobs in what squeue printed, in their order."""
    return [_job(line) for line in text.splitlines() if line.strip()]


def timing_rules() -> set[str]:
    """Return the rules that the profile wants alone on a node."""
    return set(yaml.safe_load(PROFILE.read_text("utf-8"))["set-resources"])


def faults(
    jobs: Sequence[Job], timing: Collection[str], interrupted: Mapping[str, str]
) -> list[str]:
    """Return what is wrong, a line each.

    Args:
        jobs: All jobs of a run, in the order in which they were submitted.
        timing: Rules whose jobs measure.
        interrupted: Jobs that were ended on purpose, and the state that each should have left.
    """
    found = [f"no job of {rule} ran" for rule in timing if rule not in {j.rule for j in jobs}]
    for job in jobs:
        if job.exclusive != (job.rule in timing):
            found.append(f"{job.name}: {'alone on its node' if job.exclusive else 'not alone'}")
        if job.gpus:
            found.append(f"{job.name} asks for {job.gpus}")
        others = [other for other in jobs if other is not job and _overlap(job, other)]
        if job.rule in timing and others:
            found.append(f"{job.name} ran beside {', '.join(other.name for other in others)}")
    for name in dict.fromkeys(job.name for job in jobs):
        states = [job.state for job in jobs if job.name == name]
        wanted = [interrupted[name], "COMPLETED"] if name in interrupted else ["COMPLETED"]
        if states != wanted:
            found.append(f"{name}: {', '.join(states)} instead of {', '.join(wanted)}")
    absent = set(interrupted) - {job.name for job in jobs}
    return found + [f"{name} did not run" for name in sorted(absent)]


def table(jobs: Sequence[Job]) -> str:
    """Return the jobs as text, a line each, without names of machines, users or folders."""
    lines = [_line("job", "state", "cpus", "alone", "gpus", "elapsed")]
    for job in jobs:
        alone = "yes" if job.exclusive else "no"
        lines.append(
            _line(job.name, job.state, str(job.cpus), alone, job.gpus or "none", job.elapsed)
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Read standard input, print the table and the faults, and return the exit code."""
    if arguments == ["--format"]:
        print(FORMAT)
        return 0
    jobs, timing = parse(sys.stdin.read()), timing_rules()
    # No candidate of this configuration asks for a head of its own.
    measured = timing - {"train_draft_head"}
    found = faults(jobs, measured, dict(argument.split("=") for argument in arguments))
    print(table(jobs))
    print(f"{len(jobs)} jobs, {sum(job.rule in timing for job in jobs)} of them timing jobs")
    print("\n".join(f"FAULT {line}" for line in found) or "no faults")
    return bool(found)


def _job(line: str) -> Job:
    values, begin = {}, 0
    for field, width in _WIDTHS.items():
        values[field] = line[begin : begin + width].strip()
        begin += width
    rule, _, wildcards = values["Comment"].removeprefix("rule_").partition("_wildcards_")
    asked = {values["tres-per-job"], values["tres-per-node"]} - {"N/A", ""}
    return Job(
        rule=rule,
        wildcards=wildcards,
        state=values["State"],
        cpus=int(values["NumCPUs"]),
        exclusive=values["OverSubscribe"] == "NO",
        gpus=" ".join(sorted(asked)),
        elapsed=values["TimeUsed"],
        start=values["StartTime"],
        end=values["EndTime"],
    )


def _overlap(one: Job, other: Job) -> bool:
    """Whether two jobs ran at the same time; times of ISO 8601 sort as text."""
    return one.start < other.end and other.start < one.end


def _line(name: str, state: str, cpus: str, alone: str, gpus: str, elapsed: str) -> str:
    return f"{name:<52} {state:<10} {cpus:>4} {alone:<5} {gpus:<5} {elapsed:>8}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
