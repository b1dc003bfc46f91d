"""Decoding a given text: the logits are those of reading it, and bad windows are refused."""

import pytest
import torch

from infopt import LLM
from infopt.errors import MeasurementError, PromptTooLongError
from infopt.evals.forced import ForcedText, compare_forced, forced_logits
from infopt.evals.windows import Window, scored_logits


@pytest.fixture(scope="module")
def llm(tiny_model_dir):
    with LLM(str(tiny_model_dir("llama")), dtype="float32", max_num_seqs=4, block_size=4) as llm:
        yield llm


def window(seed, length=40, num_scored=7):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (length,), generator=generator).tolist()
    return Window(tuple(ids), num_scored)


def test_decoded_logits_are_those_of_reading_the_text(llm):
    windows = [window(0), window(1, length=90, num_scored=20), window(2, length=9)]
    found = forced_logits(llm, windows)
    for logits, made in zip(found, windows, strict=True):
        expected = scored_logits(llm, made)
        assert logits.shape == expected.shape
        assert torch.equal(logits, expected)  # float32: batch-invariant to the bit
    assert llm.engine.logit_observer is None
    assert not llm.engine.has_unfinished
    parts = compare_forced(found, llm, windows)
    assert all(part.kl.max() == 0 for part in parts)


def test_the_text_is_forced_past_an_end_of_sequence(llm):
    ends = llm.model_config.eos_token_ids
    made = Window((5, 6, 7, 8, *ends, 9, 10, 11), 4)
    (logits,) = forced_logits(llm, [made])
    assert logits.shape[0] == 4


def test_a_window_without_a_prompt_is_refused(llm):
    with pytest.raises(MeasurementError, match="no prompt"):
        forced_logits(llm, [Window((1, 2, 3, 4), 3)])
    with pytest.raises(PromptTooLongError):
        forced_logits(llm, [window(0, length=600)])


def test_other_requests_go_on(llm):
    from infopt import SamplingParams

    alone = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=12))
    llm.engine.add_request("other", [1, 2, 3], SamplingParams(temperature=0, max_tokens=12))
    forced_logits(llm, [window(3, num_scored=3)])
    tokens = None
    while llm.engine.has_unfinished:
        for output in llm.engine.step():
            tokens = output.outputs[0].token_ids
    assert tokens == alone[0].outputs[0].token_ids


def test_the_constraint_allows_one_token_and_can_go_back():
    text = ForcedText([3, 1, 2], 5)
    assert text.allowed().tolist() == [False, False, False, True, False]
    assert not text.accept(1)
    assert text.accept(3) and text.accept(1)
    text.rollback(1)
    assert text.allowed().nonzero().flatten().tolist() == [1]
    assert text.accept(1) and text.accept(2)
    assert text.is_terminated
    assert not text.allowed().any()
    assert not text.accept(2)
