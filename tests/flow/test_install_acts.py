"""Acts of a rollout on one node: what is ordered, what its witness is, and what a crash in between leaves."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.entries import AUTOPILOT, Begun, Pause
from ops_pipelines.core.identity import ActionKey, NodeName, RolloutId, cause_of
from ops_pipelines.core.plan import Order
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallOrder, InstallReport, InstallState, NodeStage
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.perform import Stage, perform
from ops_pipelines.remediate.verbs import order_of
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble
from tests.ports.ledger_samples import NOW
from tests.ports.proved_plans import allow
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

DRIVER, VBIOS = "580.95.05", "96.00.C1"
BEFORE = {Component.DRIVER: "570.12", Component.GPU_VBIOS: "96.00.A5"}
BROKEN = ReleaseFault(component=Component.GPU_VBIOS, version=VBIOS, trouble=ReleaseTrouble.INSTALL_FAILS)
OLD_AGAIN = ReleaseFault(component=Component.DRIVER, version=DRIVER, trouble=ReleaseTrouble.COMES_UP_OLD)


class Visit:
    """One drained node in a rollout of the samples' release: a driver to load again, then a VBIOS by a power cycle."""

    def __init__(self, directory: Path, *faults: ReleaseFault, before: Mapping[Component, str] | None = None) -> None:
        policy = replace(POLICY, rollouts=replace(POLICY.rollouts, install_limit=timedelta(seconds=60)))
        self.autopilot = SmallAutopilot(directory, release_faults=faults, policy=policy)
        self.autopilot.let_pass(15)
        self.node = replace(node(1, "gpu001", stage=NodeStage.INSTALLING), versions_before=before or BEFORE)
        opened = rollout(1, nodes=["gpu001"])
        self.plan = opened.plan
        self.autopilot.cluster.ledger.open_rollout(
            opened, [self.node], plan=rollout_plan(opened), release=RELEASE, actor="ada", now=NOW
        )
        self.finish(self.act(Verb.DRAIN, text=drain_reason(cause_of(self.node.rollout), "wave 1")))

    def act(self, verb: Verb, part: str = "", *, text: str = "") -> Action:
        return Action(verb=verb, incident=cause_of(self.node.rollout), node=self.node.node, part=part, text=text)

    def step(self, action: Action) -> Stage:
        return perform(Order(action=action, behind=self.plan), self.autopilot.cluster, lease=self.autopilot.lease).stage

    def finish(self, action: Action, *, seconds: float = 90) -> ActionRecord:
        """Perform an act to its end and return its record."""
        for _ in range(round(seconds)):
            if self.step(action) in (Stage.DONE, Stage.FAILED):
                break
            self.autopilot.let_pass(1)
        return self.record(action)

    def record(self, action: Action) -> ActionRecord:
        records = self.autopilot.cluster.ledger.records(action.incident)
        return next(each for each in records if each.action.key == action.key)

    def begin_and_die(self, action: Action) -> None:
        """Write the before-entry and send nothing, as a process that is killed in between."""
        ledger, now = self.autopilot.cluster.ledger, self.autopilot.clock.now()
        record = ActionRecord(action=action, plan=None, begun_at=now)
        begun = ledger.begin(record, guard=allow, lease_token=None, actor=AUTOPILOT, now=now)
        assert isinstance(begun, Begun)

    def running(self, component: Component) -> str:
        return self.autopilot.cluster.fleet.read_versions(self.node.node)[component]

    def installs(self) -> int:
        return sum(each.kind is EntryKind.START_INSTALL for each in self.autopilot.twin.entries())


def outcome_of(record: ActionRecord) -> tuple[OutcomeKind, str]:
    assert record.outcome is not None
    return record.outcome.kind, record.outcome.witness


def test_installation_is_done_when_its_report_says_so(tmp_path: Path) -> None:
    visit = Visit(tmp_path)

    record = visit.finish(visit.act(Verb.INSTALL, "0 forward"))

    assert outcome_of(record) == (OutcomeKind.DONE, f"installed: driver {DRIVER}")
    assert visit.installs() == 1


def test_failed_installation_fails_at_once_with_what_was_said(tmp_path: Path) -> None:
    visit = Visit(tmp_path, BROKEN)
    begun_at = visit.autopilot.clock.now()

    kind, witness = outcome_of(visit.finish(visit.act(Verb.INSTALL, "1 forward")))

    assert kind is OutcomeKind.FAILED
    assert witness.startswith(f"the installation failed: gpu_vbios {VBIOS}")
    assert visit.autopilot.clock.now() - begun_at < timedelta(seconds=30)


