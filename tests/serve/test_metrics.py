"""``/metrics`` and ``/health``."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def samples(server: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    text = server.http.get("/metrics").text
    return {
        (s.name, tuple(sorted(s.labels.values()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_a_fresh_server_has_counted_nothing(start_server):
    """Warm-up must not show in the figures."""
    server = start_server()
    before = samples(server)
    assert before["infopt_requests_total", ("tiny",)] == 0
    assert before["infopt_generated_tokens_total", ("tiny",)] == 0
    assert before["infopt_time_to_first_token_seconds_count", ("tiny",)] == 0
    assert server.engine.cache.pool.num_cached == 0

    server.complete(list(range(10, 50)), max_tokens=5, ignore_eos=True)
    server.complete(list(range(10, 50)), max_tokens=5, ignore_eos=True, n=2)
    after = samples(server)
    expected = {
        "infopt_requests_total": 2,
        "infopt_generated_tokens_total": 15,
        "infopt_time_to_first_token_seconds_count": 3,
        "infopt_queue_time_seconds_count": 3,
        "infopt_inter_token_latency_seconds_count": 12,
        "infopt_request_duration_seconds_count": 3,
        "infopt_requests_running": 0,
        "infopt_requests_waiting": 0,
        "infopt_kv_pages_used": 0,
        "infopt_prompt_tokens_total": 120,
        "infopt_cached_prompt_tokens_total": 64,
        "infopt_prefix_cache_hit_ratio": 64 / 120,
        "infopt_preemptions_total": 0,
    }
    assert {name: after[name, ("tiny",)] for name in expected} == expected
    assert after["infopt_completions_finished_total", ("length", "tiny")] == 3
    assert after["infopt_http_requests_total", ("/v1/completions", "200")] == 2 or (
        after["infopt_http_requests_total", ("200", "/v1/completions")] == 2
    )
    assert after["infopt_kv_pages", ("tiny",)] == server.engine.cache.pool.num_pages


def test_unknown_paths_make_no_labels(server):
    server.http.get("/a/secret/path")
    assert "secret" not in server.http.get("/metrics").text


def test_health_names_the_models(server):
    assert server.http.get("/health").json() == {"status": "ready", "models": ["tiny"]}
