"""What was done in a week: acts, results and people; and how much of the time of jobs was work that lasted.

An act belongs to the week in which it was started. Pure functions; `weekly_review` reads what they are given.

Effective training time after Meta (arXiv 2410.21680, section II-D): of the time that a job ran or waited after an
interruption, the share that was productive; not productive is work since the last checkpoint that an interruption
threw away, and each restart until work continues. Unlike Meta's, it leaves out the wait for a job's first start, which
the queue-wait objectives cover. All of it weighs by GPUs. What is not known is kept apart, never in either side.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import AUTOPILOT, Entry, EntryKind
from ops_pipelines.core.identity import ActionKey, IncidentId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.review.cost import REPAIRS_OF_NODES, done_at
from ops_pipelines.review.week_incidents import Records

if TYPE_CHECKING:
    from ops_pipelines.review.job_runs import Break, Cause, Stint

ASSUMED_RESTART = timedelta(minutes=10)
"""A restart that nobody saw may have taken so long. # Assumption: the upper end of what large jobs need to load."""
_NOTHING = timedelta(0)
_TELLING = 0.01
"""Up to this share that is not known one number may mean both bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSum:
    """GPU-hours that were requested in an interval, and what became of them. The parts add up to `wanted`."""

    productive: float = 0.0
    lost: float = 0.0
    """Work that an interruption threw away."""
    restart: float = 0.0
    queue: float = 0.0
    """Waits after interruptions."""
    unknown: float = 0.0
    """Ran, and may have been lost: no checkpoint is known, or the restart was not seen."""
    job_count: int = 0
    break_count: int = 0
    unknown_break_count: int = 0
    """Interruptions of which the loss or the restart is not known."""

    @property
    def wanted(self) -> float:
        return self.productive + self.lost + self.restart + self.queue + self.unknown

    @property
    def low_ratio(self) -> float | None:
        """Effective time if all that is not known was lost; None where nothing was requested."""
        return self.productive / self.wanted if self.wanted > 0 else None

    @property
    def high_ratio(self) -> float | None:
        """Effective time if none of it was."""
        return (self.productive + self.unknown) / self.wanted if self.wanted > 0 else None

    @property
    def effective_ratio(self) -> float | None:
        """Effective time, what is not known counted as lost; None where too much is not known."""
        is_known = self.wanted > 0 and self.unknown <= _TELLING * self.wanted
        return self.low_ratio if is_known else None

    def plus(self, other: "WorkSum") -> "WorkSum":
        """Return both together."""
        names = self.__dataclass_fields__
        return WorkSum(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of an interval: by team, and what each cause took."""

    by_team: Mapping[str, WorkSum] = field(default_factory=dict)
    by_cause: "Mapping[Cause, float]" = field(default_factory=dict)
    """GPU-hours lost, restarting or waiting; they add up to these parts of all teams."""

    @property
    def total(self) -> WorkSum:
        sums = WorkSum()
        for each in self.by_team.values():
            sums = sums.plus(each)
        return sums


def sum_work(stints: "Iterable[Stint]", breaks: "Iterable[Break]", *, since: datetime, until: datetime) -> Work:
    """Return what became of the time that `stints` requested in [since, until), with everything cut at its edges.

    Attempts without GPUs weigh nothing and are left out.
    """
    ended = {(each.stint.job, each.stint.started_at): each for each in breaks}
    resumed = {(each.stint.job, each.resumed_at): each for each in ended.values() if each.resumed_at is not None}
    by_job: dict[tuple[str, str], WorkSum] = {}
    from ops_pipelines.review.job_runs import Cause

    by_cause = dict.fromkeys(Cause, 0.0)

    def add(stint: "Stint", part: WorkSum) -> None:
        key = (stint.team, stint.job)
        by_job[key] = by_job.get(key, WorkSum()).plus(part)

    free_from: dict[str, datetime] = {}
    for stint in sorted(stints, key=lambda each: (each.job, each.started_at)):
        if stint.gpu_count <= 0:
            continue
        # Attempts of one job that overlap cannot all be right: the same time counts once.
        begin = max(stint.started_at, free_from.get(stint.job, stint.started_at))
        end = stint.ended_at or max(begin, min(until, stint.seen_until or begin))
        free_from[stint.job] = max(end, begin)
        own = ended.get((stint.job, stint.started_at))
        before = resumed.get((stint.job, stint.started_at))
        cut = _cut_stint(begin, end, own, before, since=since, until=until)
        weight = stint.gpu_count / 3600
        add(stint, _weighed(cut, weight, own=own, before=before, since=since, until=until))
        if own is not None:
            by_cause[own.cause] += cut.lost.total_seconds() * weight
            queue = queue_of(own, since=since, until=until).total_seconds() * weight
            by_cause[own.cause] += queue
            add(stint, WorkSum(queue=queue))
        if before is not None:
            by_cause[before.cause] += cut.restart.total_seconds() * weight
    by_team: dict[str, WorkSum] = {}
    for (team, _), part in by_job.items():
        if part.wanted <= 0:
            continue
        by_team[team] = by_team.get(team, WorkSum()).plus(part).plus(WorkSum(job_count=1))
    return Work(by_team=dict(sorted(by_team.items())), by_cause=by_cause)


