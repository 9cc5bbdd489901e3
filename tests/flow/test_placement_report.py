"""A day's placement from rows of a lake, and from a small twin: what is reported, what is not known, what is
refused."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from typing import cast

import dagster as dg
import pytest

from ops_pipelines.assets.teams import describe_placement, placement
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import Quotas
from ops_pipelines.costs.gather_usage import NothingYet
from ops_pipelines.efficiency.placement.day import PlacementReport, placement_report, report_of_day
from ops_pipelines.efficiency.placement.spread import CostClass, Level, Why
from ops_pipelines.efficiency.placement.waits import SizeClass
from ops_pipelines.lake.accounting import read_ended, read_held, read_waiting
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines_lab.simulator.accounting import SimulatedAccounting
from ops_pipelines_lab.simulator.scenario import JobSpec
from ops_pipelines_lab.simulator.twin import SimulatedSettings
from tests.flow.cost_stage import CostLedger, RowsLake
from tests.flow.placement_stage import DAY, END, GANG, NAMES, SMALL, Limits, Silent, at, attempt, desk_of
from tests.flow.review_stage import stage
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING


def report(desk: TeamsDesk) -> PlacementReport:
    return placement_report(DAY, END, desk)


def test_a_day_is_told_from_rows_of_the_lake() -> None:
    traffic: list[Mapping[str, object]] = [
        {"node": "a2", "job": "2", "time": at(5), "held_seconds": 3600.0, "fabric_bytes_per_second": 20e9}
    ]

    found = report(desk_of(SMALL, GANG, gpu_efficiency=traffic)).day

    assert (found.node_count, found.gpu_count, found.started_count) == (4, 32, 2)
    assert [(each.level, each.better, each.cost) for each in found.straddles] == [
        (Level.LEAF_SWITCH, ("leaf-b",), CostClass.HIGH),
        (Level.RACK, ("b",), CostClass.HIGH),
    ]
    assert [(each.size, each.team, each.job_count) for each in found.queue_times] == [
        (SizeClass.PART, None, 1),
        (SizeClass.PART, "vision", 1),
        (SizeClass.FEW_NODES, None, 1),
        (SizeClass.FEW_NODES, "vision", 1),
    ]
    assert len(found.hours) == 24
    assert found.policy is not None
    assert [each.rule for each in found.policy.findings] == ["first_come"]


def test_the_sentences_stand_on_top_and_are_safe_in_markdown() -> None:
    shown = describe_placement(report(desk_of(SMALL, GANG)), cluster="small")

    said = shown["said"].value
    assert isinstance(said, str)
    words = "1 job of 2 nodes stood in several leaf switches and racks; 1 of them need not have"
    assert words in said.replace("\\", "")
    assert "![" in str(shown["fragmentation_by_hour"].value)


def test_a_drained_node_strands_its_free_gpus_by_the_hour() -> None:
    rows: list[Mapping[str, object]] = [
        {
            "node": name, "device": "", "kind": "node", "gpu_count": 8, "time": at(hour),
            "state": "IDLE+DRAIN" if name == "b2" and 4 <= hour < 6 else "IDLE",
        }
        for hour in range(24)
        for name in NAMES
    ]  # fmt: skip

    found = report(desk_of(inventory=rows)).day.stranded

    assert [(each.node, each.why, each.gpu_hours, each.at_the_end) for each in found.stranded] == [
        ("b2", Why.DRAINED, 16.0, 0)
    ]
    assert found.free_gpu_hours == 32 * 24


def test_limits_that_leave_gpus_over_are_told_with_when_they_were_read() -> None:
    found = report(replace(desk_of(), quotas=cast("Quotas", Limits(vision=24))))

    assert [(each.why, each.gpu_hours) for each in found.day.stranded.stranded] == [(Why.LIMITS, 8.0 * 24)]
    assert "limits of teams are those of now, also for hours that are over" in found.notes


def test_rows_that_are_not_believed_are_kept_with_their_reason() -> None:
    wrong = [attempt("7", 5, 4, "a1", 8), attempt("8", 5, 6, "nobody1", 8), attempt("9", 5, 6, "b1", -1)]

    found = report(desk_of(GANG, *wrong))

    assert [(each.reason, each.record.split(",")[0]) for each in found.refused] == [
        ("ends_before_it_starts", "7"),
        ("negative_gpus", "9"),
        ("unknown_node", "8"),
    ]
    assert found.day.started_count == 1


def test_who_does_not_answer_is_named_and_the_rest_is_told() -> None:
    desk = desk_of(SMALL)
    silent = replace(
        desk,
        observatory=replace(desk.observatory, accounting=Silent()),  # type: ignore[arg-type]  # what is read of it
        settings=Silent(),
        quotas=cast("Quotas", Silent()),
    )

    found = report(silent)

    assert found.day.started_count == 1
    assert found.day.policy is None
    assert sum("slurmctld did not answer" in note for note in found.notes) == 3


def test_an_empty_lake_says_what_is_not_known() -> None:
    found = report(desk_of())

    assert found.sentences[0] == "No job with GPUs started."
    assert any("who waited at the end of the day" in note for note in found.notes)


def test_of_a_day_that_has_not_begun_nothing_is_told() -> None:
    with pytest.raises(NothingYet, match="2026-11-22 00:00"):
        report_of_day(date(2026, 11, 22), desk_of())


def test_of_the_running_day_only_what_is_over_is_told() -> None:
    found = report(desk_of(SMALL, now=at(4.5)))

    assert (found.day.end, len(found.day.hours)) == (at(4.5), 5)


# -- a twin --


@pytest.fixture(scope="module")
def twin_desk(tmp_path_factory: pytest.TempPathFactory) -> TeamsDesk:
    """Six nodes: two jobs of part of a node, a gang of three nodes, and one of six that waits."""

    def job(name: str, account: str, nodes: int, gpus: int = 8) -> JobSpec:
        return JobSpec(
            name=name, user="u", account=account, workload=Workload.TRAINING, node_count=nodes, gpus_per_node=gpus
        )

    directory = tmp_path_factory.mktemp("twin")
    autopilot = SmallAutopilot(
        directory, job("small", "vision", 1, 2), job("other", "nlp", 1, 2), job("gang", "nlp", 3), node_count=6
    )
    autopilot.let_pass(1800)
    autopilot.twin.submit(job("wide", "vision", 6))
    autopilot.let_pass(7200)
    accounting, lake = SimulatedAccounting(autopilot.twin), ParquetLake(directory / "lake")
    start = BEGINNING.replace(minute=0, second=0, microsecond=0)
    end = autopilot.cluster.clock.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    for page in accounting.read_attempts(start=start, end=end):
        for table, rows in read_ended(page.body, source=page.source, start=start).tables.items():
            lake.add(table, rows)
    for page in accounting.read_overlapping(start=start, end=end):
        for table, rows in read_held(page.body, source=page.source, start=start, end=end).tables.items():
            lake.add(table, rows)
    cluster = autopilot.cluster
    _, observatory = stage(RowsLake(), CostLedger(), now=end)
    observatory = replace(
        observatory, lake=lake, accounting=accounting, topology=cluster.rules.topology, clock=cluster.clock
    )
    return TeamsDesk(
        cluster=cluster, observatory=observatory, agreements=None, settings=SimulatedSettings(autopilot.twin)
    )


def test_a_twin_is_told_with_who_waits_still(twin_desk: TeamsDesk) -> None:
    found = report_of_day(BEGINNING.date(), twin_desk)

    waits = {(each.size, each.team): each for each in found.day.queue_times}
    assert waits[SizeClass.SOME_NODES, TeamName("vision")].waiting_count == 1
    assert found.day.node_count == 6
    assert found.refused == ()
    whole = next(fit for fit in found.day.fits if fit.gpus_per_node == 8 and fit.node_count == 1)
    assert 0 <= whole.could_start <= whole.by_count
    assert found.day.policy is not None
    assert "first_come" in {each.rule for each in found.day.policy.findings}


def test_the_asset_shows_a_local_day(twin_desk: TeamsDesk) -> None:
    result = dg.materialize([placement], resources={"teams_desk": twin_desk}, partition_key=f"{BEGINNING:%Y-%m-%d}")

    assert result.success
    (event,) = result.asset_materializations_for_node("placement_report")
    assert {"said", "queue_times", "stranded", "straddling_jobs", "scheduler_settings"} <= set(event.metadata)
    assert len(str(event.metadata["fragmentation_by_hour"].value)) < 900


def test_a_listing_of_who_waits_is_read_as_the_scheduler_prints_it(twin_desk: TeamsDesk) -> None:
    accounting = twin_desk.observatory.accounting
    assert accounting is not None
    (page,) = list(accounting.read_waiting(at=twin_desk.clock.now()))

    assert read_waiting(page.body, source=page.source, at=page.start).tables["job_accounting"].num_rows == 1
