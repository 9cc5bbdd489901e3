"""One week's advice: found, worded, as a document and as JSON by team, sent once.

Drawn from the rows that the lake keeps of a week, or would keep. Job names, subjects and paths are users' words: they
are on one line and short since they became a subject, and a channel shows a message as text (`core.notes`). The keys of
the JSON are a contract with the scripts of operators.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import Audience, Lane, Note, Severity, TellRules, quiet_end
from ops_pipelines.core.periods import WEEK, Week
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.efficiency.advice import OF_STORAGE, Advice, Followed, Withheld, choose, shown_hours
from ops_pipelines.efficiency.evidence import (
    OnStep,
    find_rates,
    judge,
    judge_storage,
    read_evidence,
    silent,
    with_cents,
)
from ops_pipelines.efficiency.kept import AdviceReport, FollowedUp, rows_of, said_before
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import clipped, code, fields_of, soft, strong, toned
from ops_pipelines.report.numbers import bytes_words, hours, moment
from ops_pipelines.teams.desk import TeamsDesk

_TEAMS_OPEN = 30
_REASONS = 12
_FOLLOWED = {
    "followed": ("followed", doc.Mood.GOOD),
    "not_followed": ("not followed", doc.Mood.WARN),
    "not_run_again": ("did not run again", doc.Mood.SOFT),
    "unknown": ("was not measured", doc.Mood.SOFT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """One row of the lake's table `efficiency_advice`."""

    team: str
    kind: str
    subject: str
    withheld_because: str | None
    told_at: datetime | None
    evidence: str
    counter_evidence: str
    what_to_do: str
    confidence: str
    gain_low_gpu_hours: float | None
    gain_gpu_hours: float | None
    gain_cents: int | None
    gain_bytes: float | None
    followed: str | None
    saved_gpu_hours: float | None

    @property
    def is_said(self) -> bool:
        return self.withheld_because is None


def advice_row(row: Mapping[str, object]) -> AdviceRow:
    """Return a row as the lake has it; what it does not have is not known."""
    cents, told_at = row.get("gain_cents"), row.get("told_at")

    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    def number(name: str) -> float | None:
        value = row.get(name)
        return float(value) if isinstance(value, int | float) else None

    return AdviceRow(
        team=text("team"),
        kind=text("kind"),
        subject=text("subject"),
        withheld_because=None if row.get("withheld_because") is None else text("withheld_because"),
        told_at=told_at if isinstance(told_at, datetime) else None,
        evidence=text("evidence"),
        counter_evidence=text("counter_evidence"),
        what_to_do=text("what_to_do"),
        confidence=text("confidence"),
        gain_low_gpu_hours=number("gain_low_gpu_hours"),
        gain_gpu_hours=number("gain_gpu_hours"),
        gain_cents=cents if isinstance(cents, int) else None,
        gain_bytes=number("gain_bytes"),
        followed=None if row.get("followed") is None else text("followed"),
        saved_gpu_hours=number("saved_gpu_hours"),
    )


def report_rows(
    report: AdviceReport, *, told: Collection[TeamName] = (), at: datetime | None = None
) -> list[AdviceRow]:
    """Return the rows of a report; `told` are the teams that were notified of it, `at` this time."""
    return [advice_row(each) for each in rows_of(report, told=told, at=at).values()]


