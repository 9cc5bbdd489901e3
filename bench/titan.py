"""A real case: GPUs of the Titan supercomputer, whose resistors failed from 2015 on, as our alarms would have seen it.

Each week from 2014-07 to 2016-07 is looked at with what was known then, and printed is when each group's alarm first
went off, beside what was published later (Ostrouchov et al., SC'20). Then who our lemon score would have called a lemon
at the end of each quarter, by serial and, for comparison, by place, and how many of these failed in the quarter after.
Last, how often the alarm goes off on the same machine with its failures dealt out at random.
Run it with `python -m bench.titan`.
"""

import argparse
import csv
import gzip
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ops_pipelines.core.identity import NodeName
from ops_pipelines.diagnose.defects import FLEET, DefectAlarm, Failures, Service, compare_groups, watch
from ops_pipelines.diagnose.lemons import LemonSignal, Stay, Trouble, count_troubles, score_lemons
from ops_pipelines.lake.inventory import batch_of
from ops_pipelines.observe.repeated import PartKey

FOLDER = Path(__file__).parent.parent.parent / "shared" / "data" / "titan_gpu_life"
FILE = FOLDER / "gc_until_2016-07-01.csv.gz"
FIRST_LOOK = datetime(2014, 7, 1, tzinfo=UTC)
END = datetime(2016, 7, 1, tzinfo=UTC)
WEEK, QUARTER = timedelta(days=7), timedelta(days=91)
_PLACE = re.compile(r"c(?P<column>\d+)-(?P<row>\d)c(?P<cage>\d)s(?P<slot>\d)n(?P<node>\d)")
PUBLISHED = {
    (FLEET, FLEET): "failures rise from mid 2016 (section I); MTBF below a day in 2015-Q4, seen in hindsight (fig. 7)",
    ("cage", "2"): "the top cage, farthest from the cool air, fails most (fig. 10)",
    ("board half", "n0-n1"): "nodes 0 and 1 fail more than 2 and 3 (fig. 10)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One GPU at one place, or one failure."""

    serial: str
    place: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Titan:
    """What was known on 2016-07-01."""

    stays: tuple[Record, ...]
    failures: tuple[tuple[str, str, datetime, str], ...]
    """Serial, place, time, DBE (double-bit error) or OTB (off the bus)."""


def read_titan(path: Path = FILE) -> Titan:
    """Return stays and failures, each once. The file's local times are taken as UTC: only days matter here."""
    stays: list[Record] = []
    failures: set[tuple[str, str, datetime, str]] = set()
    with gzip.open(path, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            removed = _time(row["remove"])
            inserted = _time(row["insert"])
            if inserted is not None:
                stays.append(Record(serial=row["SN"], place=row["location"], since=inserted, until=removed))
            if row["event"] and removed is not None:
                failures.add((row["SN"], row["location"], removed, row["event"]))
    return Titan(stays=tuple(stays), failures=tuple(sorted(failures, key=lambda each: (each[2], each))))


def _time(text: str) -> datetime | None:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if text else None


def columns_of(titan: Titan, *, event: str | None = None) -> tuple[Service, Failures]:
    """Return the stays and the failures (of one kind) as columns; a failure belongs to the stay that it fell into, else
    to the newest before it."""
    numbers = {serial: number for number, serial in enumerate(sorted({stay.serial for stay in titan.stays}))}
    by_serial: dict[str, list[int]] = {}
    for place, stay in enumerate(titan.stays):
        by_serial.setdefault(stay.serial, []).append(place)
    places = [_PLACE.fullmatch(stay.place) for stay in titan.stays]
    parts = [match.groupdict() if match else {} for match in places]
    labels = {
        "batch": [batch_of(stay.serial) for stay in titan.stays],
        "cabinet": [stay.place.split("c", 2)[1] for stay in titan.stays],
        "floor column": [part.get("column", "") for part in parts],
        "floor row": [part.get("row", "") for part in parts],
        "cage": [part.get("cage", "") for part in parts],
        "slot": [part.get("slot", "") for part in parts],
        "board half": [{"0": "n0-n1", "1": "n0-n1"}.get(part["node"], "n2-n3") if part else "" for part in parts],
    }
    service = Service(
        part=np.array([numbers[stay.serial] for stay in titan.stays], dtype=np.int64),
        begin=np.array([stay.since.timestamp() for stay in titan.stays]),
        end=np.array([np.inf if stay.until is None else stay.until.timestamp() for stay in titan.stays]),
        labels={kind: np.array(groups, dtype=object) for kind, groups in labels.items()},
    )
    chosen = [each for each in titan.failures if event in (None, each[3])]
    stretch = [_stay_of(titan, by_serial[serial], at) for serial, _, at, _ in chosen]
    failures = Failures(
        at=np.array([each[2].timestamp() for each in chosen]), stretch=np.array(stretch, dtype=np.int64)
    )
    return service, failures


def _stay_of(titan: Titan, places: Sequence[int], at: datetime) -> int:
    begun = [place for place in places if titan.stays[place].since <= at] or list(places)
    return max(begun, key=lambda place: titan.stays[place].since)


def looks() -> Iterator[datetime]:
    at = FIRST_LOOK
    while at <= END:
        yield at
        at += WEEK


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonQuarter:
    """Who was called a lemon at the end of a quarter, and what came of it."""

    at: datetime
    followed_by: str
    lemon_count: int
    failed_later: int
    """Lemons with another failure in the quarter after."""
    other_count: int
    others_failed_later: int


def judge_lemons(titan: Titan, *, at: datetime, by_place: bool) -> LemonQuarter:
    """Return what the score says at `at` from the quarter before, and what the quarter after shows."""
    stays = [_named(record, by_place=by_place) for record in titan.stays]
    troubles = [
        Trouble(
            signal=LemonSignal.XIDS,
            node=NodeName(place if by_place else ""),
            at=when,
            gpu=None if by_place else PartKey(kind="gpu", name=serial),
        )
        for serial, place, when, _ in titan.failures
    ]
    counts = count_troubles(troubles, stays, measured={LemonSignal.XIDS}, since=at - QUARTER, until=at)
    lemons = {each.part.name for each in score_lemons(counts) if each.is_lemon}
    later = {(place if by_place else serial) for serial, place, when, _ in titan.failures if at <= when < at + QUARTER}
    there = {each.part.name for each in counts}
    return LemonQuarter(
        at=at,
        followed_by="place" if by_place else "serial",
        lemon_count=len(lemons),
        failed_later=len(lemons & later),
        other_count=len(there - lemons),
        others_failed_later=len((there - lemons) & later),
    )


def _named(record: Record, *, by_place: bool) -> Stay:
    if by_place:
        part, node = PartKey(kind="node", name=record.place), NodeName(record.place)
    else:
        part, node = PartKey(kind="gpu", name=record.serial), NodeName("")
    return Stay(part=part, node=node, since=record.since, until=record.until)


def dealt_at_random(service: Service, failures: Failures, *, seed: int) -> Failures:
    """Return as many failures, dealt out evenly over all time in service: the same fleet without a defect."""
    random = np.random.default_rng(seed)
    ends = np.minimum(service.end, END.timestamp())
    spans: NDArray[np.float64] = np.maximum(0.0, ends - service.begin)
    stretch = random.choice(len(spans), size=len(failures.at), p=spans / spans.sum())
    at = service.begin[stretch] + random.random(len(stretch)) * spans[stretch]
    return replace(failures, at=at, stretch=stretch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if the data is not there, else 0."""
    parser = argparse.ArgumentParser(description="Fleet-wide defect alarm and lemon score on Titan's GPUs.")
    parser.add_argument("--random-fleets", type=int, default=20, help="fleets without a defect to look at")
    options = parser.parse_args(arguments)
    if not FILE.is_file():
        sys.stderr.write(f"{FILE} is not here\n")
        return 1
    titan = read_titan()
    console = Console()
    console.print(alarm_table(titan))
    console.print(end_table(titan))
    console.print(lemon_table(titan))
    console.print(random_sentence(titan, fleets=options.random_fleets))
    return 0


def alarms(titan: Titan, *, event: str | None = None) -> tuple[DefectAlarm, ...]:
    """Return when each alarm first went off."""
    service, failures = columns_of(titan, event=event)
    return watch(service, failures, looks=looks())


def alarm_table(titan: Titan) -> Table:
    table = Table(title="First alarms, weekly looks at the last 90 days")
    for heading in ("failures", "group", "alarm", "then: times as often (95 %)", "parts", "q", "published"):
        table.add_column(heading)
    for event in (None, "DBE", "OTB"):
        for alarm in alarms(titan, event=event):
            rate = alarm.first
            table.add_row(
                event or "both",
                rate.group if rate.kind == FLEET else f"{rate.kind} {rate.group}",
                f"{alarm.at:%Y-%m-%d}",
                f"{rate.ratio:.1f} ({rate.ratio_low:.1f} to {rate.ratio_high:.1f})",
                str(rate.failed_count),
                f"{rate.q_value:.0e}",
                PUBLISHED.get((rate.kind, rate.group), ""),
            )
    return table


def end_table(titan: Titan) -> Table:
    table = Table(title=f"What the alarm shows on {END:%Y-%m-%d}, last 90 days")
    for heading in ("failures", "what it says"):
        table.add_column(heading)
    for event in (None, "DBE", "OTB"):
        service, failures = columns_of(titan, event=event)
        for rate in compare_groups(service, failures, at=END):
            if rate.is_alarm:
                table.add_row(event or "both", rate.explanation)
    return table


def lemon_table(titan: Titan) -> Table:
    table = Table(title="Lemons called at the end of a quarter, and failures in the quarter after")
    for heading in ("called", "followed by", "lemons", "failed again", "others", "failed", "lift"):
        table.add_column(heading, justify="left" if heading in ("called", "followed by") else "right")
    for at in (END - count * QUARTER for count in (3, 2, 1)):
        for by_place in (False, True):
            found = judge_lemons(titan, at=at, by_place=by_place)
            table.add_row(
                f"{found.at:%Y-%m-%d}",
                found.followed_by,
                str(found.lemon_count),
                str(found.failed_later),
                str(found.other_count),
                str(found.others_failed_later),
                lift_text(found),
            )
    return table


def lift_text(found: LemonQuarter) -> str:
    """Return how many times likelier a lemon is to fail again; a dash where there is nothing to compare."""
    if not found.lemon_count or not found.others_failed_later:
        return "-"
    return f"{(found.failed_later / found.lemon_count) / (found.others_failed_later / found.other_count):.0f}x"


def random_sentence(titan: Titan, *, fleets: int) -> str:
    service, failures = columns_of(titan)
    listed = [watch(service, dealt_at_random(service, failures, seed=seed), looks=looks()) for seed in range(fleets)]
    with_alarm = sum(bool(each) for each in listed)
    count = sum(len(each) for each in listed)
    years = (END - FIRST_LOOK).days / 365.25
    return (
        f"Without a defect (as many failures, dealt out at random): {count} alarm(s) in {with_alarm} of {fleets} "
        f"fleets, each looked at weekly for {years:.0f} years"
    )


if __name__ == "__main__":
    sys.exit(main())
