"""Pictures of remediation: nodes x rungs, who waits for hands, probations, GPU-hours saved, and what a plan leaves.

Says what the bars are of; drawing them is `report.pictures.bars`'. Each picture has its sentence where there is nothing
to draw. Imported where pages are made: it needs pandas.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from ops_pipelines.core.plan import BlastRadius, Remaining
from ops_pipelines.remediate.ladder import Rung
from ops_pipelines.remediate.standings import Probation, Standing
from ops_pipelines.report.document import Shade
from ops_pipelines.report.numbers import counted, escape_markdown
from ops_pipelines.report.pictures.bars import BarRow, Sheet, large_rows, small_rows

RUNG_WORDS: Mapping[Rung, str] = {
    Rung.MONITOR: "watch",
    Rung.NOTIFY_OWNER: "tell",
    Rung.REQUEUE_JOB: "move",
    Rung.EXCLUDE_NODE: "avoid",
    Rung.DRAIN: "drain",
    Rung.FENCE: "fence",
    Rung.ISOLATE: "apart",
    Rung.GPU_RESET: "reset",
    Rung.REBOOT: "boot",
    Rung.POWER_CYCLE: "power",
    Rung.REIMAGE: "image",
    Rung.RETURN_TO_VENDOR: "hands",
}
"""Short names of the columns: five letters are as wide as a column."""
_LADDER = Sheet(
    title="ladder: nodes x rungs",
    key={Shade.BLUE: "is here", Shade.PALE: "below", Shade.ORANGE: "did not help"},
    columns=tuple(RUNG_WORDS.values()),
)
_QUEUE = Sheet(title="repair queue: time waited", key={Shade.ORANGE: "waits for hands"})
_PROBATION = Sheet(title="probation: time left", key={Shade.GREY: "passed", Shade.GREEN: "left"})
_REMAINING = Sheet(
    title="what a plan leaves in service",
    key={Shade.GREEN: "stays", Shade.ORANGE: "taken by this plan", Shade.GREY: "out before"},
)
_SAVED_TITLE = "GPU-hours saved by day and team"
_TEAM_SHADES = (Shade.BLUE, Shade.ORANGE, Shade.GREEN)
_OTHER_TEAMS = "others"
_DAYS_DRAWN = 14
_GROUPED_FROM = 8
"""More nodes than this are drawn as groups that stand alike: nobody reads 200 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture in two sizes, as Markdown; drawn when asked for."""

    rows: tuple[BarRow, ...]
    """Empty where there is nothing to draw: then its words stand alone."""
    sheet: Sheet
    words: str

    @property
    def small(self) -> str:
        """For a page: the UI shows it in place."""
        return small_rows(self.rows, sheet=self.sheet, words=self.words)

    @property
    def large(self) -> str:
        """For the dialog."""
        return large_rows(self.rows, sheet=self.sheet, words=self.words)


def ladder_picture(standings: Collection[Standing]) -> Picture:
    """Return nodes x rungs, the highest first; many nodes as groups that stand alike."""
    if not standings:
        return _only(_LADDER, "No node is above watching.")
    alike: dict[tuple[Rung, frozenset[Rung]], list[str]] = {}
    for each in standings:
        alike.setdefault((each.rung, each.failed), []).append(each.node)
    ordered = sorted(alike.items(), key=lambda item: (-item[0][0], -len(item[0][1]), min(item[1])))
    rows = []
    for (rung, failed), nodes in ordered:
        names = sorted(nodes)
        groups = [[name] for name in names] if len(standings) <= _GROUPED_FROM else [names]
        rows += [_ladder_row(group, rung, failed) for group in groups]
    counts = Counter(each.rung for each in standings)
    told = (
        ""
        if len(standings) <= _GROUPED_FROM
        else ": " + ", ".join(f"{counts[rung]} {_word(rung)}" for rung in sorted(counts, reverse=True))
    )
    words = f"{counted(len(standings), 'node')}{told} · 0 watch to v vendor · dark: is here, orange: did not help"
    return Picture(rows=tuple(rows), sheet=_LADDER, words=words)


def _ladder_row(nodes: Sequence[str], rung: Rung, failed: frozenset[Rung]) -> BarRow:
    parts = tuple(
        (1.0, Shade.ORANGE if each in failed else Shade.BLUE if each is rung else Shade.PALE)
        for each in Rung
        if each <= max([rung, *failed])
    )
    label = nodes[0] if len(nodes) == 1 else f"{nodes[0]} +{len(nodes) - 1}"
    return BarRow(label=label, parts=_joined(parts), number=f"{_word(rung)} failed" if rung in failed else _word(rung))


def _joined(parts: Sequence[tuple[float, Shade]]) -> tuple[tuple[float, Shade], ...]:
    found: list[tuple[float, Shade]] = []
    for length, shade in parts:
        if found and found[-1][1] is shade:
            found[-1] = (found[-1][0] + length, shade)
        else:
            found.append((length, shade))
    return tuple(found)


def queue_picture(waiting: Mapping[str, datetime], *, now: datetime) -> Picture:
    """Return which nodes wait for hands, and how long since then, the longest first."""
    if not waiting:
        return _only(_QUEUE, "The repair queue is empty.")
    rows = [
        BarRow(label=node, parts=((_seconds(now - since), Shade.ORANGE),), number=_duration(now - since))
        for node, since in sorted(waiting.items(), key=lambda each: (each[1], each[0]))
    ]
    return Picture(
        rows=tuple(rows),
        sheet=_QUEUE,
        words=f"{counted(len(rows), 'node')} wait{'s' if len(rows) == 1 else ''} for hands",
    )


def probation_picture(probations: Sequence[Probation], *, now: datetime) -> Picture:
    """Return how much of each probation is left, the one that ends first first."""
    if not probations:
        return _only(_PROBATION, "No node is on probation.")
    rows = [
        BarRow(
            label=each.node,
            parts=(
                (_seconds(min(now, each.until) - each.since), Shade.GREY),
                (_seconds(each.until - max(now, each.since)), Shade.GREEN),
            ),
            number=f"{_duration(each.until - now)} left" if each.until > now else "over",
        )
        for each in sorted(probations, key=lambda each: (each.until, each.node))
    ]
    return Picture(
        rows=tuple(rows), sheet=_PROBATION, words=f"{counted(len(rows), 'node')} on probation · green: time left"
    )


def saved_picture(by_day: Mapping[str, Mapping[str, float]], *, uncounted_job_count: int) -> Picture:
    """Return GPU-hours saved by day and team, the newest day first; the three teams that saved most apart."""
    unknown = f" · {counted(uncounted_job_count, 'job')} without known costs in no sum" if uncounted_job_count else ""
    if not by_day:
        return _only(
            Sheet(title=_SAVED_TITLE, key={}), f"No moment was chosen yet that saved or cost GPU-hours{unknown}."
        )
    totals: dict[str, float] = {}
    for teams in by_day.values():
        for team, hours in teams.items():
            totals[team] = totals.get(team, 0.0) + hours
    apart = sorted(totals, key=lambda team: (-totals[team], team))[: len(_TEAM_SHADES)]
    rows = [
        BarRow(
            label=f"{date.fromisoformat(day):%d %b}",
            parts=tuple((max(0.0, hours), shade) for hours, shade in _shaded(by_day[day], apart) if hours > 0),
            number=f"{sum(by_day[day].values()):,.1f} GPU-h",
        )
        for day in sorted(by_day, reverse=True)[:_DAYS_DRAWN]
    ]
    key = {shade: _short(team) for team, shade in zip(apart, _TEAM_SHADES, strict=False)}
    if len(totals) > len(apart):
        key[Shade.GREY] = _OTHER_TEAMS
    colours = ("blue", "orange", "green")
    named = ", ".join(f"{colour} {escape_markdown(_short(team))}" for team, colour in zip(apart, colours, strict=False))
    rest = ", grey others" if len(totals) > len(apart) else ""
    words = f"{sum(totals.values()):,.1f} GPU-hours less lost than by interrupting at once · {named}{rest}{unknown}"
    return Picture(rows=tuple(rows), sheet=Sheet(title=_SAVED_TITLE, key=key), words=words)


def _shaded(teams: Mapping[str, float], apart: Sequence[str]) -> list[tuple[float, Shade]]:
    others = sum(hours for team, hours in teams.items() if team not in apart)
    return [
        *((teams.get(team, 0.0), shade) for team, shade in zip(apart, _TEAM_SHADES, strict=False)),
        (others, Shade.GREY),
    ]


def proof_picture(proof: BlastRadius) -> Picture:
    """Return what stays in service of each part of the cluster that a plan touches, as shares, the tightest first."""
    parts = [each for each in proof.remaining if each.total_count > 0]
    if not parts:
        return _only(_REMAINING, "The plan takes nothing out of service.")
    rows = [_remaining_row(each) for each in sorted(parts, key=_left_ratio)]
    return Picture(
        rows=tuple(rows),
        sheet=_REMAINING,
        words="green: stays in service · orange: taken by this plan · grey: out before",
    )


def _remaining_row(part: Remaining) -> BarRow:
    stays = max(0, part.total_count - part.out_after_count)
    taken = max(0, part.out_after_count - part.out_before_count)
    total = part.total_count
    return BarRow(
        label=part.name if part.kind == part.name else f"{part.kind.split('_')[0]} {part.name}",
        parts=(
            (stays / total, Shade.GREEN),
            (taken / total, Shade.ORANGE),
            (min(part.out_before_count, part.out_after_count) / total, Shade.GREY),
        ),
        number=f"{stays:,} of {total:,}",
    )


def _left_ratio(part: Remaining) -> float:
    return (part.total_count - part.out_after_count) / part.total_count


def _only(sheet: Sheet, words: str) -> Picture:
    return Picture(rows=(), sheet=sheet, words=words)


def _word(rung: Rung) -> str:
    return rung.name.lower().replace("_", " ")


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:9]}..{name[-9:]}"


def _seconds(duration: timedelta) -> float:
    return max(0.0, duration.total_seconds())


def _duration(duration: timedelta) -> str:
    minutes = max(0, int(duration.total_seconds() // 60))
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
