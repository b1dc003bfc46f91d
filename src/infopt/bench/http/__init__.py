"""Load on a server over HTTP: any server with OpenAI's ``/v1/completions`` or chat endpoint.

    target = connect("http://127.0.0.1:8000")              who serves, with which tokenizer
    load = HttpLoad(target, endpoint="completions")        how to ask
    result = run_http_load(load, requests)                 an `HttpLoadResult`
    result.summary(slo)

Requests leave at their scheduled times whether or not the server keeps up, every piece of an answer
is stamped when it arrives, and an answer that is not whole is a failed request.
"""

from __future__ import annotations

from infopt.bench.http.load import HttpLoad
from infopt.bench.http.openloop import run_http_load
from infopt.bench.http.result import HttpLoadResult
from infopt.bench.http.target import HttpTarget, connect

__all__ = ["HttpLoad", "HttpLoadResult", "HttpTarget", "connect", "run_http_load"]