def test_installation_that_was_begun_and_never_sent_is_sent_once(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    install = visit.act(Verb.INSTALL, "0 forward")
    visit.begin_and_die(install)

    record = visit.finish(install)

    assert outcome_of(record)[0] is OutcomeKind.DONE
    assert visit.installs() == 1


def test_installation_that_outlasts_its_limit_is_not_known_to_be_done(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    policy = visit.autopilot.cluster.rules.policy
    short = replace(policy, rollouts=replace(policy.rollouts, install_limit=timedelta(seconds=1)))
    visit.autopilot.use_policy(short)

    kind, witness = outcome_of(visit.finish(visit.act(Verb.INSTALL, "0 forward")))

    assert kind is OutcomeKind.UNKNOWN
    assert "the installation runs" in witness


class InParts:
    """A fleet that installs in two parts: the second waits until it is asked for."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.asked_count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        self.asked_count += 1
        self._fleet.start_install(node, order, key=key)

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        report = self._fleet.read_install(node, key=key)
        if report is None or report.state is not InstallState.INSTALLED or self.asked_count > 1:
            return report
        return replace(report, state=InstallState.WAITING)


def visit_in_parts(directory: Path) -> tuple[Visit, InParts]:
    visit = Visit(directory)
    fleet = InParts(visit.autopilot.cluster.fleet)
    visit.autopilot.cluster = replace(visit.autopilot.cluster, fleet=cast("Fleet", fleet))
    return visit, fleet


def test_next_part_of_an_installation_is_asked_for_and_written_down_first(tmp_path: Path) -> None:
    visit, fleet = visit_in_parts(tmp_path)
    install = visit.act(Verb.INSTALL, "0 forward")

    record = visit.finish(install)

    assert outcome_of(record)[0] is OutcomeKind.DONE
    assert fleet.asked_count == 2
    assert len(visit.autopilot.cluster.ledger.resent_at(install.key)) == 1


def test_next_part_of_an_installation_waits_while_the_autopilot_is_paused(tmp_path: Path) -> None:
    visit, fleet = visit_in_parts(tmp_path)
    install = visit.act(Verb.INSTALL, "0 forward")
    visit.step(install)
    ledger, clock = visit.autopilot.cluster.ledger, visit.autopilot.clock
    ledger.pause(Pause(actor="ada", reason="look", since=clock.now()))

    for _ in range(30):
        stage = visit.step(install)
        visit.autopilot.let_pass(1)
    asked_count = fleet.asked_count
    ledger.resume_autopilot(actor="ada", now=clock.now())

    assert (stage, asked_count) == (Stage.WAITING, 1)
    assert outcome_of(visit.finish(install))[0] is OutcomeKind.DONE
    assert fleet.asked_count == 2


def test_driver_that_was_loaded_anew_shows_in_its_version(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    install = visit.act(Verb.INSTALL, "1 back")
    reload = visit.act(Verb.RELOAD_DRIVER, "1 back")

    visit.finish(install)
    still = visit.running(Component.DRIVER)
    record = visit.finish(reload)

    assert (still, visit.running(Component.DRIVER)) == (DRIVER, "570.12")
    assert outcome_of(record) == (OutcomeKind.DONE, "driver runs 570.12")


def test_driver_that_comes_up_old_is_a_failed_reload(tmp_path: Path) -> None:
    visit = Visit(tmp_path, replace(OLD_AGAIN, version="570.12"))
    visit.finish(visit.act(Verb.INSTALL, "1 back"))

    kind, witness = outcome_of(visit.finish(visit.act(Verb.RELOAD_DRIVER, "1 back")))

    assert kind is OutcomeKind.FAILED
    assert f"driver runs {DRIVER}, not 570.12" in witness


def test_reload_that_was_begun_and_never_sent_is_sent(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    visit.finish(visit.act(Verb.INSTALL, "1 back"))
    reload = visit.act(Verb.RELOAD_DRIVER, "1 back")
    visit.begin_and_die(reload)

    record = visit.finish(reload)

    assert outcome_of(record)[0] is OutcomeKind.DONE
    assert visit.running(Component.DRIVER) == "570.12"


def test_order_follows_the_act_and_the_release_of_the_ledger(tmp_path: Path) -> None:
    visit = Visit(tmp_path)

    forward = order_of(visit.act(Verb.INSTALL, "1 forward"), visit.autopilot.cluster)
    back = order_of(visit.act(Verb.INSTALL, "0 back"), visit.autopilot.cluster)

    assert forward.versions == {Component.GPU_VBIOS: VBIOS}
    assert back.versions == {Component.GPU_VBIOS: "96.00.A5"}


@pytest.mark.parametrize("part", ["2 forward", "-1 back", "forward", "0 sideways"])
def test_act_that_names_no_step_is_refused_and_nothing_is_sent(tmp_path: Path, part: str) -> None:
    visit = Visit(tmp_path)

    with pytest.raises(SourceRefused):
        order_of(visit.act(Verb.INSTALL, part), visit.autopilot.cluster)
    record = visit.finish(visit.act(Verb.INSTALL, part))

    assert outcome_of(record)[0] is OutcomeKind.FAILED
    assert visit.installs() == 0


def test_way_back_to_an_unknown_version_is_refused(tmp_path: Path) -> None:
    visit = Visit(tmp_path, before={Component.GPU_VBIOS: "96.00.A5"})

    record = visit.finish(visit.act(Verb.INSTALL, "1 back"))

    assert outcome_of(record) == (
        OutcomeKind.FAILED,
        "driver of gpu001 cannot be rolled back, or nobody knows what ran before",
    )
    assert visit.installs() == 0


def test_installation_outside_a_rollout_is_refused(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    stray = replace(visit.act(Verb.INSTALL, "0 forward"), incident=cause_of(RolloutId("ROLL-0009")))

    with pytest.raises(SourceRefused, match="no rollout"):
        order_of(stray, visit.autopilot.cluster)
