from infopt.bench.degenerate import distinct_ngram_share, is_degenerate


def test_varied_text_is_all_distinct() -> None:
    assert distinct_ngram_share(list(range(50))) == 1.0
    assert not is_degenerate(list(range(50)))


def test_a_loop_is_degenerate() -> None:
    """A model that repeats five tokens for ever is copied perfectly by prompt lookup."""
    loop = [1, 2, 3, 4, 5] * 20
    assert distinct_ngram_share(loop) == 5 / 97
    assert is_degenerate(loop)


def test_the_limit_is_sixty_percent() -> None:
    # 10 four-grams of which 6 are distinct: four repeats of [7, 7, 7, 7] after it is first seen.
    at_limit = [1, 2, 3, 4, 5, *[7] * 8]
    assert distinct_ngram_share(at_limit) == 6 / 10
    assert not is_degenerate(at_limit)
    assert is_degenerate([*at_limit, 7])


def test_short_texts_cannot_be_judged() -> None:
    assert distinct_ngram_share([1, 1, 1]) is None
    assert not is_degenerate([1, 1, 1])
