"""What calls the on-call to a rollout, and what the on-call is sent that needs nobody.

What waits for people beyond its deadline is reported again and again; a node that stays where it is, and a rollout that
does not come to its end, once: nothing of a rollout stops without somebody knowing.

By night all of it waits for the morning; only who was called for a rollout hears at once that it is over.
"""

from datetime import datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.notes import NOT_SENT, Audience, Note, Severity, clock_time, gpu_hours, minutes
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    LEFT,
    OF_PEOPLE,
    Direction,
    NodeStage,
    Rollout,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.report.numbers import counted
from ops_pipelines.rollouts.course import is_stopped_for_good
from ops_pipelines.rollouts.notices import (
    NEW_VERSION,
    RolloutSituation,
    as_page,
    at_once,
    command,
    in_digest,
    names_of_nodes,
    note_of,
    question_stage,
    short,
    standing,
    times_over,
    versions_of,
    when_read,
)

# -- what calls the on-call to a rollout --


_GRACE = timedelta(minutes=10)
"""A pass ends most stages that are over their deadline: two of them have had the time by then."""
_COMES_TO_ITS_END = frozenset({RolloutState.GOING_BACK, RolloutState.ENDING})
"""States that wait for nodes alone, and so for jobs: `job_end_limit` is long enough for most."""
_MOST_NAMED = 4


def call_operators(situation: RolloutSituation) -> tuple[Note, ...]:
    """Return the notes that want an answer, or a hand, now."""
    return (*_question(situation), *_lasts(situation), *_nodes_that_stay(situation))


def _question(situation: RolloutSituation) -> list[Note]:
    """Return what people must say; of a pause they know, so they are reminded of it only."""
    rollout = situation.rollout
    time = times_over(situation)
    if rollout.state not in OF_PEOPLE or (rollout.state is RolloutState.PAUSED and time == 0):
        return []
    title, lines_title, parts = _asked(situation)
    until = "" if rollout.deadline is None else f"by {clock_time(rollout.deadline)}; then you are asked again"
    return [
        note_of(
            situation,
            stage=question_stage(rollout, time=time),
            title=f"{rollout.rollout}: {'still: ' if time else ''}{title}",
            lines_title=lines_title,
            parts=[*parts, ("When", f"it waits since {clock_time(rollout.since)}" if time else until)],
            severity=Severity.CRITICAL if rollout.state is RolloutState.STUCK else Severity.WARNING,
            when=as_page(situation) if rollout.state is RolloutState.STUCK else at_once(situation),
        )
    ]


def _asked(situation: RolloutSituation) -> tuple[str, str, list[tuple[str, str]]]:
    """Return title, title of several, and body of what is asked in the state of people that a rollout is in."""
    rollout = situation.rollout
    back = "" if situation.release.is_one_way else f", send it back ({command(situation, 'back')})"
    end = f"end it ({command(situation, 'abort')}): nodes keep what they have"
    match rollout.state:
        case RolloutState.AWAITING_YES:
            nodes = _asked_for(rollout, is_one_way=situation.release.is_one_way)
            one_way = [each.component.value for each in situation.plan.one_way] if situation.plan else []
            what = f"wave {rollout.wave} of {rollout.release}" if rollout.wave > 1 else rollout.release
            return (
                f"may {what} begin?",
                "{count} rollouts wait for your yes",
                [
                    ("What", situation.release.about),
                    ("Versions", versions_of(situation.release)),
                    ("Why we ask", short(rollout.reason)),
                    ("What cannot roll back", ", ".join(one_way)),
                    ("Where", f"{counted(len(nodes), 'node')}: {names_of_nodes(nodes)}"),
                    ("What you must do", f"approve ({command(situation, 'approve')}), or {end}; until then we wait"),
                ],
            )
        case RolloutState.ASKING:
            is_over = is_stopped_for_good(rollout)
            must = f"let it continue in your name ({command(situation, 'resume')}){back}, or {end}"
            only = f"{end}. Nothing else ends it: resumed, it stops again at the gate's next look"
            return (
                "stopped by the gate, and cannot roll back" if is_over else "continue, or roll back?",
                "{count} rollouts ask whether to continue",
                [
                    ("Why we ask", short(rollout.reason)),
                    ("Status", standing(situation)),
                    ("What you must do", f"{only if is_over else must}; until then no other node is started"),
                ],
            )
        case RolloutState.STUCK:
            lost = [each for each in situation.nodes if each.stage is NodeStage.LOST]
            return (
                f"stuck, {counted(len(lost), 'node')} could not be restored",
                "{count} rollouts are stuck",
                [
                    ("Where", "; ".join(f"{each.node}: {short(each.reason)}" for each in lost[:4])),
                    ("Status", f"{standing(situation)}; these are drained and serve nobody"),
                    ("What you must do", f"see to the nodes, then try again ({command(situation, 'back')}), or {end}"),
                ],
            )
        case _:
            return (
                f"paused by {rollout.owner} since {clock_time(rollout.since)}",
                "{count} rollouts are paused",
                [
                    ("Why", short(rollout.reason)),
                    ("Status", standing(situation)),
                    ("What you must do", f"let it continue ({command(situation, 'resume')}){back}, or {end}"),
                ],
            )


