"""The random model: the same bytes for the same seed, and a model that the engine really runs."""

from infopt import LLM, SamplingParams
from infopt.experiments.fetch import fetch
from infopt.experiments.random_model import write_random_model


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    """A changed byte would look like a changed model and rerun everything after it."""
    first, second = write_random_model(tmp_path / "a"), write_random_model(tmp_path / "b")
    other = write_random_model(tmp_path / "c", seed=1)
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted(p.name for p in second.iterdir())
    assert all((first / n).read_bytes() == (second / n).read_bytes() for n in names)
    weights = "model.safetensors"
    assert (first / weights).read_bytes() != (other / weights).read_bytes()


def test_the_stage_describes_a_model_that_runs(tmp_path):
    found = fetch("random", tmp_path)
    assert found["model"] == str(tmp_path / "models" / "random")
    assert found["family"] == "llama"
    assert found["num_layers"] == 2
    assert found["ops"]["float32"]["attention"]
    with LLM(found["model"], max_model_len=64, num_kv_pages=8) as llm:
        text = "def f(x): return x + 1  # é"
        ids = llm.tokenizer.encode(text)
        assert llm.tokenizer.decode(ids) == text
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        output = llm.generate(ids, params, use_tqdm=False)[0].outputs[0]
        assert len(set(output.token_ids)) > 4  # it wanders, so that tests on it mean something
        chat = [{"role": "user", "content": "hi"}]
        assert llm.chat(chat, params, use_tqdm=False)[0].outputs[0].token_ids
