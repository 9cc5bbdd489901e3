"""All pages about teams, for the web process: costs, advice, placement, quotas; what each remembers, and its tile."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from ops_pipelines.core.cluster import Cluster, hour_of
from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import CostMonth, Week, parse_week, week_of
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.proposal import ProposalId, ProposalRecord, ProposalState
from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.core.sources import LakeError
from ops_pipelines.costs.focus import billed_cents
from ops_pipelines.costs.gather_usage import NothingYet
from ops_pipelines.costs.report import cost_document
from ops_pipelines.costs.statements import Charge, statement_of
from ops_pipelines.efficiency.kept import TABLE
from ops_pipelines.efficiency.placement.day import PlacementReport, report_of_day
from ops_pipelines.efficiency.placement.document import placement_document, stranded_gpu_hours
from ops_pipelines.efficiency.week import AdviceRow, advice_document, advice_row, gain_gpu_hours
from ops_pipelines.quotas.propose import Used, used_in
from ops_pipelines.quotas.report import matter_of, moved_gpus, next_step, quota_document
from ops_pipelines.report.document import Document, Number
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import hours, money
from ops_pipelines.teams.desk import NoTeams, TeamsDesk
from ops_pipelines.terminal.planned_pages import CapacityPages
from ops_pipelines.terminal.served_pages import NotThere, PagesInMaking, TeamsAtHand

# -- the page of a month's costs for the web process --


_MONTHS = 12
_KINDS = ("csv", "parquet")
_FILE = re.compile(r"[12][0-9]{3}-(0[1-9]|1[0-2])\.(csv|parquet)", re.ASCII)
_MOMENT = timedelta(microseconds=1)


class CostPages:
    """Pages of one cluster's costs, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        self._making = PagesInMaking(patience_seconds=patience_seconds)

    def page(self, asked: str | None, desk: TeamsDesk) -> str:
        """Return the page of a month named as 2026-11; None: the running one.

        Raises NotThere, PageInMaking, LakeError, LedgerError, StatementFilesError.
        """
        now = desk.clock.now()
        months = _months(desk, now)
        if asked is None:
            # In its first hour nothing of a month is over.
            month = months[0] if now - months[0].begins_at >= timedelta(hours=1) else months[1]
        else:
            named = next((each for each in months if each.name == asked), None)
            if named is None:
                raise NotThere(
                    f"there is no page of the month {asked[:40]}; from {months[-1].name} to {months[0].name} there "
                    "are, and `ops-pipelines cost --month MONTH` counts older ones"
                )
            month = named
        return self._making.page(
            month.name,
            lambda: page_of(_document(month, months, desk, now=now)),
            title="the costs of",
            hour=hour_of(now),
            now=now,
        )


def cost_file(name: str, desk: TeamsDesk) -> bytes:
    """Return a kept file by its name, as 2026-11.csv. Raises NotThere, StatementFilesError."""
    kept = desk.statements.read(name) if desk.statements is not None and _FILE.fullmatch(name) else None
    if kept is None:
        raise NotThere(f"no statement {name[:40]} is kept; the asset chargeback writes 2026-11.csv and 2026-11.parquet")
    return kept


def cost_tile(desk: TeamsDesk) -> Number:
    """Return what the newest kept statement says. Raises StatementFilesError."""
    for month in _months(desk, desk.clock.now())[:2]:
        kept = None if desk.statements is None else desk.statements.read(f"{month.name}.csv")
        if kept is not None:
            teams, total, currency = _sums(kept)
            about = f"{currency} of {money(total)} borne by teams in {month.name}, as last written"
            return Number(link="chargeback", title="Costs", value=money(teams), about=about)
    about = "no statement is written yet" if desk.prices is not None else "no prices are stated: hours are counted"
    return Number(link="chargeback", title="Costs", value="-", about=about)


