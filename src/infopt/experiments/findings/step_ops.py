"""Findings about single ops: what each takes of a step, and how far it is from its limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.bench.op_times import BETWEEN
from infopt.bench.roofline_ops import OPS
from infopt.errors import ResultError
from infopt.plotting.data import floats

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

PREFIX = "ops."
_PARTS = (*OPS, BETWEEN)


@dataclass(frozen=True)
class OpStory:
    """The ops of a few steps of one precision.

    Attributes:
        name: The precision.
        curve: What the baseline recorded under ``ops.``: a row per step.
        bandwidth: Bytes per second of the machine.
        flops: FLOP/s of the machine in this precision.
    """

    name: str
    curve: pd.DataFrame
    bandwidth: float
    flops: float

    def __post_init__(self) -> None:
        """Check that there is something to tell.

        Raises:
            ResultError: The run recorded no ops.
        """
        if not len(self.curve):
            raise ResultError(
                f"The run of {self.name} recorded no single ops.",
                field=f"{PREFIX}*",
                value=self.name,
                remedy="Run the stage baseline again with this version.",
            )

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per step and op: times in seconds, counted work, share of the step."""
        import pandas as pd

        rows = [
            {"step": step, "op": op, **self._numbers(values, op)}
            for step, values in zip(self.steps, self.curve.to_dict("records"), strict=True)
            for op in _PARTS
        ]
        table = pd.DataFrame(rows)
        totals = table.groupby("step")["measured_s"].transform("sum")
        table["share"] = table["measured_s"] / totals
        return table

    @cached_property
    def steps(self) -> list[str]:
        """Names of the steps."""
        pairs = zip(self.curve["num_tokens"], self.curve["num_cached"], strict=True)
        return [_step_name(int(tokens), int(cached)) for tokens, cached in pairs]

    def of(self, step: str) -> pd.DataFrame:
        """Return the ops of one step."""
        return self.table.loc[self.table["step"] == step]

    def overview(self) -> Styler:
        """Return time, share and distance from the limit of each op, steps side by side."""
        import pandas as pd

        parts = {step: self._shown(step)[["ms", "share (%)", "x limit"]] for step in self.steps}
        return _styled(pd.concat(parts, axis=1))

    def details(self) -> Styler:
        """Return everything about each op of each step."""
        import pandas as pd

        parts = {step: self._shown(step) for step in self.steps}
        return _styled(pd.concat(parts, names=["step", "op"]))

    def shares_title(self) -> str:
        """Say which op takes the most in the smallest step and in the largest decode."""
        first, last = self.largest(self.steps[0]), self.largest(self._last_decode)
        text = f"{self.name}: {first['op']} takes {first['share']:.0%} of the {self.steps[0]}"
        if self.steps[0] == self._last_decode:
            return text
        if first["op"] == last["op"]:
            return f"{text} and {last['share']:.0%} of the {self._last_decode}: the most of both"
        return f"{text}, {last['op']} {last['share']:.0%} of the {self._last_decode}"

    def largest(self, step: str) -> dict[str, Any]:
        """Return the op that takes the most of a step."""
        ops = self.of(step)
        return ops.iloc[int(np.argmax(floats(ops, "measured_s")))].to_dict()

    def sentence(self, step: str) -> str:
        """Name the largest term of a step, its distance from its limit, and where time is lost.

        It begins with a small letter.
        """
        top, ops = self.largest(step), self.of(step)
        lost = np.nan_to_num(floats(ops, "measured_s") - floats(ops, "predicted_s"))
        worst = ops.iloc[int(np.argmax(lost))]
        return (
            f"in a {step} the largest term is **{top['op']}** with {top['share']:.0%} of the step "
            f"({top['measured_s'] * 1e3:.2f} ms), {self._distance(top)}. The most time beyond a "
            f"limit goes to {worst['op']}: {lost.max() * 1e3:.2f} ms "
            f"({lost.max() / floats(ops, 'measured_s').sum():.0%} of the step)."
        )

    def answer(self) -> str:
        """Return a sentence per step, and what taking the step apart costs, as Markdown."""
        lines = [self.sentence(step) for step in self.steps]
        return "\n".join(f"- {line[0].upper()}{line[1:]}" for line in [*lines, self._apart()])

    def check(self) -> None:
        """Assert what the notebook claims.

        Raises:
            AssertionError: A claim does not hold for these results.
        """
        timed = self.table.loc[self.table["op"] != BETWEEN]
        assert (floats(timed, "measured_s") > 0).all(), "every op was timed"
        weights = [floats(self.of(step), "bytes")[OPS.index("gate_up")] for step in self.steps]
        assert weights[0] == min(weights), "a larger step moves no fewer bytes"
        assert self.bandwidth > 0 < self.flops, "the limits were measured"

    @property
    def _last_decode(self) -> str:
        decodes = [name for name in self.steps if name.startswith("decode")]
        return decodes[-1] if decodes else self.steps[0]

    def _numbers(self, values: dict[Any, Any], op: str) -> dict[str, float]:
        columns = ("measured_s", "predicted_s", "bytes", "flops")
        return {column: float(values.get(f"{op}.{column}", np.nan)) for column in columns}

    def _shown(self, step: str) -> pd.DataFrame:
        """Return the ops of a step in displayed units."""
        import pandas as pd

        ops = self.of(step)
        measured, least = floats(ops, "measured_s"), floats(ops, "predicted_s")
        shown = {
            "ms": measured * 1e3,
            "share (%)": floats(ops, "share") * 100,
            "MB": floats(ops, "bytes") / 1e6,
            "MFLOP": floats(ops, "flops") / 1e6,
            "limit (ms)": least * 1e3,
            "x limit": measured / least,
        }
        table = pd.DataFrame(shown, index=pd.Index(ops["op"], name="op"))
        table.insert(5, "limited by", [self._limit(row) for row in ops.to_dict("records")])
        return table

    def _limit(self, op: dict[Any, Any]) -> str:
        """Return which limit binds an op, in a word."""
        if np.isnan(op["bytes"]):
            return ""
        is_memory = op["bytes"] / self.bandwidth >= op["flops"] / self.flops
        return "memory" if is_memory else "arithmetic"

    def _distance(self, op: dict[str, Any]) -> str:
        if np.isnan(op["predicted_s"]):
            return "which no limit explains"
        return f"{op['measured_s'] / op['predicted_s']:.1f}x its limit ({self._limit(op)})"

    def _apart(self) -> str:
        """Say what each step took in pieces and whole: the difference is no part of any op."""
        pieces = [floats(self.of(step), "measured_s").sum() * 1e3 for step in self.steps]
        whole = floats(self.curve, "whole_s") * 1e3
        pairs = zip(self.steps, pieces, whole, strict=True)
        parts = (f"{step} {apart:.2f} ms ({one:.2f})" for step, apart, one in pairs)
        return f"Taken apart (and as they run), the steps took: {', '.join(parts)}."


def _styled(table: pd.DataFrame) -> Styler:
    """Return a table without a word where an op has no limit."""
    style = table.style
    style.format(precision=2, na_rep="")
    return style


def _step_name(num_tokens: int, num_cached: int) -> str:
    if not num_cached:
        return f"prefill of {num_tokens}"
    return f"decode of {num_tokens}"
