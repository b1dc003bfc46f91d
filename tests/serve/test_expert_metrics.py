"""``/metrics`` of mixtures of experts."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infopt.serve import expert_metrics


def samples(server: Any, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by its labels, the model's apart."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        tuple(value for label, value in sorted(s.labels.items()) if label != "model"): s.value
        for family in families
        for s in family.samples
        if s.name == name
    }


def test_loads_jain_and_imbalance_are_those_of_the_engine(start_server: Any) -> None:
    server = start_server(engine={"family": "mixtral", "expert_stats": True})
    before = samples(server, "infopt_expert_load_total")
    assert len(before) == 3 * 6
    assert not any(before.values())  # warm-up is no load
    assert samples(server, "infopt_expert_jain") == {}
    server.complete(list(range(10, 30)), max_tokens=5, ignore_eos=True)
    load = samples(server, "infopt_expert_load_total")
    counts = server.engine.expert_counts.load.sum(0)
    assert load == {
        (str(expert), str(layer)): counts[layer, expert]
        for layer in range(3)
        for expert in range(6)
    }
    for layer in range(3):
        of_layer = [load[str(expert), str(layer)] for expert in range(6)]
        assert sum(of_layer) == 2 * (20 + 4)
        jain = sum(of_layer) ** 2 / (6 * sum(x * x for x in of_layer))
        assert samples(server, "infopt_expert_jain")[(str(layer),)] == pytest.approx(jain)
        imbalance = samples(server, "infopt_expert_imbalance")[(str(layer),)]
        assert imbalance == pytest.approx(max(of_layer) / 8)
    tokens = samples(server, "infopt_expert_routed_tokens_total")
    assert tokens == {("prefill",): 20, ("decode",): 4}


def test_large_mixtures_show_their_layers_alone(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A series per layer and expert of a large model is more than a scraper should be given."""
    monkeypatch.setattr(expert_metrics, "MAX_SERIES", 17)
    server = start_server(engine={"family": "mixtral", "expert_stats": True})
    server.complete([5, 6, 7], max_tokens=2)
    assert samples(server, "infopt_expert_load_total") == {}
    assert len(samples(server, "infopt_expert_jain")) == 3


def test_servers_that_do_not_count_show_nothing(server: Any) -> None:
    assert "infopt_expert" not in server.http.get("/metrics").text
