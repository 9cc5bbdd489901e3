"""What comes next for one node of a rollout: one act, one step of its life, or waiting; how a failure is recognised.

That several nodes failed alike is how the gate separates a bad release from bad nodes (`gate.counts`).

Which move it is, is `engine`'s.

The order of acts within each stage is here and nowhere else. Whether an act may be started is judged by `guardrails`
when it is performed; what became of it is read from its record. What it decides on, and what it can answer, is `way`'s;
what comes next for the rollout as a whole is `course`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import ActionKey, NodeName, cause_of
from ops_pipelines.core.node_tests import CheckState, CheckVerdict
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.policy import Durations, RolloutLimits
from ops_pipelines.core.release import Activation, Change, Component, Release, activation_of
from ops_pipelines.core.rollout import Direction, NodeEvent, NodeStage, RolloutNode, wanted_versions
from ops_pipelines.remediate.guardrails.facts import drain_reason

# -- what the failure of a node is known by --


_LONGEST_SIGNATURE = 120
_VARIES = re.compile(
    r"(?:[0-9a-f]{4,8}:)?\b[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b"  # a PCI address; its letters differ, too
    r"|gpu-[0-9a-f]{8}(?:-[0-9a-f]{4,12})*|0x[0-9a-f]+|[0-9a-f]{8,}|(?<!_r)\d+"  # not the level of a test, as `_r1`
)
_SPACE = re.compile(r"\s+")
_LEFT_OUT = re.compile(r"#(?:[#.,:/_+~-]*#)*")
_STAGES = frozenset(stage.value for stage in NodeStage)


def signature_of(stage: NodeStage, said: str, *, node: NodeName) -> str:
    """Return what a failure is known by: its words without what differs from node to node."""
    plain = _VARIES.sub("#", said.lower().replace(node.lower(), "node"))
    return f"{stage.value}: {_SPACE.sub(' ', plain).strip()}"[:_LONGEST_SIGNATURE]


def words_of(signature: str) -> str:
    """Return a signature as a person reads it: `while verifying: driver runs ..., not ...`.

    What was left out has no digits to show: versions of several nodes may differ, each node's own reason has them.
    """
    plain = _LEFT_OUT.sub("...", signature)
    stage, _, said = plain.partition(": ")
    return f"while {stage}: {said}" if stage in _STAGES and said else plain


# -- one node on its way, there or back --


RESTARTS: Mapping[Activation, tuple[Verb, ...]] = {
    Activation.LIVE: (),
    Activation.DRIVER_RELOAD: (Verb.RELOAD_DRIVER,),
    Activation.REBOOT: (Verb.REBOOT,),
    Activation.POWER_CYCLE: (Verb.POWER_OFF, Verb.POWER_ON),
    Activation.AC_CYCLE: (Verb.PAGE_HUMAN,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of one node in hand at this moment."""

    now: datetime
    jobs: tuple[JobStatus, ...]
    """What may have processes on it."""
    outcomes: Mapping[ActionKey, Outcome | None]
    """Of the acts of its rollout on it, started so far; None: under way."""
    versions: Mapping[Component, str] | None = None
    """What runs, read just now; None: not asked, or no answer."""
    trouble: str = ""
    """The open incident about the node, where there is one that is not only watched."""
    closed: str = ""
    """Why no work is started now: no window is open, or a freeze holds."""
    check: CheckVerdict | None = None
    """What the tests of this pass found; None: no result yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Perform this act, and come again with its outcome."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Continue to the next stage."""

    event: NodeEvent
    reason: str
    failure: str = ""
    """Of FAILED: the signature by which alike failures are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do yet. What was read is kept."""

    reason: str
    good_reads: int | None = None
    """Of a verification: how many good reads in a row there are now; None: nothing was read."""