def advice_document(
    rows: Sequence[AdviceRow],
    *,
    cluster: str,
    week: Week,
    currency: str | None,
    weeks: Sequence[str] = (),
    sentences: Sequence[str] = (),
    not_known: Sequence[str] = (),
    now: datetime,
) -> doc.Document:
    """Return the report of a week. `weeks`: those that have a page, newest first."""
    command = f"ops-pipelines advice --week {week.name}"
    links = {each: f"advice?week={each}" for each in weeks}
    choices = doc.Choices(about="Weeks", current=week.name, links=links)
    said = [each for each in rows if each.is_said]
    head = (doc.Items(items=sentences, key="sentences"),) if sentences else ()
    if rows:
        blocks = doc.sections(head, _numbers(said, currency=currency), _teams(said, currency=currency), _withheld(rows))
    else:
        blocks = head or _nothing(command, is_over=week.end <= now)
    return doc.Document(
        title=f"Advice of {week.name}",
        cluster=cluster,
        about="what teams could do better, sent to each of them once a week",
        blocks=(choices, *blocks, *doc.listed_under("What is not known", not_known, key="not_known")),
        command=command,
        now=now,
        measures={
            "week": week.name,
            "said_count": len(said),
            "withheld_count": len(rows) - len(said),
            "expected_gain_gpu_hours": round(gain_gpu_hours(said), 3),
        },
    )


def gain_gpu_hours(rows: Sequence[AdviceRow]) -> float:
    """Return what following all that is reported would gain in a week."""
    return sum((each.gain_gpu_hours or 0.0 for each in rows if each.is_said), 0.0)


def _nothing(command: str, *, is_over: bool) -> tuple[doc.Block, ...]:
    why = "nothing was seen that could be done better, or nobody looked" if is_over else "it is not over"
    return (
        doc.Note(words=f"Nothing is kept of this week: {why}."),
        doc.Note(
            words=(
                "The asset ", code("efficiency_advice"), " (job ", code("advise_teams"), ") looks every Monday at what "
                "the lake has of the week before: measured efficiency, accounting, lines of jobs. Now and here, "
                "telling nobody:",
            )
        ),
        doc.Note(words=code(command)),
    )  # fmt: skip


def _numbers(said: Sequence[AdviceRow], *, currency: str | None) -> doc.Numbers:
    told = [each for each in said if each.told_at is not None]
    judged = [each for each in told if each.followed is not None]
    priced = [each.gain_cents for each in said if each.gain_cents is not None]
    size = sum(each.gain_bytes or 0 for each in said)
    saved = hours(sum(each.saved_gpu_hours or 0 for each in judged))
    tiles = [
        doc.Number(value=len(said), about=f"sent; teams notified: {len({each.team for each in told})}"),
        doc.Number(value=gain_gpu_hours(said), kind=doc.Kind.GPU_HOURS, about="GPU-hours a week to gain"),
    ]
    if priced and currency is not None:
        worth = f"{sum(priced) / 100:,.0f} {currency}"
        tiles.append(doc.Number(value=worth, about="a week, at the rate of an installed GPU-hour"))
    if size:
        tiles.append(doc.Number(value=size, kind=doc.Kind.BYTES, about="of storage to free"))
    if judged:
        followed = f"{sum(each.followed == 'followed' for each in judged)} of {len(judged)}"
        tiles.append(doc.Number(value=followed, about=f"followed; saved {saved} GPU-hours in two weeks"))
    else:
        tiles.append(doc.Number(value=None, about="followed: known two weeks later"))
    return doc.Numbers(numbers=tiles)


def _teams(said: Sequence[AdviceRow], *, currency: str | None) -> tuple[doc.Block, ...]:
    by_team = {name: [each for each in said if each.team == name] for name in {each.team for each in said}}
    ordered = sorted(by_team, key=lambda name: (-gain_gpu_hours(by_team[name]), name))
    teams = [_team(name, by_team[name], currency=currency) for name in ordered]
    if not teams:
        return (doc.Note(words="No advice is sent in this week."),)
    others = [block for each in teams[_TEAMS_OPEN:] for block in each]
    fold = doc.Fold(summary=f"{len(teams) - _TEAMS_OPEN} more teams", blocks=others) if others else None
    return doc.sections(*teams[:_TEAMS_OPEN], fold)


