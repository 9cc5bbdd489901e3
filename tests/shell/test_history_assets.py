"""The assets that look back over weeks, as Dagster runs them on a lake and a ledger."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.assets.history import fleet_defects, lemon_scores, wear_out
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.lake.schema import TABLES
from tests.domain.builders import incident
from tests.flow.fake_store import observatory_on
from tests.scenarios.small_autopilot import SmallAutopilot

END = datetime(2026, 2, 1, tzinfo=UTC)
LAST_DAY = "2026-01-31"
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
NODES = [f"gpu{number:03}" for number in range(1, 13)]


def stage(directory: Path) -> tuple[Observatory, Cluster]:
    """Return four weeks of twelve nodes: gpu003 breaks every third day, and its disk wears out."""
    autopilot = SmallAutopilot(directory)
    observatory = observatory_on(directory / "lake", clock=autopilot.clock, scheduler=autopilot.cluster.scheduler)
    for day in range(28):
        at = END - HOUR - day * DAY
        observatory.lake.add(
            "inventory",
            TABLES["inventory"].from_rows(
                {
                    "node": node,
                    "device": f"GPU-{node}",
                    "time": at,
                    "kind": "gpu",
                    "uuid": f"GPU-{node}",
                    "pci_address": "0000:1b:00",
                    "driver_version": "575" if node == "gpu003" else "570",
                }
                for node in NODES
            ),
        )
        observatory.lake.add(
            "storage_telemetry",
            TABLES["storage_telemetry"].from_rows(
                {
                    "node": node,
                    "device": "nvme0",
                    "time": at,
                    "wear_ratio": 0.9 - (0.004 * day if node == "gpu003" else 0),
                }
                for node in NODES
            ),
        )
    broken = [
        incident(
            name=f"INC-{number:04}",
            nodes=frozenset({NodeName("gpu003" if number else "gpu007")}),
            opened_at=END - (1 + 3 * number) * DAY,
            changed_at=END - (1 + 3 * number) * DAY,
        )
        for number in range(9)
    ]
    ledger = autopilot.cluster.ledger
    ledger.record_decision(
        inputs=ledger.store("{}"),
        decided_through=0,
        expected_head=None,
        incidents=[replace(each, incident=IncidentId(each.incident)) for each in broken],
        plans=[],
        now=END,
    )
    return observatory, autopilot.cluster


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, object]]:
    observatory, cluster = stage(tmp_path_factory.mktemp("history"))
    with dg.instance_for_test() as instance:
        result = dg.materialize(
            [lemon_scores, wear_out, fleet_defects],
            partition_key=LAST_DAY,
            instance=instance,
            resources={
                "observatory": dg.ResourceDefinition.hardcoded_resource(observatory),
                "cluster": dg.ResourceDefinition.hardcoded_resource(cluster),
            },
        )
    assert result.success
    return {
        event.materialization.asset_key.to_user_string(): {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
    }


def rows(value: object) -> list[Mapping[str, object]]:
    return [record.data for record in value.records]  # type: ignore[attr-defined]  # Dagster's table value


def test_the_lemon_is_named_with_its_reasons(shown: Mapping[str, Mapping[str, object]]) -> None:
    lemons = {row["part"]: row["reasons"] for row in rows(shown["lemon_scores"]["worst_first"]) if row["lemon"]}

    assert set(lemons) == {"node gpu003", "GPU-gpu003"}
    assert shown["lemon_scores"]["lemon_count"] == 2
    assert "culprit of 8 incident(s) in 27 days" in str(lemons["node gpu003"])


def test_the_disk_that_wears_out_is_named_with_its_date(shown: Mapping[str, Mapping[str, object]]) -> None:
    (disk,) = rows(shown["wear_out"]["wearing_out"])

    assert disk["part"] == "gpu003/nvme0"
    assert disk["likely"] == "2026-02-25"
    assert shown["wear_out"]["spare_rows"] == "none"


def test_one_lemon_is_no_defect_of_its_driver(shown: Mapping[str, Mapping[str, object]]) -> None:
    """All incidents are of one node: its driver version looks bad only to who counts incidents, not parts."""
    assert shown["fleet_defects"]["alarm_count"] == 0
    assert "Culprits of incidents" in str(shown["fleet_defects"]["incidents_by_week"])