def _sums(written: bytes) -> tuple[Cents, Cents, str]:
    """Return what teams pay in a written file, what it adds up to, and the currency."""
    rows = list(csv.DictReader(io.StringIO(written.decode("utf-8"), newline="")))
    currency = rows[0]["BillingCurrency"] if rows else ""
    return _cents(row for row in rows if row["SubAccountId"]), _cents(rows), currency


def _cents(rows: Iterable[dict[str, str]]) -> Cents:
    return Cents(int(sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0)).scaleb(2)))


def _months(desk: TeamsDesk, now: datetime) -> list[CostMonth]:
    """Return the running month and those before, newest first."""
    from ops_pipelines.costs.usage import month_at

    found = [month_at(now, zone=desk.zone)]
    while len(found) < _MONTHS:
        found.append(month_at(found[-1].begins_at - _MOMENT, zone=desk.zone))
    return found


def _document(month: CostMonth, months: list[CostMonth], desk: TeamsDesk, *, now: datetime) -> Document:
    charge, why_not = _charge(month, desk, now=now)
    written = _kept(f"{month.name}.csv", desk)
    kinds = {
        each.name: tuple(kind for kind in _KINDS if _kept(f"{each.name}.{kind}", desk) is not None) for each in months
    }
    shown = [name for number, name in enumerate(kinds) if number < 2 or kinds[name] or name == month.name]
    return cost_document(
        charge,
        cluster=desk.cluster.name,
        month=month.name,
        why_not=why_not,
        months={name: kinds[name] for name in shown},
        filed_cents=None if written is None else Cents(billed_cents(written)),
        now=now,
    )


def _charge(month: CostMonth, desk: TeamsDesk, *, now: datetime) -> tuple[Charge | None, str]:
    try:
        return statement_of(month, desk, until=now), ""
    except (NothingYet, NoTeams) as problem:
        return None, str(problem)


def _kept(name: str, desk: TeamsDesk) -> bytes | None:
    return None if desk.statements is None else desk.statements.read(name)


# -- the page of a week's advice for the web process --


_WEEKS = 10
_FIRST_YEAR = 2000


def advice_page(asked: str | None, desk: TeamsDesk) -> str:
    """Return the page of a week named as 2026-W47; None: the newest of which anything is kept.

    Raises NotThere, LakeError, LedgerError.
    """
    now = desk.clock.now()
    weeks = _last_weeks(now)
    kept = [each for each in weeks if _read(each, desk)]
    week = _named(asked) if asked is not None else next(iter(kept), weeks[0])
    return page_of(
        advice_document(
            _read(week, desk),
            cluster=desk.cluster.name,
            week=week,
            weeks=[each.name for each in kept],
            currency=None if desk.prices is None else desk.prices.currency,
            not_known=_not_known(desk),
            now=now,
        )
    )


def advice_tile(desk: TeamsDesk) -> Number:
    """Return the newest week's advice in a number. Raises LakeError."""
    for week in _last_weeks(desk.clock.now())[:2]:
        said = [each for each in _read(week, desk) if each.is_said]
        if said:
            about = f"GPU-hours a week to gain: {len(said)} stated in {week.name}"
            return Number(link="advice", title="Advice", value=hours(gain_gpu_hours(said)), about=about)
    return Number(link="advice", title="Advice", value="-", about="nothing is stated of the last two weeks")


def _named(asked: str) -> Week:
    try:
        week = parse_week(asked)
    except ValueError as problem:
        raise NotThere(str(problem)) from problem
    if week.start.year < _FIRST_YEAR:
        raise NotThere(f"there is no advice of {week.name}; ask for a week since {_FIRST_YEAR}")
    return week


def _last_weeks(now: datetime) -> list[Week]:
    found = [week_of(now).before]
    while len(found) < _WEEKS:
        found.append(found[-1].before)
    return found


def _not_known(desk: TeamsDesk) -> Sequence[str]:
    """Return what no week can say here. What was missing in one week alone, the asset's page has."""
    missing = []
    if desk.read_listing is None:
        missing.append("old checkpoints and unused data: policy.yaml names no advice.storage_listing")
    if desk.prices is None:
        missing.append("what the hours cost: cluster.yaml has no prices")
    return missing


