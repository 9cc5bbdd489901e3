"""Asset checks: every hour of the lake is judged when it is filled, errors block what is downstream, warnings do not.

What is expected is in `lake.expectations`, and in the site's suites; what is counted, in
`lake.profile`; who judges, in `suites`; what people read, in `quality_page`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, cast

import dagster as dg

from ops_pipelines.checks.quality_page import (
    HourResult,
    Result,
    Status,
    failed_rows,
    kind_rows,
    render_page,
)
from ops_pipelines.checks.suites import judge_profiles, judge_rows
from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.sources import Lake
from ops_pipelines.lake.expectations import Expectation, Measure, Severity, expectations_of, expected_at_site
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.metadata import table as shown_table

if TYPE_CHECKING:
    import pyarrow as pa

    from ops_pipelines.lake.profile import Profile

PARTITION_FORMAT = "%Y-%m-%d-%H:%M"
HARD_GATES = "hard_gates"
EXPECTED_DATA = "expected_data"
_HOURS_AT_ONCE = 24
_NAMED_AT_MOST = 3
_OWED_ALWAYS = frozenset({"gpu_telemetry", "node_telemetry"})
"""Every cluster has GPUs and nodes; storage, facility or inference may have nobody who measures them."""
_DESCRIPTIONS = {
    HARD_GATES: "What no hour of the lake may hold: another type, null keys, duplicates, impossible values. Blocks.",
    EXPECTED_DATA: "What sources owe us: complete, fresh, never contradicting itself. Warns.",
}
_SEVERITIES = {HARD_GATES: Severity.ERROR, EXPECTED_DATA: Severity.WARNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known beforehand of one hour of one table."""

    step_seconds: int
    device_count: int | None = None
    """How many devices should have rows; None: nobody knows; 0: none, and an empty hour is in order."""


Expect = Callable[[Observatory, str, datetime], Expected]
"""Observatory, table, hour -> what is known beforehand."""
WritePage = Callable[[Lake, str, datetime, str], str]
"""Lake, table, hour, HTML -> where the page was written."""


def expected_by_inventory(observatory: Observatory, table: str, hour: datetime) -> Expected:
    """Return what the inventory of the same hour leads us to expect, on the grid of the lake."""
    from ops_pipelines.lake.profile import expected_devices_of

    inventory = _read(observatory.lake, "inventory", hour)
    return Expected(step_seconds=observatory.step_seconds, device_count=expected_devices_of(inventory, table=table))


def judge_hours(
    lake: Lake,
    *,
    table: str,
    hours: Mapping[datetime, Expected],
    expectations: Sequence[Expectation] | None = None,
    troubles: Sequence[Result] = (),
) -> tuple[HourResult, ...]:
    """Return the verdicts on each of some hours of one table, in order of time; 24 at once, to bound memory.

    `expectations`: None for what we ship. `troubles` are added to each hour. Raises LakeError if one cannot be read.
    """
    expectations = expectations_of(table) if expectations is None else expectations
    judged: list[HourResult] = []
    ordered = sorted(hours)
    for first in range(0, len(ordered), _HOURS_AT_ONCE):
        some = ordered[first : first + _HOURS_AT_ONCE]
        looked = [_look(lake, expectations, table=table, hour=hour, expected=hours[hour]) for hour in some]
        of_hours = judge_profiles([profile for profile, _ in looked], expectations)
        for (profile, of_columns), of_hour in zip(looked, of_hours, strict=True):
            found = {each.expectation.name: each for each in (*of_hour, *of_columns)}
            judged.append(
                HourResult(
                    table=table,
                    hour=profile.hour,
                    row_count=profile.row_count,
                    verdicts=(*troubles, *(found[each.name] for each in expectations if each.name in found)),
                    numbers=profile.values(),
                )
            )
    return tuple(judged)


def _look(
    lake: Lake, expectations: Sequence[Expectation], *, table: str, hour: datetime, expected: Expected
) -> "tuple[Profile, tuple[Result, ...]]":
    """Return what is counted of an hour, and the verdicts on its columns; the rows themselves are released."""
    import pyarrow as pa

    from ops_pipelines.lake.profile import booted_nodes_of, conform_rows, profile_hour

    rows = _read(lake, table, hour)
    # What reading took beside the rows is given back, so that judging them needs no more at its height than reading
    # did.
    pa.default_memory_pool().release_unused()
    step, devices = expected.step_seconds, expected.device_count
    if devices is None and not rows.num_rows and table not in _OWED_ALWAYS:
        # Nobody expects it, and it was not there before either: nothing stopped. What did stop is reported once here,
        # and for a week by monitoring_coverage.
        was_there = _read(lake, table, hour - timedelta(hours=1)).num_rows > 0
        devices = None if was_there else 0
    count = partial(
        profile_hour,
        rows,
        table=table,
        hour=hour,
        step_seconds=step,
        expected_devices=devices,
        expectations=expectations,
    )
    profile = count()
    if any(value for (_, measure), value in profile.values().items() if measure is Measure.FALLS):
        booted = booted_nodes_of(rows if table == "node_telemetry" else _read(lake, "node_telemetry", hour))
        if booted:
            profile = count(booted_nodes=booted)
    pa.default_memory_pool().release_unused()
    return profile, judge_rows(conform_rows(rows, table), expectations)


