"""Pages of what is planned, for the web process: rollouts, and the capacity of a quarter. Shows, and changes nothing.

What the gate of a rollout sees may take weeks of the lake to read: it is asked once for all readers, and remembered for
a while. Reports of capacity are kept by the asset `capacity_plan`; each is read once, and nothing is forecast while
somebody waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from threading import Lock

from ops_pipelines.capacity.answers import json_of, report_in
from ops_pipelines.capacity.model import CapacityReport, first_day_of, quarter_before, quarter_of
from ops_pipelines.capacity.report import capacity_document, next_order
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import RolloutId, cause_of
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.core.rollout import Rollout
from ops_pipelines.core.sources import SourceError
from ops_pipelines.report.document import Number
from ops_pipelines.report.html import page_of
from ops_pipelines.rollouts.cycle import calendar_of
from ops_pipelines.rollouts.gate.evidence import GateVerdict
from ops_pipelines.rollouts.gate_sources import judge_of
from ops_pipelines.rollouts.plan_report import MOST_RELEASES, MOST_ROLLOUTS, LyingRelease, rollouts_document
from ops_pipelines.rollouts.report import RolloutMatter, rollout_document
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.terminal.edge import RECENT
from ops_pipelines.terminal.served_pages import NotThere

_REMEMBERED = timedelta(seconds=20)
"""Passes look about as often; anyone who reloads the page meanwhile gets what was seen before."""


class NoSuchRollout(LookupError):
    """What was asked for is not there. The message says what is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    rollout: Rollout
    at: datetime
    verdict: GateVerdict | None


class RolloutPages:
    """Pages of one cluster's rollouts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._judged: dict[RolloutId, _Judged] = {}

    def listed(self, cluster: Cluster) -> str:
        """Return the page of all rollouts, and of the releases that lie ready. Raises LedgerError."""
        now = cluster.clock.now()
        rollouts = cluster.ledger.rollouts(final_since=now - RECENT)
        document = rollouts_document(
            cluster=cluster.name,
            rollouts=rollouts,
            nodes={each.rollout: cluster.ledger.rollout_nodes(each.rollout) for each in rollouts[-MOST_ROLLOUTS:]},
            releases=_releases(cluster),
            policy=cluster.rules.policy,
            now=now,
        )
        return page_of(document)

    def page(self, name: str, cluster: Cluster) -> str:
        """Return the page of one rollout. Raises NoSuchRollout, LedgerError."""
        # PostgreSQL takes no zero byte, and no name of ours has one.
        rollout = cluster.ledger.rollout(RolloutId(name)) if name.isprintable() else None
        if rollout is None:
            raise NoSuchRollout(f"there is no rollout {name[:80]}; `ops-pipelines rollout history` lists them")
        nodes = cluster.ledger.rollout_nodes(rollout.rollout)
        return page_of(
            rollout_document(
                RolloutMatter(
                    cluster=cluster.name,
                    rollout=rollout,
                    nodes=nodes,
                    release=cluster.ledger.release(rollout.release_digest),
                    plan=cluster.ledger.rollout_plan(rollout.plan),
                    calendar=_calendar(rollout, cluster),
                    racks={node: place.rack for node, place in cluster.rules.topology.places.items()},
                    records=cluster.ledger.records(cause_of(rollout.rollout)),
                    verdict=self._verdict(rollout, cluster),
                    now=cluster.clock.now(),
                )
            )
        )

    def _verdict(self, rollout: Rollout, cluster: Cluster) -> GateVerdict | None:
        """Return what the gate says of a rollout as it is, seen a moment ago at most."""
        now = cluster.clock.now()
        with self._lock:
            known = self._judged.get(rollout.rollout)
            if known is not None and known.rollout == rollout and now - known.at < _REMEMBERED:
                return known.verdict
            verdict = judge_of(rollout, cluster)(rollout, cluster.ledger.rollout_nodes(rollout.rollout))
            self._judged = {name: each for name, each in self._judged.items() if now - each.at < _REMEMBERED}
            self._judged[rollout.rollout] = _Judged(rollout=rollout, at=now, verdict=verdict)
            return verdict


def _releases(cluster: Cluster) -> tuple[LyingRelease, ...]:
    """Return what lies in the directory of releases, readable or not."""
    files = cluster.rollout_files
    if files is None:
        return ()
    names = files.release_names()
    found = [_release(name, cluster) for name in names[:MOST_RELEASES]]
    return (*found, *(LyingRelease(name=name, release=None) for name in names[MOST_RELEASES:]))


def _release(name: str, cluster: Cluster) -> LyingRelease:
    assert cluster.rollout_files is not None, "it has just named this release"
    try:
        return LyingRelease(name=name, release=cluster.rollout_files.release(name))
    except PolicyError:  # Its words hold paths of ours; anyone who may change the file gets them from the command line.
        return LyingRelease(name=name, release=None)


def _calendar(rollout: Rollout, cluster: Cluster) -> WorkCalendar | None:
    """Return the windows and freezes around a rollout; None where they cannot be read."""
    try:
        return calendar_of(cluster, now=rollout.created_at)[0]
    except (SourceError, PolicyError):
        return None


_OFFERED = 8
"""Quarters, the present one and those before it."""
_QUARTERS_REMEMBERED = 4
_FIRST_YEAR = 1970
_CHECK = "-check-"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    content: bytes
    report: CapacityReport


class CapacityPages:
    """Reports of one cluster, remembered by name."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, _Known] = {}

    def page(self, asked: str | None, desk: TeamsDesk) -> str:
        """Return the page of a report, as 2026Q4 or 2026Q4-check-2026-11; None: of the newest quarter that has one.

        Raises NotThere, StatementFilesError.
        """
        now = desk.clock.now()
        present = quarter_of(now.astimezone(desk.zone).date())
        name = (_newest(desk, present) or present) if asked is None else _named(asked)
        report = self._report(name, desk)
        if report is None and asked is not None:
            raise _missing(name, desk, present)
        quarter = name.partition(_CHECK)[0]
        return page_of(
            capacity_document(
                report,
                cluster=desk.cluster.name,
                quarter=quarter,
                why_not="" if report is not None else _why_not(desk),
                name=name,
                quarters=_offered(desk, present, quarter),
                now=now,
            )
        )

    def document(self, asked: str | None, desk: TeamsDesk) -> bytes:
        """Return the same report as JSON. Raises NotThere, StatementFilesError."""
        present = quarter_of(desk.clock.now().astimezone(desk.zone).date())
        name = (_newest(desk, present) or present) if asked is None else _named(asked)
        report = self._report(name, desk)
        if report is None:
            raise _missing(name, desk, present)
        return json_of(report)

    def tile(self, desk: TeamsDesk) -> Number:
        """Return by when something must be ordered. Raises StatementFilesError."""
        name = _newest(desk, quarter_of(desk.clock.now().astimezone(desk.zone).date()))
        report = None if name is None else self._report(name, desk)
        if report is None:
            return Number(link="capacity", title="Capacity", value="-", about="no quarter was planned yet")
        found = next_order(report.plan)
        return Number(link="capacity", title="Capacity", value=found.value, about=f"{found.about} ({name})")

    def _report(self, name: str, desk: TeamsDesk) -> CapacityReport | None:
        content = _read(desk, name)
        if content is None:
            return None
        with self._lock:
            known = self._known.get(name)
        if known is None or known.content != content:
            try:
                known = _Known(content=content, report=report_in(content))
            except ValueError as problem:
                raise StatementFilesError(
                    f"the capacity report {name} cannot be read: {problem}. Move it away, and make the quarter again."
                ) from problem
            with self._lock:
                while len(self._known) >= _QUARTERS_REMEMBERED:
                    self._known.pop(next(iter(self._known)))
                self._known[name] = known
        return known.report


