"""What an alert means, and what it never does: it repairs nothing, isolates nothing, and ends no job by its word."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ops_pipelines.core.fault import AtFault
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import ALERT_SOURCE, NO_NODE, Observation, Signal, seen_by_ourselves
from ops_pipelines.diagnose.incidents import is_over, standing_of
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.planning import is_second_hand
from ops_pipelines.remediate.timing import hazard_of
from ops_pipelines.resources.catalogue_files import read_catalogue

CATALOGUE = read_catalogue()
NOW = datetime(2026, 11, 22, 9, 40, tzinfo=UTC)


def alert(name: str, *, node: str = "gpu001") -> Observation:
    return Observation(
        signal=Signal.ALERT, node=NodeName(node), observed_at=NOW, source=ALERT_SOURCE, position=f"{name}/{node}",
        signature=name, text=f"alert {name}",
    )  # fmt: skip


def meaning(name: str, *, node: str = "gpu001") -> Finding:
    return find(alert(name, node=node), CATALOGUE)


@pytest.mark.parametrize("name", [*CATALOGUE.alerts, "NobodyKnowsMe"])
def test_no_alert_calls_for_a_repair_or_says_that_a_job_is_dead(name: str) -> None:
    finding = meaning(name)

    assert finding.response not in REPAIRS
    assert finding.response <= Response.PAGE
    assert not hazard_of([finding], CATALOGUE.hazards).has_ended_job
    assert is_second_hand(finding), "it takes no node out of service by itself"


@pytest.mark.parametrize("rule", CATALOGUE.alerts.values(), ids=lambda rule: rule.alert)
def test_row_has_a_source_and_says_what_it_means(rule: object) -> None:
    from ops_pipelines.core.finding import AlertRule

    assert isinstance(rule, AlertRule)
    assert rule.meaning
    assert not rule.source.startswith(" ")
    assert 0 <= rule.confidence <= 0.9
    assert rule.is_evidence or rule.at_fault is AtFault.NOTHING


def test_known_alert_calls_for_a_person_and_lasts_until_its_end() -> None:
    finding = meaning("NodeRAIDDegraded")

    assert (finding.response, finding.is_lasting, finding.is_secondary) == (Response.PAGE, True, False)
    assert "node-mixin" in finding.source


@pytest.mark.parametrize("name", ["NobodyKnowsMe", "NodeClockSkewDetected", "GPUXidError", "NodeCPUHighUsage"])
def test_weak_and_unknown_alerts_accompany_an_incident_and_hold_none_open(name: str) -> None:
    finding = meaning(name)

    assert (finding.response, finding.is_lasting, finding.is_secondary) == (Response.MONITOR, False, True)


def test_alert_of_no_node_troubles_nobody() -> None:
    assert meaning("NodeRAIDDegraded", node=NO_NODE).response is Response.MONITOR


def test_one_alert_that_ends_says_nothing_of_another_on_the_same_node() -> None:
    first, second = alert("NodeRAIDDegraded"), alert("NodeBondingDegraded")

    assert not is_over(find(second, CATALOGUE), {standing_of(second)})
    assert is_over(find(first, CATALOGUE), {standing_of(second)})


def test_alert_keeps_no_proven_node_out_of_service() -> None:
    own = replace(alert("x"), source="telemetry", signal=Signal.GPU_MISSING)

    assert seen_by_ourselves([alert("NodeRAIDDegraded"), own]) == (own,)
