"""What modules hand to attention is used or refused; nothing is ignored."""

from __future__ import annotations

import pytest
import torch

from infopt.errors import UnsupportedModelError
from infopt.models.fallback.attention import NAME, attend, mask, register

NUM_NEW, COLUMNS, HEADS, KV_HEADS, WIDTH = 3, 7, 4, 2, 8


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, HEADS, NUM_NEW, WIDTH), (2, KV_HEADS, COLUMNS, WIDTH), (2, KV_HEADS, COLUMNS, 6))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def causal() -> torch.Tensor:
    queries = torch.arange(COLUMNS - NUM_NEW, COLUMNS)[:, None]
    return (torch.arange(COLUMNS) <= queries).expand(2, 1, NUM_NEW, COLUMNS)


def naive(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float = WIDTH**-0.5,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One query at a time, one key at a time, in float64."""
    out = torch.zeros(2, NUM_NEW, HEADS, value.shape[-1], dtype=torch.float64)
    for b in range(2):
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            for q in range(NUM_NEW):
                scores = {
                    k: float(query[b, h, q].double() @ key[b, kv, k].double()) * scale
                    for k in range(COLUMNS)
                    if bool(visible[b, 0, q, k])
                }
                if softcap is not None:
                    for k, s in scores.items():
                        scores[k] = softcap * float(torch.tanh(torch.tensor(s / softcap)))
                weights = {k: float(torch.tensor(s).double().exp()) for k, s in scores.items()}
                extra = 0.0 if sinks is None else float(sinks[h].double().exp())
                total = sum(weights.values()) + extra
                for k, w in weights.items():
                    out[b, q, h] += w / total * value[b, kv, k].double()
    return out.float()


def test_plain(qkv: tuple[torch.Tensor, ...]) -> None:
    out, weights = attend(torch.nn.Identity(), *qkv, causal())
    assert weights is None and out.shape == (2, NUM_NEW, HEADS, 6)
    torch.testing.assert_close(out, naive(*qkv, causal()), atol=1e-5, rtol=1e-5)


def test_scaling(qkv: tuple[torch.Tensor, ...]) -> None:
    out, _ = attend(torch.nn.Identity(), *qkv, causal(), scaling=0.7)
    torch.testing.assert_close(out, naive(*qkv, causal(), scale=0.7), atol=1e-5, rtol=1e-5)


def test_softcap(qkv: tuple[torch.Tensor, ...]) -> None:
    out, _ = attend(torch.nn.Identity(), *qkv, causal(), scaling=1.0, softcap=0.5)
    expected = naive(*qkv, causal(), scale=1.0, softcap=0.5)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    uncapped, _ = attend(torch.nn.Identity(), *qkv, causal(), scaling=1.0)
    assert (out - uncapped).abs().max() > 1e-2


def test_sinks_take_weight_and_add_nothing(qkv: tuple[torch.Tensor, ...]) -> None:
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
    out, _ = attend(torch.nn.Identity(), *qkv, causal(), s_aux=sinks)
    expected = naive(*qkv, causal(), sinks=sinks)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    without, _ = attend(torch.nn.Identity(), *qkv, causal())
    assert (out - without).abs().max() > 1e-2


def test_window_counts_the_query_itself(qkv: tuple[torch.Tensor, ...]) -> None:
    out, _ = attend(torch.nn.Identity(), *qkv, causal(), sliding_window=2)
    queries = torch.arange(COLUMNS - NUM_NEW, COLUMNS)[:, None]
    visible = causal() & (torch.arange(COLUMNS) >= queries - 1)
    torch.testing.assert_close(out, naive(*qkv, visible), atol=1e-5, rtol=1e-5)


def test_sparse_choice(qkv: tuple[torch.Tensor, ...]) -> None:
    """The choice narrows the mask and never widens it: column 6 is the future of query 0."""
    indices = torch.tensor([[0, 6], [1, 2], [3, 6]], dtype=torch.int32).expand(2, -1, -1)
    out, _ = attend(torch.nn.Identity(), *qkv, causal(), indices=indices)
    chosen = torch.zeros(2, 1, NUM_NEW, COLUMNS, dtype=torch.bool)
    for query, columns in enumerate(indices[0].tolist()):
        chosen[:, 0, query, columns] = True
    torch.testing.assert_close(out, naive(*qkv, causal() & chosen), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "others",
    [
        {"position_bias": torch.zeros(1)},
        {"alibi": torch.zeros(1)},
        {"head_mask": torch.ones(1)},
        {"dropout": 0.1},
        {"is_causal": False},
        {"output_attentions": True},
        {"something_new": 0},
    ],
    ids=lambda others: next(iter(others)),
)
def test_anything_else_is_refused_by_name(
    qkv: tuple[torch.Tensor, ...], others: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedModelError, match=next(iter(others))):
        attend(torch.nn.Identity(), *qkv, causal(), **others)  # type: ignore[arg-type]


def test_none_and_arguments_without_effect_pass(qkv: tuple[torch.Tensor, ...]) -> None:
    plain, _ = attend(torch.nn.Identity(), *qkv, causal())
    out, _ = attend(
        torch.nn.Identity(), *qkv, causal(), position_ids=torch.zeros(1), alibi=None, is_causal=True
    )
    assert torch.equal(out, plain)


@pytest.mark.parametrize("bad", [None, torch.zeros(2, 1, NUM_NEW, COLUMNS)])
def test_masks_of_another_kind_are_refused(
    qkv: tuple[torch.Tensor, ...], bad: torch.Tensor | None
) -> None:
    with pytest.raises(UnsupportedModelError, match="mask"):
        attend(torch.nn.Identity(), *qkv, bad)


def test_keys_beside_the_mask_are_refused(qkv: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match="in no mask"):
        attend(torch.nn.Identity(), *qkv, causal()[..., 1:])


def test_mask_is_never_left_out() -> None:
    visible = mask(
        batch_size=1, q_length=2, kv_length=2, q_offset=0, kv_offset=0, allow_is_causal_skip=True
    )
    assert visible.tolist() == [[[[True, False], [True, True]]]]


def test_registering_makes_the_name_known() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    register()
    register()
    assert ALL_ATTENTION_FUNCTIONS[NAME] is attend
    assert ALL_MASK_ATTENTION_FUNCTIONS[NAME] is mask
