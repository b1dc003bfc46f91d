"""The offline arm of `infopt.bench.overhead`: an ``LLM`` in a process of its own.

    python -m infopt.bench.overhead_offline SETTINGS

SETTINGS is JSON: the configuration of the engine, prompts as token ids, and the length of answers.
Each line on standard input makes one run; its answer is one line, the output tokens per second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from infopt.errors import MeasurementError


class OfflineEngine:
    """A process that runs the prompts whenever it is asked to.

    Args:
        settings: ``engine``, ``prompts`` and ``max_tokens``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """Start it; it loads the model before its first run."""
        command = [sys.executable, "-m", "infopt.bench.overhead_offline", json.dumps(settings)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    def tokens_per_s(self) -> float:
        """Run all prompts once and return the rate of output tokens.

        Raises:
            MeasurementError: If the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            raise MeasurementError("The offline engine ended; its words are above.") from error

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Run the prompts once for each line."""
    from infopt.llm import LLM
    from infopt.sampling_params import SamplingParams

    settings = json.loads(sys.argv[1])
    params = SamplingParams(temperature=0, max_tokens=settings["max_tokens"], ignore_eos=True)
    with LLM(**settings["engine"]) as llm:
        for _ in sys.stdin:
            start_s = time.perf_counter()
            outputs = llm.generate(settings["prompts"], params, use_tqdm=False)
            duration_s = time.perf_counter() - start_s
            num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            print(num_tokens / duration_s, flush=True)


if __name__ == "__main__":
    main()
