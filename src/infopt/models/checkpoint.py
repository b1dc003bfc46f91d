"""`Checkpoint`: what the decoder sees of a model file, whatever its format."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from infopt.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from infopt.models.config import ModelConfig
from infopt.models.fingerprint import content_identity

if TYPE_CHECKING:
    from infopt.models.packed import CodedTensor
    from infopt.models.registry import ResolvedModel
    from infopt.models.tokenizer import Tokenizer

CheckpointFormat = Literal["gguf", "safetensors"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class Checkpoint(abc.ABC):
    """A model file or folder, opened for reading; tensors are read one at a time.

    Attributes:
        path: The file or folder.
        format: ``gguf`` or ``safetensors``.
        config: The architecture.
    """

    path: Path
    format: CheckpointFormat
    config: ModelConfig

    @property
    def identity(self) -> str:
        """Identity of the content (see `content_identity`): cheap, and stable under renaming."""
        return content_identity(self.path)

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Return the canonical names of all tensors."""

    @abc.abstractmethod
    def get(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read one tensor.

        Quantized blocks become float32 first and are rounded once to ``dtype``. Norm weights are
        the multiplier itself (Gemma's ``1 + w`` is folded in); ask for those in float32.

        Args:
            name: Canonical name.
            dtype: A floating-point type.

        Returns:
            A tensor that owns its memory; linear weights are ``(out_features, in_features)``.

        Raises:
            CheckpointError: If there is no such tensor.
        """

    @property
    def coded_layers(self) -> list[str]:
        """Names of the linear layers whose weights are codes; nothing is read to tell."""
        return []

    def coded(self, layer: str) -> CodedTensor | None:
        """Return the codes of a linear layer, or None where its weight is not coded.

        `get` gives the weight that the codes stand for.

        Args:
            layer: Canonical name without ``.weight``.
        """
        del layer
        return None

    def stored(self, name: str) -> torch.Tensor | None:
        """Read a tensor bit by bit as it is stored, or return None where `get` has to change it.

        Args:
            name: Canonical name.
        """
        del name
        return None

    def stored_dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor; blocks of a GGUF file count as what they become, float32."""
        del name
        return torch.float32

    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Return the checkpoint's tokenizer, built on the first call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the files; tensors already read stay valid."""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_checkpoint(model: ResolvedModel | Path | str) -> Checkpoint:
    """Open a resolved model, a GGUF file or a checkpoint folder.

    Args:
        model: What `resolve_model` returned, or a path.

    Raises:
        ModelNotFoundError: If nothing is there.
        UnsupportedModelError: For an architecture or file format that is not supported.
        CheckpointError: For an incomplete or inconsistent checkpoint.
    """
    path = Path(model) if isinstance(model, str | Path) else model.path
    path, kind = find_checkpoint(path)
    if kind == "gguf":
        from infopt.models.gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(path)
    from infopt.models.safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(path)


def find_checkpoint(path: Path) -> tuple[Path, CheckpointFormat]:
    """Return the GGUF file or the safetensors folder that ``path`` leads to, and its format.

    Raises:
        ModelNotFoundError: If nothing is there.
        UnsupportedModelError: If only pickled weights are there, or another kind of file.
        CheckpointError: If a folder holds several GGUF files, or none and no safetensors.
    """
    if path.is_file():
        return _check_suffix(path), "gguf"
    if not path.is_dir():
        raise ModelNotFoundError(f"{path} does not exist.", field="model", value=str(path))
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return path, "safetensors"
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0], "gguf"
    if ggufs:
        raise CheckpointError(
            f"{path} holds {len(ggufs)} GGUF files.",
            field="model",
            value=[f.name for f in ggufs],
            remedy="Name the file to run.",
        )
    raise _no_weights(path)


def _check_suffix(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedModelError(
            f"{path.name} is not a GGUF file.",
            field="model",
            value=str(path),
            remedy="Give a .gguf file, or the folder that holds config.json and safetensors.",
        )
    return path


def _no_weights(path: Path) -> UnsupportedModelError | CheckpointError:
    pickles = sorted(f.name for f in path.iterdir() if f.suffix in _PICKLES)
    if pickles:
        return UnsupportedModelError(
            f"{path} holds pickled weights only ({pickles[0]}), which are never loaded because a "
            "pickle can run any code.",
            field="model",
            value=pickles,
            remedy="Convert it once where you trust it: load it with transformers and call "
            "save_pretrained, which writes safetensors.",
        )
    return CheckpointError(
        f"{path} holds no *.safetensors and no *.gguf file.", field="model", value=str(path)
    )
