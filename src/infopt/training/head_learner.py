"""How a draft head learns: it is run on its own states, as it will be, and compared with the model.

From a hidden state h_i the head guesses several tokens in a row. Step k reads the true token
x_(i+k) and its own state after the step before (the model's at k = 1), and its distribution is
compared with the model's at h_(i+k), over the tokens that the head knows::

    loss = sum_k decay^(k-1) * cross_entropy(softmax(V h_(i+k)), softmax(V h'_k))

V are the model's own output rows and stay as they are. The head begins as the linear map that comes
closest to the next hidden state (least squares), which is most of what there is to be learned.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from infopt.speculative.head import HeadConfig, HeadWeights
from infopt.training.head_data import HeadData

NUM_STEPS = 3
_DECAY = 0.8
_NUM_ROWS = 256
_RATE = 2e-3
_WARMUP_STEPS = 20
_RIDGE = 1e-2
"""Of the least squares, as a share of the inputs' mean square."""
_BLOCK = 8192


class HeadModule(nn.Module):
    """The network of `infopt.speculative.head`, to be trained.

    Args:
        config: Sizes.
        token_ids: Tokens it knows, ascending.
        vocabulary: The model's output rows of those, ``(num_draft_tokens, hidden_size)``.
        scale: Size of the model's hidden states, the root of their mean square.
    """

    def __init__(
        self, config: HeadConfig, token_ids: torch.Tensor, vocabulary: torch.Tensor, scale: float
    ) -> None:
        """Begin as the identity of the hidden state."""
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.config, self.token_ids, self.vocabulary = config, token_ids, vocabulary
        generator = torch.Generator().manual_seed(0)

        def normal(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, generator=generator) * columns**-0.5)

        self.embedding_norm = nn.Parameter(torch.ones(width))
        self.input = nn.Parameter(torch.cat((torch.zeros(width, width), torch.eye(width)), dim=1))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up = normal(2 * inner, width)
        self.down = nn.Parameter(torch.zeros(width, inner))
        self.output_norm = nn.Parameter(torch.full((width,), scale))

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return the states after tokens, ``(num_rows, hidden_size)``."""
        eps, size = self.config.eps, (self.config.hidden_size,)
        normed = F.rms_norm(embedded.float(), size, self.embedding_norm, eps)
        mixed = F.linear(torch.cat((normed, hidden.float()), dim=1), self.input)
        inner = F.linear(F.rms_norm(mixed.float(), size, self.mlp_norm, eps), self.gate_up)
        gate, up = inner.chunk(2, dim=1)
        grown = mixed.float() + F.linear(F.silu(gate) * up, self.down).float()
        return F.rms_norm(grown, size, self.output_norm, eps)

    def weights(self) -> HeadWeights:
        """Return a copy of the weights as they are now, in bfloat16 (norms in float32)."""

        def half(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to(torch.bfloat16, copy=True)

        return HeadWeights(
            embedding_norm=self.embedding_norm.detach().clone(),
            input=half(self.input),
            mlp_norm=self.mlp_norm.detach().clone(),
            gate_up=half(self.gate_up),
            down=half(self.down),
            output_norm=self.output_norm.detach().clone(),
            token_ids=self.token_ids.clone(),
            vocabulary=half(self.vocabulary),
        )


@torch.no_grad()
def start_linear(module: HeadModule, embedding: torch.Tensor, data: HeadData) -> None:
    """Set a module's input to the linear map that comes closest to the next hidden state.

    Solves (X^T X + ridge) W = X^T Y, X being norm(e) beside h, and Y the state after the token.

    Args:
        module: The head, as it was made.
        embedding: The model's.
        data: What to learn from.
    """
    config, starts = module.config, data.starts(1)
    size = 2 * config.hidden_size
    gram, moment = torch.zeros(size, size), torch.zeros(size, config.hidden_size)
    for chosen in starts.split(_BLOCK):
        embedded = F.embedding(data.tokens[chosen], embedding).float()
        normed = F.rms_norm(embedded, (config.hidden_size,), eps=config.eps)
        inputs = torch.cat((normed, data.hidden[chosen].float()), dim=1)
        gram += inputs.T @ inputs
        moment += inputs.T @ data.hidden[chosen + 1].float()
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    module.input.copy_(torch.linalg.solve(gram, moment).T)


class HeadLearner:
    """Optimizer and batches around a `HeadModule`.

    Args:
        module: What to train.
        embedding: The model's, ``(vocab_size, hidden_size)``.
        data: What to learn from.
        seed: Of the batches.
    """

    def __init__(
        self, module: HeadModule, embedding: torch.Tensor, data: HeadData, seed: int
    ) -> None:
        """Start at step 0."""
        self.module, self._embedding, self._data = module, embedding, data
        self._starts = data.starts(NUM_STEPS)
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.AdamW(
            module.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.num_steps = 0

    @property
    def num_starts(self) -> int:
        """Places that a batch can begin at."""
        return len(self._starts)

    def step(self, progress: float) -> float:
        """Learn from one batch.

        Args:
            progress: Share of the training that is over; the rate falls to a tenth with it.

        Returns:
            The loss in nats per token.
        """
        rate = _RATE * min(1.0, (self.num_steps + 1) / _WARMUP_STEPS) * (1 - 0.9 * progress)
        self._optimizer.param_groups[0]["lr"] = rate
        chosen = torch.randint(len(self._starts), (_NUM_ROWS,), generator=self._generator)
        loss = self._loss(self._starts[chosen])
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return loss.item()

    def _loss(self, starts: torch.Tensor) -> torch.Tensor:
        total, weight = torch.zeros(()), 0.0
        for k, (ours, theirs, _) in enumerate(
            rollout(self.module, self._embedding, self._data, starts)
        ):
            share = _DECAY**k
            total = total - share * (theirs.softmax(-1) * ours.log_softmax(-1)).sum(-1).mean()
            weight += share
        return total / weight


def rollout(
    module: HeadModule, embedding: torch.Tensor, data: HeadData, starts: torch.Tensor
) -> Any:
    """Yield, step by step, the head's logits, the model's, and the true next tokens.

    Args:
        module: The head.
        embedding: The model's.
        data: Texts.
        starts: Indices to begin at, ``(num_rows,)``.
    """
    state, rows = data.hidden[starts], module.vocabulary
    for k in range(NUM_STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            state = module(state, F.embedding(data.tokens[starts + k], embedding))
            ours = F.linear(state, rows)
            with torch.no_grad():
                theirs = F.linear(data.hidden[starts + k + 1].to(rows.dtype), rows)
        yield ours.float(), theirs.float(), data.tokens[starts + k + 1]


@torch.no_grad()
def agreement(
    module: HeadModule, embedding: torch.Tensor, data: HeadData, max_starts: int = 1024
) -> list[float]:
    """Return, per step, how often head and model think most of the same token.

    Tokens that the head does not know count as disagreement where the text has them.
    """
    starts = data.starts(NUM_STEPS)
    starts = starts[torch.linspace(0, len(starts) - 1, min(max_starts, len(starts))).long()]
    known = torch.zeros(module.config.vocab_size, dtype=torch.bool)
    known[module.token_ids] = True
    shares = []
    for ours, theirs, true in rollout(module, embedding, data, starts):
        same = (ours.argmax(-1) == theirs.argmax(-1)) & known[true]
        shares.append(float(same.float().mean()))
    return shares
