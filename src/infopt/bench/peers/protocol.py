"""The worker's side: one JSON request per line on stdin, one JSON answer per line on stdout.

    python protocol.py ENGINE_FILE OPTIONS

Workers run in other environments, so this file imports nothing of infopt. ENGINE_FILE defines a
class ``Engine`` that is made from the options (JSON) and has

    decode(prompts, num_tokens)   generate that many tokens per prompt
    logits(ids)                   float32 (len(ids), vocab_size), or None where it cannot
"""

import json
import os
import runpy
import sys
import time


def serve(engine_file, options):
    """Make an engine and answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not look like an answer
    engine = runpy.run_path(engine_file)["Engine"](json.loads(options))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(engine, request)), file=answers, flush=True)


def _answer(engine, request):
    if request["command"] == "measure":
        return measure(engine, request["prompts"], request["num_tokens"])
    if request["command"] == "logits":
        return {"written": _write_logits(engine, request["ids"], request["path"])}
    raise ValueError("unknown command " + repr(request["command"]))


def measure(engine, prompts, num_tokens):
    """Return seconds of reading the prompts, and of ``num_tokens`` decode steps after that.

    The first run ends with one token per prompt, which is what reading the prompts takes; the
    second makes ``num_tokens`` more. The difference is the time of decoding alone.
    """
    start = time.perf_counter()
    engine.decode(prompts, 1)
    middle = time.perf_counter()
    engine.decode(prompts, num_tokens + 1)
    end = time.perf_counter()
    return {"prefill_s": middle - start, "decode_s": (end - middle) - (middle - start)}


def _write_logits(engine, ids, path):
    import numpy

    logits = engine.logits(ids)
    if logits is not None:
        numpy.save(path, numpy.asarray(logits, dtype="float32"))
    return logits is not None


if __name__ == "__main__":
    serve(*sys.argv[1:])
