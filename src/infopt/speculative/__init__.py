"""Speculative decoding: guesses that the model verifies several at a time, without any loss.

``EngineConfig.speculative`` names a method of the registry :data:`DRAFTERS` and its options. The
engine finds :func:`make_drafter` by name and sees the `infopt.engine.drafting.Drafter` it returns,
so that imports point one way. `infopt.speculative.theory` says when guessing pays, and the method
``auto`` (`infopt.speculative.controller`) guesses only then.
"""

from __future__ import annotations

from infopt.speculative.config import DRAFTERS, make_control, make_drafter, read_options
from infopt.speculative.report import describe_speculation

__all__ = ["DRAFTERS", "describe_speculation", "make_control", "make_drafter", "read_options"]
