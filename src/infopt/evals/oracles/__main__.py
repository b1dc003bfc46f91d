"""Ask oracles and write their answers.

    python -m infopt.evals.oracles --environments .oracles --out tests/data/oracles [NAME...]

`make oracles` does it for all. The first run of an oracle installs its environment, which takes
minutes and more than a gigabyte.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infopt.evals.oracles.job import make_job
from infopt.evals.oracles.run import ORACLES, Site, ask
from infopt.results import write_json


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    options.environments.mkdir(parents=True, exist_ok=True)
    site = Site(options.environments.resolve(), options.requirements, options.index)
    pythons = {name: site.python(name) for name in options.names or ORACLES}
    job = make_job(options.model)
    for name, python in pythons.items():
        found = ask(name, job, python, site.environments)
        path = write_json(options.out / f"{name}.json", found)
        print(f"{name} -> {path}")
        _show(found.get("perplexity", {}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infopt.evals.oracles")
    parser.add_argument("names", nargs="*", metavar="NAME", help="oracles; default: all")
    parser.add_argument("--model", default="tiny-dense", help="registered name, or a folder")
    parser.add_argument("--environments", type=Path, default=Path(".oracles"))
    parser.add_argument("--requirements", type=Path, default=Path("envs/oracles"))
    parser.add_argument("--out", type=Path, default=Path("tests/data/oracles"))
    parser.add_argument("--index", default=None, help="further index, for CPU wheels of torch")
    return parser


def _show(perplexity: Mapping[str, Mapping[str, Any]]) -> None:
    for method, texts in perplexity.items():
        figures = ", ".join(f"{source} {value:.4f}" for source, value in texts.items())
        print(f"  {method:10s} {figures}")


if __name__ == "__main__":
    main()
