"""The model ``auto``: a policy chooses who answers, and the answer says who did and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from infopt.errors import CapacityError, ConfigError, PromptError, PromptTooLongError
from infopt.sampling_params import SamplingParams
from infopt.select.routing import Confidence, Decision, Policy, RouteRequest
from infopt.serve.generation import Generation, Prepared, Route, until_disconnect
from infopt.serve.protocol.base import SamplingFields
from infopt.serve.replay import Replay, all_of, confidences_of, scored_tokens
from infopt.serve.service import AUTO

if TYPE_CHECKING:
    from infopt.serve.service import Service

_NUM_CANDIDATES = 2
"""Log-probabilities per token that a confidence is made of: the token and the best other one."""


def check_policy(policy: Policy, names: Sequence[str]) -> None:
    """Refuse a policy that names a model which is not served.

    Args:
        policy: The policy.
        names: Of the models that are served.

    Raises:
        ConfigError: Names the model.
    """
    if AUTO in names:
        raise ConfigError(
            f"with a routing policy no model can be called {AUTO!r}.",
            field="served_model_name",
            value=AUTO,
        )
    for name in policy.models:
        if name not in names:
            raise ConfigError(
                f"the routing policy names the model {name!r}, which is not served.",
                field="route",
                value=name,
                remedy=f"Served are {', '.join(names)}; --served-model-name gives other names.",
            )


class Router:
    """Answers requests for ``auto``.

    Args:
        policy: Chooses; names served models only.
        service: Models and loop.
    """

    def __init__(self, policy: Policy, service: Service) -> None:
        """Check the policy's models."""
        check_policy(policy, list(service.models))
        self.policy, self._service = policy, service

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output: what does not fit one model may go to another."""
        return max(self._service.models[name].max_model_len for name in self.policy.models)

    async def respond(
        self, kind: type[Generation], body: SamplingFields, request: Request
    ) -> Response:
        """Answer a request by the model that the policy chooses."""
        return await _Routed(self.policy, self._service, kind, body, request).respond()


class _Routed:
    """One request for ``auto``."""

    def __init__(
        self,
        policy: Policy,
        service: Service,
        kind: type[Generation],
        body: SamplingFields,
        request: Request,
    ) -> None:
        self._policy, self._service, self._kind = policy, service, kind
        self._body, self._request = body, request
        self._text = body.prompt_text()
        self._arrival_s = self._clock_s(policy.models[0])

    async def respond(self) -> Response:
        if self._policy.evidence == "answer":
            return await self._cascade()
        request = RouteRequest(self._text)
        if self._policy.evidence == "prompt_logprob":
            try:
                request = await until_disconnect(self._request, self._scored())
            except (PromptTooLongError, CapacityError):
                return await self._answer(self._too_long_for(self._policy.models[0]))
        decide = partial(self._policy.decide, request)
        return await self._answer(await self._service.run_aside(decide))

    async def _answer(
        self, decision: Decision, asked_first: Mapping[str, Any] | None = None
    ) -> Response:
        """Let the chosen model answer, or, if the request does not fit it, a longer one."""
        try:
            answer = await self._by(decision, asked_first)
        except (PromptTooLongError, CapacityError):
            if not self._has_longer(decision.model):
                raise
            decision = self._too_long_for(decision.model)
            answer = await self._by(decision, asked_first)
        self._count(decision)
        return answer

    async def _by(self, decision: Decision, asked_first: Mapping[str, Any] | None) -> Response:
        route = Route(decision.model, decision.reason, asked_first)
        return await self._generation(decision.model, route).respond(self._request)

    async def _cascade(self) -> Response:
        """Let the cheap model answer; deliver that, or ask the strong one.

        Nothing is sent before the cheap answer is complete: a stream begins late, and at once.
        """
        cheap = self._generation(self._policy.models[0])
        try:
            replay = await until_disconnect(self._request, self._collected(cheap))
        except (PromptTooLongError, CapacityError):
            if not self._has_longer(cheap.model.name):
                raise
            return await self._answer(self._too_long_for(cheap.model.name))
        decision = self._judged(confidences_of(replay.deltas))
        if decision.model == cheap.model.name:
            cheap.route = Route(decision.model, decision.reason)
            self._count(decision)
            return await cheap.deliver(self._request, replay)
        usage = cheap.usage_counter()
        for delta in replay.deltas:
            usage.add(delta)
        return await self._answer(decision, {"model": cheap.model.name} | usage.to_dict())

    def _judged(self, confidences: list[Confidence | None]) -> Decision:
        """Decide by the answer that is most in doubt."""
        kept: Decision | None = None
        for confidence in confidences:
            if confidence is None:
                strong = self._policy.models[1]
                return Decision(strong, "cascade", "cascade: no tokens to judge by")
            kept = self._policy.decide(RouteRequest(self._text, confidence=confidence))
            if kept.model != self._policy.models[0]:
                return kept
        assert kept is not None, "a request has at least one answer"
        return kept

    async def _collected(self, generation: Generation) -> Replay:
        """Return a whole answer, with log-probabilities."""
        ready = await generation.prepared()
        params = [p.replace(logprobs=max(p.logprobs or 0, _NUM_CANDIDATES)) for p in ready.params]
        stream = await generation.submit(Prepared(ready.prompts, params, ready.constraint))
        return Replay(await all_of(stream), ready.params[0].logprobs)

    async def _scored(self) -> RouteRequest:
        """Return the request with the cheap model's log-probability of its prompt."""
        cheap = self._generation(self._policy.models[0])
        ready = await cheap.prepared()
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, ignore_eos=True)
        stream = await cheap.submit(Prepared(ready.prompts, [params] * len(ready.prompts)))
        deltas = await all_of(stream)
        values = [
            entry[token].logprob
            for delta in deltas
            for entry, token in scored_tokens(delta, ready.prompts[delta.prompt_index])
        ]
        if not values:
            raise PromptError(
                "the prompt has a single token: there is nothing to score.",
                field="model",
                value=AUTO,
                remedy="Name a model.",
            )
        return RouteRequest(self._text, prompt_logprob=sum(values) / len(values))

    def _generation(self, name: str, route: Route | None = None) -> Generation:
        body = self._body.model_copy(update={"model": name})
        generation = self._kind(self._service, body)
        generation.route = route
        # A second model has as much less time as the first one took.
        generation.arrival_s -= self._clock_s(self._policy.models[0]) - self._arrival_s
        return generation

    def _clock_s(self, name: str) -> float:
        return self._service.models[name].engine.clock.now()

    def _has_longer(self, name: str) -> bool:
        models = self._service.models
        return self._longest() != name and (
            models[self._longest()].max_model_len > models[name].max_model_len
        )

    def _longest(self) -> str:
        models = self._service.models
        return max(self._policy.models, key=lambda name: models[name].max_model_len)

    def _too_long_for(self, name: str) -> Decision:
        return Decision(self._longest(), "too_long", f"too long for {name}")

    def _count(self, decision: Decision) -> None:
        self._service.metrics.routed.labels(decision.model, decision.label).inc()
