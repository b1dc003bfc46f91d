"""Plots of results: each function takes a DataFrame and returns Axes.

>>> from infopt import load_results, plotting
>>> df = load_results("results")
>>> plotting.pareto(df, "latency.ttft_s.p50", "throughput.output_tokens_per_s")

Values are shown in the unit on the axis, 95 % intervals are drawn, an arrow points to the better
side, and the title is the finding (computed unless ``title`` is given). No function touches pyplot
or a window system: they work without a display, in threads, and show themselves in notebooks.
"""

from infopt.plotting.bars import bars_with_interval
from infopt.plotting.batch_gain import batch_gain
from infopt.plotting.calibration import calibration_size, text_ratios
from infopt.plotting.capacity import capacity_bars
from infopt.plotting.fronts import pareto
from infopt.plotting.goodput import goodput_gains
from infopt.plotting.kept_quality import kept_quality
from infopt.plotting.kv_share import kv_share
from infopt.plotting.latency import ecdf, latency_percentiles
from infopt.plotting.load import goodput_curve, throughput_vs_batch
from infopt.plotting.moe import distinct_experts, expert_loads, measure_ratios
from infopt.plotting.op_shares import op_shares
from infopt.plotting.power import (
    cost_curves,
    keep_warm_curves,
    lengths_map,
    request_energy,
    size_tradeoff,
    written,
)
from infopt.plotting.prefixes import prefix_hits, prefix_survivors
from infopt.plotting.quality_bits import quality_bits
from infopt.plotting.ratios import ratio_forest
from infopt.plotting.rooflines import op_roofline, roofline
from infopt.plotting.routing import routing_curves, routing_lifts
from infopt.plotting.saturation import load_curve
from infopt.plotting.saving import save
from infopt.plotting.sensitivity import layer_errors, sensitivity_bars
from infopt.plotting.speculation import (
    acceptance_by_position,
    cell_gains,
    decision_shares,
    formula_scatter,
)
from infopt.plotting.steps import fragmentation, step_breakdown
from infopt.plotting.style import STYLE, color_of, colors_for, marker_of, styled
from infopt.plotting.tables import results_table
from infopt.plotting.task_scores import task_scores

__all__ = [
    "STYLE",
    "acceptance_by_position",
    "bars_with_interval",
    "batch_gain",
    "calibration_size",
    "capacity_bars",
    "cell_gains",
    "color_of",
    "colors_for",
    "cost_curves",
    "decision_shares",
    "distinct_experts",
    "ecdf",
    "expert_loads",
    "formula_scatter",
    "fragmentation",
    "goodput_curve",
    "goodput_gains",
    "keep_warm_curves",
    "kept_quality",
    "kv_share",
    "latency_percentiles",
    "layer_errors",
    "lengths_map",
    "load_curve",
    "marker_of",
    "measure_ratios",
    "op_roofline",
    "op_shares",
    "pareto",
    "prefix_hits",
    "prefix_survivors",
    "quality_bits",
    "ratio_forest",
    "request_energy",
    "results_table",
    "roofline",
    "routing_curves",
    "routing_lifts",
    "save",
    "sensitivity_bars",
    "size_tradeoff",
    "step_breakdown",
    "styled",
    "task_scores",
    "text_ratios",
    "throughput_vs_batch",
    "written",
]
