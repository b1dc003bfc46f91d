"""Tokenizers rebuilt from GGUF metadata give the ids of the original.

SmolLM2 and Gemma are compared with slow algorithms written here from the formats' definitions:
byte-level BPE by merge rank, and SentencePiece by joining the pair with the best score.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex

from infopt.errors import CheckpointError, UnsupportedModelError
from infopt.models.checkpoint import open_checkpoint
from infopt.models.gguf_checkpoint import GGUFCheckpoint
from infopt.models.gguf_tokenizer import score_merges
from infopt.models.tokenizer import Tokenizer, folder_tokenizer

SAMPLE = "Hello  world 123\n\tä🫠 <|im_start|>"
MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}]

GPT2_PIECES = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)


class RankBPE:
    """Byte-level BPE: cut off special tokens, cut off digits, cut by GPT-2's pattern, merge."""

    def __init__(self, metadata: dict) -> None:
        from tokenizers import pre_tokenizers

        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self.ids = {token: index for index, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}
        special = sorted((tokens[i] for i in np.flatnonzero(types == 3)), key=len, reverse=True)
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        one_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.stand_in = lambda text: one_byte.pre_tokenize_str(text)[0][0]

    def encode(self, text: str) -> list[int]:
        ids = []
        for part in self.special.split(text):
            if part in self.ids and self.special.fullmatch(part):
                ids.append(self.ids[part])
                continue
            for run in regex.findall(r"\p{N}|\P{N}+", part):
                for piece in GPT2_PIECES.findall(run):
                    ids += [self.ids[token] for token in self.merge(self.stand_in(piece))]
        return ids

    def merge(self, piece: str) -> list[str]:
        parts = list(piece)
        while True:
            pairs = [self.ranks.get(pair, 1 << 30) for pair in pairwise(parts)]
            if not pairs or min(pairs) == 1 << 30:
                return parts
            best = pairs.index(min(pairs))
            parts[best : best + 2] = ["".join(parts[best : best + 2])]


class ScoreMerge:
    """SentencePiece: atomic added tokens first, then the adjacent pair with the best score."""

    def __init__(self, metadata: dict) -> None:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.scores = metadata["tokenizer.ggml.scores"].tolist()
        atoms = [tokens[i] for i in np.flatnonzero(np.isin(types, (2, 3, 4)))]
        atoms = sorted(atoms, key=len, reverse=True)
        self.atoms = regex.compile("(" + "|".join(map(regex.escape, atoms)) + ")")
        self.normal = {tokens[i] for i in np.flatnonzero(types == 1)}

    def encode(self, text: str) -> list[int]:
        ids = []
        for index, part in enumerate(self.atoms.split(text)):
            if index % 2:
                ids.append(self.ids[part])
                continue
            for piece in self.merge(part.replace(" ", "\u2581")):
                if piece in self.ids:
                    ids.append(self.ids[piece])
                else:
                    ids += [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return ids

    def merge(self, text: str) -> list[str]:
        parts = list(text)
        while True:
            joined = [a + b for a, b in pairwise(parts)]
            scores = [self.scores[self.ids[j]] if j in self.normal else -np.inf for j in joined]
            if not scores or max(scores) == -np.inf:
                return parts
            best = scores.index(max(scores))
            parts[best : best + 2] = [joined[best]]


def changed(make_gguf, **metadata) -> Tokenizer:
    values = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return open_checkpoint(make_gguf(metadata=values)).tokenizer()


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GGUFCheckpoint:
    return GGUFCheckpoint(smollm2_path)


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> GGUFCheckpoint:
    return GGUFCheckpoint(gemma_path)


def test_the_original_and_the_rebuilt_tokenizer_agree(make_gguf, tiny_model_dir, random_texts):
    """Pins the fault of rebuilt tokenizers that differ in pre-tokenizer, special tokens or BOS."""
    original = folder_tokenizer(tiny_model_dir("llama"))
    rebuilt = open_checkpoint(make_gguf()).tokenizer()
    for text in [SAMPLE, *random_texts]:
        ids = original.encode(text)
        assert rebuilt.encode(text) == ids
        assert rebuilt.decode(ids) == original.decode(ids)
    assert rebuilt.vocab_size == original.vocab_size
    assert [rebuilt.token_bytes(i) for i in range(320)] == [
        original.token_bytes(i) for i in range(320)
    ]
    assert [rebuilt.is_special(i) for i in range(320)] == [
        original.is_special(i) for i in range(320)
    ]
    assert (rebuilt.bos_token_id, rebuilt.eos_token_id) == (0, 1)


def test_the_template_in_the_metadata_is_used(make_gguf, tiny_model_dir):
    """Pins the fault of having to write a chat template by hand for GGUF models."""
    original = folder_tokenizer(tiny_model_dir("llama"))
    rebuilt = open_checkpoint(make_gguf()).tokenizer()
    assert rebuilt.chat_template == original.chat_template
    assert rebuilt.apply_chat_template(MESSAGES) == original.apply_chat_template(MESSAGES)
    without = open_checkpoint(make_gguf(metadata={"tokenizer.chat_template": None}))
    assert without.tokenizer().chat_template is None


@pytest.mark.parametrize(("bos", "eos"), [(False, False), (True, False), (True, True)])
def test_bos_and_eos_are_added_only_where_the_file_says_so(make_gguf, bos, eos):
    tokenizer = changed(make_gguf, add_bos_token=bos, add_eos_token=eos)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [0] * bos + plain + [1] * eos


@pytest.mark.parametrize("tag", ["default", "falcon", None])
def test_an_unknown_pre_tokenizer_is_refused_by_name(make_gguf, tag):
    with pytest.raises(UnsupportedModelError, match=f"{tag!r}.*gpt-2, llama-bpe"):
        changed(make_gguf, pre=tag)


def test_an_unknown_kind_of_tokenizer_is_refused_by_name(make_gguf):
    with pytest.raises(UnsupportedModelError, match="'bert'"):
        changed(make_gguf, model="bert")


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_missing_vocabulary_is_reported(make_gguf, key):
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key}"):
        changed(make_gguf, **{key: None})


