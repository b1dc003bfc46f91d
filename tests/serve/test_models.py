"""Several models in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt.config import EngineConfig
from infopt.errors import ConfigError
from infopt.serve.config import ServeConfig
from infopt.serve.server import load_engines, served_name, split_kv_memory
from infopt.serve.service import Service


def test_the_request_chooses(server, make_engine, run_service):
    engines = {"tiny": make_engine(), "other": make_engine("qwen3")}
    with run_service(Service(engines, ServeConfig(port=0))) as both:
        texts = {}
        for name in engines:
            body = {"prompt": [5, 6, 7], "model": name, "max_tokens": 6, "temperature": 0}
            answer = both.post("/v1/completions", **body).json()
            assert answer["model"] == name
            texts[name] = answer["choices"][0]["text"]
        options = {"max_tokens": 6, "temperature": 0}
        assert texts["tiny"] == server.complete([5, 6, 7], **options)["choices"][0]["text"]
        assert texts["tiny"] != texts["other"]
        unnamed = both.post("/v1/completions", prompt=[5])
        assert unnamed.status_code == 400
        assert "tiny, other" in unnamed.json()["error"]["message"]
        assert [m["id"] for m in both.http.get("/v1/models").json()["data"]] == ["tiny", "other"]
        assert 'infopt_requests_total{model="other"} 1.0' in both.http.get("/metrics").text


def test_names(tmp_path: Path):
    (tmp_path / "Qwen2.5-0.5B").mkdir()
    (tmp_path / "a.q4.gguf").touch()
    assert served_name(EngineConfig(model=str(tmp_path / "Qwen2.5-0.5B"))) == "Qwen2.5-0.5B"
    assert served_name(EngineConfig(model=str(tmp_path / "a.q4.gguf"))) == "a.q4"
    assert served_name(EngineConfig(model="some-slug")) == "some-slug"


def test_bad_sets_of_models():
    config = EngineConfig(model="x")
    for configs, names in (([], []), ([config, config], []), ([config], ["a", "b"])):
        with pytest.raises(ConfigError) as caught:
            load_engines(configs, names)
        assert caught.value.field == "served_model_name"
    with pytest.raises(ConfigError, match="tokenizer"):
        load_engines([config.replace(skip_tokenizer_init=True)])


def test_memory_is_shared():
    configs = split_kv_memory([EngineConfig(model=m, kv_cache_memory_gib=3.0) for m in "abc"])
    assert [c.kv_cache_memory_gib for c in configs] == [1.0] * 3


def test_unusable_options_are_refused():
    for options in ({"port": -1}, {"api_key": ""}, {"grace_s": -1}, {"max_body_bytes": 0}):
        with pytest.raises(ConfigError) as caught:
            ServeConfig(**options)
        assert caught.value.field == next(iter(options))