Move = Act | Step | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One node on one pass, with everything that its acts are made of."""

    node: RolloutNode
    release: Release
    opened_at: datetime
    """When its rollout was opened. Nodes keep results by the keys of acts, longer than a ledger may live: those of an
    earlier rollout of the same number are not taken for this one's."""
    facts: NodeFacts
    limits: RolloutLimits
    is_canary: bool
    is_called_back: bool = False
    """Nothing new is installed any more: who was only drained is put back."""
    is_of_last_wave: bool = False
    """Who cannot be updated in it is left out; in an earlier one it is tried again in the last."""
    steps: tuple[tuple[Change, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        steps = self.release.steps
        object.__setattr__(self, "steps", steps if self.node.direction is Direction.FORWARD else steps[::-1])

    @property
    def step(self) -> tuple[Change, ...]:
        return self.steps[self.node.step]

    def act(self, verb: Verb, *, text: str = "", suite: str = "") -> Action:
        node = self.node
        return Action(
            verb=verb,
            incident=cause_of(node.rollout),
            node=node.node,
            text=text,
            suite=suite,
            part=self._part(verb),
            try_number=node.try_number,
        )

    def _part(self, verb: Verb) -> str:
        """Return what an act is apart from its verb and node: of which rollout, which step, there or back."""
        opened = f"{self.opened_at:%Y%m%dT%H%M%S}"
        if verb is Verb.INSTALL or any(verb in verbs for verbs in RESTARTS.values()):
            return f"{opened} {self.node.step} {self.node.direction.value}"
        # What the scheduler shows of the others is compared with our ledger, and found by no key.
        return opened if verb is Verb.CHECK else ""

    def outcome(self, action: Action) -> Outcome | None:
        return self.facts.outcomes.get(action.key)

    def is_done(self, action: Action) -> bool:
        outcome = self.outcome(action)
        return outcome is not None and outcome.kind is OutcomeKind.DONE


# -- what comes next for one node of a rollout --


def next_move(way: Way) -> Move:
    """Return what comes next for a node whose stage is one that this rollout has in hand."""
    move = _MOVES[way.node.stage](way)
    deadline = way.node.deadline
    # An act ends by its own limit. What nobody let us begin, or nobody looked at while we were down, has not failed.
    if not isinstance(move, Wait) or deadline is None or way.facts.now < deadline:
        return move
    if way.node.stage is NodeStage.DRAINING or (way.node.good_reads if move.good_reads is None else move.good_reads):
        return move
    return _failed(way, f"not over by its deadline: {move.reason}")


def deadline_of(
    stage: NodeStage, step: tuple[Change, ...], *, limits: RolloutLimits, durations: Durations, now: datetime
) -> datetime | None:
    """Return by when a stage that begins now must be over; None where it may last."""
    # Each act has its own limit, after which it has failed: the stage's is a little longer, and people are notified of
    # it.
    spare = timedelta(minutes=5)
    restart = {
        Activation.LIVE: timedelta(0),
        Activation.DRIVER_RELOAD: durations.reset_limit,
        Activation.REBOOT: durations.reboot_limit,
        Activation.POWER_CYCLE: durations.fence_limit + durations.reboot_limit,
        Activation.AC_CYCLE: timedelta(0),
    }
    hands = limits.answer_limit if activation_of(step) is Activation.AC_CYCLE else timedelta(0)
    limit = {
        NodeStage.DRAINING: limits.job_end_limit,
        NodeStage.INSTALLING: limits.install_limit + spare,
        NodeStage.ACTIVATING: restart[activation_of(step)] + spare,
        NodeStage.VERIFYING: hands + limits.verify_limit,
        NodeStage.TESTING: durations.check_limit + spare,
        NodeStage.RETURNING: durations.waiting_limit,
    }.get(stage)
    return None if limit is None else now + limit


def is_read_due(node: RolloutNode, *, limits: RolloutLimits, now: datetime) -> bool:
    """Return whether the running version should be read (again) by now."""
    return node.stage is NodeStage.VERIFYING and (node.read_at is None or now - node.read_at >= limits.good_read_every)


# -- the stages --


def _drain(way: Way) -> Move:
    drain = way.act(Verb.DRAIN, text=drain_reason(cause_of(way.node.rollout), way.node.reason))
    is_forward = way.node.direction is Direction.FORWARD
    is_late = way.node.deadline is not None and way.facts.now >= way.node.deadline
    # A node that breaks while it only drains is repaired first: the incident cannot have it as long as we do.
    why_not = "the rollout rolls back" if way.is_called_back else way.facts.trouble
    # Who is free continues, also where that was only seen after its deadline; not who is being put back already.
    is_leaving = way.act(Verb.RESUME).key in way.facts.outcomes
    is_waiting = bool(way.facts.jobs) or not way.is_done(drain)
    why_not = why_not or (_waits_for(way) if is_late and (is_waiting or is_leaving) else "")
    if is_forward and why_not:
        is_tried_later = bool(way.facts.trouble) or way.is_called_back or not way.is_of_last_wave
        return _leave(way, drain, why_not, event=NodeEvent.NOT_NOW if is_tried_later else NodeEvent.SKIP)
    if not is_forward and way.facts.trouble and way.facts.jobs and way.is_done(drain):
        return _leave(way, drain, way.facts.trouble, event=NodeEvent.NOT_NOW)
    if is_forward and way.facts.closed and drain.key not in way.facts.outcomes:
        # Started in a window, and not let out of work in time: it is no node in hand that has to be finished.
        return Wait(reason=way.facts.closed)
    if not way.is_done(drain):
        return _do_or_fail(way, drain)  # On its rollback it may wait: until it is drained it works, and is not lost.
    if way.facts.jobs:
        return Wait(reason=f"waits for the end of {_waits_for(way)}")
    return Step(event=NodeEvent.FREE, reason="drained, and no job is left on it")


def _leave(way: Way, drain: Action, why: str, *, event: NodeEvent) -> Move:
    """Put a node back that nothing was done to on this way but to drain it."""
    if drain.key in way.facts.outcomes:
        drained = way.outcome(drain)
        if drained is None:
            return Act(action=drain)  # Whether it is there is seen before it is taken back.
        if drained.kind is OutcomeKind.FAILED:
            # Nobody saw it: it may be there all the same, or land later. A node that nobody has must not stay drained.
            return _do_or_fail(way, drain)
        put_back = way.act(Verb.RESUME)
        if not way.is_done(put_back):
            return _do_or_fail(way, put_back)
    return Step(event=event, reason=f"put back as it was: {why}")


def _waits_for(way: Way) -> str:
    names = ", ".join(sorted(job.job for job in way.facts.jobs))
    return f"job {names}" if names else "its drain"


def _install(way: Way) -> Move:
    install = way.act(Verb.INSTALL, text=_versions_text(way))
    return (
        Step(event=NodeEvent.INSTALLED, reason=f"{_versions_text(way)} lies on it")
        if way.is_done(install)
        else _do_or_fail(way, install)
    )


def _activate(way: Way) -> Move:
    for verb in RESTARTS[activation_of(way.step)]:
        restart = way.act(verb, text=_restart_text(way, verb))
        if not way.is_done(restart):
            return _do_or_fail(way, restart)
    return Step(
        event=NodeEvent.ACTIVATED, reason="restarted" if RESTARTS[activation_of(way.step)] else "takes effect at once"
    )


def _verify(way: Way) -> Move:
    seen = way.facts.versions
    if seen is None:
        return Wait(reason=f"{way.node.good_reads} of {way.limits.good_read_count} good reads of its versions")
    wanted = wanted_versions(way.node, way.release)
    of_step = {change.component: wanted[change.component] for change in way.step if change.component in wanted}
    wrong = {each: seen.get(each, "nothing") for each, version in of_step.items() if seen.get(each) != version}
    if wrong:
        what = ", ".join(f"{each.value} runs {found}, not {of_step[each]}" for each, found in wrong.items())
        return Wait(reason=what, good_reads=0)
    good = way.node.good_reads + 1
    if good < way.limits.good_read_count:
        return Wait(reason=f"{good} of {way.limits.good_read_count} good reads of its versions", good_reads=good)
    is_last = way.node.step == len(way.steps) - 1
    return Step(
        event=NodeEvent.VERIFIED if is_last else NodeEvent.NEXT_STEP,
        reason=f"{_versions_text(way)} runs, {good} good reads",
    )


def _test(way: Way) -> Move:
    is_long = way.is_canary and way.node.direction is Direction.FORWARD
    check = way.act(Verb.CHECK, suite=way.release.canary_suite if is_long else way.release.gate_suite)
    if not way.is_done(check):
        return _do_or_fail(way, check)
    verdict = way.facts.check
    if verdict is None:
        return Wait(reason="its tests are over; their result is not here yet")
    if verdict.state is CheckState.WELL:
        return Step(event=NodeEvent.PASSED, reason="; ".join(verdict.proofs)[:500] or "every test passed")
    return _failed(way, "; ".join((*verdict.faults, *verdict.unknowns))[:500])


def _return(way: Way) -> Move:
    is_forward = way.node.direction is Direction.FORWARD
    # Canaries are chosen last as long as they soak: later waves are too large for that.
    mark = () if not way.is_canary else (Verb.PUT_LAST,) if is_forward else (Verb.PUT_BACK,)
    for verb in (*mark, Verb.RESUME):
        act = way.act(verb)
        if not way.is_done(act):
            return _do_or_fail(way, act)
    return Step(event=NodeEvent.RETURNED if is_forward else NodeEvent.IS_BACK, reason="works again")


_MOVES = {
    NodeStage.DRAINING: _drain,
    NodeStage.INSTALLING: _install,
    NodeStage.ACTIVATING: _activate,
    NodeStage.VERIFYING: _verify,
    NodeStage.TESTING: _test,
    NodeStage.RETURNING: _return,
}


def _do_or_fail(way: Way, action: Action) -> Move:
    outcome = way.outcome(action)
    if outcome is None or outcome.kind is OutcomeKind.DONE:
        return Act(action=action)
    return _failed(way, f"{action.verb.value.replace('_', ' ')}: {outcome.witness}")


def _failed(way: Way, said: str) -> Step:
    return Step(event=NodeEvent.FAILED, reason=said, failure=signature_of(way.node.stage, said, node=way.node.node))


def _versions_text(way: Way) -> str:
    wanted = wanted_versions(way.node, way.release)
    return ", ".join(
        f"{each.component.value} {wanted[each.component]}" for each in way.step if each.component in wanted
    )


def _restart_text(way: Way, verb: Verb) -> str:
    if verb is Verb.PAGE_HUMAN:
        what = f"Take all power off {way.node.node} and give it back (AC cycle)"
        return f"{what}: {_versions_text(way)} lies on it, and runs only after that. {way.node.rollout} waits."
    return f"{way.node.rollout}: {_versions_text(way)}"
