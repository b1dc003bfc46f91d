"""Proves all families and writes the support table: ``python -m infopt.evals.families [FILE]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from infopt.evals.families.cases import CASES
from infopt.evals.families.proof import prove
from infopt.evals.families.table import support_page
from infopt.evals.families.write import write_checkpoint


def main() -> int:
    """Return 1 if a family does not hold; nothing is written then."""
    parser = argparse.ArgumentParser(prog="python -m infopt.evals.families", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/support.md"))
    file: Path = parser.parse_args().file
    proofs = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(case, Path(folder))
            proof = prove(case, Path(folder))
        total = proof.total
        print(
            f"{case.family:14} {proof.description['model_path']:12} error {total.error:.1e}, "
            f"{total.num_tokens} rows, {total.num_near_ties} near ties, {total.num_wrong} wrong",
            flush=True,
        )
        proofs.append(proof)
    if not all(proof.holds for proof in proofs):
        print("some family differs from transformers; nothing is written", file=sys.stderr)
        return 1
    file.write_text(support_page(proofs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
