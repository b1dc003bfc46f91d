import pytest

from infopt import corpus
from infopt.errors import ConfigError

SPLITS = [(kind, split) for kind in ("docs", "code") for split in ("train", "heldout")]


@pytest.mark.parametrize(("kind", "split"), SPLITS)
def test_each_part_is_large_enough_for_its_use(kind, split):
    text = corpus.text(kind, split)
    assert len(text) > 60_000
    assert text == corpus.text(kind, split)
    assert len(corpus.content_hash(kind, split)) == 16


def test_helpers_return_the_named_kind():
    assert corpus.docs_text("heldout") == corpus.text("docs", "heldout")
    assert corpus.code_text("train") == corpus.text("code", "train")
    assert "import " in corpus.code_text("heldout")


@pytest.mark.parametrize("kind", ["docs", "code"])
def test_splits_share_neither_documents_nor_paragraphs(kind):
    """Pins a leak: topics of the documentation quote whole other topics."""
    names, paragraphs = {}, {}
    for split in ("train", "heldout"):
        documents = corpus.documents(kind, split)
        names[split] = {d.name for d in documents}
        found = [" ".join(p.split()) for d in documents for p in d.text.split("\n\n")]
        long = [p for p in found if len(p) >= 60]
        assert len(long) == len(set(long)), "a paragraph occurs twice"
        paragraphs[split] = set(long)
    assert not names["train"] & names["heldout"]
    assert not paragraphs["train"] & paragraphs["heldout"]


def test_the_documentation_does_quote_itself():
    """Without this the test above would prove nothing."""
    from pydoc_data.topics import topics

    paragraphs = [" ".join(p.split()) for t in topics.values() for p in t.split("\n\n")]
    long = [p for p in paragraphs if len(p) >= 60]
    assert len(long) > len(set(long))


def test_content_hashes_differ_between_parts():
    assert len({corpus.content_hash(kind, split) for kind, split in SPLITS}) == len(SPLITS)


@pytest.mark.parametrize(("kind", "split"), [("docs", "test"), ("wiki", "train")])
def test_unknown_part_is_named(kind, split):
    with pytest.raises(ConfigError, match="Unknown corpus"):
        corpus.text(kind, split)
