"""What comes next for one node of a rollout: one act, one step of its life, or waiting. Pure.

The order of acts within each stage stands here and nowhere else. Whether an act may be begun is judged by `guardrails`
when it is performed; what became of it is read from its record. What it decides on, and what it can answer, is `way`'s;
what comes next for the rollout as a whole is `course`'s.
"""

from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.identity import cause_of
from ops_pipelines.core.node_tests import CheckState
from ops_pipelines.core.policy import Durations, RolloutLimits
from ops_pipelines.core.release import Activation, Change, activation_of
from ops_pipelines.core.rollout import Direction, NodeEvent, NodeStage, RolloutNode, wanted_versions
from ops_pipelines.domain.lifecycle.failures import signature_of
from ops_pipelines.domain.lifecycle.way import RESTARTS, Act, Move, Step, Wait, Way
from ops_pipelines.remediate.guardrails.facts import drain_reason


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
    # Each act has its own limit, after which it has failed: the stage's is a little longer, and people are told of it.
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
    why_not = "the rollout goes back" if way.is_called_back else way.facts.trouble
    # Who is free goes on, also where that was only seen after its deadline; not who is being put back already.
    is_leaving = way.act(Verb.RESUME).key in way.facts.outcomes
    is_waiting = bool(way.facts.jobs) or not way.is_done(drain)
    why_not = why_not or (_waits_for(way) if is_late and (is_waiting or is_leaving) else "")
    if is_forward and why_not:
        is_tried_later = bool(way.facts.trouble) or way.is_called_back or not way.is_of_last_wave
        return _leave(way, drain, why_not, event=NodeEvent.NOT_NOW if is_tried_later else NodeEvent.SKIP)
    if not is_forward and way.facts.trouble and way.facts.jobs and way.is_done(drain):
        return _leave(way, drain, way.facts.trouble, event=NodeEvent.NOT_NOW)
    if is_forward and way.facts.closed and drain.key not in way.facts.outcomes:
        # Begun in a window, and not let out of work in time: it is no node in hand that has to be finished.
        return Wait(reason=way.facts.closed)
    if not way.is_done(drain):
        return _do_or_fail(way, drain)  # On its way back it may wait: until it is drained it works, and is not lost.
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
