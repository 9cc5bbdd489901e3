"""A week's advice as found, as the lake keeps it, and whether it was followed two weeks later.

What was reported stays, however often the week is looked at again: it was reported, and is followed up.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.periods import WEEK, Week
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import (
    OF_STORAGE,
    Advice,
    AdviceKind,
    AdviceResult,
    Followed,
    Said,
    Withheld,
    judge_following,
)
from ops_pipelines.efficiency.evidence import Evidence, measure, read_evidence
from ops_pipelines.teams.desk import TeamsDesk

# -- what a week's look found --


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceReport:
    """One week's advice."""

    week: Week
    chosen: tuple[Advice, ...]
    """What is reported, by team, the largest gain first."""
    withheld: tuple[Withheld, ...]
    """What was seen and is not stated, with the reason."""
    unknown: tuple[str, ...]
    """What could not be looked at, in sentences."""
    currency: str | None = None
    """None: no prices are stated."""

    @property
    def found_count(self) -> int:
        return len(self.chosen) + len(self.withheld)

    @property
    def count_by_kind(self) -> Mapping[AdviceKind, int]:
        """Return how much is reported of each kind; all kinds, 0 included."""
        counts = Counter(each.kind for each in self.chosen)
        return {kind: counts[kind] for kind in AdviceKind}

    @property
    def by_team(self) -> Mapping[TeamName, tuple[Advice, ...]]:
        """Return what is reported to each team that has a name."""
        teams = sorted({each.team for each in self.chosen if each.team})
        return {team: tuple(each for each in self.chosen if each.team == team) for team in teams}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedUp:
    """What became of one piece of advice that was reported."""

    team: TeamName
    kind: AdviceKind
    subject: str
    measure_before: float
    outcome: AdviceResult


# -- advice in the lake --


