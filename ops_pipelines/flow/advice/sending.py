"""The weekly message to each team: one, short, once. Composes notes; sending them is `telling.delivery`'s.

Job names are users' words: they are on one line and short since they became a subject, and a channel shows a message as
text (`core.notes`).
"""

from collections.abc import Sequence
from datetime import datetime

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.notes import Audience, Lane, Note, Severity, TellRules, quiet_end
from ops_pipelines.core.periods import WEEK, Week
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.advice.advice import OF_STORAGE, Advice
from ops_pipelines.domain.advice.weighing import shown_bytes, shown_hours
from ops_pipelines.flow.advice.report import AdviceReport
from ops_pipelines.teams.desk import TeamsDesk

SOURCE = "messages of advice"
_TRIES = 3
"""Somebody else may hand in at the same time: then it is tried again on the cursor that stands now."""


def send(report: AdviceReport, desk: TeamsDesk) -> frozenset[TeamName]:
    """Hand in one note a team and return the teams that are told, now or before. Raises LedgerError, LedgerConflict.

    Nothing for a week that is not over, and nothing of weeks ago: a week that is looked at again years later tells
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
        body="\n\n".join([*parts, "Nothing of this is done for you. The same is not said again for some weeks."]),
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
        words = f"{shown_bytes(gain.size_bytes)}, once"
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
