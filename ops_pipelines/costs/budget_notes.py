"""What teams and operators are told of budgets: each kind of alert once a month. Composes; sends nothing.

A note is known by month, team, kind and audience, so that who looks again, also after a crash, says nothing twice.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import digest_of
from ops_pipelines.core.money import show_cents
from ops_pipelines.core.notes import ON_CALL, Audience, Lane, Note, Severity, TellRules, body_of, next_time, quiet_end
from ops_pipelines.costs.budgets import BudgetAlert, BudgetStanding

SOURCE = "messages on budgets"
_SEVERITY = {
    BudgetAlert.FORECAST_OVERRUN: Severity.NOTICE,
    BudgetAlert.NEARLY_SPENT: Severity.NOTICE,
    BudgetAlert.SPENT: Severity.WARNING,
}


def tell_of_budgets(standings: Sequence[BudgetStanding], cluster: Cluster, *, currency: str) -> int:
    """Keep a note for each alert that nobody was told of in its month; return how many are new. Raises LedgerError."""
    outbox = cluster.outbox
    if outbox is None:
        return 0
    now = cluster.clock.now()
    notes = budget_notes(standings, currency=currency, rules=cluster.tell_rules, now=now)
    if not notes:
        return 0
    after = cluster.ledger.cursor(SOURCE)
    with suppress(LedgerConflict):  # Somebody else told in between: the next run finds what is left.
        return outbox.hand_in(notes, source=SOURCE, after=after, cursor=now.isoformat(), now=now)
    return 0


def budget_notes(
    standings: Iterable[BudgetStanding], *, currency: str, rules: TellRules, now: datetime
) -> tuple[Note, ...]:
    """Return what holds now, for the team and for the operators. Pure."""
    return tuple(
        _note(standing, alert, audience=audience, currency=currency, rules=rules, now=now)
        for standing in standings
        for alert in standing.alerts
        for audience in (Audience.TEAM, Audience.ON_CALL)
    )


def _note(
    standing: BudgetStanding,
    alert: BudgetAlert,
    *,
    audience: Audience,
    currency: str,
    rules: TellRules,
    now: datetime,
) -> Note:
    budget = standing.budget
    month = f"{budget.first_day:%Y-%m}"
    whom = f"team/{digest_of(budget.team)[:12]}" if audience is Audience.TEAM else audience.value
    title = _title(standing, alert, month=month)
    morning = quiet_end(rules, now)
    to_team = audience is Audience.TEAM
    return Note(
        key=f"budget/{month}/{digest_of(budget.team)[:12]}/{alert.value}/{whom}",
        audience=audience,
        recipient=budget.team if to_team else ON_CALL,
        thread=f"budget {month} {budget.team}",
        subject=f"budget of {budget.team} in {month}",
        title=title,
        body=body_of(_parts(standing, currency=currency)),
        line=title,
        lines_title="{count} budgets need a look",
        severity=_SEVERITY[alert] if to_team else Severity.INFO,
        lane=Lane.AT_ONCE if to_team and morning is None else Lane.DIGEST,
        likeness=f"budget {alert.value}",
        made_at=now,
        ready_at=_ready_at(morning, rules, now, is_digest=not to_team),
    )


def _ready_at(morning: datetime | None, rules: TellRules, now: datetime, *, is_digest: bool) -> datetime:
    if is_digest:
        return next_time(rules.digest_at, rules.zone, now)
    return now + rules.group_window if morning is None else morning


def _title(standing: BudgetStanding, alert: BudgetAlert, *, month: str) -> str:
    team, share = standing.budget.team, f"{float(standing.spent_ratio):.0%}"
    if alert is BudgetAlert.SPENT:
        return f"{team} has spent its budget of {month}: {share} of it"
    if alert is BudgetAlert.NEARLY_SPENT:
        return f"{team} has spent {share} of its budget of {month}"
    return f"{team} will exceed its budget of {month} if it goes on like this"


def _parts(standing: BudgetStanding, *, currency: str) -> tuple[tuple[str, str], ...]:
    budget = standing.budget
    forecast = (
        "not known: none of the last days is"
        if standing.forecast_cents is None
        else (f"{show_cents(standing.forecast_cents)} {currency} at the end of the month")
    )
    return (
        ("Budget", f"{show_cents(budget.cents)} {currency}"),
        ("Spent", f"{show_cents(standing.spent_cents)} {currency} before {standing.today}"),
        ("Forecast", f"{forecast}, if each day to come costs what its weekday cost last"),
        ("What we do", "nothing: a budget stops no job"),
        ("What you must do", "look at what ran, or have the budget changed; `ops-pipelines cost` shows it by project"),
    )
