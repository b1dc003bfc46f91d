"""Quantizes a model layer by layer, each on the outputs of the quantized layers before it.

Only one layer's weights are in memory, beside the hidden states of the calibration text. For each
layer: run it in float and gather the statistics of its inputs; scale channels if the method asks
for it and fold the scales into what makes the inputs; choose codes; run the quantized layer for the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from infopt.models.checkpoint import Checkpoint
from infopt.models.config import ModelConfig
from infopt.models.tensor_names import (
    EMBEDDING,
    EMBEDDING_LAYER,
    FINAL_NORM,
    HEAD,
    HEAD_LAYER,
    expected_tensors,
)
from infopt.ops.rms_norm import rms_norm
from infopt.quantization.balance import Balance
from infopt.quantization.block import Block, Rope
from infopt.quantization.coded import ActivationFormat, CodedWeight, WeightFormat
from infopt.quantization.folding import fold
from infopt.quantization.linear_report import LinearReport, report_linear
from infopt.quantization.methods import SCALE_DTYPE, LayerWork, Method, Quantized, make_method
from infopt.quantization.names import Recipe
from infopt.quantization.products import round_input
from infopt.quantization.rtn import rtn
from infopt.quantization.statistics import InputStatistics

MIN_EXPERT_TOKENS = 64
"""Calibration tokens below which an expert's weights are rounded and its inputs not calibrated."""

_BATCH = 8  # sequences at a time


@dataclass(slots=True)
class QuantizedLayer:
    """A layer, ready to be stored.

    Attributes:
        index: Which layer; None for the head.
        coded: Weights by canonical name of the linear layer.
        tensors: The layer's other tensors by canonical name, scales folded in.
        reports: One per linear layer.
        embedding: Codes of the embedding, beside the head.
    """

    index: int | None
    coded: dict[str, CodedWeight]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    reports: list[LinearReport] = field(default_factory=list)
    embedding: CodedWeight | None = None


FormatOf = Callable[[str], WeightFormat]
"""Format of a linear layer by canonical name."""


