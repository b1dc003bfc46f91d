import json

import numpy as np
import pytest

from infopt.errors import MeasurementError, ResultError
from infopt.evals.fidelity import compare
from infopt.evals.reference_logits import ReferenceLogits, content_key
from infopt.evals.windows import Window, text_windows

TEXT = "Pack my box with five dozen liquor jugs. " * 10


@pytest.fixture
def windows(make_bigram):
    return text_windows(make_bigram(), TEXT, context=40).windows


@pytest.fixture
def stored(make_bigram, windows):
    return ReferenceLogits.compute(make_bigram(), windows, use_tqdm=False)


def test_stored_and_live_reference_give_the_same_result(make_bigram, windows, stored, tmp_path):
    candidate = make_bigram(noise=0.2)
    live = compare(make_bigram(), candidate, windows, use_tqdm=False)
    assert compare(stored, candidate, windows, use_tqdm=False) == live
    loaded = ReferenceLogits.load(stored.save(tmp_path / "reference"), expected_key=stored.key)
    assert compare(loaded, candidate, windows, use_tqdm=False) == live
    assert compare(loaded, make_bigram(), windows, use_tqdm=False).kl_mean == 0.0


def test_size_is_as_documented(windows, stored, tmp_path):
    num_tokens = sum(w.num_scored for w in windows)
    assert stored.num_bytes == num_tokens * 257 * 4
    assert stored.vocab_size == 257
    file = stored.save(tmp_path / "r") / "logits.npy"
    assert stored.num_bytes <= file.stat().st_size <= stored.num_bytes + 256


def test_key_names_model_and_windows(make_bigram, windows, stored):
    assert stored.key == content_key(repr(make_bigram().config), windows)
    assert content_key("a", windows) != content_key("b", windows)
    assert content_key("a", windows) != content_key("a", windows[:-1])


def test_loading_another_reference_is_refused(stored, windows, tmp_path):
    folder = stored.save(tmp_path / "r")
    with pytest.raises(ResultError, match="another model, configuration or text"):
        ReferenceLogits.load(folder, expected_key=content_key("other", windows))


def test_saving_replaces_what_was_there(make_bigram, windows, stored, tmp_path):
    stored.save(tmp_path / "r")
    other = ReferenceLogits.compute(make_bigram(seed=5), windows, identity="o", use_tqdm=False)
    other.save(tmp_path / "r")
    assert ReferenceLogits.load(tmp_path / "r").key == other.key
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_window_that_was_not_computed(make_bigram, stored):
    with pytest.raises(MeasurementError, match="no logits for window"):
        compare(stored, make_bigram(), [Window((1, 2, 3), 2)], use_tqdm=False)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ResultError, match="no readable reference logits"):
        ReferenceLogits.load(tmp_path / "absent")


def test_a_truncated_file_is_named(stored, tmp_path):
    folder = stored.save(tmp_path / "r")
    file = folder / "logits.npy"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ResultError, match="no readable reference logits"):
        ReferenceLogits.load(folder)


def test_an_index_that_does_not_fit_the_logits_is_refused(stored, tmp_path):
    folder = stored.save(tmp_path / "r")
    np.save(folder / "logits.npy", np.zeros((3, 257), dtype=np.float32))
    with pytest.raises(ResultError, match="expected"):
        ReferenceLogits.load(folder)


def test_a_later_format_is_refused(stored, tmp_path):
    folder = stored.save(tmp_path / "r")
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"format_version": 99}))
    with pytest.raises(ResultError, match="99"):
        ReferenceLogits.load(folder)


def test_a_full_disk_is_named_before_writing(stored, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ResultError, match="free"):
        stored.save(tmp_path / "r")
    assert not (tmp_path / "r").exists()