def _asked_for(rollout: Rollout, *, is_one_way: bool) -> list[NodeName]:
    """Return the nodes that an approval covers: what cannot roll back is asked for wave by wave."""
    waves = rollout.waves[rollout.wave - 1 : rollout.wave] if is_one_way else rollout.waves
    return [node for wave in waves for node in wave.nodes]


# -- what stays where it is --


def _nodes_that_stay(situation: RolloutSituation) -> list[Note]:
    return [
        _left(situation, each) if each.stage in LEFT else _overdue(situation, each)
        for each in sorted(situation.nodes, key=lambda each: each.node)
        if _stays(situation, each) and situation.is_news(_stays_since(each))
    ]


def _stays(situation: RolloutSituation, node: RolloutNode) -> bool:
    if node.stage is NodeStage.LOST:  # Of one that is stuck they are named by the question.
        return situation.rollout.state is not RolloutState.STUCK
    if node.stage is NodeStage.PULLED:  # Most roll back alone with the next pass.
        return situation.now - node.since >= _GRACE
    is_over = node.deadline is not None and situation.now - node.deadline >= _GRACE
    return node.stage in IN_HAND and is_over


def _stays_since(node: RolloutNode) -> datetime:
    """Return since when there is something to tell of a node: its deadline may lie far behind the beginning."""
    return node.deadline if node.stage in IN_HAND and node.deadline is not None else node.since


def _lasts(situation: RolloutSituation) -> list[Note]:
    """Return that what ends or rolls back is not over within the time that a job may last: no job is killed for it."""
    rollout, limit = situation.rollout, situation.limits.job_end_limit
    is_long = rollout.state in _COMES_TO_ITS_END and situation.now - rollout.since >= limit
    if not is_long or not situation.is_news(rollout.since + limit):
        return []
    what = "rolls back" if rollout.state is RolloutState.GOING_BACK else "ends"
    return [
        note_of(
            situation,
            stage=f"lasts-{rollout.state.value}-{rollout.since.isoformat()}",
            title=f"{rollout.rollout}: {what} for {minutes(situation.now - rollout.since)}, and is not over",
            lines_title="{count} rollouts do not come to their end",
            parts=[
                ("What holds it", _what_holds(situation)),
                ("Status", f"{standing(situation)}; it waits on, and no job is killed for it"),
                (
                    "What you must do",
                    f"end what holds these nodes, or let it end ({command(situation, 'status')}); reported once",
                ),
            ],
            severity=Severity.WARNING,
            when=at_once(situation),
        )
    ]


def _what_holds(situation: RolloutSituation) -> str:
    """Return the nodes that keep a rollout from its end: those in hand with why, then those still to roll back."""
    in_hand = [each for each in situation.nodes if each.stage in IN_HAND]
    said = [f"{each.node}: {each.stage.value}, {short(each.reason)}" for each in in_hand[:_MOST_NAMED]]
    if len(in_hand) > _MOST_NAMED:
        said.append(f"{len(in_hand) - _MOST_NAMED} more in hand")
    if situation.rollout.state is RolloutState.GOING_BACK and (waiting := situation.nodes_in(NEW_VERSION)):
        said.append(f"not started yet: {names_of_nodes(waiting)}")
    return "; ".join(said)


def _left(situation: RolloutSituation, node: RolloutNode) -> Note:
    rollout = situation.rollout
    is_lost = node.stage is NodeStage.LOST
    what = "could not be restored" if is_lost else "failed and stays drained"
    return note_of(
        situation,
        stage=f"{node.stage.value}-{node.node}-{node.try_number}",
        title=f"{node.node}: {what}, {rollout.rollout}",
        lines_title=f"{{count}} nodes of rollouts: {what}",
        parts=[
            ("Why", short(node.reason)),
            ("Status", "it is drained and serves nobody; nothing more is done with it, and the others continue"),
            ("What you must do", f"see to it, and return it yourself; {command(situation, 'status')} shows the others"),
        ],
        severity=Severity.CRITICAL,
        when=as_page(situation),
    )


