"""One week's advice: found, worded, sent once.

Job names are users' words: they are on one line and short since they became a subject, and a channel shows a message as
text (`core.notes`).
"""

from collections.abc import Sequence
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
from ops_pipelines.efficiency.kept import AdviceReport, FollowedUp, said_before
from ops_pipelines.report.numbers import bytes_words
from ops_pipelines.teams.desk import TeamsDesk

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
