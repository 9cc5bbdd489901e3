"""The asset that measures what interruptions cost, on a lake, and what decisions read of it afterwards."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from ops_pipelines.assets.history import interruption_costs
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.lake.schema import TABLES
from tests.flow.fake_job_facts import FakeJobFacts
from tests.flow.fake_store import observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
TODAY = BEGINNING.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def attempt(job: str, start: datetime, end: datetime, state: str) -> dict[str, object]:
    return {
        "job": job, "attempt": start.isoformat(), "time": end, "state": state, "started_at": start, "ended_at": end,
    }  # fmt: skip


def materialize(directory: Path, *, day: datetime) -> tuple[Mapping[str, object], RestartCosts]:
    """Return what the page shows of six interruptions of the day, and the costs that decisions read afterwards."""
    autopilot = SmallAutopilot(directory, node_count=2)
    facts = FakeJobFacts()
    observatory = observatory_on(directory / "lake", clock=autopilot.clock, scheduler=autopilot.cluster.scheduler)
    accounting, lines = [], []
    for number in range(6):
        ended = day + (number + 1) * HOUR
        resumed = ended + 40 * SECOND
        accounting.append(attempt(f"{number}", ended - HOUR, ended, "NODE_FAIL"))
        if number < 5:
            accounting.append(attempt(f"{number}", resumed, ended + HOUR, "COMPLETED"))
        lines.append(
            {
                "source": "job_logs", "position": f"p{number}", "time": resumed + 200 * SECOND, "job": f"{number}",
                "step": 7, "text": "step 7",
            }
        )  # fmt: skip
    observatory.lake.add("job_accounting", TABLES["job_accounting"].from_rows(accounting))
    observatory.lake.add("job_logs", TABLES["job_logs"].from_rows(lines))
    running = day + 6 * HOUR + 40 * SECOND
    observatory.lake.add(
        "job_allocations",
        TABLES["job_allocations"].from_rows(
            [
                {
                    "job": "5", "attempt": running.isoformat(), "node": "gpu001", "time": day + 23 * HOUR,
                    "state": "RUNNING", "started_at": running,
                }
            ]
        ),
    )  # fmt: skip
    with dg.instance_for_test() as instance:
        result = dg.materialize(
            [interruption_costs],
            partition_key=f"{day:%Y-%m-%d}",
            instance=instance,
            resources={
                "observatory": dg.ResourceDefinition.hardcoded_resource(observatory),
                "cluster": dg.ResourceDefinition.hardcoded_resource(replace(autopilot.cluster, job_facts=facts)),
            },
        )
    (event,) = result.get_asset_materialization_events()
    return {name: each.value for name, each in event.materialization.metadata.items()}, facts.read().costs


def test_six_interruptions_are_measured_and_used(tmp_path: Path) -> None:
    shown, costs = materialize(tmp_path, day=TODAY - DAY)

    assert costs == RestartCosts(restart_seconds=200.0, queue_seconds=40.0, measured_count=6)
    assert (shown["interruption_count"], shown["measured_count"], shown["used_for_decisions"]) == (6, 6, True)
    assert "Wait of the last interruptions: 40 s" in str(shown["waits"])


def test_an_old_day_that_is_materialised_anew_changes_no_decision(tmp_path: Path) -> None:
    shown, costs = materialize(tmp_path, day=TODAY - 4 * DAY)

    assert costs == RestartCosts()
    assert (shown["measured_count"], shown["used_for_decisions"]) == (6, False)