@dataclass(frozen=True, slots=True)
class _Cut:
    running: timedelta
    lost: timedelta
    restart: timedelta
    unknown: timedelta


def _cut_stint(
    begin: datetime, end: datetime, own: "Break | None", before: "Break | None", *, since: datetime, until: datetime
) -> _Cut:
    """Return how the time of one attempt divides: thrown away at its end, restarting at its beginning, not known."""
    lost_from = end
    unsure_until = begin
    if own is not None and own.saved_nothing:
        lost_from = begin
    elif own is not None and own.checkpointed_at is not None:
        lost_from = min(max(own.checkpointed_at, begin), end)
    elif own is not None:
        unsure_until = end
    restart_until = begin
    if before is not None and before.restart is not None:
        restart_until = min(begin + before.restart, lost_from)
    elif before is not None:
        unsure_until = max(unsure_until, min(begin + ASSUMED_RESTART, lost_from))
    return _Cut(
        running=_overlap(begin, end, since, until),
        lost=_overlap(lost_from, end, since, until),
        restart=_overlap(begin, restart_until, since, until),
        unknown=_overlap(restart_until, min(unsure_until, lost_from), since, until),
    )


def _weighed(
    cut: _Cut, weight: float, *, own: "Break | None", before: "Break | None", since: datetime, until: datetime
) -> WorkSum:
    spare = cut.running - cut.lost - cut.restart - cut.unknown
    ends_here = own is not None and since <= own.ended_at < until
    is_unsure = (own is not None and not own.is_loss_known) or (before is not None and before.restart is None)
    return WorkSum(
        productive=spare.total_seconds() * weight,
        lost=cut.lost.total_seconds() * weight,
        restart=cut.restart.total_seconds() * weight,
        unknown=cut.unknown.total_seconds() * weight,
        break_count=int(ends_here),
        unknown_break_count=int(is_unsure and cut.unknown > _NOTHING),
    )


def queue_of(each: "Break", *, since: datetime, until: datetime) -> timedelta:
    """Return how much of [since, until) a job waited after an interruption; nothing where no one knows that it did."""
    if each.resumed_at is not None:
        return _overlap(each.waits_from or each.ended_at, each.resumed_at, since, until)
    return _overlap(each.ended_at, until, since, until) if each.waits_on else _NOTHING


def _overlap(begin: datetime, end: datetime, since: datetime, until: datetime) -> timedelta:
    return max(_NOTHING, min(end, until) - max(begin, since))


_HOUR = timedelta(hours=1)
_LINES_AT_ONCE = 1000
_CLOCK_TOLERANCE = timedelta(minutes=10)
"""How far the clocks of two writers of the ledger may be apart before a line is missed."""
_SAME_DEED = timedelta(minutes=5)
"""A drain by hand writes an act and its incident: so near to each other they are one thing that a person did."""
PAGED = "was paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLine:
    """One kind of act and what came of it; the parts add up to `count`."""

    verb: Verb
    done: int
    not_needed: int
    """It had lost its object before it was sent."""
    failed: int
    unknown: int
    unfinished: int

    @property
    def count(self) -> int:
        return self.done + self.not_needed + self.failed + self.unknown + self.unfinished