class LayerwiseQuantizer:
    """Quantizes the layers of a checkpoint in order.

    Args:
        checkpoint: Float weights.
        recipe: The scheme.
        token_ids: Calibration text, int64 ``(num_sequences, length)``; None where the scheme needs
            none.
        format_of: Formats per layer, where they differ (mixed precision).
        scale_dtype: Type in which scales are stored.

    Attributes:
        hidden: Inputs of the next layer, ``(num_sequences, length, hidden_size)``; None without
            calibration text.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: Recipe,
        token_ids: torch.Tensor | None,
        format_of: FormatOf | None = None,
        scale_dtype: torch.dtype = SCALE_DTYPE,
    ) -> None:
        """Embed the calibration text."""
        self._checkpoint, self._config, self._recipe = checkpoint, checkpoint.config, recipe
        self._methods: dict[Recipe, Method] = {
            each: make_method(each, scale_dtype) for each in recipe.all
        }
        self._scale_dtype = scale_dtype
        self._dtype = checkpoint.stored_dtype(EMBEDDING)
        self._format_of = format_of or (lambda name: recipe.of(name).weight)
        self._coded_embedding = self._code_embedding()
        self.hidden = None if token_ids is None else self._embed(token_ids)
        self._rope = None if token_ids is None else Rope(self._config, token_ids.shape[1])

    def layer(self, index: int) -> QuantizedLayer:
        """Quantize the next layer (layers come in order)."""
        block = read_block(self._checkpoint, index)
        with torch.inference_mode():
            statistics = self._observe(block)
            balances = self._balance(block, statistics)
            made = self._quantize(block, statistics, balances)
            self.advance(block, made.coded)
        linears = {f"{name}.weight" for name in block.inputs.linears}
        made.tensors = {
            block.prefix + name: tensor
            for name, tensor in block.tensors.items()
            if name not in linears
        }
        return made

    def outside(self) -> QuantizedLayer:
        """Return what is outside the layers: the head, and the embedding where it is coded."""
        made = self._head()
        if self._coded_embedding is not None:
            coded, report = self._coded_embedding
            made.embedding = coded
            made.tensors[EMBEDDING] = coded.dequantize()
            made.reports.append(report)
        return made

    def _code_embedding(self) -> tuple[CodedWeight, LinearReport] | None:
        """Round the embedding where bits are shared out over the whole model, and not elsewhere.

        It is looked up, not multiplied: there is no output error to be minimized.
        """
        if self._recipe.average_bits is None:
            return None
        table = self._checkpoint.get(EMBEDDING)
        fmt = self._format_of(EMBEDDING_LAYER)
        coded = rtn(table, fmt, scale_dtype=self._scale_dtype, layer=EMBEDDING_LAYER)
        work = LayerWork(EMBEDDING_LAYER, table, fmt)
        return coded, report_linear(work, Quantized(coded))

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._coded_embedding is None:
            table = self._checkpoint.get(EMBEDDING)
        else:
            table = self._coded_embedding[0].dequantize()
        return embed(self._config, table, token_ids)

    def _head(self) -> QuantizedLayer:
        """Quantize the head (after the layers); its channels are not scaled."""
        name = EMBEDDING if self._config.tie_word_embeddings else HEAD
        weight = self._checkpoint.get(name)
        with torch.inference_mode():
            seen = self._observe_head()
            work = LayerWork(HEAD_LAYER, weight, self._head_format(), seen)
            found = self._methods[self._recipe].quantize(work)
            found.coded.activation = self._recipe.head_activation
            report = report_linear(work, found)
        return QuantizedLayer(None, {HEAD_LAYER: found.coded}, reports=[report])

    def _observe_head(self) -> InputStatistics | None:
        if self.hidden is None:
            return None
        norm = self._checkpoint.get(FINAL_NORM)
        seen = InputStatistics(norm.numel())
        for part in self.hidden.split(_BATCH):
            seen.add(rms_norm(part, norm, self._config.rms_norm_eps), HEAD_LAYER)
        return seen

    def advance(self, block: Block, coded: Mapping[str, CodedWeight]) -> None:
        """Move the calibration text through a layer with these codes."""
        if self.hidden is None or self._rope is None:
            return
        tensors, inputs = dict(block.tensors), block.inputs
        for name in inputs.linears:
            tensors[f"{name}.weight"] = coded[block.prefix + name].dequantize()
        quantized = Block(block.config, block.index, tensors)
        activations = {
            kind: coded[block.prefix + readers[0]].activation
            for kind, readers in inputs.readers.items()
        }

        def rounded(kind: str, x: torch.Tensor) -> torch.Tensor:
            return round_input(x, activations[kind]) if kind in activations else x

        for start in range(0, len(self.hidden), _BATCH):
            part = self.hidden[start : start + _BATCH]
            part.copy_(quantized.forward(part, self._rope, rounded))

    def _head_format(self) -> WeightFormat:
        return self._format_of(HEAD_LAYER) if self._recipe.average_bits else self._recipe.head

    def _observe(self, block: Block) -> dict[str, InputStatistics]:
        """Return the statistics of each input of the layer."""
        if self.hidden is None or self._rope is None:
            return {}
        inputs = block.inputs
        scaled = {kind: inputs.scaled_readers(kind) for kind in inputs.scalings}
        kinds = {**inputs.readers, **scaled}
        statistics = {
            kind: InputStatistics(block.weight(readers[0]).shape[1])
            for kind, readers in kinds.items()
        }

        def observe(kind: str, x: torch.Tensor) -> torch.Tensor:
            statistics[kind].add(x, f"{block.prefix}{kind}")
            return x

        for start in range(0, len(self.hidden), _BATCH):
            block.forward(self.hidden[start : start + _BATCH], self._rope, observe)
        return statistics

    def _balance(self, block: Block, statistics: dict[str, InputStatistics]) -> dict[str, Balance]:
        """Scale channels where the method asks for it; changes block and statistics."""
        balances: dict[str, Balance] = {}
        inputs = block.inputs
        for kind, scaling in inputs.scalings.items():
            if kind not in statistics or not _is_covered(block, kind, statistics[kind]):
                continue
            readers = inputs.scaled_readers(kind)
            recipe = self._recipe.of(readers[0])
            found = self._methods[recipe].balance(
                [block.weight(name) for name in readers if self._recipe.of(name) == recipe],
                self._format_of(block.prefix + readers[0]),
                statistics[kind],
                block.prefix + kind,
            )
            if found is None:
                continue
            scale = fold(block, kind, found.scale, self._dtype)
            for each in scaling.inputs:
                balances[each] = found
                statistics[each] = statistics[each].divided_by(scale)
        return balances

    def _quantize(
        self,
        block: Block,
        statistics: Mapping[str, InputStatistics],
        balances: Mapping[str, Balance],
    ) -> QuantizedLayer:
        made = QuantizedLayer(block.index, {})
        for kind, readers in block.inputs.readers.items():
            seen = statistics.get(kind)
            usable = seen if seen is None or _is_covered(block, kind, seen) else None
            is_expert = kind in block.inputs.experts
            for name in readers:
                full = block.prefix + name
                recipe = self._recipe.of(full)
                work = LayerWork(full, block.weight(name), self._format_of(full), usable)
                found = self._methods[recipe].quantize(work)
                found.coded.activation = self._activation(recipe, usable)
                if usable is not seen:
                    found = replace(found, fell_back=_without_text(recipe))
                made.coded[full] = found.coded
                report = replace(
                    report_linear(work, found),
                    exponent=balances[kind].exponent if kind in balances else None,
                    tokens=seen.num_rows if is_expert and seen is not None else None,
                )
                made.reports.append(report)
        return made

    def _activation(self, recipe: Recipe, statistics: InputStatistics | None) -> ActivationFormat:
        """Return what happens to an input; without statistics each row gets a step of its own."""
        activation = recipe.activation
        if activation.kind != "static":
            return activation
        if statistics is None:
            return replace(activation, kind="dynamic")
        largest = statistics.largest or 1.0
        step = torch.tensor(largest / activation.steps_to_largest).to(self._scale_dtype)
        return replace(activation, scale=float(step))


def _is_covered(block: Block, kind: str, statistics: InputStatistics) -> bool:
    """Tell whether enough text came by; only experts may see little of it."""
    return kind not in block.inputs.experts or statistics.num_rows >= MIN_EXPERT_TOKENS


def _without_text(recipe: Recipe) -> str | None:
    """Return what an expert gets that saw too little text, where that is not what it would get."""
    words = [] if recipe.method == "rtn" else ["rtn"]
    return ", ".join(words + ["dynamic"] * (recipe.activation.kind == "static")) or None


def embed(config: ModelConfig, table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return float32 embeddings ``(num_sequences, length, hidden_size)``."""
    return F.embedding(token_ids, table) * config.embedding_scale


def read_block(checkpoint: Checkpoint, index: int) -> Block:
    """Read a layer in float32."""
    prefix = f"model.layers.{index}."
    names = [name for name in expected_tensors(checkpoint.config) if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): checkpoint.get(name) for name in names}
    return Block(checkpoint.config, index, tensors)
