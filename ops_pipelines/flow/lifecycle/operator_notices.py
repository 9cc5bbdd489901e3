"""What the on-call is told of a rollout and needs nobody: it has begun, a wave is behind it, it is over. Pure.

By night all of it waits for the morning; only who was called for a rollout hears at once that it is over.
"""

from datetime import datetime, timedelta

from ops_pipelines.core.notes import NOT_SENT, Audience, Note, Severity, clock_time, gpu_hours, minutes
from ops_pipelines.core.rollout import FINAL, IN_HAND, LEFT, Rollout, RolloutState
from ops_pipelines.flow.lifecycle.notices import (
    NEW_VERSION,
    RolloutSituation,
    at_once,
    command,
    counted,
    in_digest,
    names_of_nodes,
    short,
    standing,
    to_on_call,
    versions_of,
    when_read,
)
from ops_pipelines.flow.lifecycle.operator_calls import call_operators

_GOES_ON = frozenset({RolloutState.RUNNING, RolloutState.SOAKING})
_STOPPED = frozenset({RolloutState.WENT_BACK, RolloutState.ABORTED})
_LATE = timedelta(days=1)
"""So much later than foreseen is worth a line: jobs run longer, windows are missed."""
_LONG_STATE = timedelta(days=7)
"""# Assumption: windows come once a week; a wave that no end was foreseen for has had one by then."""
_URGENT = frozenset({Severity.WARNING, Severity.CRITICAL})


def tell_operators(situation: RolloutSituation) -> tuple[Note, ...]:
    """Return the notes for the on-call that are true now; those that were handed in before are known by their key."""
    if situation.rollout.state in FINAL:
        return (_closing(situation),)
    return (*_progress(situation), *call_operators(situation))


def _progress(situation: RolloutSituation) -> list[Note]:
    """Return how far it is: that it has begun, that a wave is behind it, that it goes back."""
    rollout = situation.rollout
    notes: list[Note] = []
    if rollout.state in _GOES_ON and situation.is_news(rollout.created_at):
        notes.append(_begun(situation))
    is_behind = rollout.state in _GOES_ON or rollout.state is RolloutState.AWAITING_YES
    if rollout.wave > 1 and is_behind and situation.is_news(rollout.since):
        notes.append(_wave_behind(situation))
    if rollout.state is RolloutState.GOING_BACK and situation.is_news(rollout.since):
        notes.append(_goes_back(situation))
    if rollout.state in _GOES_ON and situation.now - _was_to_be_over(rollout) >= _LATE:
        notes.append(_late(situation))
    return notes


def _begun(situation: RolloutSituation) -> Note:
    rollout, plan = situation.rollout, situation.plan
    sizes = [len(wave.nodes) for wave in rollout.waves]
    ends = "not foreseen" if rollout.finishes_at is None else clock_time(rollout.finishes_at)
    return to_on_call(
        situation,
        stage="begun",
        title=f"{rollout.rollout}: {rollout.release} begins, {counted(sum(sizes), 'node')} in "
        f"{counted(len(sizes), 'wave')}",
        lines_title="{count} rollouts begin",
        parts=[
            ("What", situation.release.about),
            ("Versions", versions_of(situation.release)),
            ("Waves", ", ".join(map(str, sizes))),
            ("Who", f"started by {rollout.created_by}" + (f", yes by {rollout.yes_by}" if rollout.yes_by else "")),
            ("Foreseen end", ends),
            ("What it costs", "" if plan is None else f"{gpu_hours(plan.lost_gpu_hours)} foreseen"),
            ("What you must do", "nothing; you hear of it when it needs you, or is over"),
        ],
        severity=Severity.NOTICE,
        when=when_read(situation),
    )


def _wave_behind(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    new = situation.nodes_in(NEW_VERSION)
    return to_on_call(
        situation,
        stage=f"wave-{rollout.wave - 1}",
        title=f"{rollout.rollout}: wave {rollout.wave - 1} of {len(rollout.waves)} is over, "
        f"{counted(len(new), 'node')} on {rollout.release}",
        parts=[("How it stands", short(rollout.reason)), ("What you must do", "nothing")],
        severity=Severity.INFO,
        when=in_digest(situation),
    )


def _was_to_be_over(rollout: Rollout) -> datetime:
    """Return when a rollout was to be over; where no end was foreseen, when its present state has lasted long."""
    return rollout.since + _LONG_STATE if rollout.finishes_at is None else rollout.finishes_at


def _late(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    foreseen = rollout.finishes_at
    said = f"so since {clock_time(rollout.since)}" if foreseen is None else f"was to be over by {clock_time(foreseen)}"
    return to_on_call(
        situation,
        stage="late",
        title=f"{rollout.rollout}: wave {rollout.wave} of {len(rollout.waves)}, {said}",
        parts=[
            ("How it stands", f"{rollout.state.value}: {standing(situation)}"),
            ("What you must do", f"nothing, if that is fine; {command(situation, 'status')} shows what each waits for"),
        ],
        severity=Severity.NOTICE,
        when=in_digest(situation),
    )


def _goes_back(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    touched = situation.nodes_in(IN_HAND | NEW_VERSION | LEFT)
    return to_on_call(
        situation,
        stage="back",
        title=f"{rollout.rollout}: {rollout.release} goes back, {counted(len(touched), 'node')} touched",
        lines_title="{count} rollouts go back",
        parts=[
            ("Why", short(rollout.reason)),
            ("Where", names_of_nodes(touched)),
            ("What we do", "every touched node gets its old version, as fast as the budget lets; no job is killed"),
            ("What you must do", f"nothing; {command(situation, 'status')} shows what the gate saw"),
        ],
        severity=Severity.NOTICE,
        when=when_read(situation),
    )


def _closing(situation: RolloutSituation) -> Note:
    """Return that it is over: at once, also by night, to whoever was called for it."""
    rollout = situation.rollout
    was_called = any(
        each.note.audience is Audience.ON_CALL
        and each.note.severity in _URGENT
        and not each.receipt.startswith(NOT_SENT)
        for each in situation.told
    )
    new = situation.nodes_in(NEW_VERSION)
    left = [each for each in situation.nodes if each.stage in LEFT]
    ended = {
        RolloutState.DONE: f"done, {counted(len(new), 'node')} on {rollout.release}",
        RolloutState.WENT_BACK: f"{rollout.release} is back where it came from",
    }.get(rollout.state, f"ended, {counted(len(new), 'node')} on {rollout.release}")
    must = f"see to {names_of_nodes([each.node for each in left])}: drained by us" if left else "nothing"
    return to_on_call(
        situation,
        stage="over",
        title=f"{rollout.rollout}: {ended}, after {minutes(rollout.since - rollout.created_at)}",
        lines_title="{count} rollouts are over",
        parts=[
            ("How it ended", short(rollout.reason)),
            ("Why", short(rollout.stopped_because) if rollout.state in _STOPPED else ""),
            ("How it stands", standing(situation)),
            ("What you must do", must),
        ],
        severity=Severity.WARNING if left else Severity.INFO,
        when=at_once(situation) if was_called or left else when_read(situation),
        is_last=True,
    )
