"""Findings of the roofline notebook: the machine, the steps, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from infopt.experiments.findings.data import StageResults
from infopt.experiments.findings.step_ops import PREFIX, OpStory
from infopt.experiments.findings.step_times import step_points, utilisation
from infopt.experiments.findings.tables import ratio_sentence
from infopt.plotting.data import floats
from infopt.select.rows import Row, rows_of

if TYPE_CHECKING:
    import pandas as pd

STEP = "tokens in the step"


@dataclass(frozen=True)
class RooflineStory:
    """The baseline's results, read as a roofline.

    Attributes:
        data: Results of the stage.
    """

    data: StageResults

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Results by precision."""
        return {str(r["extra.candidate"]): r for r in rows_of(self.data.rows("precision"))}

    @cached_property
    def best(self) -> str:
        """The precision with the highest throughput."""
        return max(self.rows, key=lambda n: self.rows[n]["throughput.output_tokens_per_s"])

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth of the machine in bytes/s."""
        return float(self.rows[self.best]["roofline.bandwidth_bytes_per_s"])

    def flops(self, precision: str) -> float:
        """Return the FLOP/s of the machine in a precision."""
        return float(self.rows[precision]["roofline.flops_per_s"])

    def ridge(self, precision: str) -> float:
        """Return the FLOP per byte at which both limits meet."""
        return self.flops(precision) / self.bandwidth

    def decode(self, precision: str) -> pd.DataFrame:
        """Return the decode steps of a precision by number of sequences."""
        return self.data.curve(precision, "decode_")

    def prefill(self, precision: str) -> pd.DataFrame:
        """Return the prefill steps of a precision by number of tokens."""
        return self.data.curve(precision, "prefill_")

    @cached_property
    def ops(self) -> OpStory:
        """The single ops of the best precision.

        Raises:
            ResultError: The run recorded none.
        """
        curve = self.data.curve(self.best, PREFIX)
        return OpStory(self.best, curve, self.bandwidth, self.flops(self.best))

    def machine_table(self) -> pd.DataFrame:
        """Return what the machine can do, by precision."""
        import pandas as pd

        rows = {
            name: {
                "memory bandwidth (GB/s)": self.bandwidth / 1e9,
                "matrix product (GFLOP/s)": self.flops(name) / 1e9,
                "ridge (FLOP per byte)": self.ridge(name),
                "weights (MiB)": row["memory.weights_bytes"] / 2**20,
                "least time of a decode step (ms)": 1e3
                * float(self.decode(name).iloc[0]["bytes"])
                / self.bandwidth,
            }
            for name, row in self.rows.items()
        }
        return pd.DataFrame(rows).T.round(2)

    def points(self) -> pd.DataFrame:
        """Return the steps of the best precision for the roofline plot."""
        import pandas as pd

        parts = [
            step_points(self.decode(self.best), "decode of"),
            step_points(self.prefill(self.best), "prefill of"),
        ]
        return pd.concat(parts, ignore_index=True)

    def points_title(self) -> str:
        """Say how many steps memory limits."""
        points = self.points()
        intensity = points["roofline.flops"] / points["roofline.bytes"]
        left = sum(float(value) < self.ridge(self.best) for value in intensity)
        return (
            f"{self.best}: {left} of {len(points)} steps lie left of the ridge, where memory limits"
        )

    def use_table(self, curve: pd.DataFrame, precision: str | None = None) -> pd.DataFrame:
        """Return time, bound and utilisation of steps, by tokens in the step."""
        name = precision or self.best
        return utilisation(curve, self.bandwidth, self.flops(name)).set_index(STEP)

    def growth(self) -> tuple[float, float]:
        """Return how much larger the largest decode batch is, and how much longer it takes."""
        curve = self.decode(self.best)
        first, last = curve.iloc[0], curve.iloc[-1]
        return (
            float(last["num_tokens"] / first["num_tokens"]),
            float(last["measured_s"] / first["measured_s"]),
        )

    def growth_title(self) -> str:
        """Say what a larger batch costs."""
        batch, growth = self.growth()
        return f"{self.best}: a step for {batch:.0f}x the sequences takes {growth:.1f}x the time"

    def both_table(self) -> pd.DataFrame:
        """Return the decode steps of all precisions side by side."""
        import pandas as pd

        columns = ["measured (ms)", "least possible (ms)", "MBU (%)", "MFU (%)"]
        parts = {name: self.use_table(self.decode(name), name)[columns] for name in self.rows}
        return pd.concat(parts, axis=1)

    def precision_columns(self) -> list[str]:
        """Return the columns of the comparison of precisions, quality where it was measured."""
        columns = ["throughput.output_tokens_per_s", "latency.tpot_s.p50", "memory.weights_bytes"]
        quality = ["quality.kl_mean", "quality.perplexity.docs", "quality.perplexity.code"]
        table = self.data.table
        return columns + [c for c in quality if c in table and any(floats(table, c) >= 0)]

    def answer(self) -> str:
        """Return the conclusion as Markdown."""
        one = self.use_table(self.decode(self.best)).iloc[0]
        curve = self.prefill(self.best)
        full = self.use_table(curve).iloc[-1]
        intensity, ridge = float(one["FLOP per byte"]), self.ridge(self.best)
        limit = "memory" if intensity < ridge else "arithmetic"
        slack = float(one["measured (ms)"] / one["least possible (ms)"])
        batch, growth = self.growth()
        lines = [
            f"Decoding one sequence in `{self.best}` computes {intensity:.1f} FLOP per byte and "
            f"the ridge is at {ridge:.0f}, so **{limit}** is "
            f"its limit. The machine could do such a step in {one['least possible (ms)']:.1f} ms; "
            f"it took {one['measured (ms)']:.1f} ms, **{slack:.1f}x** as long (MBU "
            f"{one['MBU (%)']:.0f} %).",
            f"Reading a prompt of {curve['num_tokens'].iloc[-1]:.0f} tokens in one step computes "
            f"{full['FLOP per byte']:.0f} FLOP per byte and used {full['MFU (%)']:.0f} % of the "
            "arithmetic.",
            f"A decode step for {batch:.0f}x the sequences took {growth:.1f}x the time: **batch**.",
            f"Op by op, {self.ops.sentence(self.ops.steps[0])}",
            *self._precision_lines(),
        ]
        return "\n".join(f"- {line}" for line in lines)

    def _precision_lines(self) -> list[str]:
        return [
            f"`{name}` gave {ratio_sentence(row, 'output_tokens_per_s')}."
            for name, row in self.rows.items()
            if ratio_sentence(row, "output_tokens_per_s") != "not compared"
        ]

    def check(self) -> None:
        """Assert what the notebook claims.

        Raises:
            AssertionError: A claim does not hold for these results.
        """
        decode = self.decode(self.best)
        intensity = decode["flops"] / decode["bytes"]
        assert decode["bytes"].is_monotonic_increasing, "a larger step moves no fewer bytes"
        assert intensity.is_monotonic_increasing, "batching raises the work per byte"
        batch, growth = self.growth()
        assert growth < batch, "batching pays on this machine"
