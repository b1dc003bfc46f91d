"""Runs Snakemake for real, in a folder of its own, on a configuration of one small question."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKLOAD = {"kind": "synthetic", "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}
# Twelve long names: file names made of them must not pass the limit of 255 bytes.
LONG = "-".join(f"some_long_parameter_name_{i}-{i}" for i in range(12))
PAGES = [{"slug": slug, "engine": {"block_size": n}} for slug, n in (("page-16", 16), (LONG, 8))]


def small_config(**changes: Any) -> dict[str, Any]:
    """Return a configuration with one question per stage and one pair per comparison."""
    config: dict[str, Any] = {
        "model": "random",
        "repeats": 1,
        "engine": {"max_model_len": 256, "kv_cache_memory_gib": 0.01, "max_num_seqs": 2},
        "slo": {"ttft_s": 600, "percentile": 50},
        "quality_floor": {"max_kl": 9, "max_perplexity_ratio": 9, "check_tasks": False},
        "workloads": dict.fromkeys(("steady", "single", "odd_lengths", "serving"), WORKLOAD),
        "baseline": {
            "candidates": [{"slug": "float32", "engine": {"dtype": "float32"}}],
            "quality_tier": None,
        },
        "batching": {"page_size": {"candidates": PAGES, "reference": "page-16"}},
        "serving": {"rates": [20], "duration_s": 0.2, "num_bisections": 0, "warmup": 1},
        "select": {
            "objective": "throughput",
            "search": {"duration_s": 0.05, "pair_s": 0.05, "min_requests": 3, "num_bisections": 0},
            "static": {"batch_sizes": [2], "fill_timeouts_s": []},
            "ablations": [],
            "validation_seeds": [1],
        },
        "notebooks": {"names": []},
    }
    return config | changes


@dataclass
class Pipeline:
    """A working folder with a configuration.

    Attributes:
        folder: Where Snakemake runs; results are in ``results``.
        config: The configuration; written before each run.
    """

    folder: Path
    config: dict[str, Any]

    def run(
        self, *arguments: str, env: dict[str, str] | None = None, cores: int = 1
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake and return how it ended."""
        command = self.command(*arguments, cores=cores)
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(env),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def command(self, *arguments: str, cores: int = 1) -> list[str]:
        """Return the command line, having written the configuration.

        Args:
            arguments: Options and targets; targets after a list-valued option follow ``--``.
            cores: Cores that Snakemake may use.
        """
        path = self.folder / "config.yaml"
        text = yaml.safe_dump(self.config)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        program = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        options = ["--cores", str(cores), "--configfile", str(path)]
        return [*program, *options, *(arguments if "--" in arguments else ("--", *arguments))]

    def environment(self, changes: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment: idle threads sleep, and device locks are this folder's own."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        own = {"OMP_WAIT_POLICY": "PASSIVE", "TMPDIR": str(self.folder / "tmp")}
        return {**os.environ, **own, **(changes or {})}

    def planned(self, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
        """Return the names of the rules that a dry run would execute."""
        done = self.run("--dry-run", "--", *arguments, env=env)
        assert done.returncode == 0, done.stderr
        return jobs_of(done.stdout + done.stderr)


def jobs_of(text: str) -> list[str]:
    """Return the names of the rules of all jobs that Snakemake's output tells of, sorted."""
    found = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):", text, re.MULTILINE)
    return sorted(name for name in found if name != "all")


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Assert that a run succeeded, with its output in the message."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
