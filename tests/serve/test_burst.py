"""Five hundred requests at once: every one is answered, and nothing else has to wait for them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import httpx

NUM_REQUESTS = 500
TEXT = "The quick brown fox jumps over the lazy dog. " * 12
KINDS = [
    ("/v1/completions", {"prompt": TEXT}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
]


async def burst(url: str) -> list[int]:
    """Send all requests at the same time, each over a connection of its own."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
        answers = []
        for index in range(NUM_REQUESTS):
            path, body = KINDS[index % len(KINDS)]
            answers.append(client.post(path, json=body | {"max_tokens": 1}))
        return [answer.status_code for answer in await asyncio.gather(*answers)]


def test_the_event_loop_stays_free(start_server, monkeypatch):
    """Encoding so many prompts kept the loop busy: health checks timed out, the server was killed.

    What takes time is done by other threads than the one that speaks HTTP, and that one answers
    while the burst is going on.
    """
    server = start_server({"max_num_waiting": NUM_REQUESTS, "max_num_seqs": 32})
    encode, threads = server.tokenizer.encode, set()

    def watched(*args: Any, **options: Any) -> list[int]:
        threads.add(threading.current_thread())
        return encode(*args, **options)

    monkeypatch.setattr(server.tokenizer, "encode", watched)
    with ThreadPoolExecutor(1) as pool:
        statuses = pool.submit(asyncio.run, burst(server.url))
        num_healthy = 0
        while wait({statuses}, timeout=0.05).not_done:
            assert server.http.get("/health").status_code == 200
            num_healthy += 1
        assert statuses.result() == [200] * NUM_REQUESTS
    assert num_healthy > 5
    assert server.thread not in threads
    assert threads
    server.wait_idle()