@pytest.mark.parametrize(
    ("tag", "text", "pieces"),
    [
        ("gpt-2", "I'll  2024", ["I", "'ll", " ", " 2024"]),
        ("smollm", "I'll  2024", ["I", "'ll", "  ", "2", "0", "2", "4"]),
        ("llama-bpe", "I'LL  20245\n\nx.y", ["I", "'LL", " ", " ", "202", "45", "\n\n", "x", ".y"]),
        ("qwen2", "I'LL  2024\n\nx.y", ["I", "'LL", " ", " ", *"2024", "\n\n", "x", ".y"]),
    ],
)
def test_each_tag_cuts_texts_its_own_way(make_gguf, tag, text, pieces):
    backend = changed(make_gguf, pre=tag).hf.backend_tokenizer
    found = [text[a:b] for _, (a, b) in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert found == pieces


def test_qwen_normalises_to_composed_characters(make_gguf):
    tokenizer = changed(make_gguf, pre="qwen2")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_padding_entries_are_left_out(make_gguf, tiny_model_dir):
    """Pins the fault of serving placeholder tokens: they are no entries of the tokenizer."""
    folder = tiny_model_dir("llama", vocab_size=324)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__) + [f"[PAD{i}]" for i in range(320, 324)]
    types = [3] * 4 + [1] * 316 + [5] * 4
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    checkpoint = open_checkpoint(make_gguf(folder=folder, metadata=metadata))
    assert (checkpoint.config.vocab_size, checkpoint.config.num_real_tokens) == (324, 320)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.vocab_size == 320
    assert tokenizer.decode(tokenizer.encode("[PAD321]")) == "[PAD321]"
    assert len(tokenizer.encode("[PAD321]")) > 1


def test_merges_are_ordered_by_the_score_of_their_result():
    tokens = ["<s>", "a", "b", "c", "ab", "bc", "abc", "aa"]
    types = np.array([3, 1, 1, 1, 1, 1, 1, 4])
    scores = np.array([0, -9, -9, -9, -2, -1, -3, 0])
    merges = score_merges(tokens, scores, types)
    assert merges == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_a_sentencepiece_model_with_a_space_prefix(make_gguf):
    """Llama 2's way: a space is put before the text, and taken off when decoding."""
    letters = ["\u2581", "h", "i", "\u2581h", "\u2581hi", "hi"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *letters]
    types = [2, 3, 3, *[6] * 256, *[1] * len(letters)]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0, -3.0]
    tokens += [f"x{i}" for i in range(320 - len(tokens))]
    types += [1] * (320 - len(types))
    scores += [-99.0] * (320 - len(scores))
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": None,  # silent: SentencePiece models add it
    }
    tokenizer = open_checkpoint(make_gguf(metadata=metadata)).tokenizer()
    ids = tokenizer.encode("hi é")
    assert [tokenizer.hf.convert_ids_to_tokens(i) for i in ids] == [
        "<s>",
        "\u2581hi",
        "\u2581",
        "<0xC3>",
        "<0xA9>",
    ]
    assert tokenizer.decode(ids) == "hi é"
    assert b"".join(map(tokenizer.token_bytes, ids[1:])) == " hi é".encode()


def test_smollm2_ids_of_the_sample_by_hand(smollm2):
    tokenizer = smollm2.tokenizer()
    ids = tokenizer.encode(SAMPLE)
    assert ids == [19556, 216, 905, 216, 33, 34, 35, 198, 197, 9023, 10813, 121, 250, 216, 1]
    assert [tokenizer.token_bytes(i) for i in ids[:10]] == [
        b"Hello", b" ", b" world", b" ", b"1", b"2", b"3", b"\n", b"\t", "ä".encode()
    ]  # fmt: skip


def test_smollm2_agrees_with_rank_bpe(smollm2, random_texts):
    tokenizer, reference = smollm2.tokenizer(), RankBPE(smollm2.metadata)
    for text in [SAMPLE, "I'll see 2024 of THEM, won't I?\n\n  x", *random_texts]:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_smollm2_chat_has_no_bos_of_its_own_and_single_special_ids(smollm2):
    tokenizer = smollm2.tokenizer()
    ids = tokenizer.apply_chat_template(MESSAGES)
    text = tokenizer.render_chat_template(MESSAGES)
    assert text.endswith("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == text.count("<|im_start|>") == 3
    assert ids.count(2) == text.count("<|im_end|>") == 2
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]
    assert tokenizer.encode(text) == ids


def test_gemma_ids_of_the_sample_by_hand(gemma):
    tokenizer = gemma.tokenizer()
    ids = tokenizer.encode(SAMPLE)
    assert ids[:10] == [2, 9259, 138, 12392, 236743, 236770, 236778, 236800, 107, 255968]
    assert tokenizer.encode("<start_of_turn>", add_special_tokens=False) == [105]
    assert [tokenizer.is_special(i) for i in (2, 105, 107, 9259)] == [True, True, False, False]
    assert tokenizer.chat_template is None


def test_gemma_agrees_with_joining_by_score(gemma, random_texts):
    tokenizer, reference = gemma.tokenizer(), ScoreMerge(gemma.metadata)
    for text in [SAMPLE, "Ein längerer Satz,   mit Lücken.\n\n\n\tEnde", *random_texts]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text)
        assert tokenizer.encode(text) == [2, *ids]
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