def _team(name: str, rows: Sequence[AdviceRow], *, currency: str | None) -> tuple[doc.Block, ...]:
    gain = gain_gpu_hours(rows)
    aside = f"{hours(gain)} GPU-hours a week" if gain else ""
    ordered = sorted(rows, key=lambda row: (-(row.gain_gpu_hours or 0), row.subject))
    return doc.Heading(text=strong(name or "team not known"), aside=aside), *(
        _card(each, currency=currency) for each in ordered
    )


def _card(row: AdviceRow, *, currency: str | None) -> doc.Card:
    kind = clipped(row.kind, at_most=60).replace("_", " ")
    return doc.Card(
        title=(strong(clipped(row.subject, at_most=160)), soft(f" {kind}")),
        rows={
            "Seen": row.evidence,
            "But": row.counter_evidence,
            "Gain": (_gain(row, currency=currency), soft(f" (confidence {row.confidence or 'not told'})")),
            "Do": strong(row.what_to_do),
            "Told": _told(row),
        },
        key="advice",
        data={"team": row.team or "unknown team", "what": row.kind},
    )


def _told(row: AdviceRow) -> doc.Words:
    if row.told_at is None:
        return "not reported"
    if row.followed is None:
        return moment(row.told_at)
    followed, mood = _FOLLOWED.get(row.followed, (clipped(row.followed), doc.Mood.SOFT))
    if row.followed == "followed" and row.saved_gpu_hours:
        followed = f"followed; it saved {hours(row.saved_gpu_hours)} GPU-hours in two weeks"
    return f"{moment(row.told_at)}: ", strong(followed, mood)


def _gain(row: AdviceRow, *, currency: str | None) -> str:
    if row.gain_bytes:
        words = f"{bytes_words(row.gain_bytes)} of storage, once"
    else:
        words = f"{hours(row.gain_low_gpu_hours)} to {hours(row.gain_gpu_hours)} GPU-hours a week"
    if row.gain_cents is None or currency is None:
        return words
    return f"{words}, about {row.gain_cents / 100:,.0f} {currency}"


def _withheld(rows: Sequence[AdviceRow]) -> tuple[doc.Block, ...]:
    why = Counter(clipped(each.withheld_because or "", at_most=160) for each in rows if not each.is_said)
    if not why:
        return ()
    items: list[doc.Words] = [f"{count} × {each}" for each, count in why.most_common(_REASONS)]  # noqa: RUF001
    if len(why) > _REASONS:
        items.append(toned(f"and {len(why) - _REASONS} other reasons", doc.Mood.SOFT))
    return (
        doc.Heading(text="Found, and not sent"),
        doc.Fold(summary=f"{why.total()}, each with its reason", blocks=[doc.Items(items=items)]),
    )


# -- JSON --


def of_team(report: AdviceReport, team: str) -> AdviceReport:
    """Return what is about one team alone; of a team that nothing is about, nothing."""
    return replace(
        report,
        chosen=tuple(each for each in report.chosen if each.team == team),
        withheld=tuple(each for each in report.withheld if each.team == team),
    )


