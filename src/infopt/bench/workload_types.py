"""The request of a workload, what generators get, and the registry they are filed in."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from infopt.bench.text import TokenSource
from infopt.registry import Registry


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request to send.

    Attributes:
        request_id: Unique in its workload.
        arrival_s: When it is due, in seconds from the start of the workload.
        prompt_token_ids: The prompt.
        max_tokens: Output tokens to ask for.
        prefix_group: Requests of one group begin with the same tokens (None: nothing shared).
    """

    request_id: str
    arrival_s: float
    prompt_token_ids: list[int]
    max_tokens: int
    prefix_group: str | None = None


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """What a workload generator is given.

    Attributes:
        tokens: Makes prompts.
        seed: The workload's seed.
    """

    tokens: TokenSource
    seed: int

    def rng(self, *stream: str | int) -> np.random.Generator:
        """Return the random stream of that name.

        Lengths, arrivals and texts have streams of their own, so that changing one distribution
        leaves the others as they were.
        """
        names = [zlib.crc32(s.encode()) if isinstance(s, str) else s for s in stream]
        return np.random.default_rng([self.seed, *names])


WorkloadFunction = Callable[..., list[WorkloadRequest]]
WORKLOADS: Registry[WorkloadFunction] = Registry("workload")
