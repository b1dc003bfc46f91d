"""A family whose pages would give other answers is refused when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infopt.errors import UnsupportedModelError
from infopt.models.fallback import attention
from infopt.models.fallback.cache import PagedLayer
from infopt.models.fallback.load import load
from infopt.models.fallback.model import TransformersModel
from infopt.models.fallback.route import find_route
from infopt.ops import resolve_ops

CPU = torch.device("cpu")


def make(folder: Path, dtype: torch.dtype = torch.float32) -> TransformersModel:
    route = find_route(folder)
    assert route is not None
    ops = resolve_ops("auto", CPU, dtype)
    return TransformersModel(load(route, dtype, CPU), ops, dtype=dtype, device=CPU, block_size=16)


@pytest.mark.parametrize("family", ["gpt_oss", "glm_moe_dsa", "gemma3n_text"])
def test_the_error_is_rounding(family_dir: Callable[[str], Path], family: str) -> None:
    error = make(family_dir(family)).check_error
    assert error is not None and error < 1e-5


def test_types_that_round_have_a_wider_limit(family_dir: Callable[[str], Path]) -> None:
    error = make(family_dir("gpt_oss"), torch.bfloat16).check_error
    assert error is not None and 1e-5 < error < 5e-2


@pytest.mark.parametrize(
    ("family", "lost"), [("gpt_oss", "s_aux"), ("glm_moe_dsa", "indices"), ("gemma2", "softcap")]
)
def test_a_lost_argument_is_noticed(
    family_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str, lost: str
) -> None:
    """As elsewhere: sinks, sparse choices and caps that never reached the kernel."""
    attend = attention.attend

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop(lost, None)
        return attend(*args, **kwargs)

    monkeypatch.setattr(attention, "attend", forgetful)
    with pytest.raises(UnsupportedModelError, match=f"{family}.*differs from transformers"):
        make(family_dir(family))
    monkeypatch.undo()
    attention.register()


def test_rows_in_wrong_order_are_noticed(
    family_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = PagedLayer._exchange

    def rolled(self: PagedLayer, name: str, new: torch.Tensor) -> torch.Tensor:
        rows = read(self, name, new)
        return rows.roll(1, 1) if name == "values" else rows

    monkeypatch.setattr(PagedLayer, "_exchange", rolled)
    with pytest.raises(UnsupportedModelError, match="differs"):
        make(family_dir("minimax_m2"))


def test_models_that_look_ahead_are_refused(tmp_path: Path) -> None:
    """transformers has a causal class for BERT; as configured by default it sees later tokens."""
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="bert"):
        make(tmp_path)


def test_attention_is_switched_back(family_dir: Callable[[str], Path]) -> None:
    model = make(family_dir("gpt_oss"))
    assert model._base.config._attn_implementation == attention.NAME


@pytest.mark.parametrize("name", ["linears", "layers"])
def test_what_only_native_models_have_is_refused_by_name(
    family_dir: Callable[[str], Path], name: str
) -> None:
    model = make(family_dir("gpt_oss"))
    with pytest.raises(UnsupportedModelError, match="gpt_oss"):
        getattr(model, name)
    with pytest.raises(UnsupportedModelError, match="gpt_oss"):
        model.ops = model.ops


def test_active_weights(family_dir: Callable[[str], Path]) -> None:
    config = make(family_dir("gpt_oss")).config
    expert = 64 * 2 * 96 + 2 * 96 + 96 * 64 + 64
    assert config.num_parameters - config.num_active_parameters == 2 * (4 - 2) * expert