def build_quality_checks(
    *,
    assets: Mapping[str, Sequence[str]],
    expect: Expect = expected_by_inventory,
    write_page: WritePage | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Return the checks of assets (name -> its tables in the lake): two each, of which `hard_gates` blocks.

    They need the resource `observatory`. A run over many hours judges each of them; started by hand without a
    partition, they judge the hour that was filled last.
    """
    return [_checks_of(name, tuple(tables), expect, write_page) for name, tables in assets.items()]


def _checks_of(
    asset: str, tables: tuple[str, ...], expect: Expect, write_page: WritePage | None
) -> dg.AssetChecksDefinition:
    unknown = set(tables) - TABLES.keys()
    if unknown:
        raise ValueError(f"asset {asset}: the lake has no table {', '.join(sorted(unknown))}")

    @dg.multi_asset_check(
        name=f"{asset}_quality",
        specs=[
            dg.AssetCheckSpec(
                name=name, asset=dg.AssetKey(asset), blocking=name == HARD_GATES, description=_DESCRIPTIONS[name]
            )
            for name in (HARD_GATES, EXPECTED_DATA)
        ],
        can_subset=True,
    )
    def quality(
        context: dg.AssetCheckExecutionContext, observatory: dg.ResourceParam[Observatory]
    ) -> Iterable[dg.AssetCheckResult]:
        lake = observatory.lake
        hours = hours_to_judge(context, dg.AssetKey(asset))
        judged: list[HourResult] = []
        suites = observatory.read_suites()
        for table in tables:
            known = {hour: expect(observatory, table, hour) for hour in hours}
            expected, troubles = expected_at_site(suites, table=table)
            found = [Result(expectation=each, outcome=Status.FAILED, trouble=said) for each, said in troubles]
            judged += judge_hours(lake, table=table, hours=known, expectations=expected, troubles=found)
        pages = (
            {}
            if write_page is None
            else {
                (each.table, each.hour): write_page(lake, each.table, each.hour, render_page(each)) for each in judged
            }
        )
        for key in sorted(context.selected_asset_check_keys, key=lambda key: key.name, reverse=True):
            yield _result(key, judged, pages)

    return quality


def write_beside(lake: Lake, table: str, hour: datetime, html: str) -> str:
    """Keep the page beside the hour that it judges; return where it is."""
    return lake.write_page(table, hour, html)


def hours_to_judge(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> list[datetime]:
    """Return the hours that a run covers; without partitions, the one that was filled last; else none."""
    if context.has_partition_key_range:
        chosen = context.partition_key_range
        first, last = _hour_of(chosen.start), _hour_of(chosen.end)
        return [first + timedelta(hours=number) for number in range(int((last - first) / timedelta(hours=1)) + 1)]
    if context.has_partition_key:
        return [_hour_of(context.partition_key)]
    event = context.instance.get_latest_materialization_event(asset)
    partition = None if event is None or event.asset_materialization is None else event.asset_materialization.partition
    return [] if partition is None else [_hour_of(partition)]


def _hour_of(partition_key: str) -> datetime:
    return datetime.strptime(partition_key, PARTITION_FORMAT).replace(tzinfo=UTC)


Pages = Mapping[tuple[str, datetime], str]
"""Table, hour -> where its page is."""


def _result(key: dg.AssetCheckKey, judged: Sequence[HourResult], pages: Pages) -> dg.AssetCheckResult:
    severity = _SEVERITIES[key.name]
    failed = sum(len(each.failed(severity)) for each in judged)
    about = [verdict for each in judged for verdict in each.verdicts if verdict.expectation.severity is severity]
    bad = [each for each in judged if each.failed(severity)]
    # The UI lists these in the order of the alphabet.
    metadata: dict[str, dg.MetadataValue] = {
        "expectation_count": dg.MetadataValue.int(len(about)),
        "failed": shown_table(failed_rows(judged, severity=severity)),
        "failed_count": dg.MetadataValue.int(failed),
        "judged_by_kind": shown_table(kind_rows(about)),
        "not_judged_count": dg.MetadataValue.int(_not_judged(about)),
        "row_count": dg.MetadataValue.int(sum(each.row_count for each in judged)),
    }
    if len(judged) > 1:
        metadata["hours_that_failed"] = shown_table(_hour_row(each, severity, pages) for each in bad)
    worst = bad[0] if bad else judged[-1] if judged else None
    if worst is not None and pages:
        metadata["page"] = dg.MetadataValue.path(pages[worst.table, worst.hour])
    return dg.AssetCheckResult(
        check_name=key.name,
        asset_key=key.asset_key,
        passed=bool(judged) and not failed,
        severity=dg.AssetCheckSeverity.ERROR if judged and severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=_told(judged, bad, about),
        metadata=metadata,
    )


def _hour_row(each: HourResult, severity: Severity, pages: Pages) -> Mapping[str, object]:
    return {
        "hour": f"{each.hour:{PARTITION_FORMAT}}",
        "failed": len(each.failed(severity)),
        "rows": each.row_count,
        "page": pages.get((each.table, each.hour), ""),
    }


def _not_judged(about: Sequence[Result]) -> int:
    return sum(each.outcome is Status.NOT_JUDGED for each in about)


def _told(judged: Sequence[HourResult], bad: Sequence[HourResult], about: Sequence[Result]) -> str:
    if not judged:
        return "No hour has been filled yet: nothing to judge."
    could = len(about) - _not_judged(about)
    failed = [each.expectation.name for each in about if each.outcome is Status.FAILED]
    if not about:
        return "Nothing of this kind is expected of the table."
    if not failed:
        left = f" {len(about) - could:,} found nothing to judge." if len(about) > could else ""
        return f"All {could:,} expectations that could be judged hold.{left}"
    names = list(dict.fromkeys(failed))
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    where = f" in {len(bad)} of {len(judged)} hours" if len(judged) > 1 else ""
    return f"{len(failed):,} of {could:,} expectations failed{where}: {', '.join(names[:_NAMED_AT_MOST])}{more}."


def _read(lake: Lake, table: str, hour: datetime) -> "pa.Table":
    return cast("pa.Table", lake.read_hour(table, hour))