def _overdue(situation: RolloutSituation, node: RolloutNode) -> Note:
    rollout = situation.rollout
    where = "back" if node.direction is Direction.BACK else "forward"
    lasts = minutes(situation.now - node.since)
    return note_of(
        situation,
        stage=f"overdue-{node.node}-{node.stage.value}-{where}-{node.try_number}-{node.step}",
        title=f"{node.node}: {node.stage.value} for {lasts}, on its way {where}, {rollout.rollout}",
        lines_title="{count} nodes of rollouts do not come on",
        parts=[
            ("What holds it", short(node.reason)),
            ("Status", "no job is killed for it, and nobody else gets its place meanwhile"),
            ("What you must do", "end what holds it, or let it end; this is reported once"),
        ],
        severity=Severity.WARNING,
        when=at_once(situation),
    )


# -- what the on-call is sent of a rollout that needs nobody --


_GOES_ON = frozenset({RolloutState.RUNNING, RolloutState.SOAKING})
_STOPPED = frozenset({RolloutState.WENT_BACK, RolloutState.ABORTED})
_LATE = timedelta(days=1)
"""So much later than expected is worth a line: jobs run longer, windows are missed."""
_LONG_STATE = timedelta(days=7)
"""# Assumption: windows come once a week; a wave that no end was expected for has had one by then."""
_URGENT = frozenset({Severity.WARNING, Severity.CRITICAL})


def tell_operators(situation: RolloutSituation) -> tuple[Note, ...]:
    """Return the notes for the on-call that are true now; those that were handed in before are known by their key."""
    if situation.rollout.state in FINAL:
        return (_closing(situation),)
    return (*_progress(situation), *call_operators(situation))


def _progress(situation: RolloutSituation) -> list[Note]:
    """Return how far it is: that it has started, that a wave is behind it, that it rolls back."""
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
    ends = "not expected" if rollout.finishes_at is None else clock_time(rollout.finishes_at)
    return note_of(
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
            ("Expected end", ends),
            ("What it costs", "" if plan is None else f"{gpu_hours(plan.lost_gpu_hours)} expected"),
            ("What you must do", "nothing; you hear of it when it needs you, or is over"),
        ],
        severity=Severity.NOTICE,
        when=when_read(situation),
    )


def _wave_behind(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    new = situation.nodes_in(NEW_VERSION)
    return note_of(
        situation,
        stage=f"wave-{rollout.wave - 1}",
        title=f"{rollout.rollout}: wave {rollout.wave - 1} of {len(rollout.waves)} is over, "
        f"{counted(len(new), 'node')} on {rollout.release}",
        parts=[("Status", short(rollout.reason)), ("What you must do", "nothing")],
        severity=Severity.INFO,
        when=in_digest(situation),
    )


def _was_to_be_over(rollout: Rollout) -> datetime:
    """Return when a rollout was to be over; where no end was expected, when its present state has lasted long."""
    return rollout.since + _LONG_STATE if rollout.finishes_at is None else rollout.finishes_at


def _late(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    foreseen = rollout.finishes_at
    said = f"so since {clock_time(rollout.since)}" if foreseen is None else f"was to be over by {clock_time(foreseen)}"
    return note_of(
        situation,
        stage="late",
        title=f"{rollout.rollout}: wave {rollout.wave} of {len(rollout.waves)}, {said}",
        parts=[
            ("Status", f"{rollout.state.value}: {standing(situation)}"),
            ("What you must do", f"nothing, if that is fine; {command(situation, 'status')} shows what each waits for"),
        ],
        severity=Severity.NOTICE,
        when=in_digest(situation),
    )


def _goes_back(situation: RolloutSituation) -> Note:
    rollout = situation.rollout
    touched = situation.nodes_in(IN_HAND | NEW_VERSION | LEFT)
    return note_of(
        situation,
        stage="back",
        title=f"{rollout.rollout}: {rollout.release} rolls back, {counted(len(touched), 'node')} touched",
        lines_title="{count} rollouts roll back",
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
    """Return that it is over: at once, also by night, to who was called for it."""
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
    return note_of(
        situation,
        stage="over",
        title=f"{rollout.rollout}: {ended}, after {minutes(rollout.since - rollout.created_at)}",
        lines_title="{count} rollouts are over",
        parts=[
            ("How it ended", short(rollout.reason)),
            ("Why", short(rollout.stopped_because) if rollout.state in _STOPPED else ""),
            ("Status", standing(situation)),
            ("What you must do", must),
        ],
        severity=Severity.WARNING if left else Severity.INFO,
        when=at_once(situation) if was_called or left else when_read(situation),
        is_last=True,
    )
