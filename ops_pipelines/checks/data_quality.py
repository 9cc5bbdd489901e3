"""Asset checks: every hour of the lake is judged when it is filled, errors block what is downstream, warnings do not.

What is expected stands in `frames.expectations`; what is counted, in `frames.profile`; who judges, in `suites`; what
people read, in `quality_page`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import dagster as dg

from ops_pipelines.checks.quality_page import failed_table, kinds_table, render_page
from ops_pipelines.checks.suites import judge_profile
from ops_pipelines.checks.verdict import HourVerdict, Outcome
from ops_pipelines.frames.cross_rules import Severity
from ops_pipelines.frames.expectations import Measure
from ops_pipelines.frames.schema import TABLES
from ops_pipelines.ports.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION_FORMAT = "%Y-%m-%d-%H:%M"
HARD_GATES = "hard_gates"
EXPECTED_DATA = "expected_data"
_DESCRIPTIONS = {
    HARD_GATES: "What no hour of the lake may hold: another type, null keys, duplicates, impossible values. Blocks.",
    EXPECTED_DATA: "What sources owe us: complete, fresh, never contradicting itself. Warns.",
}
_SEVERITIES = {HARD_GATES: Severity.ERROR, EXPECTED_DATA: Severity.WARNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known beforehand of one hour of one table."""

    step_seconds: int = 15
    device_count: int | None = None
    """How many devices should have rows; None: nobody knows; 0: none, and an empty hour is in order."""


Expect = Callable[[Lake, str, datetime], Expected]
"""Lake, table, hour -> what is known beforehand."""
WritePage = Callable[[Lake, str, datetime, str], str]
"""Lake, table, hour, HTML -> where the page was written."""


def expected_by_inventory(lake: Lake, table: str, hour: datetime) -> Expected:
    """Return what the inventory of the same hour leads us to expect, on a grid of 15 s."""
    from ops_pipelines.frames.profile import expected_devices_of

    return Expected(device_count=expected_devices_of(_read(lake, "inventory", hour), table=table))


def judge_hour(lake: Lake, *, table: str, hour: datetime, expected: Expected) -> HourVerdict:
    """Return the verdicts on one hour of one table. Raises LakeError if it cannot be read."""
    from ops_pipelines.frames.profile import booted_nodes_of, profile_hour

    rows = _read(lake, table, hour)
    step, devices = expected.step_seconds, expected.device_count
    profile = profile_hour(rows, table=table, hour=hour, step_seconds=step, expected_devices=devices)
    if any(value for (_, measure), value in profile.values().items() if measure is Measure.FALLS):
        booted = booted_nodes_of(rows if table == "node_telemetry" else _read(lake, "node_telemetry", hour))
        if booted:
            profile = profile_hour(
                rows, table=table, hour=hour, step_seconds=step, expected_devices=devices, booted_nodes=booted
            )
    return HourVerdict(
        table=table,
        hour=hour,
        row_count=profile.row_count,
        sample_count=profile.sample.num_rows,
        verdicts=judge_profile(profile),
        numbers=profile.values(),
    )


def build_quality_checks(
    *,
    assets: Mapping[str, Sequence[str]],
    expect: Expect = expected_by_inventory,
    write_page: WritePage | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Return the checks of assets (name -> its tables in the lake): two each, of which `hard_gates` blocks.

    They need a resource `lake`. A run over many hours judges each of them; started by hand without a partition, they
    judge the hour that was filled last.
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
    def quality(context: dg.AssetCheckExecutionContext, lake: dg.ResourceParam[Lake]) -> Iterable[dg.AssetCheckResult]:
        judged = []
        pages = []
        for hour in hours_to_judge(context, dg.AssetKey(asset)):
            for table in tables:
                verdict = judge_hour(lake, table=table, hour=hour, expected=expect(lake, table, hour))
                judged.append(verdict)
                if write_page is not None:
                    pages.append(write_page(lake, table, hour, render_page(verdict)))
        for key in sorted(context.selected_asset_check_keys, key=lambda key: key.name, reverse=True):
            yield _result(key, judged, pages)

    return quality


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


def _result(key: dg.AssetCheckKey, judged: Sequence[HourVerdict], pages: Sequence[str]) -> dg.AssetCheckResult:
    severity = _SEVERITIES[key.name]
    failed = sum(len(each.failed(severity)) for each in judged)
    about = [verdict for each in judged for verdict in each.verdicts if verdict.expectation.severity is severity]
    bad_hours = sorted({each.hour for each in judged if each.failed(severity)})
    metadata: dict[str, dg.MetadataValue] = {
        "failed": dg.MetadataValue.md(failed_table(judged, severity=severity)),
        "expectations": dg.MetadataValue.md(kinds_table(about)),
        "row_count": dg.MetadataValue.int(sum(each.row_count for each in judged)),
        "expectation_count": dg.MetadataValue.int(len(about)),
        "failed_count": dg.MetadataValue.int(failed),
        "not_judged_count": dg.MetadataValue.int(sum(each.outcome is Outcome.NOT_JUDGED for each in about)),
    }
    if len(judged) > 1:
        metadata["hours_that_failed"] = dg.MetadataValue.text(
            ", ".join(f"{hour:{PARTITION_FORMAT}}" for hour in bad_hours) or "none"
        )
    if pages:
        metadata["page"] = dg.MetadataValue.path(pages[0])
        if len(pages) > 1:
            metadata["pages"] = dg.MetadataValue.md("\n".join(f"- `{page}`" for page in pages))
    return dg.AssetCheckResult(
        check_name=key.name,
        asset_key=key.asset_key,
        passed=bool(judged) and not failed,
        severity=dg.AssetCheckSeverity.ERROR if judged and severity is Severity.ERROR else dg.AssetCheckSeverity.WARN,
        description=_told(judged, failed, len(about)),
        metadata=metadata,
    )


def _told(judged: Sequence[HourVerdict], failed: int, asked: int) -> str:
    if not judged:
        return "No hour has been filled yet: nothing to judge."
    return f"{failed} of {asked} expectations failed." if failed else f"All {asked} expectations hold."


def _read(lake: Lake, table: str, hour: datetime) -> "pa.Table":
    return cast("pa.Table", lake.read_hour(table, hour))
