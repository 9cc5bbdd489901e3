"""A day's placement as a document and as JSON: who waited, what stood apart, what could not be had, in pieces.

Advice to anyone who runs the scheduler: nothing is changed. Job names are left out; numbers of jobs suffice. The keys
of the JSON are a contract with the scripts of operators.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime

from ops_pipelines.core.identity import listed
from ops_pipelines.efficiency.placement.day import PlacementDay, PlacementReport
from ops_pipelines.efficiency.placement.scheduler_policy import PolicyFinding
from ops_pipelines.efficiency.placement.spread import Straddle
from ops_pipelines.efficiency.placement.waits import QueueTimes, SizeClass
from ops_pipelines.report import document as doc
from ops_pipelines.report.charts import STEPS, steps_svg
from ops_pipelines.report.document import clipped, code, fields_of, soft
from ops_pipelines.report.numbers import gpus, hours, moment, percent, share_of, span

_ROWS = 15
"""Of each table; the JSON has the others."""
_STEPS = (0.05, 0.15, 0.3, 0.5)
"""From here on a colour darker."""
_STEP_WORDS = ("below 5 %", "from 5 %", "from 15 %", "from 30 %", "from 50 %")
assert len(_STEP_WORDS) == len(STEPS) == len(_STEPS) + 1


def placement_document(
    report: PlacementReport | None,
    *,
    cluster: str,
    day: date,
    why_not: str = "",
    days: Sequence[date] = (),
    now: datetime | None = None,
) -> doc.Document:
    """Return the report of a local day. `report` None: there is none, and `why_not` says why.

    `days`: those that have a page, newest first.
    """
    command = f"ops-pipelines placement --day {day}"
    choices = doc.Choices(about="Days", current=str(day), links={str(each): f"placement?day={each}" for each in days})
    blocks = _nothing(why_not, command) if report is None else _reported(report, more=code(f"{command} --json"))
    return doc.Document(
        title=f"Placement of {day}",
        cluster=cluster,
        about="how jobs were placed and how long they waited; advice, nothing is changed",
        blocks=(choices, *blocks),
        command=command,
        now=now,
        measures=None if report is None else {
            "straddling_count": len(report.day.straddles),
            "avoidable_count": sum(each.is_avoidable for each in report.day.straddles),
            "stranded_gpu_hours": stranded_gpu_hours(report.day),
            "refused_count": len(report.refused),
        },
    )  # fmt: skip


def stranded_gpu_hours(day: PlacementDay) -> float:
    """Return how many free GPU-hours nobody could have had."""
    return float(sum(each.gpu_hours for each in day.stranded.stranded))


def _nothing(why_not: str, command: str) -> tuple[doc.Block, ...]:
    return (
        doc.Note(words=why_not),
        doc.Note(
            words=(
                "The report is made from the accounting of jobs in the lake, which the jobs of the groups ",
                code("hours"), " and ", code("jobs"), " fill, and from what the scheduler says of its settings.",
            )
        ),
        doc.Note(words=code(command)),
    )  # fmt: skip


def _reported(report: PlacementReport, *, more: doc.Span) -> tuple[doc.Block, ...]:
    day = report.day
    refused = Counter(each.reason for each in report.refused)
    return doc.sections(
        doc.Note(
            words=f"{moment(day.start)} to {moment(day.end)}, {day.node_count} nodes, {day.gpu_count} GPUs, "
            f"{day.started_count} jobs started",
            mood=doc.Mood.SOFT,
        ),
        _numbers(day),
        doc.Items(items=[clipped(each) for each in report.sentences], key="said"),
        _queues(day),
        _by_hour(day),
        *(
            doc.sections(doc.Heading(text=title), doc.Note(words=soft(about)) if table.rows else None, table)
            for title, about, table in _tables(day, more=more)
        ),
        _settings(day),
        doc.listed_under("Rows that were not believed", [f"{reason}: {count}" for reason, count in refused.items()]),
        doc.listed_under("What is not known", report.notes, key="notes"),
    )


def _numbers(day: PlacementDay) -> tuple[doc.Block, ...]:
    every = [each for each in day.queue_times if each.team is None]
    job_count = sum(each.job_count for each in every)
    long_ratio = sum(each.long_ratio * each.job_count for each in every) / job_count if job_count else None
    pieces = [each.index_ratio for each in day.hours]
    # A job may stand in several racks and in several leaves: it is one job.
    apart = len({_start(each) for each in day.straddles})
    avoidable = len({_start(each) for each in day.straddles if each.is_avoidable})
    nothing_known = (
        "No job is on record for this day: none ran, or the lake has none. The numbers below hold only if none ran."
    )
    return doc.sections(
        None if job_count or day.started_count else doc.Note(words=nothing_known, mood=doc.Mood.WARN),
        doc.Numbers(
            numbers=(
                doc.Number(value=percent(long_ratio, 0), about=f"of {job_count} jobs waited above an hour"),
                doc.Number(
                    value=stranded_gpu_hours(day),
                    kind=doc.Kind.GPU_HOURS,
                    about=f"of {hours(day.stranded.free_gpu_hours)} free GPU-hours were out of reach",
                ),
                doc.Number(
                    value=percent(sum(pieces) / len(pieces) if pieces else None, 0),
                    about="of the whole nodes that free GPUs would make were in pieces",
                ),
                doc.Number(value=f"{avoidable} of {apart}", about="jobs that stood apart need not have"),
            )
        ),
    )


# -- queue times --


def _queues(day: PlacementDay) -> tuple[doc.Block, ...]:
    heading = doc.Heading(text="Queue times")
    every = [each for each in day.queue_times if each.team is None]
    if not every:
        return heading, doc.Note(words="No job waited or started.")
    by_team = [
        block
        for size in SizeClass
        if (of_size := [each for each in day.queue_times if each.size is size and each.team is not None])
        for block in (doc.Heading(text=size.value, level=3), _queue_table(of_size, "Team", key=""))
    ]
    fold = doc.Fold(summary="By team", blocks=by_team) if by_team else None
    return doc.sections(heading, _queue_table(every, "Size", key="queue_times"), fold)


def _queue_table(queues: Sequence[QueueTimes], who: str, *, key: str) -> doc.Table:
    most = max((each.p90_seconds for each in queues), default=0.0)
    return doc.Table(
        key=key,
        columns=(
            doc.Column(title=who, kind=doc.Kind.NAME),
            doc.Column(title="Jobs", kind=doc.Kind.COUNT),
            doc.Column(title="Wait still", kind=doc.Kind.COUNT),
            doc.Column(title="Median", key="median_seconds", kind=doc.Kind.SECONDS),
            doc.Column(title="90 % within", key="p90_seconds", kind=doc.Kind.SECONDS),
            doc.Column(title="", key="bar", kind=doc.Kind.DRAWN),
            doc.Column(title="Above 1 h", key="above_1_h_ratio", kind=doc.Kind.RATIO),
            doc.Column(title="Mostly for", kind=doc.Kind.WORDS),
        ),
        rows=[_queue_row(each, most=most) for each in queues],
    )


def _queue_row(each: QueueTimes, *, most: float) -> doc.Row:
    length = share_of(each.p90_seconds, most)
    few = "too few jobs to compare" if each.is_few else ""
    return doc.Row(
        cells=(
            each.size.value if each.team is None else each.team or "team not known",
            each.job_count,
            each.waiting_count or None,
            each.median_seconds,
            each.p90_seconds,
            doc.Bar(said=span(each.p90_seconds), parts=((length, doc.Shade.SKY),)),
            each.long_ratio,
            "; ".join(part for part in (each.mostly_for, few) if part),
        ),
        role=doc.RowRole.FAINT if each.is_few else doc.RowRole.PLAIN,
    )


def _by_hour(day: PlacementDay) -> tuple[doc.Block, ...]:
    heading = doc.Heading(text="In pieces, by hour")
    if not day.hours:
        return heading, doc.Note(words="Not known.")
    title = "Share of whole nodes in pieces, by hour"
    cells = [
        (
            sum(each.index_ratio >= step for step in _STEPS),
            f"{each.hour:%H:%M} UTC: {each.index_ratio:.0%} in pieces, {gpus(each.free_gpus)} GPUs free",
        )
        for each in day.hours
    ]
    ends = f"{moment(day.hours[0].hour)} to {moment(day.end)}"
    swatches = (doc.Swatch(step=step, what=words) for step, words in enumerate(_STEP_WORDS))
    return heading, doc.Chart(title=title, svg=steps_svg(cells, title=title)), doc.Legend(parts=(ends, *swatches))


# -- tables --


def _tables(day: PlacementDay, *, more: doc.Span) -> Iterable[tuple[str, str, doc.Table]]:
    # What could have been better comes first.
    apart = sorted(day.straddles, key=lambda each: (not each.is_avoidable, each.cost.value != "high"))
    yield "Free, and out of reach", "GPUs that nobody held and nobody could have had", _table(
        "stranded", "Node:name|Why|What the source says|GPU-hours:gpu_hours|At the end:gpus",
        [(each.node or "all", each.why.value, each.cause, each.gpu_hours, each.at_the_end)
         for each in day.stranded.stranded],
        empty="Every free GPU could have been had.", more=more,
    )  # fmt: skip
    yield "Jobs that stood apart", "what could have stood better comes first", _table(
        "straddling_jobs", "Job|Team|Nodes:count|In several|Parts|Had room|Cost:words",
        [(each.stay.job, each.stay.team, len(each.stay.gpus), each.level.value, _parts(each),
          listed(each.better) or "nothing better", f"{each.cost.value}: {each.because}") for each in apart],
        empty="No job of several nodes stood apart.", more=more,
    )  # fmt: skip
    yield "Domains that jobs broke into", "whole fast domains that a smaller job kept from larger ones", _table(
        "broken_domains", "Job|Team|GPUs:gpus|Domain|Domain's GPUs:gpus|Had room",
        [(each.stay.job, each.stay.team, each.stay.gpu_count, each.domain, each.domain_gpu_count,
          listed(each.elsewhere)) for each in day.broken],
        empty="None.", more=more,
    )  # fmt: skip
    yield (
        "What could start at the end of the day",
        "jobs of one size, and how many the number of free GPUs alone would allow",
        _table(
            "could_start", "GPUs a node:count|Nodes:count|Within|Could start:count|By number:count",
            [(each.gpus_per_node, each.node_count, each.within.value, each.could_start, each.by_count)
             for each in day.fits if each.by_count > each.could_start],
            empty="As many of each size as the free GPUs allow.", more=more,
        ),
    )  # fmt: skip
    yield "Nodes that become whole next", "when the jobs that keep them in pieces end; nothing is moved", _table(
        "whole_next", "Node:name|Free:gpus|Held:gpus|By jobs|Likely whole:moment|At the latest:moment",
        [(each.node, each.free_gpus, each.held_gpus, listed(each.jobs), each.likely_by, each.whole_by)
         for each in day.node_hints],
        empty="No node is in pieces.", more=more,
    )  # fmt: skip
    yield (
        "Time limits that kept jobs waiting",
        "with what such jobs needed before, they would have started earlier",
        _table(
            "shorter_limits", "Job|Team|Asked:seconds|Enough:seconds|Past runs:count|Earlier by:seconds|Before",
            [(each.waiting.job, each.waiting.team, each.limit_seconds, each.proposed_seconds, each.run_count,
              each.earlier_seconds, each.ended_by) for each in day.backfill],
            empty="None.", more=more,
        ),
    )  # fmt: skip
    yield "Free right before a reservation", "nobody's time limit fitted", _table(
        "holes_before_reservations", "Node:name|From:moment|To:moment|GPU-hours:gpu_hours|Before",
        [(each.node, each.since, each.until, each.gpu_hours, each.cause) for each in day.holes],
        empty="None.", more=more,
    )  # fmt: skip


def _table(key: str, heads: str, rows: Sequence[tuple[doc.Cell, ...]], *, empty: str, more: doc.Span) -> doc.Table:
    columns = doc.columns_of(heads)
    return doc.Table(key=key, columns=columns, rows=rows, empty=empty, at_most=_ROWS, more=(more, " has all"))


def _parts(each: Straddle) -> str:
    return f"{len(each.parts)}, could be {each.fewest}" if each.is_avoidable else str(len(each.parts))


def _start(each: Straddle) -> tuple[str, datetime]:
    return each.stay.job, each.stay.began_at


def _settings(day: PlacementDay) -> tuple[doc.Block, ...]:
    heading = doc.Heading(text="Settings of the scheduler")
    if day.policy is None:
        return heading, doc.Note(words="Nobody reports how the scheduler is set up.")
    unknown = "; ".join(day.policy.unknown)
    fine = doc.Note(words="Nothing was found that works against fair waiting.", mood=doc.Mood.GOOD)
    findings = [_finding(each) for each in day.policy.findings]
    return doc.sections(
        heading,
        findings[: 2 * _ROWS] or fine,
        doc.Note(words=soft(f"Not reported: {unknown}")) if unknown else None,
    )


def _finding(each: PolicyFinding) -> doc.Card:
    where, set_to = clipped(each.where or "cluster", at_most=80), clipped(each.set_to, at_most=200)
    return doc.Card(
        title=(doc.strong(f"{where}: {clipped(each.setting, at_most=80)}"), " is ", code(each.found or "not set")),
        rows={"Why": each.why, "Set": code(set_to), "Source": soft(clipped(each.source, at_most=160))},
        key="scheduler_settings",
    )


# -- JSON --


def placement_json(report: PlacementReport, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines placement --json` prints."""
    day = report.day
    return {
        "cluster": cluster,
        **fields_of(day, "start end node_count gpu_count started_count"),
        "sentences": report.sentences,
        "straddles": [
            {
                "job": each.stay.job,
                "team": each.stay.team,
                "node_count": len(each.stay.gpus),
                **fields_of(each, "level parts fewest better is_avoidable cost because"),
            }
            for each in day.straddles
        ],
        "broken_domains": [
            {
                "job": each.stay.job,
                "team": each.stay.team,
                "gpu_count": each.stay.gpu_count,
                **fields_of(each, "domain domain_gpu_count elsewhere"),
            }
            for each in day.broken
        ],
        "fits": day.fits,
        "hours": day.hours,
        "node_hints": [
            {
                **fields_of(each, "node free_gpus held_gpus jobs likely_by whole_by"),
            }
            for each in day.node_hints
        ],
        "free_gpu_hours": day.stranded.free_gpu_hours,
        "stranded": [
            {
                **fields_of(each, "node why cause gpu_hours"),
                "gpus_at_the_end": each.at_the_end,
            }
            for each in day.stranded.stranded
        ],
        "backfill": [
            {
                "job": each.waiting.job,
                "team": each.waiting.team,
                **fields_of(each, "limit_seconds proposed_seconds run_count could_have_started_at earlier_seconds"),
                "hole_ends_at": each.hole_ends_at if each.ended_by else None,
                "ended_by": each.ended_by,
            }
            for each in day.backfill
        ],
        **fields_of(day, "holes queue_times reversals"),
        "findings": None if day.policy is None else day.policy.findings,
        "notes": report.notes,
        "refused": [{"record": each.record, "reason": each.reason, "detail": each.detail} for each in report.refused],
    }
