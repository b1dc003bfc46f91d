"""What fits into a budget, by hand."""

from infopt.cache.fit import COMPRESSIONS, Compression, fits, lengths_up_to, page_rules
from infopt.cache.memory_model import KVShape, QuantizedForm

SMOL = KVShape(30, 0, 0, 3, 128)


def count(how, length, budget, shape=SMOL):
    form = QuantizedForm.named(how.dtype)
    (found,) = fits(shape, page_rules(shape, quantized=form), budget, [length], how)
    return found


def test_whole_pages_are_counted():
    page = 16 * SMOL.bytes_per_token()
    found = count(COMPRESSIONS[0], 33, 9 * page)
    assert found.num_seqs == 3
    assert found.bytes_per_token == 3 * page / 33
    assert found.waste == 15 / 48


def test_quantizing_and_evicting_hold_more_and_the_more_the_longer():
    budget = 2**40
    held = {how.name: count(how, 8192, budget).num_seqs for how in COMPRESSIONS}
    assert list(held.values()) == sorted(held.values())
    short, long = (
        count(Compression("int8", "int8"), n, budget).num_seqs
        / count(COMPRESSIONS[0], n, budget).num_seqs
        for n in (256, 32768)
    )
    assert short < long < 1 / 0.53125 * 1.05


def test_window_layers_hold_their_window_only():
    shape = KVShape(5, 15, 512, 1, 512)
    budget = 2**30
    whole = count(COMPRESSIONS[0], 8192, budget, KVShape(20, 0, 0, 1, 512))
    assert count(COMPRESSIONS[0], 8192, budget, shape).num_seqs > 3 * whole.num_seqs


def test_a_budget_below_one_sequence_holds_none():
    assert count(COMPRESSIONS[0], 4096, 1000).num_seqs == 0


def test_lengths_end_with_the_models_limit():
    assert lengths_up_to(8192) == [512, 2048, 8192]
    assert lengths_up_to(1000) == [512, 1000]
    assert lengths_up_to(100) == [100]
