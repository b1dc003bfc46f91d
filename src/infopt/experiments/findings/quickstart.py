"""Tables and the plot of the quickstart notebook."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from infopt.bench.stats import Interval, bootstrap_interval
from infopt.experiments.findings.tables import full_text
from infopt.outputs import RequestOutput, ScoreOutput
from infopt.plotting import bars_with_interval
from infopt.select import Recommendation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler


def shuffled(text: str, seed: int = 0) -> str:
    """Return the words of a text in another order."""
    words = text.split()
    random.Random(seed).shuffle(words)
    return " ".join(words)


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
            "perplexity": {name: 2**m.estimate for name, m in means.items()},
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
    axes.set_xlabel("Surprise (bits per token)")
    return axes


def _surprise(score: ScoreOutput) -> Interval:
    bits = [-value / math.log(2) for value in score.logprobs if value is not None]
    return bootstrap_interval(bits, np.mean)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 1)


def recommendation_notes(recommendation: Recommendation) -> str:
    """Return the remarks of a recommendation and how to use it, as Markdown."""
    notes = "\n".join(f"- {note}" for note in recommendation.notes)
    if recommendation.config is None:
        return notes
    code = (
        "from infopt import LLM\n"
        "from infopt.select import read_recommendation\n\n"
        'recommendation = read_recommendation("results/recommendation.yaml")\n'
        "llm = LLM(config=recommendation.engine_config())"
    )
    return f"{notes}\n\nTo use it anywhere:\n\n```python\n{code}\n```"


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
        chosen = f"`{recommendation.run}`" if recommendation.run else "that nothing is feasible"
    lines = [
        f"One object generates, chats, samples, scores; {len(prompts)} prompts shared its steps.",
        f"Shuffling the words raised its surprise from {bits[0]:.1f} to {bits[1]:.1f} bits per "
        "token: the model knows more than words.",
        f"The second question about a document took **{saved:.0%}** of its prompt from the cache.",
        f"The recommendation for this machine is {chosen}.",
    ]
    return "\n".join(f"- {line}" for line in lines)
