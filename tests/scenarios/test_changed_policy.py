"""policy.yaml changes, or breaks, under a running autopilot: what waits is asked again, and people hear of it once."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Audience
from ops_pipelines.core.policy import ConfigTrouble, Fallback, Mode, Policy, under
from ops_pipelines.remediate.due import due_remediation
from ops_pipelines.remediate.oversight import read_vital_signs, rules_changed_at, see_to_configuration
from ops_pipelines.sensors.due_runs import remediation_sensor
from ops_pipelines.sensors.fault import fault_sensor
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.scenarios.telling_stage import TellingAutopilot

OBSERVE, APPROVE = replace(POLICY, mode=Mode.OBSERVE), replace(POLICY, mode=Mode.APPROVE)
HOUR = timedelta(hours=1)


def with_trouble(autopilot: SmallAutopilot, *, since: datetime, policy: Policy = POLICY) -> None:
    """Continue as a process does that finds policy.yaml broken since then."""
    now = autopilot.clock.now()
    trouble = ConfigTrouble(
        file="policy.yaml", fault="line 2: drain_bugdet: unknown key; correct the file", since=since, until=since + HOUR
    )
    fallbacks = (Fallback(mode=Mode.OBSERVE, reason=str(trouble)),) if trouble.is_over(now) else ()
    autopilot.use_policy(under(fallbacks, policy))
    autopilot.cluster = replace(autopilot.cluster, troubles=(trouble,), fallbacks=fallbacks)


def see_to(autopilot: SmallAutopilot) -> None:
    see_to_configuration(autopilot.cluster, lease=autopilot.lease)


def test_incident_of_an_autopilot_that_observed_is_asked_about_once_the_mode_is_approve(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, policy=OBSERVE)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.run_for(60)
    heard = [title for _, _, title in autopilot.told()]

    autopilot.use_policy(APPROVE)
    autopilot.tell()
    autopilot.let_pass(120)
    autopilot.tell()

    (question,) = [each for each in autopilot.to(Audience.ON_CALL) if "may we" in each.title]
    assert any("only observing" in title for title in heard)
    assert "approve it (`ops-pipelines approve PLAN-" in question.body
    assert "mode: observe" not in question.body


def test_change_of_the_mode_is_told_once_and_another_look_tells_nothing(tmp_path: Path) -> None:
    autopilot = TellingAutopilot(tmp_path, policy=OBSERVE)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.run_for(60)
    for policy in (APPROVE, OBSERVE, APPROVE, OBSERVE):
        autopilot.use_policy(policy)
        autopilot.run_for(120)

    titles = [title for _, _, title in autopilot.told()]

    assert sum("may we" in title for title in titles) == 1
    assert sum("only observing" in title for title in titles) == 1


def test_every_incident_that_waits_is_due_at_once_under_changed_rules_and_under_a_new_key(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3, policy=OBSERVE)
    autopilot.let_pass(5)
    see_to(autopilot)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.run_for(300)

    def due() -> str | None:
        found = due_remediation(
            autopilot.cluster.ledger.read_state(autopilot.clock.now()),
            (),
            recorded_through=1_000,
            retry_after=timedelta(seconds=30),
            rules_changed_at=rules_changed_at(autopilot.cluster),
            now=autopilot.clock.now(),
        )
        return None if found is None else found.run_key

    before = due()
    autopilot.use_policy(APPROVE)
    see_to(autopilot)
    at_once = due()
    autopilot.let_pass(31)
    later = due()

    assert len({before, at_once, later}) == 3
    assert at_once is not None
    assert at_once.split(":")[3] == "0"


def test_first_start_of_a_ledger_is_no_change_of_the_rules(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3)

    see_to(autopilot)

    assert rules_changed_at(autopilot.cluster) is None


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_sensors_ask_for_a_run_in_the_tick_after_the_change(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3, policy=OBSERVE)
    autopilot.cluster = replace(autopilot.cluster, clock=autopilot.clock)
    autopilot.let_pass(5)

    def tick(sensor: dg.SensorDefinition, cursor: str | None) -> dg.SensorResult:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"cluster": autopilot.cluster}, sensor_name=sensor.name
        )
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    tick(fault_sensor, None)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.let_pass(1)
    tick(fault_sensor, None)
    asked = tick(remediation_sensor, None)
    autopilot.run_once()
    quiet = tick(remediation_sensor, asked.cursor)

    autopilot.use_policy(APPROVE)
    tick(fault_sensor, None)
    anew = tick(remediation_sensor, quiet.cursor)

    assert not quiet.run_requests
    assert anew.run_requests
    assert "asked again under changed rules" in anew.run_requests[0].tags["reason"]


def test_broken_policy_is_paged_once_with_fault_and_remedy_and_again_when_its_hour_is_over(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    since = autopilot.clock.now()
    for _ in range(8):
        with_trouble(autopilot, since=since)
        see_to(autopilot)
        autopilot.let_pass(600)

    first, second = autopilot.pages()

    assert "policy.yaml cannot be used since 2026-11-21 07:00:00 UTC: line 2: drain_bugdet" in first.body
    assert "until 2026-11-21 08:00:00 UTC, then nothing is started" in first.body
    assert "nothing is started until it can" in second.body
    assert autopilot.incident().state is IncidentState.ESCALATED


def test_incident_of_a_broken_policy_ends_when_the_file_is_right_again(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    with_trouble(autopilot, since=autopilot.clock.now())
    see_to(autopilot)

    autopilot.cluster = replace(autopilot.cluster, troubles=())
    see_to(autopilot)

    assert not autopilot.incident().is_open
    assert autopilot.incident().note == "policy.yaml can be used again"


def test_person_who_closed_the_incident_is_not_paged_about_the_same_trouble_again(tmp_path: Path) -> None:
    from ops_pipelines.people.orders import close

    autopilot = SmallAutopilot(tmp_path, node_count=3)
    since = autopilot.clock.now()
    with_trouble(autopilot, since=since)
    see_to(autopilot)
    close(autopilot.incident().incident, autopilot.cluster, actor="day-shift", reason="I know")

    autopilot.let_pass(60)
    see_to(autopilot)

    assert len(autopilot.pages()) == 1


def test_faults_are_drained_within_the_hour_and_left_alone_after_it(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=4)
    autopilot.let_pass(5)
    since = autopilot.clock.now()
    with_trouble(autopilot, since=since)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=2)
    autopilot.run_for(9)
    within = autopilot.commands()

    autopilot.let_pass(3600)
    with_trouble(autopilot, since=since)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu002", gpu=2)
    autopilot.run_for(30)

    assert within[0] is EntryKind.DRAIN
    assert autopilot.commands() == within


def test_health_names_the_trouble_and_the_file_that_needs_a_restart(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=3)
    with_trouble(autopilot, since=autopilot.clock.now())
    autopilot.cluster = replace(autopilot.cluster, restart_for="cluster.yaml")

    see_to(autopilot)
    named = read_vital_signs(autopilot.cluster).troubles
    autopilot.cluster = replace(autopilot.cluster, restart_for="", troubles=())
    see_to(autopilot)

    assert named[0].startswith("policy.yaml cannot be used")
    assert named[1].startswith("cluster.yaml has changed since the code server read it; restart the code server")
    assert read_vital_signs(autopilot.cluster).troubles == ()
