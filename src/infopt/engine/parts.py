"""What an engine is put together from (see `infopt.engine.loader.build_engine`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infopt.cache.manager import CacheManager
from infopt.cache.quantized_pages import PageNeed
from infopt.engine.admission import RequestChecker
from infopt.engine.clock import Clock
from infopt.engine.draft_control import DraftControl
from infopt.engine.drafting import Drafter
from infopt.engine.runner import ModelRunner
from infopt.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Loaded model, pages, and what was derived from the configuration.

    Attributes:
        runner: Runs the model.
        cache: Pages.
        checker: Limits that requests are checked against.
        num_swap_pages: Host pages for swapping, of both forms.
        tokenizer: None works on token ids alone.
        description: Facts fixed at load time, reported by ``Engine.describe``.
        drafter: Guesses tokens; None decodes one at a time.
        make_control: Makes what decides how many tokens are guessed, from the engine's clock.
    """

    runner: ModelRunner
    cache: CacheManager
    checker: RequestChecker
    num_swap_pages: PageNeed
    tokenizer: Tokenizer | None
    description: dict[str, object]
    drafter: Drafter | None = None
    make_control: Callable[[Clock], DraftControl] = DraftControl
