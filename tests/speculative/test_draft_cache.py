"""Rows of a draft model follow an output: kept where guesses were right, dropped where not."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from infopt.cache.groups import KVGroup, KVLayout
from infopt.cache.manager import CacheManager
from infopt.engine.drafting import DraftRequest
from infopt.speculative.draft_cache import DraftCache, DraftText


def make(num_pages: int = 40, *, prefix: bool = True) -> DraftCache:
    layout = KVLayout((KVGroup((0,)),), 1, 4, 1, 1, 4)
    return DraftCache(CacheManager(layout, num_pages, {}, prefix))


def write(text: DraftText, guesses: list[int]) -> None:
    """Do what a drafter does: compute the known tokens, then each guess but the last."""
    text.sequence.token_ids.extend(guesses)
    text.num_written = len(text.sequence.token_ids) - bool(guesses)


def test_right_guesses_keep_their_rows_and_the_last_one_is_filled_in() -> None:
    """Pins: the row of the last guess was never computed, and was missing when all were right."""
    texts, known = make(), list(range(10))
    text = texts.prepare(DraftRequest(1, known, 3), {1})
    assert text is not None
    assert text.num_written == 0
    write(text, [10, 11, 12])
    assert text.num_written == 12
    text = texts.prepare(DraftRequest(1, [*known, 10, 11, 12, 13], 3), {1})
    assert text is not None
    assert text.num_written == 12  # 12 and 13 are to be computed
    assert text.sequence.token_ids == list(range(14))


def test_rows_behind_a_wrong_guess_are_dropped() -> None:
    texts, known = make(), list(range(10))
    text = texts.prepare(DraftRequest(1, known, 5), {1})
    assert text is not None
    write(text, [10, 11, 99, 98, 97])
    text = texts.prepare(DraftRequest(1, [*known, 10, 11, 12], 5), {1})
    assert text is not None
    assert text.num_written == 12
    assert text.sequence.token_ids == list(range(13))


def test_a_known_prefix_is_adopted() -> None:
    texts, known = make(), list(range(17))
    text = texts.prepare(DraftRequest(1, known, 2), {1})
    assert text is not None
    write(text, [])
    texts.prepare(DraftRequest(1, [*known, 17], 2), {1})
    texts.forget(1)
    text = texts.prepare(DraftRequest(2, [*known, 50, 51], 2), {2})
    assert text is not None
    assert text.num_written == 16
    assert texts.cache.pool.num_used == 5


def test_outputs_that_rest_give_up_their_pages_first() -> None:
    texts = make(8, prefix=False)
    assert texts.prepare(DraftRequest(1, list(range(12)), 1), {1}) is not None
    assert texts.prepare(DraftRequest(2, list(range(12)), 1), {1, 2}) is not None
    assert texts.prepare(DraftRequest(3, list(range(12)), 1), {1, 2, 3}) is None
    assert texts.num_texts == 2
    assert texts.prepare(DraftRequest(3, list(range(12)), 1), {2, 3}) is not None
    assert texts.num_texts == 2
    texts.cache.check_integrity()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_rows_always_stand_for_the_tokens_they_were_computed_from(seed: int, prefix: bool) -> None:
    """Random outputs grow, are guessed right and wrong, end, and meet a small pool."""
    rng, texts = random.Random(seed), make(24, prefix=prefix)
    outputs: dict[int, list[int]] = {}
    rows: dict[int, int] = {}  # slot of a page -> what was computed into it
    for step in range(60):
        if rng.random() < 0.2 or not outputs:
            outputs[step] = [rng.randrange(3) for _ in range(rng.randint(2, 12))]
        active = set(rng.sample(sorted(outputs), rng.randint(1, len(outputs))))
        for seq_id in sorted(active):
            known, count = outputs[seq_id], rng.randint(1, 5)
            text = texts.prepare(DraftRequest(seq_id, known, count), active)
            if text is None:
                continue
            (table,) = text.sequence.cache.tables
            for position in range(text.num_written):
                expected = hash(tuple(known[: position + 1]))
                assert rows[table[position // 4] * 4 + position % 4] == expected
            guesses = [rng.randrange(3) for _ in range(rng.randint(1, count))]
            written = [*known, *guesses[:-1]]
            for position in range(text.num_written, len(written)):
                rows[table[position // 4] * 4 + position % 4] = hash(tuple(written[: position + 1]))
            write(text, guesses)
        texts.cache.check_integrity()
        for seq_id in list(outputs):
            outputs[seq_id] += [rng.randrange(3) for _ in range(rng.randint(1, 4))]
            if len(outputs[seq_id]) > 30 or rng.random() < 0.05:
                del outputs[seq_id]
                texts.forget(seq_id)
    for seq_id in list(outputs):
        texts.forget(seq_id)
    assert texts.cache.pool.num_used == 0
