"""Settings and fixtures that all tests share.

Thread waiting and Triton's interpreter are chosen before anything imports torch or triton.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TINY_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
TINY_EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 48, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
    },
    "olmoe": {"intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3},
}

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = [
    "The quick brown fox jumps over the lazy dog, then rests under an old oak tree.",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n    print(add(i, 1))\n",
    "A page table maps positions of a sequence to pages; a page holds sixteen tokens.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 0123456789",
]


@pytest.fixture(scope="session")
def make_tiny_tokenizer() -> Callable[..., Any]:
    """Factory of byte-level BPE tokenizers trained in memory, as transformers objects.

    ``vocab_size`` entries: 256 bytes, 4 special tokens, merges. ``add_bos`` puts ``<s>`` in front
    of every text; ``chat_template`` replaces the default one.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    def make(
        vocab_size: int = 320, *, add_bos: bool = False, chat_template: str = _CHAT_TEMPLATE
    ) -> PreTrainedTokenizerFast:
        special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend.train_from_iterator(_TEXT, trainer)
        if add_bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 0)]
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token="<s>",
            eos_token="</s>",
            chat_template=chat_template,
            clean_up_tokenization_spaces=False,
        )

    return make


def _tiny_config(family: str, vocab_size: int, changes: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    if family in ("qwen2", "qwen2_moe", "olmoe"):
        del values["head_dim"]
    if family == "mistral":
        values["sliding_window"] = 24
    if family == "gemma3_text":
        values |= {
            "sliding_window": 24,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        }
    return CONFIG_MAPPING[family](**(values | TINY_EXPERTS.get(family, {}) | changes))


@pytest.fixture(scope="session")
def tiny_model_dir(
    tmp_path_factory: pytest.TempPathFactory, make_tiny_tokenizer: Callable[..., Any]
) -> Callable[..., Path]:
    """Factory of small random checkpoints: ``tiny_model_dir("llama", tie_word_embeddings=True)``.

    Each folder holds float32 safetensors, config.json and a tokenizer with 320 entries, written by
    transformers. The same arguments give the same folder (do not write into it). ``seed`` chooses
    the weights, ``dtype`` their type, ``vocab_size`` the embedding rows (may exceed the 320
    entries), ``max_shard_size`` splits it; everything else goes into the configuration.
    """
    import transformers

    made: dict[str, Path] = {}

    def make(
        family: str = "llama",
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        vocab_size: int | None = None,
        max_shard_size: str = "5GB",
        **changes: Any,
    ) -> Path:
        key = repr((family, seed, dtype, vocab_size, max_shard_size, sorted(changes.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"tiny-{family}")
            tokenizer = make_tiny_tokenizer()
            config = _tiny_config(family, vocab_size or len(tokenizer), changes)
            _write_tiny_model(transformers, config, folder, seed, dtype, max_shard_size)
            tokenizer.save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def family_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Factory of small random checkpoints that transformers runs, by ``model_type``.

    Do not write into them.
    """
    from infopt.evals.families.cases import CASES
    from infopt.evals.families.write import write_checkpoint

    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            write_checkpoint(next(case for case in CASES if case.family == family), made[family])
        return made[family]

    return make


def _write_tiny_model(
    transformers: Any, config: Any, folder: Path, seed: int, dtype: torch.dtype, shard: str
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Larger than the default 0.02, so that logits are far apart and errors show; norms
                # and biases differ from their neutral value, so that leaving one out shows too.
                scale = 0.2 if name.endswith("norm.weight") or name.endswith("bias") else 0.12
                center = parameter if name.endswith("norm.weight") else 0.0
                parameter.copy_(center + scale * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)


@pytest.fixture(scope="session")
def server_url(tiny_model_dir: Callable[..., Path]) -> Iterator[str]:
    """Address of infopt's own server with a tiny random model, for clients to be tried on."""
    from infopt.config import EngineConfig
    from infopt.engine.loader import build_engine
    from infopt.serve.config import ServeConfig
    from infopt.serve.server import Server
    from infopt.serve.service import Service

    config = EngineConfig(model=str(tiny_model_dir("llama")), dtype="float32", max_num_seqs=4)
    service = Service({"tiny": build_engine(config)}, ServeConfig(port=0))
    server = Server(service)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not (server.started and service.state == "ready"):
        assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
        time.sleep(0.01)
    host, port = server.address
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join(20)
    service.loop.stop()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2 GGUF file of the registry, fetched if it is not cached yet."""
    from infopt.models.registry import resolve_model

    return resolve_model("smollm2-135m-instruct-q4_1", show_progress=False).path


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """The Gemma 3 GGUF file of the registry; skips where it cannot be fetched."""
    from infopt.errors import DownloadError
    from infopt.models.registry import resolve_model

    try:
        return resolve_model("gemma-3-270m-q4_k_m", show_progress=False).path
    except DownloadError as error:
        pytest.skip(f"Gemma cannot be fetched here: {error.message}")


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    """Undo what a command line run in this process does to logging."""
    logger, root = logging.getLogger("infopt"), logging.getLogger()
    level, handlers = logger.level, list(root.handlers)
    yield
    logger.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def exact_dot(monkeypatch) -> None:
    """Let the interpreter add products in one order, as a GPU does.

    numpy's BLAS takes another order for a row depending on its place in the tile, so bits could not
    be compared.
    """
    from infopt.kernels.triton_ops.common import is_interpreted

    if not is_interpreted():
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(_self, a, b, d, *_options):
        products = a.data[:, :, None].astype(d.data.dtype) * b.data[None].astype(d.data.dtype)
        return TensorHandle(products.sum(axis=1, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
