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
        "infopt_kv_freed_bytes_total": 0,
    }
    assert {name: after[name, ("tiny",)] for name in expected} == expected
    assert after["infopt_completions_finished_total", ("length", "tiny")] == 3
    assert after["infopt_http_requests_total", ("/v1/completions", "200")] == 2 or (
        after["infopt_http_requests_total", ("200", "/v1/completions")] == 2
    )
    assert after["infopt_kv_pages", ("tiny",)] == server.engine.cache.pool.num_pages


def test_names_and_labels(server):
    """Dashboards find everything by prefix, and tell models apart by label."""
    families = list(text_string_to_metric_families(server.http.get("/metrics").text))
    # Names of the process itself are Prometheus' own.
    own = [f for f in families if not f.name.startswith("process_")]
    assert len(own) > 15
    assert all(family.name.startswith("infopt_") for family in own)
    assert len({family.name for family in families}) == len(families)
    of_models = [f for f in own if any("model" in s.labels for s in f.samples)]
    names = {family.name for family in of_models}
    assert {
        "infopt_requests",
        "infopt_kv_pages_used",
        "infopt_time_to_first_token_seconds",
    } <= names
    assert {s.labels["model"] for family in of_models for s in family.samples} == {"tiny"}


def test_unknown_paths_make_no_labels(server):
    server.http.get("/a/secret/path")
    assert "secret" not in server.http.get("/metrics").text


def test_health_names_the_models(server):
    assert server.http.get("/health").json() == {"status": "ready", "models": ["tiny"]}


def test_an_idle_server_holds_nothing(server):
    """What a leak would show in; the task that answers and the two of the server are no leak."""
    before = samples(server)
    server.complete([5, 6], max_tokens=3, response_format={"type": "json_object"})
    server.wait_idle()
    after = samples(server)
    for name in ("http_requests_in_flight", "streams_open", "requests_published"):
        assert after[f"infopt_{name}", ()] == 0
    assert after["infopt_requests_tracked", ("tiny",)] == 0
    assert after["infopt_event_loop_tasks", ()] == before["infopt_event_loop_tasks", ()]
    assert 1 <= after["infopt_compiled_grammars", ("tiny",)] <= 64


def test_a_running_request_shows(start_server, slow, wait):
    server = start_server()
    slow(server.engine, 0.01)
    body = {"prompt": [5, 6], "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body):
        wait(lambda: server.engine.scheduler.running)
        running = samples(server)
        for name in ("http_requests_in_flight", "streams_open", "requests_published"):
            assert running[f"infopt_{name}", ()] == 1
        assert running["infopt_requests_tracked", ("tiny",)] == 1
    server.wait_idle()


def test_cpu_times_grow_with_what_is_done(server):
    """The model thread's time within steps is no time of serving."""
    before = samples(server)
    server.complete([5, 6], max_tokens=40, ignore_eos=True)
    server.wait_idle()
    after = samples(server)
    step = after["infopt_step_cpu_seconds_total", ()] - before["infopt_step_cpu_seconds_total", ()]
    name = ("infopt_serving_cpu_seconds_total", ())
    assert step > 0
    assert after[name] > before[name]
    loop = server.service.loop
    assert loop.step_cpu_s >= step
    assert loop.other_cpu_s > 0


def test_eviction_is_counted_by_request(start_server):
    """A request's own choice is taken, and what it frees is the engine's count."""
    server = start_server(engine={"preemption": "swap"})
    prompt, eviction = [5 + i % 200 for i in range(60)], {"method": "knorm", "budget": 0.5}
    server.complete(prompt, max_tokens=3)
    assert samples(server)["infopt_kv_freed_bytes_total", ("tiny",)] == 0
    server.complete(prompt, max_tokens=3, kv_eviction=eviction)
    page_bytes = server.engine.cache.layout.page_bytes
    assert samples(server)["infopt_kv_freed_bytes_total", ("tiny",)] == 2 * page_bytes


def test_speculation_is_counted_and_tokens_share_their_gap(start_server):
    """Without it there are no such metrics; with it every token after the first has a gap."""
    plain = start_server()
    prompt = list(range(10, 17)) * 4
    expected = plain.complete(prompt, max_tokens=20, ignore_eos=True, temperature=0)
    assert not [name for name, _ in samples(plain) if name.startswith("infopt_spec_")]

    server = start_server(engine={"speculative": {"method": "ngram", "prompt_lookup_min": 1}})
    answer = server.complete(prompt, max_tokens=20, ignore_eos=True, temperature=0)
    assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
    after = samples(server)
    stats = server.engine.draft_stats
    assert after["infopt_spec_drafted_passes_total", ("tiny",)] == stats.num_drafted_passes > 0
    assert after["infopt_spec_plain_passes_total", ("tiny",)] == stats.num_plain_passes
    assert after["infopt_spec_emitted_tokens_total", ("tiny",)] == stats.num_emitted
    for position, count in enumerate(stats.proposed, start=1):
        key = tuple(sorted(("tiny", str(position))))
        assert after["infopt_spec_proposed_tokens_total", key] == count
        assert after["infopt_spec_accepted_tokens_total", key] == stats.accepted[position - 1]
    assert stats.num_emitted + stats.num_plain_passes == 19
    assert after["infopt_inter_token_latency_seconds_count", ("tiny",)] == 19


def test_quantized_pages_are_shown_where_there_are_some(start_server, server):
    name = "infopt_kv_quantized_pages"
    assert not any(family.startswith(name) for family, _ in samples(server))
    sizes = {"kv_cache_dtype": "int8", "kv_group_size": 16, "kv_residual": 32}
    quantizing = start_server(engine=sizes)
    quantizing.complete(list(range(10, 90)), max_tokens=4, ignore_eos=True)
    after = samples(quantizing)
    assert after[name, ("tiny",)] == quantizing.engine.cache.quantized.pool.num_pages
    assert after[name + "_used", ("tiny",)] == 0
    assert after[name + "_cached", ("tiny",)] == 3  # 84 rows: 3 pages are read quantized


def test_what_was_decided_is_shown(start_server):
    plain = start_server(engine={"speculative": {"method": "ngram"}})
    names = {name for name, _ in samples(plain)}
    assert "infopt_spec_draft_seconds_total" in names
    assert not [name for name in names if name.startswith("infopt_spec_control")]

    server = start_server(engine={"speculative": {"method": "auto"}})
    server.complete(list(range(10, 30)) * 4, max_tokens=40, ignore_eos=True, temperature=0)
    found = samples(server)
    report = server.engine.scheduler.control.describe()
    for decision, count in report["decisions"].items():
        key = tuple(sorted((decision, "tiny")))
        assert found["infopt_spec_control_steps_total", key] == count
    assert 0 < sum(report["decisions"].values()) < 40
    for length, count in report["lengths"].items():
        assert found["infopt_spec_control_lengths_total", (str(length), "tiny")] == count
    gain = report["measured_speedup"]
    assert found.get(("infopt_spec_measured_speedup", ("tiny",))) == gain