TABLE = "efficiency_advice"
WITHHELD_AT_MOST = 1_000
"""Rows of what is not stated; the others are in no table."""
JUDGED_WEEKS = 26
LEAST_JUDGED = 5
"""Fewer pieces of advice say nothing of how often it is followed."""
_Row = Mapping[str, object]
_Key = tuple[TeamName, AdviceKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAdvice:
    """Advice that was sent to a team, as the lake has it."""

    team: TeamName
    kind: AdviceKind
    subject: str
    measure: float
    expected_gpu_hours: float
    held_gpu_hours: float


def keep(report: AdviceReport, desk: TeamsDesk, *, told: Collection[TeamName]) -> None:
    """Make the report what the lake has of its week; `told` are the teams that were notified. Raises LakeError."""
    from ops_pipelines.lake.schema import TABLES

    end = report.week.end
    rows = rows_of(report, told=told, at=desk.clock.now())
    for row in _rows(desk, end):
        key = _key(row)
        if key is not None and row["told_at"] is not None:
            rows[key] = row
    desk.lake.replace_hour(TABLE, end, TABLES[TABLE].from_rows(rows[key] for key in sorted(rows, key=repr)))


def rows_of(report: AdviceReport, *, told: Collection[TeamName], at: datetime | None) -> dict[_Key, _Row]:
    """Return the rows of a report as the lake has them; `told` are the teams that were notified, `at` this time."""
    rows: dict[_Key, _Row] = {}
    for each in report.withheld[:WITHHELD_AT_MOST]:
        rows.setdefault((each.team, each.kind, each.subject), _withheld_row(each, report.week))
    for advice in report.chosen:
        rows[advice.key] = _row(advice, report.week, told_at=at if advice.team in told else None)
    return rows


def keep_outcomes(week: Week, followed: Collection[FollowedUp], desk: TeamsDesk) -> None:
    """Write beside the advice of a week what became of it. Raises LakeError."""
    from ops_pipelines.lake.schema import TABLES

    by_key = {(each.team, each.kind, each.subject): each.outcome for each in followed}
    rows: list[_Row] = []
    for row in _rows(desk, week.end):
        key = _key(row)
        outcome = None if key is None else by_key.get(key)
        rows.append(
            row
            if outcome is None
            else {
                **row,
                "followed": outcome.followed.value,
                "measure_after": outcome.measure_after,
                "saved_gpu_hours": outcome.saved_gpu_hours,
            }
        )
    if rows:
        desk.lake.replace_hour(TABLE, week.end, TABLES[TABLE].from_rows(rows))


def told_in(week: Week, desk: TeamsDesk) -> tuple[SentAdvice, ...]:
    """Return what was sent to teams at the end of a week. Raises LakeError."""
    found = []
    for row in _rows(desk, week.end):
        key = _key(row)
        if key is not None and row["told_at"] is not None:
            found.append(
                SentAdvice(
                    team=key[0],
                    kind=key[1],
                    subject=key[2],
                    measure=_number(row["measure"]),
                    expected_gpu_hours=_number(row["gain_gpu_hours"]),
                    held_gpu_hours=_number(row["held_gpu_hours"]),
                )
            )
    return tuple(found)


def said_before(week: Week, desk: TeamsDesk) -> tuple[Said, ...]:
    """Return what was sent to teams in the quiet weeks before this one. Raises LakeError."""
    weeks = [Week(start=week.start - number * WEEK) for number in range(1, desk.advice.quiet_weeks + 1)]
    return tuple(
        Said(kind=each.kind, team=each.team, subject=each.subject, week_end=past.end, measure=each.measure)
        for past in weeks
        for each in told_in(past, desk)
    )


def followed_ratio(desk: TeamsDesk, *, before: datetime) -> float | None:
    """Return the followed share of what was reported and could be judged, by the GPU-hours a week that it promised.

    Of `JUDGED_WEEKS` weeks whose outcome was known by `before`: what comes of a week is known two weeks later. None
    where fewer than `LEAST_JUDGED` pieces were judged. Raises LakeError.
    """
    end = before - 2 * WEEK
    rows = desk.lake.read(TABLE, start=end - JUDGED_WEEKS * WEEK, end=end, columns=["followed", "gain_gpu_hours"])
    promised = {Followed.FOLLOWED.value: 0.0, Followed.NOT_FOLLOWED.value: 0.0}
    told: list[_Row] = rows.to_pylist()  # type: ignore[attr-defined]  # an Arrow table
    judged = [each for each in told if each["followed"] in promised]
    for each in judged:
        promised[str(each["followed"])] += _number(each["gain_gpu_hours"])
    total = sum(promised.values())
    if len(judged) < LEAST_JUDGED or total <= 0:
        return None
    return promised[Followed.FOLLOWED.value] / total


def _rows(desk: TeamsDesk, end: datetime) -> list[_Row]:
    rows: list[_Row] = desk.lake.read_hour(TABLE, end).to_pylist()  # type: ignore[attr-defined]  # an Arrow table
    return rows


def _key(row: _Row) -> _Key | None:
    """Return what a row is about; None for a kind that this version does not know."""
    try:
        return TeamName(str(row["team"])), AdviceKind(str(row["kind"])), str(row["subject"])
    except ValueError:
        return None


def _row(advice: Advice, week: Week, *, told_at: datetime | None) -> _Row:
    return {
        "team": advice.team,
        "kind": advice.kind.value,
        "subject": advice.subject,
        "time": week.end,
        "week": week.name,
        "told_at": told_at,
        "evidence": "; ".join(advice.evidence),
        "counter_evidence": "; ".join(advice.counter_evidence),
        "what_to_do": advice.what_to_do,
        "confidence": advice.confidence.value,
        "gain_low_gpu_hours": advice.gain.low_gpu_hours,
        "gain_gpu_hours": advice.gain.expected_gpu_hours,
        "gain_cents": advice.gain_cents,
        "gain_bytes": float(advice.gain.size_bytes),
        "held_gpu_hours": advice.held_gpu_hours,
        "measure": advice.measure,
    }


def _withheld_row(each: Withheld, week: Week) -> _Row:
    return {
        "team": each.team,
        "kind": each.kind.value,
        "subject": each.subject,
        "time": week.end,
        "week": week.name,
        "withheld_because": each.why,
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# -- was advice followed --


AFTER_WEEKS = 2


def week_to_follow(week: Week) -> Week:
    """Return the week whose advice can be followed up when this one is over."""
    return Week(start=week.start - AFTER_WEEKS * WEEK)


def follow_up(given: Week, desk: TeamsDesk) -> tuple[FollowedUp, ...]:
    """Return and keep what became of what was sent to teams at the end of `given`. Raises LakeError.

    Raises ValueError while the two weeks after it are not over.
    """
    until = given.end + AFTER_WEEKS * WEEK
    if desk.clock.now() < until:
        raise ValueError(f"the advice of {given.name} is followed up from {until:%Y-%m-%d} on; ask again then")
    told = told_in(given, desk)
    if not told:
        return ()
    evidence = read_evidence(desk, since=given.end, until=until)
    found = tuple(
        FollowedUp(
            team=each.team,
            kind=each.kind,
            subject=each.subject,
            measure_before=each.measure,
            outcome=_of_storage(each, evidence, desk) if each.kind in OF_STORAGE else _of_jobs(each, evidence, desk),
        )
        for each in told
    )
    keep_outcomes(given, found, desk)
    return found


def _of_jobs(told: SentAdvice, evidence: Evidence, desk: TeamsDesk) -> AdviceResult:
    work = next((each for each in evidence.works if (each.team, each.subject) == (told.team, told.subject)), None)
    held = 0.0 if work is None else work.held_gpu_hours
    return judge_following(
        measure_before=told.measure,
        measure_after=None if work is None else measure(told.kind, work, desk.advice, failures=evidence.failures),
        expected_gpu_hours=told.expected_gpu_hours,
        held_before_gpu_hours=told.held_gpu_hours,
        held_after_gpu_hours=held,
        settings=desk.advice,
    )


def _of_storage(told: SentAdvice, evidence: Evidence, desk: TeamsDesk) -> AdviceResult:
    """Return what became of files: a directory that the listing no longer has is gone."""
    if evidence.groups is None:
        return AdviceResult(followed=Followed.UNKNOWN, measure_after=None, saved_gpu_hours=0.0)
    is_checkpoints = told.kind is AdviceKind.STALE_CHECKPOINTS
    left = sum(
        each.old_size_bytes
        for each in evidence.groups
        if (each.team, each.path, each.is_checkpoints) == (told.team, told.subject, is_checkpoints)
    )
    is_followed = left <= told.measure * desk.advice.followed_ratio
    return AdviceResult(
        followed=Followed.FOLLOWED if is_followed else Followed.NOT_FOLLOWED,
        measure_after=float(left),
        saved_gpu_hours=0.0,
    )
