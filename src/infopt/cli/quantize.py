"""``infopt quantize``: codes for the weights of a model, in a folder that other servers load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from infopt.cli.console import note, output, print_json
from infopt.cli.models import RegistryOption, load_registry

if TYPE_CHECKING:
    from infopt.quantization import QuantizationReport

_PANEL = "Calibration"


def quantize(
    model: Annotated[str, typer.Argument(help="Registered model, checkpoint folder or GGUF file.")],
    *,
    scheme: Annotated[
        str, typer.Option(help="int4-awq-g64, int4-gptq-g64, w8a8-static, fp8, mixed-4.5, ...")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")],
    calibration_domain: Annotated[
        str | None,
        typer.Option(
            help="Text: docs, code, half of each (mixed), or random token ids.",
            rich_help_panel=_PANEL,
            show_default="mixed",
        ),
    ] = None,
    calibration_num_sequences: Annotated[
        int | None, typer.Option(help="Sequences.", rich_help_panel=_PANEL, show_default="16")
    ] = None,
    calibration_length: Annotated[
        int | None, typer.Option(help="Tokens in each.", rich_help_panel=_PANEL, show_default="256")
    ] = None,
    calibration_seed: Annotated[
        int | None,
        typer.Option(help="Chooses the passages.", rich_help_panel=_PANEL, show_default="0"),
    ] = None,
    registry: RegistryOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print as JSON, with every layer.")
    ] = False,
) -> None:
    """Quantize a model into a folder, layer by layer; an interrupted run goes on.

    The folder is in the compressed-tensors format, which transformers and vLLM load.
    """
    from infopt.quantization import quantize_model

    load_registry(registry)
    calibration = {
        "domain": calibration_domain,
        "num_sequences": calibration_num_sequences,
        "length": calibration_length,
        "seed": calibration_seed,
    }
    given = {key: value for key, value in calibration.items() if value is not None}
    report = quantize_model(model, scheme, out, calibration=given or None, progress=not as_json)
    if as_json:
        print_json(report.to_dict() | {"folder": str(report.folder)})
        return
    output().print(_table(report))
    for remark in _remarks(report):
        note(remark)
    note(f"wrote {report.folder}")


def _table(report: QuantizationReport) -> Table:
    table = Table(title=escape(report.scheme), title_justify="left", box=None)
    for column in ("format", "layers", "weights", "bits a weight", "output error", "scaled"):
        table.add_column(column, justify="left" if column == "format" else "right")
    for name in report.formats:
        table.add_row(escape(name), *_cells([r for r in report.layers if r.format == name]))
    if len(report.formats) > 1:
        table.add_row("all", *_cells(report.layers))
    return table


def _cells(layers: Any) -> list[str]:
    """Return layers, weights, bits, mean output error on the calibration text, layers scaled."""
    num_weights = sum(layer.num_weights for layer in layers)
    bits = sum(layer.bits * layer.num_weights for layer in layers) / num_weights
    errors = [layer.relative_error for layer in layers if layer.relative_error is not None]
    error = f"{sum(errors) / len(errors):.2%}" if errors else "-"
    scaled = sum(bool(layer.exponent) for layer in layers)
    return [str(len(layers)), f"{num_weights:,}", f"{bits:.3f}", error, str(scaled)]


def _remarks(report: QuantizationReport) -> list[str]:
    """Return what a reader of the table must know."""
    text = f"{report.num_bytes / 2**20:.1f} MiB of weights, {report.duration_s:.1f} s"
    if report.calibration is None:
        found = [f"{text}, no calibration"]
    else:
        chosen = report.calibration
        found = [f"{text}, {report.calibration_tokens:,} tokens of {chosen.domain} text"]
    fell_back = [layer for layer in report.layers if layer.fell_back is not None]
    if fell_back:
        first = fell_back[0]
        found.append(
            f"{len(fell_back)} layers were coded better by {first.fell_back}, the first: "
            f"{first.name}"
        )
    damped = [layer.damping for layer in report.layers if layer.damping is not None]
    if damped:
        found.append(f"damping raised in {len(damped)} layers, to {max(damped):g} at most")
    return found
