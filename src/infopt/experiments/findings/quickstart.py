"""Tables and the plot of the quickstart notebook."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from infopt.bench.stats import Interval, bootstrap_interval
from infopt.experiments.findings.tables import full_text
from infopt.outputs import CompletionOutput, RequestOutput, ScoreOutput
from infopt.plotting import bars_with_interval
from infopt.results.html import format_value
from infopt.select import Recommendation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler

    from infopt.llm import LLM


def shuffled(text: str, seed: int = 0) -> str:
    """Return the words of a text in another order."""
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


def facts_table(llm: LLM) -> pd.DataFrame:
    """Return what loading a model settled: where it runs, how, and what its memory holds."""
    import pandas as pd

    facts = llm.stats()
    memory = facts["memory"]
    values = {
        "device": facts["device"],
        "computes in": facts["dtype"],
        "threads": facts["num_threads"],
        "weights (MiB)": round(memory["weights_bytes"] / 2**20, 1),
        "KV cache per token (KiB)": round(memory["kv_bytes_per_token"] / 2**10, 1),
        "KV cache in all (MiB)": round(memory["kv_pool_bytes"] / 2**20, 1),
        "tokens that fit into it": facts["pages"]["total"] * llm.config.block_size,
        "kernels": ", ".join(sorted({op["backend"] for op in facts["ops"].values()})),
    }
    return pd.Series(values, name=llm.config.model).to_frame()


def samples_table(samples: Mapping[str, CompletionOutput]) -> Styler:
    """Return draws of one request side by side, each compared with the first."""
    import pandas as pd

    first = next(iter(samples.values()))
    rows = [
        {"text": s.text, "same tokens as the first": s.token_ids == first.token_ids}
        for s in samples.values()
    ]
    return full_text(pd.DataFrame(rows, index=pd.Index(list(samples))))


def counter_table(stats: Mapping[str, Any]) -> pd.DataFrame:
    """Return the counters of ``LLM.stats()`` in words."""
    import pandas as pd

    values = {
        "requests": stats["requests"],
        "prompt tokens": stats["prompt_tokens"],
        "of these from the prefix cache": stats["cached_tokens"],
        "tokens generated": stats["generated_tokens"],
        "steps of the model": stats["steps"],
        "requests that lost their pages": stats["preemptions"],
    }
    return pd.Series(values, name="since loading").to_frame()


def reuse_table(asked: Sequence[RequestOutput]) -> pd.DataFrame:
    """Return how much of each prompt came from the prefix cache, and what that saved."""
    import pandas as pd

    return pd.DataFrame(
        {
            "prompt (tokens)": [len(a.prompt_token_ids) for a in asked],
            "of these from the cache": [a.num_cached_tokens for a in asked],
            "time to first token (ms)": [_ms(a.metrics.ttft_s) for a in asked],
        },
        index=pd.Index([f"question {i}" for i in range(1, len(asked) + 1)]),
    )


def request_table(outputs: Sequence[RequestOutput]) -> Styler:
    """Return prompts, answers and their times as a table to display."""
    import pandas as pd

    rows = [
        {
            "prompt": output.prompt,
            "answer": output.outputs[0].text,
            "tokens": len(output.outputs[0].token_ids),
            "TTFT (ms)": _ms(output.metrics.ttft_s),
            "TPOT (ms)": _ms(output.metrics.tpot_s),
        }
        for output in outputs
    ]
    return full_text(pd.DataFrame(rows).set_index("prompt"))


def surprise_table(scores: Mapping[str, ScoreOutput]) -> pd.DataFrame:
    """Return the mean surprise per token of each text, and its perplexity."""
    import pandas as pd

    means = {name: _surprise(score) for name, score in scores.items()}
    return pd.DataFrame(
        {
            "tokens": {name: len(score.token_ids) for name, score in scores.items()},
            "surprise (bits per token)": {name: m.estimate for name, m in means.items()},
            "low": {name: m.low for name, m in means.items()},
            "high": {name: m.high for name, m in means.items()},
            "perplexity": {name: format_value(2**m.estimate, 3) for name, m in means.items()},
        }
    ).round(2)


def surprise_axes(scores: Mapping[str, ScoreOutput]) -> Axes:
    """Draw the mean surprise per token of each text with its 95 % interval."""
    import pandas as pd

    means = {name: _surprise(score) for name, score in scores.items()}
    column = "extra.surprise_bits_per_token"
    table = pd.DataFrame(
        {
            "slug": list(means),
            column: [m.estimate for m in means.values()],
            f"intervals.{column}.low": [m.low for m in means.values()],
            f"intervals.{column}.high": [m.high for m in means.values()],
        }
    )
    first, *_, last = means
    factor = means[last].estimate / means[first].estimate
    title = f"{last.capitalize()} surprise the model {factor:.1f}x as much as {first}"
    axes = bars_with_interval(table, column, title=title)
    axes.set_xlabel("Surprise (bits per token)   ← better")
    return axes


def _surprise(score: ScoreOutput) -> Interval:
    bits = [-value / math.log(2) for value in score.logprobs if value is not None]
    return bootstrap_interval(bits, np.mean)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 1)


def recommendation_use(recommendation: Recommendation) -> str:
    """Return how to use a recommendation, as Markdown."""
    if recommendation.config is None:
        return "Nothing is feasible, so there is nothing to load."
    code = (
        "from infopt import LLM\n"
        "from infopt.select import read_recommendation\n\n"
        'recommendation = read_recommendation("results/recommendation.yaml")\n'
        "llm = LLM(config=recommendation.engine_config())"
    )
    return f"To use it anywhere:\n\n```python\n{code}\n```"


def _options(recommendation: Recommendation) -> str:
    """Return the options of the choice that are not at their defaults."""
    options = recommendation.changed_options()
    return ", ".join(f"`{name}={value!r}`" for name, value in options.items())


def answer(
    prompts: Sequence[str],
    surprises: pd.DataFrame,
    asked: Sequence[RequestOutput],
    recommendation: Recommendation | None,
) -> str:
    """Return the conclusion as Markdown.

    Args:
        prompts: What was generated from.
        surprises: From `surprise_table`: a text, then its words shuffled.
        asked: The first and the second question about one document.
        recommendation: None where no pipeline has run.
    """
    bits = [float(value) for value in surprises["surprise (bits per token)"]]
    saved = asked[-1].num_cached_tokens / len(asked[-1].prompt_token_ids)
    chosen = "not made yet (`make run`)"
    if recommendation is not None:
        chosen = _options(recommendation) or "that nothing is feasible"
    lines = [
        f"One object generates, chats, samples, scores; {len(prompts)} prompts shared its steps.",
        f"Shuffling the words raised its surprise from {bits[0]:.1f} to {bits[1]:.1f} bits per "
        "token: the model knows more than words.",
        f"The second question about a document took **{saved:.0%}** of its prompt from the cache.",
        f"The recommendation for this machine is {chosen}.",
    ]
    return "\n".join(f"- {line}" for line in lines)