def _read(desk: TeamsDesk, name: str) -> bytes | None:
    return None if desk.plan_files is None else desk.plan_files.read(f"{name}.json")


def _newest(desk: TeamsDesk, present: str) -> str | None:
    return next((each for each in _quarters(present) if _read(desk, each) is not None), None)


def _quarters(present: str) -> list[str]:
    """Return the present quarter and those before it, newest first."""
    found = [present]
    while len(found) < _OFFERED:
        found.append(quarter_before(found[-1]))
    return found


def _offered(desk: TeamsDesk, present: str, shown: str) -> tuple[str, ...]:
    """Return the names of reports that are kept, newest first; of the quarter that is shown its checks, too."""
    kept: list[str] = []
    for quarter in dict.fromkeys((*_quarters(present), shown)):
        names: Sequence[str] = (*(_checks(quarter) if quarter == shown else ()), quarter)
        kept += [each for each in names if _read(desk, each) is not None]
    return tuple(kept)


def _checks(quarter: str) -> tuple[str, ...]:
    """Return the names that checks of a quarter have, the newest first."""
    first = first_day_of(quarter)
    months = (date(first.year, first.month + number, 1) for number in (2, 1, 0))
    return tuple(f"{quarter}{_CHECK}{each:%Y-%m}" for each in months)


def _named(asked: str) -> str:
    """Return the name of a report as it was asked for. Raises NotThere."""
    quarter, mark, _ = asked.partition(_CHECK)
    try:
        first = first_day_of(quarter)
    except ValueError as problem:
        raise NotThere(f"{asked[:40]} is no quarter; expected one as 2026Q4") from problem
    # The calendar's first quarters have none before them that could be offered.
    if first.year < _FIRST_YEAR:
        raise NotThere(f"{asked[:40]} lies before any that was planned; expected one as 2026Q4")
    if mark and asked not in _checks(quarter):
        raise NotThere(f"{asked[:40]} is no check of {quarter}; expected one as {_checks(quarter)[0]}")
    return asked


def _missing(name: str, desk: TeamsDesk, present: str) -> NotThere:
    kept = _offered(desk, present, name.partition(_CHECK)[0])
    there = f"there are {', '.join(kept)}" if kept else _why_not(desk)
    return NotThere(f"no capacity report {name} was kept; {there}")


def _why_not(desk: TeamsDesk) -> str:
    if desk.plan_files is None:
        return "This installation keeps no capacity reports: it has no state directory."
    return f"No quarter of the last {_OFFERED} was planned yet."
