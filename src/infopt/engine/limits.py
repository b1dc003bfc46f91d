"""How long sequences may be, whatever runs the model."""

from __future__ import annotations

from infopt.config import EngineConfig
from infopt.errors import ConfigError


def limited_length(config: EngineConfig, longest: int) -> int:
    """Return the longest sequence that is accepted.

    Args:
        config: How to run.
        longest: The model's own limit.

    Raises:
        ConfigError: If the config asks for more than the model was made for.
    """
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is beyond the model's own limit of {longest}.",
            field="max_model_len",
            value=config.max_model_len,
            remedy=f"Use at most {longest}.",
        )
    return config.max_model_len
