"""``{"method": "auto"}``: guesses as many tokens as pay, and none where none do.

Before each step the control predicts what guesses bring (`infopt.speculative.acceptance`) and what
they take (`infopt.speculative.costs`), both learned from the steps so far, and chooses the lengths
with the most tokens per second (`infopt.speculative.planning`): first how many to ask for, then,
when it sees what the drafter has found, how many to verify.

What is not tried is not learned. Guesses that were not verified are compared with the tokens that
come (`infopt.speculative.unverified`), so that an output without guesses costs nothing but asking;
guesses that were drawn have to be verified to be judged, one at a time. An allowance bounds both:
it grows by ``probe_share`` of the time. In turn, a step without guesses is made now and then where
all steps have some, so that their gain is measured against the present.

Tokens per second are not everything: a step that is long because of some outputs delays the others.
As long as nobody waits for a place in the batch, lengths are also bounded by the patience of those
others (`infopt.speculative.patience`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from infopt.engine.clock import Clock
from infopt.engine.draft_control import DraftControl, StepOutcome
from infopt.engine.drafting import Draft, Drafter, DraftRequest, Guesses
from infopt.speculative.forecast import Forecast
from infopt.speculative.patience import Patience
from infopt.speculative.planning import LengthPlan, Scene
from infopt.speculative.proposal import DECISIONS, Gains, Proposal
from infopt.speculative.tries import Pauses, Tries
from infopt.speculative.unverified import Unverified, can_be_compared

_CHEAP_SHARE = 0.01
"""Share of a step up to which all outputs are asked."""
_HELD_BACK = 7
"""Steps without a look where others would be too late."""
_LATE_SHARE = 0.005
"""Share of the time by which an output may be late for the sake of others."""


class AutoControl(DraftControl):
    """Chooses lengths by predicted gain.

    Args:
        clock: Source of time.
        max_tokens: Longest draft.
        probe_share: Share of the time for tries.
    """

    def __init__(self, clock: Clock, max_tokens: int, probe_share: float = 0.02) -> None:
        """Know nothing."""
        super().__init__(clock)
        self._forecast = Forecast(max_tokens)
        self._unverified, self._patience = Unverified(), Patience(_LATE_SHARE)
        self._tries, self._pauses = Tries(probe_share), Pauses()
        self._proposal: Proposal | None = None
        self._is_drawn = False
        self._now_s = 0.0
        self.reset_counts()

    def reset_counts(self) -> None:
        """Count decisions anew; what was learned stays."""
        self._decisions, self._lengths = Counter[str](), Counter[int]()
        self._gains = Gains()
        self._tries.spent_s = self._total_s = 0.0

    def wants_drafts(self, num_running: int) -> bool:
        """Whether to look at all: not for some steps, after many in which nothing paid."""
        is_time = self._pauses.is_over(num_running)
        self._decisions["off"] += not is_time
        return is_time

    def propose(
        self,
        drafter: Drafter,
        requests: Sequence[DraftRequest],
        num_other_rows: int = 0,
        num_waiting: int = 0,
    ) -> list[Guesses]:
        """Return the guesses that are expected to pay, and now and then one that is not."""
        if not requests:
            return []
        scene = self._forecast.scene(len(requests), num_other_rows)
        seq_ids = [request.seq_id for request in requests]
        proposal = self._proposal = Proposal("on", scene, seq_ids, is_patient=not num_waiting)
        self._settle(requests, scene)
        asked = self._ask(proposal, requests)
        kept = self._kept(proposal, requests, self._answers(drafter, requests, asked))
        self._pause(proposal)
        return kept

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""
        total_s = outcome.seconds + outcome.draft_s
        self._total_s += total_s
        self._now_s += total_s
        self._forecast.add(outcome)
        proposal, self._proposal = self._proposal, None
        plain_s = self._forecast.steps.plain_s(outcome.num_rows)
        self._tries.grow(total_s, plain_s)
        if proposal is not None:  # None: nobody was asked
            self._decisions[proposal.decision] += 1
            self._judge(proposal, outcome, plain_s)

    def forget(self, seq_id: int) -> None:
        """Drop what is remembered of an output."""
        self._pauses.output_ended()
        self._tries.forget(seq_id)
        self._unverified.forget(seq_id)
        self._patience.forget(seq_id)
        self._forecast.acceptance.forget(seq_id)

    def describe(self) -> dict[str, Any]:
        """Return decisions and what they rest on as plain data."""
        return {
            "decisions": {name: self._decisions[name] for name in DECISIONS},
            "lengths": dict(sorted(self._lengths.items())),
            "predicted_speedup": self._gains.ratio("planned"),
            "measured_speedup": self._gains.ratio("real"),
            "probe_s": self._tries.spent_s,
            "probe_share": self._tries.spent_s / self._total_s if self._total_s else None,
            **self._forecast.describe(),
        }

    def _settle(self, requests: Sequence[DraftRequest], scene: Scene) -> None:
        """Learn from guesses that were not verified; look closer where they would have paid."""
        for settled in self._unverified.settle(requests):
            self._forecast.acceptance.note_kept(settled)
            num = settled.num_judged
            cost_s = self._forecast.extra_s(scene.num_rows, num)
            cost_s += self._forecast.drafts.seconds(1, num)
            if settled.num_accepted * scene.token_s > cost_s:
                self._pauses.look_closer()

    def _ask(self, proposal: Proposal, requests: Sequence[DraftRequest]) -> list[int]:
        """Return how many guesses to ask for, per request."""
        scene = proposal.scene
        if self._forecast.needs_plain(scene.num_rows):
            proposal.decision = "learn"
            return [0] * len(requests)
        limits = [request.max_tokens for request in requests]
        asking_s = self._forecast.drafts.seconds(len(requests), max(limits))
        if asking_s <= _CHEAP_SHARE * scene.plain_s:
            return limits  # what is found says more than what is expected to be found
        asked = self._plan(proposal, limits).lengths.tolist()
        if not any(asked):
            proposal.decision = "off"
            self._ask_one(proposal, requests, asked)
        return asked

    def _ask_one(
        self, proposal: Proposal, requests: Sequence[DraftRequest], asked: list[int]
    ) -> None:
        """Ask the output that was not tried for longest, as far as is allowed."""
        place = self._tries.longest_idle(proposal.seq_ids, range(len(requests)))
        num = requests[place].max_tokens
        if self._is_drawn:
            proposal.probe_s, num = self._forecast.extra_s(proposal.scene.num_rows, 1), 1
        costs = self._forecast.drafts
        left_s = self._tries.left_s - proposal.probe_s - costs.per_output_s
        num = min(num, int(left_s / max(costs.per_position_s, 1e-9)))
        if left_s >= 0 and num:
            asked[place] = num
            self._tries.note([proposal.seq_ids[place]])
            proposal.decision, proposal.probed = "probe", proposal.seq_ids[place]
        else:
            proposal.num_wait = self._tries.num_steps_until(
                self._tries.left_s - left_s + costs.per_position_s, proposal.scene.plain_s
            )

    def _answers(
        self, drafter: Drafter, requests: Sequence[DraftRequest], asked: Sequence[int]
    ) -> list[Guesses]:
        """Ask, and return guesses per request."""
        wanted = [
            request if n == request.max_tokens else dataclasses.replace(request, max_tokens=n)
            for request, n in zip(requests, asked, strict=True)
            if n
        ]
        if not wanted:
            return [[] for _ in requests]
        found = iter(self._timed(drafter, wanted))
        drafts = [next(found) if n else [] for n in asked]
        self._forecast.drafts.add(len(wanted), max(asked), self._draft_s)
        places = [i for i, n in enumerate(asked) if n]
        self._forecast.acceptance.note_given(
            [requests[i].seq_id for i in places],
            [asked[i] for i in places],
            [len(drafts[i]) for i in places],
        )
        return drafts

    def _kept(
        self, proposal: Proposal, requests: Sequence[DraftRequest], drafts: list[Guesses]
    ) -> list[Guesses]:
        """Return the guesses that are worth verifying, now that they are known."""
        if not any(map(len, drafts)):
            proposal.decision = "empty" if proposal.decision == "on" else proposal.decision
            return drafts
        limits = [len(draft) for draft in drafts]
        proposal.plan = self._plan(proposal, limits, self._draft_s)
        lengths = proposal.plan.lengths.tolist()
        self._decide(proposal, drafts, lengths)
        self._tries.note(i for i, n in zip(proposal.seq_ids, lengths, strict=True) if n)
        for request, draft, n in zip(requests, drafts, lengths, strict=True):
            self._lengths[n] += 1
            if not n:
                self._unverified.note(request, draft)
        return [_cut(draft, n) for draft, n in zip(drafts, lengths, strict=True)]

    def _decide(self, proposal: Proposal, drafts: list[Guesses], lengths: list[int]) -> None:
        """Name what is done, and verify a drawn guess that is not expected to pay."""
        if proposal.decision == "on" and not any(lengths):
            proposal.decision = "off"
        drawn = [i for i, draft in enumerate(drafts) if len(draft) and not can_be_compared(draft)]
        self._is_drawn = bool(drawn)
        idle = [i for i in drawn if not lengths[i]]
        if not idle or (proposal.decision == "probe" and any(lengths)):
            return
        num = sum(lengths)
        proposal.probe_s = self._forecast.extra_s(proposal.scene.num_rows, num + 1, num)
        if self._tries.left_s < proposal.probe_s:
            return
        place = self._tries.longest_idle(proposal.seq_ids, idle)
        lengths[place] = 1
        proposal.probed = proposal.seq_ids[place]
        if proposal.decision != "on":
            proposal.decision = "probe"

    def _pause(self, proposal: Proposal) -> None:
        """Put the next look off where this one brought nothing."""
        decision, plan = proposal.decision, proposal.plan
        if decision == "on":
            self._pauses.look_closer()
        elif plan is not None and plan.is_held_back:
            self._pauses.wait(_HELD_BACK)
        elif decision in ("off", "probe"):
            self._pauses.look_less()
            self._pauses.wait(proposal.num_wait)

    def _plan(
        self, proposal: Proposal, limits: Sequence[int], sunk_s: float | None = None
    ) -> LengthPlan:
        scene, seq_ids = proposal.scene, proposal.seq_ids
        if proposal.is_patient and proposal.room_s is None:
            proposal.room_s = self._patience.room_s(seq_ids, self._now_s, scene.step_s)
        return self._forecast.plan(scene, seq_ids, limits, proposal.room_s, sunk_s)

    def _judge(self, proposal: Proposal, outcome: StepOutcome, plain_s: float) -> None:
        """Compare a step with what was expected; charge tries, and those who are late."""
        token_s = plain_s / outcome.num_rows
        total_s = outcome.seconds + outcome.draft_s
        if proposal.probed is not None:
            self._charge(proposal, outcome, total_s - plain_s, token_s)
        if proposal.room_s is not None:
            self._take_room(proposal, outcome)
        is_judged = outcome.is_decode and proposal.scene.is_decode and outcome.num_guesses
        if proposal.decision == "on" and proposal.plan is not None and is_judged:
            self._gains.add(proposal.plan, outcome, token_s)

    def _take_room(self, proposal: Proposal, outcome: StepOutcome) -> None:
        """Note by how much outputs are later or earlier than without guesses."""
        assert proposal.room_s is not None
        seq_ids, step_s = proposal.seq_ids, proposal.scene.step_s
        # The expected time, since single steps are noise.
        extra_s = self._forecast.extra_s(outcome.num_rows, outcome.num_guesses)
        room_s = proposal.room_s - extra_s - outcome.draft_s
        saved_s = {p.seq_id: (p.num_emitted - 1) * step_s for p in outcome.passes}
        room_s += [saved_s.get(seq_id, 0.0) for seq_id in seq_ids]
        self._patience.note(seq_ids, room_s, self._now_s, step_s)

    def _charge(
        self, proposal: Proposal, outcome: StepOutcome, extra_s: float, token_s: float
    ) -> None:
        """Take the cost of a try from the allowance, and give back what its tokens are worth."""
        tried = next((p for p in outcome.passes if p.seq_id == proposal.probed), None)
        cost_s = outcome.draft_s if proposal.decision == "probe" else 0.0
        if tried is not None:
            cost_s = max(extra_s, 0.0) if proposal.decision == "probe" else proposal.probe_s
            cost_s -= tried.num_accepted * token_s
            if tried.num_accepted:
                self._pauses.look_closer()
        self._tries.charge(cost_s)


def _cut(draft: Guesses, count: int) -> Guesses:
    return draft.cut(count) if isinstance(draft, Draft) else draft[:count]
