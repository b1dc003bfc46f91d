"""Which request goes where: both models of a pair answer the same prompts, policies learn from it.

A probe of the stage `moe`. One half of the prompts trains the policies, the other half judges them
(`infopt.select.routing`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infopt.energy import measured_run
from infopt.errors import ConfigError
from infopt.evals.tasks import TASKS
from infopt.evals.tasks.base import ChoiceItem, ChoiceTask
from infopt.evals.tasks.confidence import ChoiceAnswer, answer_item, fits
from infopt.experiments.arms import Arm
from infopt.experiments.measures import ROUTING, RoutingOptions, read_options
from infopt.select.routing import (
    Confidence,
    PairedModels,
    RoutingCurve,
    RoutingItem,
    compare_models,
    routing_curve,
    split_items,
    train_policy,
)

CHEAP, STRONG = "cheap", "strong"
"""Names of the candidate and of the reference among the items."""


class Routing:
    """Lets a candidate, the cheap model, and the reference, the strong one, answer the same items.

    Args:
        options: See `RoutingOptions`.
        seed: Of items, split and resampling.
    """

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        """Check the options."""
        self._options, self._seed = read_options(RoutingOptions, options, ROUTING), seed

    def probe(self, arm: Arm, reference: Arm | None) -> dict[str, Any]:
        """Return curves of all policies and the comparison of both models; nothing for one alone.

        Samples ``routing.<policy>.*`` have an entry per share of the strong model,
        ``routing_items.*`` one per prompt, the number of its task among the options first.
        """
        if reference is None:
            return {}
        items, num_left_out = self._ask(arm, reference)
        train, test = split_items(items, test_share=self._options.test_share, seed=self._seed)
        samples, extra = _item_samples(items, list(self._options.items)), {}
        for kind in self._options.policies:
            policy = train_policy(kind, train, CHEAP, STRONG)
            curve = routing_curve(policy, test, seed=self._seed)
            samples |= _curve_samples(kind, curve)
            extra |= _curve_figures(kind, curve)
        for pair in compare_models(items, [STRONG, CHEAP], seed=self._seed):
            extra |= _pair_figures(pair)
        extra |= {"routing_train": len(train), "routing_test": len(test)}
        extra |= {"routing_left_out": num_left_out, "routing_strong_model": reference.slug}
        return {"samples": samples, "extra": extra}

    def _ask(self, cheap: Arm, strong: Arm) -> tuple[list[RoutingItem], int]:
        """Return the items that fit both models, and how many do not."""
        found: list[RoutingItem] = []
        num_left_out = 0
        for name, count in self._options.items.items():
            task = _choice_task(name)
            asked = task.items(count, self._seed)
            fitting = [i for i in asked if fits(cheap.llm, i) and fits(strong.llm, i)]
            num_left_out += len(asked) - len(fitting)
            found += _items_of(task, fitting, cheap, strong)
        return found, num_left_out


def _choice_task(name: str) -> ChoiceTask:
    task = TASKS.get(name)()
    if not isinstance(task, ChoiceTask):
        raise ConfigError(
            f"{ROUTING}.items: the task {name!r} is not one of choosing.",
            field=f"{ROUTING}.items",
            value=name,
            remedy="Take arithmetic, code or multilingual.",
        )
    return task


def _items_of(
    task: ChoiceTask, items: Sequence[ChoiceItem], cheap: Arm, strong: Arm
) -> Iterator[RoutingItem]:
    answers = {CHEAP: _answers(task, items, cheap), STRONG: _answers(task, items, strong)}
    for place, item in enumerate(items):
        own = answers[CHEAP][place][0]
        both = {name: found[place] for name, found in answers.items()}
        yield RoutingItem(
            f"{task.name}/{item.item_id}",
            item.prompt,
            task.name,
            quality={name: float(answer.outcome.correct) for name, (answer, _) in both.items()},
            costs={name: costs for name, (_, costs) in both.items()},
            prompt_logprob=own.prompt_logprob,
            confidence=Confidence(own.mean_logprob, own.margin),
        )


def _answers(
    task: ChoiceTask, items: Sequence[ChoiceItem], arm: Arm
) -> list[tuple[ChoiceAnswer, dict[str, float]]]:
    """Return answers, one at a time, with seconds and, where there is a meter, joules of each.

    The energy of all of them is measured at once, since counters are too slow for a single one, and
    shared out by time.
    """
    if items:
        answer_item(arm.llm, items[0], task.normalise)  # the first one would pay for warming up
    answers, seconds = [], []
    with measured_run(arm.llm.engine, arm.meter, arm.bytes_of) as energy:
        for item in items:
            start_s = time.perf_counter()
            answers.append(answer_item(arm.llm, item, task.normalise))
            seconds.append(time.perf_counter() - start_s)
    joules, total_s = energy.reading.joules, sum(seconds)
    costs = [
        {"seconds": s} | ({} if joules is None else {"joules": joules * s / total_s})
        for s in seconds
    ]
    return list(zip(answers, costs, strict=True))


def _item_samples(items: Sequence[RoutingItem], tasks: Sequence[str]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"task": [tasks.index(item.group) for item in items]}
    for model in (CHEAP, STRONG):
        columns[f"{model}_quality"] = [item.quality[model] for item in items]
        columns[f"{model}_seconds"] = [item.costs[model]["seconds"] for item in items]
    return {f"routing_items.{name}": values for name, values in columns.items()}


def _curve_samples(kind: str, curve: RoutingCurve) -> dict[str, list[Any]]:
    names = ("share", "quality", "quality_low", "quality_high", "pgr")
    columns = {name: [getattr(point, name) for point in curve.points] for name in names}
    for unit in curve.points[0].costs:
        columns[unit] = [point.costs[unit] for point in curve.points]
    return {f"routing.{kind}.{name}": values for name, values in columns.items()}


def _curve_figures(kind: str, curve: RoutingCurve) -> dict[str, Any]:
    names = ("apgr", "apgr_low", "apgr_high", "lift", "lift_low", "lift_high", "verdict")
    data = curve.to_dict()
    figures = {name: data[name] for name in names}
    figures |= {f"cpt_{target}": share for target, share in data["cpt"].items()}
    return {f"routing_{kind}_{name}": value for name, value in figures.items()}


def _pair_figures(pair: PairedModels) -> dict[str, Any]:
    figures: dict[str, Any] = {CHEAP: pair.quality, STRONG: pair.reference_quality}
    figures |= asdict(pair.paired) | {"num_items": pair.num_items}
    for unit, ratio in pair.cost_ratios.items():
        figures |= {f"{unit}_{name}": getattr(ratio, name) for name in ("median", "low", "high")}
    return {f"ab_{pair.group or 'all'}_{name}": value for name, value in figures.items()}
