"""Versions as the nodes tell them now, from the inventory where they are silent; and how both are shown."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.document import to_json
from ops_pipelines.report.terminal import print_document
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.rollouts.fleet import VersionsSeen, look_at_versions
from ops_pipelines.rollouts.versions import Fit, VersionLine
from ops_pipelines.terminal.nodes import versions_document, versions_json
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import SmallAutopilot

ONE, TWO, THREE, FOUR = (NodeName(f"gpu00{number}") for number in range(1, 5))


class ToldVersions:
    """A fleet of which only versions are asked; who is not in it does not answer."""

    def __init__(self, told: Mapping[NodeName, Mapping[Component, str]]) -> None:
        self._told = told

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        if node not in self._told:
            raise SourceUnavailable(f"{node} does not answer")
        return self._told[node]


class Stage:
    def __init__(self, directory: Path) -> None:
        self.autopilot = SmallAutopilot(directory, node_count=4)
        self.lake = ParquetLake(directory / "lake")

    def look(self, told: Mapping[NodeName, str], *, release: Mapping[str, str] | None = None) -> VersionsSeen:
        fleet = ToldVersions({name: {Component.DRIVER: version} for name, version in told.items()})
        cluster = replace(self.autopilot.cluster, fleet=fleet)  # type: ignore[arg-type]  # asked for versions only
        return look_at_versions(cluster, lake=self.lake, release=release or {})

    def keep_inventory(self, *, node: NodeName, driver: str, firmware: str = "") -> None:
        hour = self.autopilot.clock.now().replace(minute=0, second=0, microsecond=0)
        parts = [
            {"node": node, "device": "GPU-1", "time": hour, "kind": "gpu", "driver_version": driver, "model": "H100"},
            {
                "node": node,
                "device": "mlx5_0",
                "time": hour,
                "kind": "nic",
                "firmware_version": firmware,
                "model": "MT4129",
            },
        ]
        self.lake.add("inventory", TABLES["inventory"].from_rows(parts[: 2 if firmware else 1]))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def of(seen: VersionsSeen, name: NodeName, component: Component = Component.DRIVER) -> VersionLine:
    return next(each for each in seen.lines if each.node == name and each.component is component)


def test_node_tells_its_versions_itself(stage: Stage) -> None:
    stage.keep_inventory(node=ONE, driver="570.1")

    line = of(stage.look({ONE: "580.1"}), ONE)

    assert line.seen is not None
    assert (line.seen.version, line.seen.is_live) == ("580.1", True)


def test_silent_node_is_told_from_the_inventory_and_marked(stage: Stage) -> None:
    stage.keep_inventory(node=TWO, driver="570.1")

    seen = stage.look({ONE: "580.1"})

    line = of(seen, TWO)
    assert line.seen is not None
    assert (line.seen.version, line.seen.is_live) == ("570.1", False)
    assert of(seen, THREE).seen is None
    assert seen.silent == (TWO, THREE, FOUR)


def test_cluster_yaml_declares_the_driver_of_all_and_firmware_by_the_model_of_the_part(stage: Stage) -> None:
    stage.keep_inventory(node=TWO, driver="570.1", firmware="28.1")

    seen = stage.look({ONE: "580.1"}, release={"driver": "580.1", "MT4129": "28.9"})

    assert of(seen, ONE).fit is Fit.FITS
    assert of(seen, TWO).fit is Fit.DRIFTS
    assert of(seen, TWO, Component.NIC_FIRMWARE).fit is Fit.DRIFTS
    assert of(seen, THREE).fit is Fit.UNKNOWN
    assert of(seen, THREE, Component.NIC_FIRMWARE).fit is Fit.FREE


def test_what_a_rollout_gave_a_node_counts_before_what_is_declared(stage: Stage) -> None:
    opened, now = rollout(1), stage.autopilot.clock.now()
    nodes = [node(1, ONE, stage=NodeStage.UPDATED), node(1, TWO), node(1, THREE)]
    stage.autopilot.cluster.ledger.open_rollout(
        opened, nodes, plan=rollout_plan(opened), release=RELEASE, actor="ada", now=now
    )

    seen = stage.look(dict.fromkeys((ONE, TWO), "570.1"), release={"driver": "570.1"})

    assert (of(seen, ONE).fit, of(seen, TWO).fit) == (Fit.DRIFTS, Fit.FITS)
    wanted = of(seen, ONE).wanted
    assert wanted is not None
    assert wanted.said_by == "ROLL-0001 (driver-580)"


def test_lake_that_cannot_be_read_is_told_and_hides_no_live_version(stage: Stage) -> None:
    stage.keep_inventory(node=TWO, driver="570.1")
    for path in (stage.autopilot.directory / "lake").rglob("*.parquet"):
        path.write_bytes(b"no parquet")

    seen = stage.look({ONE: "580.1"})

    assert of(seen, ONE).seen is not None
    assert "the inventory cannot be read" in seen.problems[0]


def test_versions_are_shown_by_how_many_run_them_and_every_drift_by_name(stage: Stage) -> None:
    told = {ONE: "580.1", TWO: "580.1\x1b[31m", THREE: "580.1"}
    seen = stage.look(told, release={"driver": "580.1"})
    out = io.StringIO()

    print_document(Console(file=out, width=120, markup=False), versions_document(seen, cluster="small"))

    printed = out.getvalue()
    assert "1 did not answer: gpu004" in printed
    assert "2: gpu001, gpu003" in printed
    assert "\x1b" not in printed
    parsed = json.loads(to_json(versions_json(seen, cluster="small")))
    assert (parsed["node_count"], parsed["drift_count"]) == (4, 1)
    assert {each["fit"] for each in parsed["versions"]} == {"fits", "drifts", "unknown"}