def _read(week: Week, desk: TeamsDesk) -> list[AdviceRow]:
    rows: list[Mapping[str, object]] = desk.lake.read_hour(TABLE, week.end).to_pylist()  # type: ignore[attr-defined]  # an Arrow table
    return [advice_row(each) for each in rows]


# -- the page of a day's placement for the web process --


_REACH = timedelta(days=60)
_OFFERED = 8
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    day: date
    stranded: float
    free: float


class PlacementPages:
    """Pages of one cluster's placement, remembered for the hour in which they were made."""

    def __init__(self, *, patience_seconds: float = 10) -> None:
        self._making = PagesInMaking(patience_seconds=patience_seconds)
        self._seen: _Seen | None = None

    def page(self, asked: str | None, desk: TeamsDesk) -> str:
        """Return the page of a local day, as 2026-11-22; None: of yesterday.

        Raises NotThere, PageInMaking, LakeError, LedgerError, SourceError.
        """
        now = desk.clock.now()
        today = now.astimezone(desk.zone).date()
        day = today - _DAY if asked is None else _named_day(asked, today)
        return self._making.page(
            day.isoformat(),
            lambda: page_of(self._document(day, today, desk, now=now)),
            title="the placement of",
            hour=hour_of(now),
            now=now,
        )

    def tile(self, desk: TeamsDesk) -> Number:
        """Return what the newest page that was made says: counting a day takes longer than the index may."""
        seen, yesterday = self._seen, desk.clock.now().astimezone(desk.zone).date() - _DAY
        if seen is None or seen.day < yesterday:
            return Number(
                link="placement", title="Placement", value="-", about=f"{yesterday}: counted when it is opened"
            )
        return Number(
            link="placement",
            title="Placement",
            value=hours(seen.stranded),
            about=f"of {hours(seen.free)} free GPU-hours were out of reach on {seen.day}",
        )

    def _document(self, day: date, today: date, desk: TeamsDesk, *, now: datetime) -> Document:
        report, why_not = _report(day, desk)
        if report is not None and (self._seen is None or self._seen.day <= day):
            self._seen = _Seen(
                day=day, stranded=stranded_gpu_hours(report.day), free=report.day.stranded.free_gpu_hours
            )
        return placement_document(
            report,
            cluster=desk.cluster.name,
            day=day,
            why_not=why_not,
            days=[today - number * _DAY for number in range(_OFFERED)],
            now=now,
        )


def _report(day: date, desk: TeamsDesk) -> tuple[PlacementReport | None, str]:
    try:
        return report_of_day(day, desk), ""
    except (NothingYet, NoTeams) as problem:
        return None, str(problem)


def _named_day(asked: str, today: date) -> date:
    try:
        day = date.fromisoformat(asked)
    except ValueError as problem:
        raise NotThere(f"{asked[:40]} is no day; expected one as {today}") from problem
    if not today - _REACH <= day <= today:
        raise NotThere(
            f"there is no page of {day}; from {today - _REACH} to {today} there are, and "
            f"`ops-pipelines placement --day {day}` counts older ones"
        )
    return day


# -- the page of quotas for the web process --


_RECORDS = 40
"""Some days have several: so many reach two weeks back."""


def quotas_page(asked: str | None, cluster: Cluster, desk: TeamsDesk | None) -> str:
    """Return the page of one proposal; None: of the newest. Raises NotThere, LedgerError."""
    records = cluster.ledger.proposals(limit=_RECORDS)
    record = _chosen(asked, cluster, records)
    return page_of(quota_document(matter_of(record, records, cluster, desk, used=_used(record, desk))))


