"""The tokenizer wrapper: exact bytes, one BOS, quiet and local loading."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infopt.errors import CheckpointError, PromptError, UnsupportedModelError
from infopt.models.tokenizer import Tokenizer, byte_level_alphabet, folder_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
BOS_TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(make_tiny_tokenizer) -> Tokenizer:
    return Tokenizer(make_tiny_tokenizer())


@pytest.fixture(scope="module")
def bos_tokenizer(make_tiny_tokenizer) -> Tokenizer:
    return Tokenizer(make_tiny_tokenizer(add_bos=True, chat_template=BOS_TEMPLATE))


def test_texts_come_back_exactly(tokenizer, random_texts):
    for text in random_texts:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_bytes_of_tokens_join_to_the_text(tokenizer, random_texts):
    for text in random_texts:
        joined = b"".join(tokenizer.token_bytes(index) for index in tokenizer.encode(text))
        assert joined == text.encode()


def test_a_token_may_be_part_of_a_character(tokenizer):
    pieces = [tokenizer.token_bytes(index) for index in tokenizer.encode("🫠")]
    assert len(pieces) > 1
    assert b"".join(pieces) == "🫠".encode()
    assert tokenizer.decode(tokenizer.encode("🫠")[:1]) == "\ufffd"


def test_special_tokens_are_one_id_their_literal_text_and_skipped(tokenizer):
    (index,) = tokenizer.encode("<|im_start|>")
    assert tokenizer.is_special(index)
    assert tokenizer.token_bytes(index) == b"<|im_start|>"
    assert tokenizer.decode([index]) == ""
    assert tokenizer.decode([index], skip_special_tokens=False) == "<|im_start|>"
    assert not tokenizer.is_special(tokenizer.encode("a")[0])


def test_sizes_and_special_ids(tokenizer):
    assert tokenizer.vocab_size == 320
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    for index in (-1, 320):
        with pytest.raises(PromptError, match=str(index)):
            tokenizer.token_bytes(index)


def test_an_unused_id_has_no_bytes(make_tiny_tokenizer):
    assert Tokenizer(make_tiny_tokenizer(), num_tokens=330).token_bytes(325) == b""


def test_half_a_surrogate_pair_is_refused_with_its_position(tokenizer):
    with pytest.raises(PromptError, match="position 2"):
        tokenizer.encode("ab\ud83e")


def test_bos_is_there_exactly_once_on_every_path(bos_tokenizer):
    """Pins the faults of two BOS (template and tokenizer) and of none after a naive repair."""
    chat = bos_tokenizer.apply_chat_template(MESSAGES)
    text = bos_tokenizer.encode("hi")
    assert (chat.count(0), chat[0]) == (1, 0)
    assert (text.count(0), text[0]) == (1, 0)
    rendered = bos_tokenizer.render_chat_template(MESSAGES)
    assert rendered.startswith("<s><|im_start|>hi")
    assert bos_tokenizer.encode(rendered, add_special_tokens=False) == chat
    assert bos_tokenizer.encode(rendered) == [0, *chat]  # as documented: it adds its own


def test_no_bos_where_the_checkpoint_adds_none(tokenizer):
    assert 0 not in tokenizer.encode("hi")


def test_chat_ids_equal_those_of_transformers(bos_tokenizer, tokenizer):
    for wrapped in (bos_tokenizer, tokenizer):
        expected = wrapped.hf.apply_chat_template(
            MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert wrapped.apply_chat_template(MESSAGES) == expected


def test_the_generation_prompt_is_optional(tokenizer):
    opened = tokenizer.render_chat_template(MESSAGES)
    closed = tokenizer.render_chat_template(MESSAGES, add_generation_prompt=False)
    assert opened == closed + "<|im_start|>assistant\n"


def test_tools_and_options_reach_the_template(make_tiny_tokenizer):
    template = "{{ tools[0].function.name }} {{ mood }}"
    wrapped = Tokenizer(make_tiny_tokenizer(chat_template=template))
    tool = {"type": "function", "function": {"name": "add"}}
    assert wrapped.render_chat_template(MESSAGES, [tool], mood="calm") == "add calm"


def test_a_template_that_refuses_is_reported(make_tiny_tokenizer):
    template = "{{ raise_exception('roles must alternate') }}"
    wrapped = Tokenizer(make_tiny_tokenizer(chat_template=template))
    with pytest.raises(PromptError, match="roles must alternate"):
        wrapped.apply_chat_template(MESSAGES)


def test_without_a_template_there_is_no_chat(make_tiny_tokenizer):
    hf = make_tiny_tokenizer()
    hf.chat_template = None
    with pytest.raises(PromptError, match="no chat template"):
        Tokenizer(hf).apply_chat_template(MESSAGES)


def test_a_decoder_of_an_unknown_kind_is_refused(make_tiny_tokenizer):
    from tokenizers import decoders

    hf = make_tiny_tokenizer()
    hf.backend_tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        Tokenizer(hf).token_bytes(0)


def test_the_byte_alphabet_is_that_of_the_tokenizers_library():
    from tokenizers import pre_tokenizers

    table = byte_level_alphabet()
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(table.values()) == list(range(256))
    assert (table["Ġ"], table["Ċ"], table["a"]) == (0x20, 0x0A, 0x61)


def test_a_folder_gives_the_tokenizer_that_was_saved_there(
    tiny_model_dir, tokenizer, random_texts, capfd
):
    loaded = folder_tokenizer(tiny_model_dir("llama"))
    assert capfd.readouterr() == ("", "")
    for text in random_texts[:50]:
        assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.chat_template == tokenizer.chat_template


def test_code_in_a_folder_is_never_run(tiny_model_dir, tmp_path):
    import json

    folder = Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    try:
        assert folder_tokenizer(folder).vocab_size == 320
    except CheckpointError as error:
        assert "trust_remote_code" in error.message
    assert not (tmp_path / "ran").exists()


def test_a_broken_tokenizer_file_is_reported(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        folder_tokenizer(tmp_path)