def advice_json(report: AdviceReport, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines advice --json` prints."""
    return {
        "cluster": cluster,
        "week": report.week.name,
        "currency": report.currency,
        "advice": [
            {
                "team": each.team,
                "kind": each.kind.value,
                **fields_of(each, "subject evidence counter_evidence"),
                "gain_low_gpu_hours": each.gain.low_gpu_hours,
                "gain_gpu_hours": each.gain.expected_gpu_hours,
                "gain_bytes": each.gain.size_bytes,
                "gain_cents": each.gain_cents,
                "what_to_do": each.what_to_do,
                "confidence": each.confidence.value,
                "measure": each.measure,
                "held_gpu_hours": each.held_gpu_hours,
            }
            for each in report.chosen
        ],
        "withheld": [
            {"team": each.team, "kind": each.kind.value, "subject": each.subject, "why": each.why}
            for each in report.withheld
        ],
        "not_known": report.unknown,
    }


# -- one week's advice --


def find_advice(week: Week, desk: TeamsDesk, *, on_step: OnStep = silent) -> AdviceReport:
    """Return what could be done better, from the hours of the week that are over. Raises LakeError.

    Raises ValueError for a week that has not started.
    """
    until = min(week.end, hour_of(desk.clock.now()))
    if until <= week.start:
        raise ValueError(f"{week.name} has no hour that is over; expected this week or an earlier one")
    evidence = read_evidence(desk, since=week.start, until=until, on_step=on_step)
    types = {(each.team, each.subject): each.gpu_type for each in evidence.works}
    found = [
        *judge(evidence.works, desk.advice, failures=evidence.failures),
        *judge_storage(evidence.groups or (), desk.advice, since=week.start, until=until),
    ]
    rates = find_rates(desk, at=week.start)
    advices = [
        with_cents(each, rates, types.get((each.team, each.subject), GpuType("")))
        for each in found
        if isinstance(each, Advice)
    ]
    choice = choose(advices, desk.advice, said=said_before(week, desk), week_end=week.end)
    silenced = [each for each in found if isinstance(each, Withheld)]
    return AdviceReport(
        week=week,
        chosen=choice.chosen,
        withheld=(*choice.withheld, *silenced),
        unknown=(*evidence.unknown, *_part_of_week(week, until), *_unset(desk)),
        currency=None if desk.prices is None else desk.prices.currency,
    )


def _part_of_week(week: Week, until: datetime) -> list[str]:
    return [] if until == week.end else [f"{week.name} is not over: it is looked at up to {until:%Y-%m-%d %H:%M} UTC"]


def _unset(desk: TeamsDesk) -> list[str]:
    said = []
    if not desk.advice.lesser_types:
        said.append("which GPU type would do for light work is not known: policy.yaml names no advice.lesser_types")
    if desk.prices is None:
        said.append("what it is worth in money is not known: cluster.yaml has no `prices`")
    return said


# -- a week's advice in sentences, for pages and the command line --


_WORDS = {
    Followed.FOLLOWED: "followed",
    Followed.NOT_FOLLOWED: "not followed",
    Followed.NOT_RUN_AGAIN: "of jobs that did not run again",
    Followed.UNKNOWN: "not known",
}


def sentences(report: AdviceReport, followed: Sequence[FollowedUp]) -> tuple[str, ...]:
    """Return what was found, what it would gain, what was followed, and what is not known."""
    said = [_found(report)]
    if report.chosen:
        said.append(_gains(report))
    if followed:
        counts = [
            f"{number} {_WORDS[each]}"
            for each in Followed
            if (number := sum(one.outcome.followed is each for one in followed))
        ]
        saved = sum(each.outcome.saved_gpu_hours for each in followed)
        said.append(f"Of what was sent two weeks ago: {', '.join(counts)}; it saved {shown_hours(saved)}.")
    if report.unknown:
        said.append(f"Not known: {'; '.join(report.unknown)}.")
    return tuple(said)


def _found(report: AdviceReport) -> str:
    if not report.found_count:
        return f"{report.week.name}: nothing was seen that could be done better."
    seen, said, kept = report.found_count, len(report.chosen), len(report.withheld)
    teams = "1 team" if len(report.by_team) == 1 else f"{len(report.by_team)} teams"
    return (
        f"{report.week.name}: {seen} {'thing was' if seen == 1 else 'things were'} seen, "
        f"{said} {'is' if said == 1 else 'are'} sent to {teams}, "
        f"{kept} {'is' if kept == 1 else 'are'} withheld, each with its reason."
    )


def _gains(report: AdviceReport) -> str:
    low = sum(each.gain.low_gpu_hours for each in report.chosen)
    expected = sum(each.gain.expected_gpu_hours for each in report.chosen)
    size = sum(each.gain.size_bytes for each in report.chosen)
    freed = f", and {bytes_words(size)} of storage" if size else ""
    return f"Followed, they would gain {low:,.1f} to {shown_hours(expected)} a week{freed}."


# -- the weekly message to each team --


SOURCE = "messages of advice"
_TRIES = 3
"""Somebody else may hand in at the same time: then it is tried again on the cursor that is now."""


def send(report: AdviceReport, desk: TeamsDesk) -> frozenset[TeamName]:
    """Hand in one note a team; return the teams that are notified, now or before. Raises LedgerError, LedgerConflict.

    Nothing for a week that is not over, and nothing of weeks ago: a week that is looked at again years later reports
    nobody.
    """
    outbox, now = desk.cluster.outbox, desk.clock.now()
    is_news = report.week.end <= now < report.week.end + WEEK
    if outbox is None or not desk.advice.tells_teams or not is_news:
        return frozenset()
    notes = {
        team: note_of(team, advices, report, rules=desk.cluster.tell_rules, now=now)
        for team, advices in report.by_team.items()
    }
    if not notes:
        return frozenset()
    for left in reversed(range(_TRIES)):
        after = desk.cluster.ledger.cursor(SOURCE)
        cursor = max(after or "", report.week.name)
        try:
            outbox.hand_in(tuple(notes.values()), source=SOURCE, after=after, cursor=cursor, now=now)
        except LedgerConflict:
            if not left:
                raise
        else:
            break
    return frozenset(notes)


def note_of(
    team: TeamName, advices: Sequence[Advice], report: AdviceReport, *, rules: TellRules, now: datetime
) -> Note:
    """Return the one note that a team gets of a week. Its key is the team's and the week's: it is kept once."""
    count = len(advices)
    hours = sum(each.gain.expected_gpu_hours for each in advices)
    title = f"{report.week.name}: {count} thing{'s' if count > 1 else ''} that {team} could do better"
    gains = f", about {shown_hours(hours)} a week" if hours >= 0.05 else ""
    parts = [_part(number, each, currency=report.currency) for number, each in enumerate(advices, start=1)]
    return Note(
        key=f"advice/{report.week.name}/{digest_of(team)[:12]}",
        audience=Audience.TEAM,
        recipient=team,
        thread=_thread(report.week, team),
        subject=f"advice for {team}, {report.week.name}",
        title=title,
        body="\n\n".join([*parts, "Nothing of this is done for you. The same is not sent again for some weeks."]),
        line=f"{title}{gains}: " + "; ".join(f"{each.subject}: {each.what_to_do}" for each in advices),
        severity=Severity.INFO,
        lane=Lane.AT_ONCE,
        likeness=f"advice {report.week.name}",
        made_at=now,
        ready_at=_ready_at(rules, now),
        is_last=True,
    )


def shown_gain(advice: Advice, *, currency: str | None) -> str:
    """Return the gain in words: what is sure, what is expected, and the money where prices are stated."""
    gain = advice.gain
    if advice.kind in OF_STORAGE:
        words = f"{bytes_words(gain.size_bytes)}, once"
    else:
        words = f"{gain.low_gpu_hours:,.1f} to {shown_hours(gain.expected_gpu_hours)} a week"
    if advice.gain_cents is None or currency is None:
        return words
    return f"{words}; about {advice.gain_cents / 100:,.0f} {currency} a week"


def _part(number: int, advice: Advice, *, currency: str | None) -> str:
    lines = [
        f"{number}. {advice.subject} ({advice.kind.value.replace('_', ' ')})",
        f"   seen: {'; '.join(advice.evidence)}",
        f"   gain: {shown_gain(advice, currency=currency)} (confidence {advice.confidence.value})",
        f"   do: {advice.what_to_do}",
    ]
    if advice.counter_evidence:
        lines.insert(2, f"   but: {'; '.join(advice.counter_evidence)}")
    return "\n".join(lines)


def _ready_at(rules: TellRules, now: datetime) -> datetime:
    return max(now + rules.group_window, quiet_end(rules, now) or now)


def _thread(week: Week, team: TeamName) -> str:
    return f"advice-{week.name}-{digest_of(team)[:12]}"
