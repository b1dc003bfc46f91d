"""``{"method": "auto"}``: guesses as many tokens as pay, and none where none do.

Before each step the control predicts what guesses bring (`infopt.speculative.acceptance`) and what
they take (`infopt.speculative.costs`), both learned from the steps so far, and chooses the lengths
with the most tokens per second (`infopt.speculative.planning`): first how many to ask for, then,
when it sees what the drafter has found, how many to verify.

What is not tried is not learned, so outputs that get no guesses are tried now and then, one at a
time and with one guess. An allowance bounds that: it grows by ``probe_share`` of the time, a try
takes what it costs from it and gives back what its tokens are worth. A try that succeeds thus
pays for the next, and speculation is back a few steps after it pays again. In turn, a step without
guesses is made now and then where all steps have some, so that their gain is measured against the
present.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infopt.engine.clock import Clock
from infopt.engine.draft_control import DraftControl, StepOutcome
from infopt.engine.drafting import Draft, Drafter, DraftRequest, Guesses
from infopt.speculative.acceptance import Acceptance
from infopt.speculative.costs import DraftCosts, StepCosts
from infopt.speculative.planning import LengthPlan, Scene, plan_lengths
from infopt.speculative.proposal import DECISIONS, Gains, Proposal

_REFRESH_STEPS = 128
"""Steps with guesses after which one without is made."""
_FIRST_GUESSES = 8
"""Most guesses in a step at first; later twice as many as ever."""
_CHEAP_SHARE = 0.01
"""Share of a step up to which all outputs are asked."""
_MOST_HELD = 8
"""Steps at most without a look after many in which nothing paid."""
_ALLOWANCE_STEPS = 8
"""An allowance that nothing needed grows to the time of this many steps."""


class AutoControl(DraftControl):
    """Chooses lengths by predicted gain.

    Args:
        clock: Source of time.
        probe_share: Share of the time for tries.
    """

    def __init__(self, clock: Clock, probe_share: float = 0.02) -> None:
        """Know nothing."""
        super().__init__(clock)
        self._probe_share = probe_share
        self._acceptance: Acceptance | None = None
        self._steps, self._drafts = StepCosts(), DraftCosts()
        self._proposal: Proposal | None = None
        self._allowance_s = 0.0
        self._num_steps = self._num_off = self._num_held = 0
        self._last_tried: dict[int, int] = {}
        self._since_plain: Counter[int] = Counter()
        self.reset_counts()

    def reset_counts(self) -> None:
        """Count decisions anew; what was learned stays."""
        self._decisions, self._lengths = Counter[str](), Counter[int]()
        self._gains = Gains()
        self._probe_s = self._total_s = 0.0

    def wants_drafts(self) -> bool:
        """Whether to look at all: not for some steps, after many in which nothing paid."""
        if not self._num_held:
            return True
        self._num_held -= 1
        self._decisions["off"] += 1
        return False

    def propose(
        self, drafter: Drafter, requests: Sequence[DraftRequest], num_other_rows: int = 0
    ) -> list[Guesses]:
        """Return the guesses that are expected to pay, and now and then one that is not."""
        if self._acceptance is None:
            self._acceptance = Acceptance(drafter.max_tokens)
        if not requests:
            return []
        asked = self._ask(requests, num_other_rows)
        wanted = [
            request if n == request.max_tokens else dataclasses.replace(request, max_tokens=n)
            for request, n in zip(requests, asked, strict=True)
            if n
        ]
        found = iter(self._timed(drafter, wanted))
        drafts = [next(found) if n else [] for n in asked]
        if wanted:
            self._drafts.add(len(wanted), max(asked), self._draft_s)
            for request, n, draft in zip(requests, asked, drafts, strict=True):
                if n:
                    self._acceptance.note_given(request.seq_id, n, len(draft))
        kept = self._kept(requests, drafts)
        self._hold()
        return kept

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step."""
        self._num_steps += 1
        self._total_s += outcome.seconds + outcome.draft_s
        self._steps.add(outcome.num_rows, outcome.num_guesses, outcome.seconds)
        for drafted in outcome.passes:
            assert self._acceptance is not None
            self._acceptance.note_kept(drafted)
        proposal, self._proposal = self._proposal, None
        rows = outcome.num_rows
        self._since_plain[rows] = self._since_plain[rows] + 1 if outcome.num_guesses else 0
        plain_s = self._steps.plain_s(rows)
        grown_s = self._allowance_s + self._probe_share * (outcome.seconds + outcome.draft_s)
        self._allowance_s = min(grown_s, _ALLOWANCE_STEPS * plain_s)
        if proposal is not None:  # None: nobody was asked
            self._decisions[proposal.decision] += 1
            self._judge(proposal, outcome, plain_s)

    def forget(self, seq_id: int) -> None:
        """Drop what is remembered of an output."""
        self._last_tried.pop(seq_id, None)
        if self._acceptance is not None:
            self._acceptance.forget(seq_id)

    def describe(self) -> dict[str, Any]:
        """Return decisions and what they rest on as plain data."""
        acceptance = self._acceptance
        return {
            "decisions": {name: self._decisions[name] for name in DECISIONS},
            "lengths": dict(sorted(self._lengths.items())),
            "predicted_speedup": self._gains.ratio("planned"),
            "measured_speedup": self._gains.ratio("real"),
            "probe_s": self._probe_s,
            "probe_share": self._probe_s / self._total_s if self._total_s else None,
            "kept_shares": acceptance.kept_shares() if acceptance else [],
            "given_shares": acceptance.given_shares() if acceptance else [],
            "draft_s_per_output": self._drafts.per_output_s,
            "draft_s_per_position": self._drafts.per_position_s,
            "step_s": self._steps.describe(),
        }

    def _ask(self, requests: Sequence[DraftRequest], num_other_rows: int) -> list[int]:
        """Return how many guesses to ask for, per request."""
        scene = self._scene(len(requests), num_other_rows)
        if self._must_be_plain(scene):
            self._proposal = Proposal("learn", scene)
            return [0] * len(requests)
        limits = [request.max_tokens for request in requests]
        self._proposal = Proposal("on", scene)
        if self._drafts.seconds(len(requests), max(limits)) <= _CHEAP_SHARE * scene.plain_s:
            return limits  # what is found says more than what is expected to be found
        asked = self._plan(scene, requests, np.array(limits)).lengths.tolist()
        if not any(asked):
            self._proposal.decision = "off"
            self._ask_one(self._proposal, requests, asked)
        return asked

    def _ask_one(
        self, proposal: Proposal, requests: Sequence[DraftRequest], asked: list[int]
    ) -> None:
        """Ask for one guess for the output that was not tried for longest, if that is allowed."""
        cost_s = self._guess_s(proposal.scene, 0) + self._drafts.seconds(1, 1)
        if self._allowance_s >= cost_s:
            place = min(
                range(len(requests)), key=lambda i: self._last_tried.get(requests[i].seq_id, -1)
            )
            asked[place] = 1
            proposal.probed = requests[place].seq_id

    def _kept(self, requests: Sequence[DraftRequest], drafts: list[Guesses]) -> list[Guesses]:
        """Return the guesses that are worth verifying, now that they are known."""
        proposal = self._proposal
        limits = np.array([len(draft) for draft in drafts])
        if proposal is None or proposal.decision == "learn":
            return drafts
        if not limits.any():
            proposal.decision = "empty" if proposal.decision == "on" else proposal.decision
            return drafts
        sunk_s = self._draft_s
        scene = dataclasses.replace(proposal.scene, plain_s=proposal.scene.plain_s + sunk_s)
        proposal.plan = self._plan(scene, requests, limits, sunk_s)
        lengths = proposal.plan.lengths.tolist()
        self._decide(proposal, requests, limits, lengths)
        for request, n in zip(requests, lengths, strict=True):
            self._lengths[n] += 1
            if n:
                self._last_tried[request.seq_id] = self._num_steps
        return [_cut(draft, n) for draft, n in zip(drafts, lengths, strict=True)]

    def _decide(
        self,
        proposal: Proposal,
        requests: Sequence[DraftRequest],
        limits: NDArray[np.int64],
        lengths: list[int],
    ) -> None:
        """Name what is done, and try an output whose guesses are not expected to pay."""
        if proposal.decision == "off":  # only a try was asked for
            proposal.decision = "probe"
            lengths[int(limits.argmax())] = max(*lengths, 1)
            return
        proposal.decision = "on" if any(lengths) else "off"
        idle = [i for i, n in enumerate(lengths) if not n and limits[i]]
        if not idle:
            return
        proposal.probe_s = self._guess_s(proposal.scene, sum(lengths))
        if self._allowance_s < proposal.probe_s:
            return
        place = self._longest_idle(requests, idle)
        lengths[place] = 1
        proposal.probed = requests[place].seq_id
        if proposal.decision == "off":
            proposal.decision = "probe"

    def _hold(self) -> None:
        """Look the more rarely, the longer nothing has paid."""
        decision = self._proposal.decision if self._proposal else "learn"
        if decision == "on":
            self._num_off = 0
        elif decision in ("off", "probe"):
            self._num_off += 1
            self._num_held = min(self._num_off // 4, _MOST_HELD)

    def _scene(self, num_outputs: int, num_other_rows: int) -> Scene:
        num_rows = num_outputs + num_other_rows
        # A sequence that makes its last token is a row as well.
        num_tokens = num_rows if num_other_rows <= num_outputs else num_outputs
        return Scene(
            num_rows=num_rows,
            num_tokens=num_tokens,
            plain_s=self._steps.plain_s(num_rows),
            token_s=self._steps.plain_s(num_tokens) / num_tokens,
        )

    def _must_be_plain(self, scene: Scene) -> bool:
        rows = scene.num_rows
        return not self._steps.num_plain(rows) or self._since_plain[rows] >= _REFRESH_STEPS

    def _plan(
        self,
        scene: Scene,
        requests: Sequence[DraftRequest],
        limits: NDArray[np.int64],
        sunk_s: float | None = None,
    ) -> LengthPlan:
        """Return lengths to ask for, or to verify where ``sunk_s`` was spent on proposing."""
        assert self._acceptance is not None
        seq_ids = [request.seq_id for request in requests]
        most = min(max(_FIRST_GUESSES, 2 * self._steps.most_guesses), limits.sum())
        return plan_lengths(
            scene,
            self._acceptance.survival(seq_ids),
            self._acceptance.availability(seq_ids) if sunk_s is None else None,
            limits,
            step_s=self._steps.table(scene.num_rows, int(most)),
            draft_s=self._drafts.seconds if sunk_s is None else lambda *_: sunk_s,
            max_guesses=int(most),
        )

    def _guess_s(self, scene: Scene, num_guesses: int) -> float:
        """Return the expected time of one guess more."""
        more = num_guesses + 1
        return float(np.diff(self._steps.table(scene.num_rows, more)[num_guesses : more + 1])[0])

    def _longest_idle(self, requests: Sequence[DraftRequest], places: Sequence[int]) -> int:
        return min(places, key=lambda i: self._last_tried.get(requests[i].seq_id, -1))

    def _judge(self, proposal: Proposal, outcome: StepOutcome, plain_s: float) -> None:
        """Compare a step with what was expected, and charge tries."""
        token_s = plain_s / outcome.num_rows
        total_s = outcome.seconds + outcome.draft_s
        if proposal.probed is not None:
            self._charge(proposal, outcome, total_s - plain_s, token_s)
        is_judged = outcome.is_decode and proposal.scene.is_decode and outcome.num_guesses
        if proposal.decision == "on" and proposal.plan is not None and is_judged:
            self._gains.add(proposal.plan, outcome, token_s)

    def _charge(
        self, proposal: Proposal, outcome: StepOutcome, extra_s: float, token_s: float
    ) -> None:
        """Take the cost of a try from the allowance, and give back what its tokens are worth."""
        tried = next((p for p in outcome.passes if p.seq_id == proposal.probed), None)
        if tried is None:
            cost_s = self._drafts.per_output_s
        else:
            cost_s = max(extra_s, 0.0) if proposal.decision == "probe" else proposal.probe_s
            cost_s -= tried.num_accepted * token_s
            if tried.num_accepted:  # look closer
                self._num_off = self._num_held = 0
        self._probe_s += cost_s
        self._allowance_s -= cost_s


def _cut(draft: Guesses, count: int) -> Guesses:
    return draft.cut(count) if isinstance(draft, Draft) else draft[:count]