class WrongKind(Enum):
    """Why an act looks wrong in hindsight."""

    FOUND_WELL = "taken out, and tests found it well before anything was repaired"
    ROLLED_BACK = "taken out, and returned with nothing done to it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongAct:
    """One node that we took out and that seems to have needed nothing, with what it cost.

    A suspicion: tests that pass do not prove that there was no fault, since some come and go; and a node that was
    repaired before it was tested is not judged.
    """

    incident: IncidentId
    node: NodeName
    kind: WrongKind
    at: datetime
    out_of_service_gpu_hours: float | None
    """None: nobody knows how many GPUs it has."""
    moved_job_count: int
    lost_gpu_hours: float
    """Work of the jobs that were moved off it, as expected when they were held, as far as that is known."""
    unknown_loss_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleLine:
    """What people did, or were asked to do."""

    what: str
    count: int
    who: tuple[str, ...]
    """By name, as the ledger has them. Untrusted."""


def acts_of(records: Records, *, since: datetime, until: datetime) -> tuple[ActLine, ...]:
    """Return the acts of plans started in [since, until) by kind, the commonest first; what a person did by hand is
    reported by `people_of`."""
    lines: dict[Verb, dict[str, int]] = {}
    for listed in records.values():
        for record in listed:
            if record.plan is not None and since <= record.begun_at < until:
                counts = lines.setdefault(record.action.verb, dict.fromkeys(_RESULTS, 0))
                counts[_result(record)] += 1
    made = [ActLine(verb=verb, **counts) for verb, counts in lines.items()]
    return tuple(sorted(made, key=lambda each: (-each.count, each.verb.value)))


_RESULTS = ("done", "not_needed", "failed", "unknown", "unfinished")


def _result(record: ActionRecord) -> str:
    if record.outcome is None:
        return "unfinished"
    if record.outcome.kind is OutcomeKind.DONE:
        return "done" if record.outcome.was_needed else "not_needed"
    return "failed" if record.outcome.kind is OutcomeKind.FAILED else "unknown"


def wrong_acts(
    incidents: Iterable[Incident],
    records: Records,
    verdicts: Mapping[ActionKey, bool],
    *,
    gpus_of_node: Mapping[str, int],
    since: datetime,
    until: datetime,
) -> tuple[WrongAct, ...]:
    """Return the nodes taken out in [since, until) that seem to have needed nothing, the dearest first.

    `verdicts`: whether the tests that an act asked for found the node well. What a person had drained is not judged.
    """
    found = []
    for incident in incidents:
        if not incident.findings or incident.mended_at is not None:
            continue  # A person drained it, or hands have repaired it: something was wrong.
        by_node: dict[NodeName, list[ActionRecord]] = {}
        for record in records.get(incident.incident, ()):
            if record.action.node is not None and record.action.attempt is None:
                by_node.setdefault(record.action.node, []).append(record)
        holds = [each for each in records.get(incident.incident, ()) if _took_work(each)]
        for node, listed in by_node.items():
            drained = done_at(listed, {Verb.DRAIN})
            if not drained or not since <= drained[0] < until:
                continue
            kind = _why_wrong(listed, verdicts)
            if kind is None:
                continue
            resumed = [at for at in done_at(listed, {Verb.RESUME}) if at >= drained[0]]
            out = max(timedelta(0), min(resumed[0] if resumed else until, until) - drained[0])
            gpus = gpus_of_node.get(node)
            own = [each for each in holds if node in each.attempt_nodes or len(by_node) == 1]
            found.append(
                WrongAct(
                    incident=incident.incident,
                    node=node,
                    kind=kind,
                    at=drained[0],
                    out_of_service_gpu_hours=None if gpus is None else gpus * (out / _HOUR),
                    moved_job_count=len(own),
                    lost_gpu_hours=sum(each.lost_gpu_hours or 0.0 for each in own),
                    unknown_loss_count=sum(each.lost_gpu_hours is None for each in own),
                )
            )
    return tuple(
        sorted(found, key=lambda each: (-(each.out_of_service_gpu_hours or 0.0) - each.lost_gpu_hours, each.incident))
    )


