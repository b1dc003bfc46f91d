"""Which layers share block tables, and how many pages and bytes that takes."""

import pytest

from infopt.cache.groups import KVLayout, plan_layout
from infopt.models.config import ModelConfig


def config_of(kinds: str, window: int | None = 512) -> ModelConfig:
    """``"wwf"`` is two window layers and a full one."""
    return ModelConfig(
        family="gemma3_text",
        vocab_size=64,
        num_real_tokens=64,
        hidden_size=8,
        intermediate_size=8,
        num_layers=len(kinds),
        num_heads=2,
        num_kv_heads=1,
        head_dim=256,
        max_position_embeddings=8192,
        layer_kinds=tuple("window" if kind == "w" else "full" for kind in kinds),
        attention_scale=1.0,
        sliding_window=window,
    )


def plan(kinds: str, window: int | None = 512, max_model_len: int = 8192) -> KVLayout:
    return plan_layout(config_of(kinds, window), 16, 2, max_model_len)


@pytest.mark.parametrize(
    ("kinds", "windows", "sizes"),
    [
        ("wwwwwf" * 3, [None] + [512] * 5, [3] * 6),  # Gemma 3 270M: 15 window, 3 full layers
        ("wwwwwf" * 4 + "ww", [None] + [512] * 6, [4] * 6 + [2]),  # Gemma 3 1B: 22 + 4
        ("f" * 6, [None], [6]),
        ("w" * 6, [512], [6]),
    ],
)
def test_layers_form_groups_of_the_size_of_the_rarer_kind(kinds, windows, sizes) -> None:
    layout = plan(kinds)
    assert [group.window for group in layout.groups] == windows
    assert [len(group.layers) for group in layout.groups] == sizes
    assert layout.layers_per_group == max(sizes)
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(
        range(len(kinds))
    )
    for layer, kind in enumerate(kinds):
        group, slot = layout.place_of(layer)
        assert (layout.groups[group].window is not None) == (kind == "w")
        assert slot < layout.layers_per_group


def test_no_two_layers_share_a_place() -> None:
    layout = plan("wwwwwf" * 4 + "ww")
    places = [layout.place_of(layer) for layer in range(26)]
    assert len(set(places)) == 26


@pytest.mark.parametrize("max_model_len", [511, 512])
def test_a_window_that_nothing_outgrows_is_full_attention(max_model_len: int) -> None:
    layout = plan("wwwwwf", max_model_len=max_model_len)
    assert [group.window for group in layout.groups] == [None]
    assert plan("wwwwwf", max_model_len=513).groups[-1].window == 512


def test_bytes_per_token_are_those_of_the_layers() -> None:
    """2 * layers * heads * head_dim * bytes, and more only where a group has empty slots."""
    for kinds in ("wwwwwf" * 3, "f" * 6):
        layout = plan(kinds)
        assert layout.bytes_per_token == config_of(kinds).kv_bytes_per_token(2)
        assert layout.page_bytes == layout.bytes_per_token * 16 / len(layout.groups)
    uneven = plan("wwwwwf" * 4 + "ww")
    assert uneven.bytes_per_token == config_of("f" * 28).kv_bytes_per_token(2)


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
@pytest.mark.parametrize("length", [1, 5, 16, 17, 40, 100])
def test_the_page_bound_holds_at_every_moment(shadow_cache, length: int, chunk: int) -> None:
    """Driving a sequence chunk by chunk never takes more pages than ``max_pages`` promises."""
    shadow = shadow_cache(None, 8, 13, num_pages=200)
    cache, tokens = shadow.manager.new_sequence(), list(range(length))
    bound = shadow.manager.layout.max_pages(length, chunk)
    while cache.num_tokens < length:
        end = min(cache.num_tokens + chunk, length)
        assert shadow.manager.allocate(cache, end)
        assert shadow.pool.num_used <= bound
        shadow.manager.commit(cache, tokens, end)
    shadow.manager.check_integrity()


def test_the_page_bound_grows_with_the_length() -> None:
    layout = plan("wwf", window=40)
    bounds = [layout.max_pages(length, 24) for length in range(1, 300)]
    assert bounds == sorted(bounds)
