"""Models that transformers runs are measured too; what is not counted for them is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from infopt import LLM
from infopt.bench.roofline import MachinePeaks
from infopt.bench.step_cost import step_bytes
from infopt.energy.attribution import flop_model
from infopt.evals.families.cases import CASES
from infopt.evals.families.write import write_checkpoint
from infopt.experiments.machine import machine_peaks, precision_of
from infopt.experiments.probes import op_curve, step_curve
from infopt.experiments.sections import memory_section, ops_section, roofline_section

PEAKS = MachinePeaks(bytes_per_s=1e10, flops_per_s=1e11)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("gpt_oss")
    write_checkpoint(next(case for case in CASES if case.family == "gpt_oss"), folder)
    return LLM(str(folder), dtype="float32", skip_tokenizer_init=True, kv_cache_memory_gib=0.01)


def test_sections_of_a_record(llm: LLM) -> None:
    llm.engine.step_log = []
    llm.generate([[5, 6, 7]], use_tqdm=False)
    steps = llm.engine.step_log
    assert steps and roofline_section(llm, steps, PEAKS) is None
    memory = memory_section(llm, steps)
    assert memory["weights_bytes"] == 4 * llm.engine.describe()["num_parameters"]  # type: ignore[operator]
    assert memory["peak_pages"] == 4  # two groups, 19 tokens
    assert ops_section(llm)["backends"]["decoder"]["backend"] == "transformers"
    assert precision_of(llm).kv_bytes == 4


def test_energy_of_a_run_is_split(llm: LLM) -> None:
    """Only the weights are counted: the bytes of a step are those of one token's weights."""
    config = llm.model_config
    llm.engine.step_log = []
    llm.generate([[5, 6, 7]], use_tqdm=False)
    step = llm.engine.step_log[0]
    assert step_bytes(step, config, precision_of(llm)) == 4.0 * config.num_active_parameters
    split = flop_model(config)
    assert split.per_decode_token == 2.0 * config.num_active_parameters > 0
    assert config.num_active_parameters < config.num_parameters


def test_peaks_are_those_of_the_machine_alone(llm: LLM) -> None:
    peaks = machine_peaks(llm)
    assert peaks.bytes_per_s and peaks.flops_per_s


def test_probes_leave_out_what_is_not_counted(llm: LLM) -> None:
    assert op_curve(llm, PEAKS, 0.1) == {}
    assert step_curve(llm, PEAKS) == {}
