"""A fake model for the evaluations: bytes as tokens, a fixed table as its mind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from infopt.outputs import CompletionOutput, RequestOutput, ScoreOutput

VOCAB_SIZE = 257  # 256 bytes and one special token
SPECIAL_ID = 256


class ByteTokenizer:
    """Fake tokenizer: one token per UTF-8 byte; id 256 is BOS and EOS."""

    eos_token_id = SPECIAL_ID
    vocab_size = VOCAB_SIZE

    def __init__(self, adds_bos: bool) -> None:
        self.bos_token_id = SPECIAL_ID if adds_bos else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        bos = [SPECIAL_ID] if add_special_tokens and self.bos_token_id is not None else []
        return [*bos, *text.encode()]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i != SPECIAL_ID).decode(
            "utf-8", "replace"
        )

    def token_bytes(self, token_id: int) -> bytes:
        return b"<s>" if token_id == SPECIAL_ID else bytes([token_id])


class FakeLLM:
    """Fake model: the next token's logits are a table's row for the current token.

    Args:
        table: Logits, shape (257, 257).
        complete: Maps a prompt to the completion that ``generate`` returns.
        max_model_len: Longest request.
        adds_bos: Whether the tokenizer starts texts with BOS.
    """

    def __init__(
        self,
        table: torch.Tensor,
        *,
        complete: Callable[[str], str] = lambda prompt: "",
        max_model_len: int | None = None,
        adds_bos: bool = False,
    ) -> None:
        self.table = table
        self.complete = complete
        self.tokenizer = ByteTokenizer(adds_bos)
        self.config = SimpleNamespace(max_model_len=max_model_len, name="fake")
        self.model_config = SimpleNamespace(max_position_embeddings=8192, vocab_size=table.shape[1])
        self.batches: list[int] = []

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        return self.table[token_ids]

    def score(
        self, texts: list, *, start: int | list[int] = 0, use_tqdm: bool = True
    ) -> list[ScoreOutput]:
        self.batches.append(len(texts))
        starts = [start] * len(texts) if isinstance(start, int) else start
        whole = [self._score([*text]) for text in texts]
        return [_from(score, max(at, 1)) for score, at in zip(whole, starts, strict=True)]

    def _score(self, ids: list[int]) -> ScoreOutput:
        log_p = self.logits(ids)[:-1].log_softmax(-1)
        targets = torch.tensor(ids[1:])
        values = log_p.gather(1, targets[:, None])[:, 0].tolist()
        greedy = (log_p.argmax(-1) == targets).tolist()
        return ScoreOutput(ids, [None, *values], [None, *greedy])

    def generate(self, prompts, sampling_params=None, *, use_tqdm: bool = True):
        self.batches.append(len(prompts))
        outputs = []
        for i, prompt in enumerate(prompts):
            text = self.complete(self.tokenizer.decode(list(prompt)))
            completion = CompletionOutput(0, text, [*text.encode()], finish_reason="stop")
            outputs.append(RequestOutput(str(i), None, list(prompt), [completion], finished=True))
        return outputs


def _from(score: ScoreOutput, start: int) -> ScoreOutput:
    """Return the score without what was not asked for."""
    unknown = [None] * start
    return ScoreOutput(
        score.token_ids,
        unknown + score.logprobs[start:],
        unknown + score.greedy_matches[start:],
    )


@pytest.fixture
def uniform_llm() -> FakeLLM:
    """Fake model that knows nothing: every token is equally likely."""
    return FakeLLM(torch.zeros(VOCAB_SIZE, VOCAB_SIZE))


@pytest.fixture
def make_bigram() -> Callable[..., FakeLLM]:
    """Return a maker of fake models with a random but fixed bigram table."""

    def make(seed: int = 0, noise: float = 0.0, **options) -> FakeLLM:
        table = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
        shift = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(99))
        return FakeLLM(table + noise * shift, **options)

    return make


class TextJudgeLLM(FakeLLM):
    """Fake model that gives each token of a text the log-probability that a function says."""

    def __init__(self, judge: Callable[[str], float]) -> None:
        super().__init__(torch.zeros(VOCAB_SIZE, VOCAB_SIZE))
        self.judge = judge

    def _score(self, ids: list[int]) -> ScoreOutput:
        value = self.judge(self.tokenizer.decode(ids))
        num = len(ids) - 1
        return ScoreOutput(ids, [None, *[value] * num], [None, *[False] * num])


@pytest.fixture
def make_judge() -> Callable[[Callable[[str], float]], TextJudgeLLM]:
    """Return a maker of fake models that score whole texts by a function."""
    return TextJudgeLLM


@pytest.fixture
def make_writer() -> Callable[..., FakeLLM]:
    """Return a maker of fake models that complete prompts by a function."""

    def make(complete: Callable[[str], str], **options) -> FakeLLM:
        return FakeLLM(torch.zeros(VOCAB_SIZE, VOCAB_SIZE), complete=complete, **options)

    return make
