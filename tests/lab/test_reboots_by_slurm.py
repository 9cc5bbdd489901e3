"""Reboots through a real Slurm: the drain lasts, stays ours, and only we put the node back."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.observation import JobState, NodeState, NodeStatus, Workload
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.remediate.guardrails.facts import drain_owner, drain_reason
from ops_pipelines.resources.slurm.client import SlurmReboots
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.lab.slurm_server import start_cluster
from tests.lab.test_slurm_contract import SlurmWorld, state_of

pytestmark = pytest.mark.live

CAUSE = IncidentId("ROLL-0001")
SOON_SECONDS = 60.0
"""Far above what anything here needs; never asserted on."""


class Site(SlurmWorld):
    """A clean cluster whose nodes Slurm itself reboots."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(cluster)
        self.reboots = SlurmReboots(slurm_conf=cluster.settings.slurm_conf)

    def node(self, name: NodeName) -> NodeStatus:
        return next(node for node in self.scheduler.read_nodes() if node.node == name)

    def drain(self, name: NodeName) -> ActionRecord:
        """Drain a node for the rollout, and return the record of it."""
        self.scheduler.drain([name], reason=drain_reason(CAUSE, "wave 1"))
        return record(Verb.DRAIN, self.node(name))

    def reboot(self, name: NodeName) -> datetime:
        """Reboot a node, and return when it booted before. Slurm dates in whole seconds; no boot shares one with it."""
        before = self.node(name)
        assert before.booted_at is not None
        next_second = max(filter(None, (before.booted_at, before.reason_set_at))) + timedelta(seconds=1)
        wait_until("the next second", lambda: self.now() >= next_second, timeout_seconds=SOON_SECONDS)
        self.reboots.reboot(name)
        return before.booted_at

    def await_boot(self, name: NodeName, *, after: datetime) -> NodeStatus:
        def has_booted() -> bool:
            node = self.node(name)
            return node.state is NodeState.IDLE and node.booted_at is not None and node.booted_at > after

        wait_until(f"{name} to boot", has_booted, timeout_seconds=SOON_SECONDS)
        return self.node(name)


def record(verb: Verb, read_back: NodeStatus) -> ActionRecord:
    """Return an act as it is in the ledger once its witness was read."""
    now = SystemClock().now()
    action = Action(verb=verb, incident=CAUSE, node=read_back.node, part="0 forward" if verb is Verb.REBOOT else "")
    outcome = Outcome(kind=OutcomeKind.DONE, witness="", finished_at=now, witnessed_at=read_back.reason_set_at)
    return ActionRecord(action=action, plan=None, begun_at=now, outcome=outcome)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4) as started:
        yield started


@pytest.fixture
def site(cluster: SlurmCluster) -> Site:
    cluster.clear()
    return Site(cluster)


def test_rebooted_node_is_drained_by_us_until_we_return_it(site: Site) -> None:
    name = site.node_names[0]
    drain = site.drain(name)
    drained_at = site.node(name).reason_set_at
    assert drained_at is not None

    after = site.await_boot(name, after=site.reboot(name))

    assert after.is_drained
    assert after.reason_set_at != drained_at
    assert drain_owner(after, (drain,)) is None
    assert drain_owner(after, (drain, record(Verb.REBOOT, after))) == CAUSE
    site.scheduler.resume(name)
    assert not site.node(name).is_drained


def test_drain_is_ours_while_the_node_boots(site: Site) -> None:
    name = site.node_names[0]
    drain = site.drain(name)
    under_way = ActionRecord(
        action=record(Verb.REBOOT, site.node(name)).action, plan=None, begun_at=SystemClock().now(), outcome=None
    )
    owners = set()

    booted_at = site.reboot(name)

    def has_booted() -> bool:
        node = site.node(name)
        owners.add(drain_owner(node, (drain, under_way)))
        return node.booted_at is not None and node.booted_at > booted_at

    wait_until(f"{name} to boot", has_booted, timeout_seconds=SOON_SECONDS, every_seconds=0.05)
    assert owners == {CAUSE}


def test_drain_stays_ours_over_several_reboots(site: Site) -> None:
    name = site.node_names[0]
    site.drain(name)
    records = []
    for _ in range(3):
        records.append(record(Verb.REBOOT, site.await_boot(name, after=site.reboot(name))))

    after = site.node(name)
    assert drain_owner(after, tuple(records)) == CAUSE
    assert after.reason == f"{drain_reason(CAUSE, 'wave 1')} : reboot issued"


def test_node_in_service_is_not_rebooted(site: Site) -> None:
    name = site.node_names[0]
    before = site.node(name)

    with pytest.raises(SourceRefused):
        site.reboots.reboot(name)

    assert site.node(name) == before


def test_node_at_work_is_not_rebooted_however_long_its_job_lasts(site: Site) -> None:
    job = site.submit(name="works", node_count=1, workload=Workload.TRAINING)
    site.wait_until(lambda: state_of(site, job) is JobState.RUNNING, SOON_SECONDS)
    name = next(node.node for node in site.scheduler.read_nodes() if node.gpu_in_use_count)
    site.drain(name)
    before = site.node(name)

    with pytest.raises(SourceRefused):
        site.reboots.reboot(name)

    assert site.node(name) == before


def test_drain_of_somebody_else_stays_theirs_after_a_reboot(site: Site) -> None:
    name = site.node_names[0]
    ours = site.drain(name)
    site.scheduler.drain([name], reason="ada: broken fan")

    after = site.await_boot(name, after=site.reboot(name))

    assert drain_owner(after, (ours, record(Verb.REBOOT, after))) is None
