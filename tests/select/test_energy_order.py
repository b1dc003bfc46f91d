"""Derived energy in recommendations: labelled, and its order judged over the constants' ranges."""

from __future__ import annotations

from typing import Any

from infopt.select import choose


def derived(idle: float, busy: float, num_bytes: float, value: float) -> dict[str, Any]:
    return {
        "j_per_token": value,
        "j_per_request": value * 10,
        "source": "modelled",
        "reason": None,
        "derived": True,
        "j_per_token_low": value / 2,
        "j_per_token_high": value * 2,
        "j_per_request_low": value * 5,
        "j_per_request_high": value * 20,
        "idle_core_s_per_token": idle,
        "busy_core_s_per_token": busy,
        "dram_bytes_per_token": num_bytes,
    }


def notes_of(make_table, make_run, make_served, *energies: dict[str, Any]) -> tuple[str, ...]:
    runs = [
        make_run(f"r{i}", config={"max_num_seqs": i + 1}, energy=e, **make_served(10 - i))
        for i, e in enumerate(energies)
    ]
    return choose(make_table(*runs), {"ttft_s": 1, "percentile": 90}).notes


def test_an_order_that_holds_everywhere_is_said(make_table, make_run, make_served) -> None:
    notes = notes_of(
        make_table,
        make_run,
        make_served,
        derived(0.01, 0.02, 1e8, 0.07),
        derived(0.02, 0.03, 2e8, 0.1),
    )
    assert any("derived from constants, not measured, 0.035 to 0.14" in n for n in notes)
    assert any("the same at all ends" in n for n in notes)


def test_an_order_that_the_constants_decide_names_the_rival(
    make_table, make_run, make_served
) -> None:
    notes = notes_of(
        make_table,
        make_run,
        make_served,
        derived(0.01, 0.01, 9e9, 0.07),
        derived(0.2, 0.2, 1e8, 0.1),
    )
    assert any("above or below that of batching/r1" in n for n in notes)


def test_measured_energy_needs_no_such_note(make_table, make_run, make_served) -> None:
    measured = {"j_per_token": 1.0, "j_per_request": 2.0, "source": "rapl", "reason": None}
    notes = notes_of(make_table, make_run, make_served, measured)
    assert not any("energy" in note for note in notes)


def test_evidence_says_that_it_is_derived(make_table, make_run, make_served) -> None:
    run = make_run("r0", energy=derived(0.01, 0.02, 1e8, 0.07), **make_served(10))
    found = choose(make_table(run), {"ttft_s": 1, "percentile": 90})
    labels = {e.column: e.label for e in found.evidence}
    assert labels["energy.j_per_token"] == "Energy (derived)"


def test_a_choice_by_derived_energy_says_so(make_table, make_run, make_served) -> None:
    """Pins: the reason and the losers' showed derived joules like measured ones."""
    energies = (derived(0.01, 0.02, 1e8, 0.07), derived(0.02, 0.03, 2e8, 0.1))
    runs = [
        make_run(f"r{i}", config={"block_size": i + 1}, energy=e, **make_served(10 - i))
        for i, e in enumerate(energies)
    ]
    limits = {"ttft_s": 1, "percentile": 90}
    found = choose(make_table(*runs), limits, objective="j_per_token")
    assert found.reason.endswith("0.07 J/token (derived).")
    loser = next(r for r in found.rejected if r.run == "batching/r1")
    assert "0.1 J/token (derived) against 0.07 J/token (derived)" in loser.reasons[-1]


def test_the_runs_own_constants_decide_whether_an_order_survives(
    make_table, make_run, make_served
) -> None:
    """Pins: the ranges of the literature counted although the energies came from others."""
    exact = {"low": 1.0, "value": 1.0, "high": 1.0, "source": "a meter at the wall"}
    names = ("idle_w_per_core", "busy_w_per_core", "dram_pj_per_byte")
    own = {"energy": {"meter": "auto", "constants": dict.fromkeys(names, exact)}}
    energies = (derived(0.01, 0.01, 9e9, 0.07), derived(0.2, 0.2, 1e8, 0.1))
    runs = [
        make_run(
            f"r{i}", config={"max_num_seqs": i + 1}, energy=e, workload=own, **make_served(9 - i)
        )
        for i, e in enumerate(energies)
    ]
    notes = choose(make_table(*runs), {"ttft_s": 1, "percentile": 90}).notes
    assert any("the same at all ends" in note for note in notes)


def test_evidence_says_that_power_was_sampled_and_how_often(
    make_table, make_run, make_served
) -> None:
    sampled = {"j_per_token": 1.0, "source": "power-integral", "interval_s": 0.1, "reason": None}
    run = make_run("r0", energy=sampled, **make_served(10))
    found = choose(make_table(run), {"ttft_s": 1, "percentile": 90})
    labels = {e.column: e.label for e in found.evidence}
    assert labels["energy.j_per_token"] == "Energy (power sampled every 0.1 s)"
