"""Names become files: built-in entries, a YAML file's entries, paths, and helpful refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infopt.errors import ConfigError, DownloadError, ModelNotFoundError
from infopt.models import registry
from infopt.models.registry import list_models, load_registry_file, resolve_model
from infopt.models.sources import HubSource, PathSource, WheelSource

MODELS_YAML = Path(__file__).parents[2] / "config" / "models.yaml"

ENTRY = """
models:
  mine:
    format: safetensors
    licence: Apache-2.0
    stored_dtype: float32
    sources:
      - path: {path}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    return path


def test_built_in_models_state_licence_type_and_checksum():
    entries = {entry.slug: entry for entry in list_models()}
    assert {"smollm2-135m-instruct-q4_1", "gemma-3-270m-q4_k_m"} <= set(entries)
    smollm = entries["smollm2-135m-instruct-q4_1"]
    assert (smollm.licence, smollm.stored_dtype) == ("Apache-2.0", "q4_1")
    gemma = entries["gemma-3-270m-q4_k_m"]
    assert "Gemma Terms of Use" in (gemma.notice or "")
    assert isinstance(gemma.sources[0], WheelSource)
    assert [r.split("==")[0][-5:] for r in gemma.sources[0].requirements] == [
        f"part{n}" for n in range(1, 5)
    ]
    for entry in entries.values():
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256 or "0" * 64)


def test_a_registered_model_is_resolved(smollm2_path):
    model = resolve_model("smollm2-135m-instruct-q4_1", show_progress=False)
    assert model.path == smollm2_path
    assert (model.slug, model.format) == ("smollm2-135m-instruct-q4_1", "gguf")
    assert (model.licence, model.stored_dtype) == ("Apache-2.0", "q4_1")
    # The same file by its path is the same content, but its licence is not known.
    by_path = resolve_model(str(smollm2_path))
    assert by_path.identity == model.identity
    assert (by_path.licence, by_path.stored_dtype) == (None, "q4_1")


def test_a_folder_and_a_file_are_resolved(tiny_model_dir, make_gguf):
    folder = resolve_model(str(tiny_model_dir("llama")))
    assert (folder.format, folder.stored_dtype) == ("safetensors", "float32")
    file = resolve_model(str(make_gguf(metadata={"general.file_type": 0})))
    assert (file.slug, file.format, file.stored_dtype) == ("tiny-llama", "gguf", "f32")


def test_an_unknown_name_gets_the_nearest_slug_and_all_choices():
    with pytest.raises(ModelNotFoundError) as error:
        resolve_model("smollm2-135m-instruct")
    assert "Did you mean 'smollm2-135m-instruct-q4_1'?" in error.value.message
    assert "gemma-3-270m-q4_k_m" in str(error.value.remedy)


@pytest.mark.usefixtures("own_registry")
def test_entries_of_a_file_can_be_named(tmp_path, tiny_model_dir):
    folder = tiny_model_dir("llama")
    path = write(tmp_path, ENTRY.format(path=folder))
    (entry,) = load_registry_file(path)
    assert entry.sources == (PathSource(str(folder)),)
    assert resolve_model("mine").path == folder
    assert resolve_model("mine").licence == "Apache-2.0"
    assert load_registry_file(path) == [entry]  # loading it again changes nothing


@pytest.mark.usefixtures("own_registry")
def test_the_first_source_that_is_there_is_taken(tmp_path, tiny_model_dir):
    text = ENTRY.format(path="/nowhere") + f"      - path: {tiny_model_dir('qwen3')}\n"
    load_registry_file(write(tmp_path, text))
    assert resolve_model("mine").path == tiny_model_dir("qwen3")


@pytest.mark.usefixtures("own_registry")
def test_when_no_source_works_every_reason_is_given(tmp_path, monkeypatch):
    def refuse(source: HubSource, **_) -> Path:
        raise DownloadError(f"{source.repo} is out of reach.")

    monkeypatch.setattr(registry, "fetch_hub", refuse)
    text = ENTRY.format(path="/nowhere") + "      - {repo: a/b, revision: main}\n"
    load_registry_file(write(tmp_path, text))
    with pytest.raises(DownloadError, match="/nowhere does not exist; a/b is out of reach"):
        resolve_model("mine")


@pytest.mark.usefixtures("own_registry")
def test_a_source_of_the_wrong_format_is_refused(tmp_path, make_gguf):
    load_registry_file(write(tmp_path, ENTRY.format(path=make_gguf())))
    with pytest.raises(ConfigError, match="registered as safetensors"):
        resolve_model("mine")


@pytest.mark.usefixtures("own_registry")
def test_a_slug_keeps_its_meaning(tmp_path):
    text = ENTRY.format(path="/x").replace("mine", "smollm2-135m-instruct-q4_1")
    with pytest.raises(ConfigError, match="another meaning"):
        load_registry_file(write(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("licence:", "license:", "Unknown option 'license'.*'licence'"),
        ("format: safetensors", "format: pickle", "format='pickle'"),
        ("    stored_dtype: float32\n", "", "lacks 'stored_dtype'"),
        ("mine:", "My Model:", "'My Model' is no slug"),
        ("path:", "url:", "exactly one of path, pypi, repo"),
        ("path: /x", "repo: a/b", "lacks 'revision'"),
        ("path: /x", "{path: /x, revision: main}", "Unknown option 'revision'"),
        ("path: /x", '{pypi: a==1, member: "*.gguf"}', "needs a sha256"),
        ("models:", "model:", "Unknown option 'model'.*'models'"),
    ],
)
@pytest.mark.usefixtures("own_registry")
def test_a_malformed_entry_is_refused_and_nothing_is_added(tmp_path, old, new, message):
    text = ENTRY.format(path="/x")
    assert old in text
    before = list_models()
    with pytest.raises(ConfigError, match=message):
        load_registry_file(write(tmp_path, text.replace(old, new, 1)))
    assert list_models() == before


@pytest.mark.parametrize("text", ["- a list", "models: {x: 3}", "models: [", ""])
@pytest.mark.usefixtures("own_registry")
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(ConfigError):
        load_registry_file(write(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_registry_file(tmp_path / "absent.yaml")


@pytest.mark.usefixtures("own_registry")
def test_the_shipped_file_lists_pinned_hub_models_and_downloads_nothing(monkeypatch):
    def forbid(*_, **__):
        raise AssertionError("loading the registry must not fetch")

    monkeypatch.setattr(registry, "fetch_hub", forbid)
    monkeypatch.setattr(registry, "fetch_wheels", forbid)
    entries = {entry.slug: entry for entry in load_registry_file(MODELS_YAML)}
    families = ("qwen3-0.6b", "qwen3-30b-a3b", "llama-3.2-1b-instruct", "olmoe-1b-7b-instruct")
    assert set(families) <= set(entries)
    for entry in entries.values():
        (source,) = entry.sources
        assert isinstance(source, HubSource)
        assert re.fullmatch(r"[0-9a-f]{40}", source.revision)
        assert entry.description
        assert entry.licence
