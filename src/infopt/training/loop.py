"""The training itself: batches in, weights and a loss curve out; it can be stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from infopt.training.losses import router_loss, token_loss
from infopt.training.model import build_model
from infopt.training.optimizers import make_optimizers, rate_factor
from infopt.training.recipes import Recipe
from infopt.training.state import TrainingState, load_state, save_state
from infopt.training.text import sample_batch
from infopt.training.validation import model_nll

_SAVE_EVERY = 100  # steps
_VALIDATE_EVERY = 200


class CurvePoint(NamedTuple):
    """One step of the loss curve.

    Attributes:
        step: Steps done.
        tokens: Tokens read so far.
        rate_factor: Share of the full learning rate.
        loss: Cross-entropy of the batch in nats per token.
        heldout_loss: The same on some held-out windows, where it was measured.
    """

    step: int
    tokens: int
    rate_factor: float
    loss: float
    heldout_loss: float | None


class Trainer:
    """Trains one model.

    Args:
        recipe: What to train.
        tokens: Train split, shape (num_tokens,).
        heldout: Windows to look at now and then, shape (num_windows, window).
        seed: Seed of weights and batches.
        num_steps: Updates; the schedule spans them.
        state_path: Where the state is kept while the training runs; None keeps none.

    Attributes:
        model: The model.
        curve: One point per step done.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokens: np.ndarray,
        heldout: np.ndarray,
        *,
        seed: int,
        num_steps: int,
        state_path: Path | None = None,
    ) -> None:
        """Build the model, and go on from the state of an interrupted training."""
        self.recipe, self.seed, self.num_steps = recipe, seed, num_steps
        self.model = build_model(recipe, seed)
        self.curve: list[CurvePoint] = []
        self._tokens, self._heldout, self._state_path = tokens, heldout, state_path
        self._optimizers = make_optimizers(self.model, recipe)
        self._resume()

    def run(self, *, show_progress: bool = True) -> None:
        """Train to the end.

        Args:
            show_progress: Show a bar with the loss.
        """
        from tqdm.auto import tqdm

        bar = tqdm(
            range(len(self.curve), self.num_steps),
            desc=self.recipe.name,
            initial=len(self.curve),
            total=self.num_steps,
            disable=not show_progress,
            unit="step",
        )
        for step in bar:
            point = self._step(step)
            self.curve.append(point)
            bar.set_postfix(loss=f"{point.loss:.3f}")
            if (step + 1) % _SAVE_EVERY == 0:
                self._save()

    def _step(self, step: int) -> CurvePoint:
        factor = rate_factor(self.recipe, step, self.num_steps)
        batch = self._batch(step)
        loss = self._backward(batch)
        for optimizer, rate in zip(self._optimizers, self._rates(), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        tokens = self.recipe.tokens_per_step * done
        return CurvePoint(done, tokens, factor, loss, self._heldout_loss(done))

    def _backward(self, batch: torch.Tensor) -> float:
        """Compute gradients; return the cross-entropy alone."""
        moe = self.recipe.model_type == "qwen2_moe"
        options = {"output_router_logits": True} if moe else {}
        with torch.autocast("cpu", torch.bfloat16):
            output: Any = self.model(input_ids=batch[:, :-1], use_cache=False, **options)
        loss = token_loss(output.logits, batch[:, 1:])
        (loss + self._router_loss(output) if moe else loss).backward()
        return loss.item()

    def _router_loss(self, output: Any) -> torch.Tensor:
        return router_loss(
            output.router_logits,
            self.model.config.num_experts_per_tok,
            balance_weight=self.recipe.balance_weight,
            z_weight=self.recipe.z_weight,
        )

    def _batch(self, step: int) -> torch.Tensor:
        long = step >= round(self.num_steps * (1 - self.recipe.long_share))
        context = self.recipe.long_context if long else self.recipe.context
        return sample_batch(
            self._tokens,
            num_rows=self.recipe.tokens_per_step // context,
            context=context,
            seed=self.seed,
            step=step,
        )

    def _rates(self) -> tuple[float, float]:
        return self.recipe.matrix_rate, self.recipe.vector_rate

    def _heldout_loss(self, done: int) -> float | None:
        if done % _VALIDATE_EVERY and done != self.num_steps:
            return None
        with _evaluating(self.model), torch.autocast("cpu", torch.bfloat16):
            return float(model_nll(self.model, self._heldout).mean())

    def _settings(self) -> dict[str, Any]:
        return {"recipe": self.recipe.to_dict(), "seed": self.seed, "num_steps": self.num_steps}

    def _save(self) -> None:
        if self._state_path is not None:
            optimizers = [optimizer.state_dict() for optimizer in self._optimizers]
            curve = [tuple(point) for point in self.curve]
            state = TrainingState(self._settings(), self.model.state_dict(), optimizers, curve)
            save_state(self._state_path, state)

    def _resume(self) -> None:
        if self._state_path is None or not self._state_path.exists():
            return
        state = load_state(self._state_path, self._settings())
        self.model.load_state_dict(state.model)
        for optimizer, values in zip(self._optimizers, state.optimizers, strict=True):
            optimizer.load_state_dict(values)
        self.curve = [CurvePoint(*point) for point in state.curve]


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    model.eval()
    try:
        yield
    finally:
        model.train()