def _took_work(record: ActionRecord) -> bool:
    """Return whether an act took running work away: a hold that was witnessed, of a job that the fault had spared."""
    return record.action.verb is Verb.HOLD and not record.action.has_ended and record.took_effect


def _why_wrong(records: Sequence[ActionRecord], verdicts: Mapping[ActionKey, bool]) -> WrongKind | None:
    repaired = done_at(records, {*REPAIRS_OF_NODES, Verb.POWER_OFF})
    checked = sorted(
        (each.outcome.finished_at, verdicts[each.action.key])
        for each in records
        if each.action.verb is Verb.CHECK and each.outcome is not None and each.action.key in verdicts
    )
    if checked:
        before_repair = [is_well for at, is_well in checked if not repaired or at < repaired[0]]
        return WrongKind.FOUND_WELL if before_repair and all(before_repair) else None
    return WrongKind.ROLLED_BACK if done_at(records, {Verb.RESUME}) and not repaired else None


# -- people --


_DID = {
    EntryKind.APPROVAL: "approved a plan",
    EntryKind.LEDGER: "chose the ledger to continue with",
    EntryKind.PAUSE: "paused the autopilot",
    EntryKind.RESUME_AUTOPILOT: "let the autopilot continue",
    EntryKind.ACTION_BEGUN: "acted by hand",
    EntryKind.ROLLOUT: "started a rollout, or gave one an order",
    EntryKind.QUOTAS: "proposed, applied or undid quotas",
    EntryKind.INCIDENT: "changed an incident (closed it, stated that a repair is done)",
}


def people_of(
    entries: Iterable[Entry], records: Records, *, since: datetime, until: datetime
) -> tuple[PeopleLine, ...]:
    """Return what people did in [since, until), and how often they were paged, the commonest first.

    `entries`: lines of the chain of that time. An approval is always a person's.
    """
    names: dict[str, list[str]] = {}
    by_people = [
        each
        for each in entries
        if (each.actor != AUTOPILOT or each.kind is EntryKind.APPROVAL)
        and each.kind in _DID
        and since <= each.written_at < until
    ]
    acted: dict[tuple[str, str | None], list[datetime]] = {}
    for entry in by_people:
        if entry.kind is EntryKind.ACTION_BEGUN:
            acted.setdefault((entry.actor, entry.incident), []).append(entry.written_at)
    for entry in by_people:
        about = acted.get((entry.actor, entry.incident), ())
        if entry.kind is EntryKind.INCIDENT and any(abs(entry.written_at - at) <= _SAME_DEED for at in about):
            continue
        names.setdefault(_DID[entry.kind], []).append(entry.actor)
    paged = sum(
        record.action.verb is Verb.PAGE_HUMAN
        and since <= record.begun_at < until
        and record.outcome is not None
        and record.outcome.kind is OutcomeKind.DONE
        for listed in records.values()
        for record in listed
    )
    lines = [PeopleLine(what=what, count=len(who), who=tuple(sorted(set(who)))) for what, who in names.items()]
    if paged:
        lines.append(PeopleLine(what=PAGED, count=paged, who=()))
    return tuple(sorted(lines, key=lambda each: (-each.count, each.what)))


def entries_between(ledger: Ledger, *, since: datetime, until: datetime) -> Iterator[Entry]:
    """Yield the lines of the chain that were written in [since, until), found by halving: a ledger grows for years."""
    low, high = 0, 1
    begin = since - _CLOCK_TOLERANCE
    while (newer := ledger.entries(after=high, limit=1)) and newer[0].written_at < begin:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        found = ledger.entries(after=middle, limit=1)
        if found and found[0].written_at < begin:
            low = middle + 1
        else:
            high = middle
    after = low
    while page := ledger.entries(after=after, limit=_LINES_AT_ONCE):
        for entry in page:
            if since <= entry.written_at < until:
                yield entry
        after = page[-1].seq
        if page[-1].written_at >= until + _CLOCK_TOLERANCE:
            return