def quota_tile(cluster: Cluster, desk: TeamsDesk | None) -> Number:
    """Return the newest proposal in a number. Raises LedgerError."""
    records = cluster.ledger.proposals(limit=1)
    if not records:
        return Number(link="quotas", title="Quotas", value="-", about="nothing was proposed yet")
    record = records[0]
    given, _ = moved_gpus(record.proposal)
    said = next_step(matter_of(record, records, cluster, desk, used={}))
    return Number(
        link="quotas",
        title="Quotas",
        value=f"{given:g}",
        about=f"GPUs move on {record.proposal.day}; {record.state.value.replace('_', ' ')}. {said}",
    )


def _chosen(asked: str | None, cluster: Cluster, records: Sequence[ProposalRecord]) -> ProposalRecord | None:
    if asked is None:
        current = [each for each in records if each.state is not ProposalState.SUPERSEDED]
        return next(iter(current or records), None)
    # PostgreSQL takes no zero byte, and no name of ours has one.
    found = cluster.ledger.proposal(ProposalId(asked)) if asked.isprintable() else None
    if found is None:
        raise NotThere(f"there is no proposal {asked[:80]}; `ops-pipelines quota history` lists them")
    return found


def _used(record: ProposalRecord | None, desk: TeamsDesk | None) -> Used:
    """Return what teams used on the day before a proposal; nothing where the lake does not say."""
    if record is None or desk is None:
        return {}
    try:
        return used_in(desk, day=record.proposal.day)
    except LakeError:  # The quotas are shown all the same, and what was used as not known.
        return {}


# -- all pages about teams, for the web process --


class TeamPages:
    """The pages of one cluster's teams. Every method but `tiles` raises NotThere for what is not there."""

    def __init__(self, open_cluster: Callable[[], Cluster], cluster_file: Path | None) -> None:
        self._open_cluster = open_cluster
        self._at_hand = TeamsAtHand(open_cluster, cluster_file)
        self._costs = CostPages()
        self._placement = PlacementPages()
        self._capacity = CapacityPages()

    def quotas(self, proposal: str | None) -> str:
        """Return the page of a proposal, the newest unless one is named."""
        return quotas_page(proposal, self._open_cluster(), self._desk_or_none())

    def costs(self, month: str | None) -> str:
        """Return the page of a month, the running one unless one is named."""
        return self._costs.page(month, self._at_hand.whole_desk())

    def cost_file(self, name: str) -> bytes:
        """Return a statement as it was written."""
        return cost_file(name, self._at_hand.whole_desk())

    def advice(self, week: str | None) -> str:
        """Return the page of a week, the newest with advice unless one is named."""
        return advice_page(week, self._at_hand.whole_desk())

    def placement(self, day: str | None) -> str:
        """Return the page of a day, yesterday unless one is named."""
        return self._placement.page(day, self._at_hand.whole_desk())

    def capacity(self, quarter: str | None) -> str:
        """Return the page of a quarter's report, the newest unless one is named."""
        return self._capacity.page(quarter, self._at_hand.whole_desk())

    def capacity_document(self, quarter: str | None) -> bytes:
        """Return the same report as JSON."""
        return self._capacity.document(quarter, self._at_hand.whole_desk())

    def tiles(self) -> tuple[Number, ...]:
        """Return the headline numbers; a page that has none at this moment has a dash. Raises LedgerError."""
        cluster = self._open_cluster()
        desk = self._desk_or_none()
        if desk is None:
            return (quota_tile(cluster, None),)
        return (
            quota_tile(cluster, desk),
            _told(cost_tile, desk, path="chargeback", title="Costs"),
            _told(advice_tile, desk, path="advice", title="Advice"),
            self._placement.tile(desk),
            _told(self._capacity.tile, desk, path="capacity", title="Capacity"),
        )

    def _desk_or_none(self) -> TeamsDesk | None:
        """Return the desk; None where it cannot be had: who opens a page that needs it reads what is wrong."""
        try:
            return self._at_hand.desk()
        except PolicyError:
            return None


def _told(tile: Callable[[TeamsDesk], Number], desk: TeamsDesk, *, path: str, title: str) -> Number:
    try:
        return tile(desk)
    except (LakeError, StatementFilesError):
        return Number(link=path, title=title, value="-", about="cannot be read now; its page says why")
