"""Where registered models lie on this machine; nothing is fetched to find out."""

from __future__ import annotations

from pathlib import Path

from infopt.models.registry import ModelEntry
from infopt.models.sources import HubSource, PathSource, local_path
from infopt.user_cache import cache_dir


def local_copy(entry: ModelEntry) -> Path | None:
    """Return where a registered model lies, the first of its sources first; None: nowhere yet."""
    for source in entry.sources:
        if isinstance(source, PathSource):
            path = local_path(source)
        elif isinstance(source, HubSource):
            path = _hub_folder(source.repo, source.revision)
        else:
            path = cache_dir() / "models" / f"{entry.slug}.gguf"
        if path is not None and path.exists():
            return path
    return None


def _hub_folder(repo: str, revision: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
