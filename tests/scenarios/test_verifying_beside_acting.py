"""A verification and a remediation at once, as their lanes allow: nothing is done twice, and the end is the same."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.carry_out import carry_out, plans_to_carry_out
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.verify import verify_repaired
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.killed_at_every_step import READS_OF_LEDGER, Watched
from tests.scenarios.small_autopilot import COMMANDS, POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

BROKEN = {
    "gpu001": FaultKind.UNCORRECTABLE_ECC,
    "gpu002": FaultKind.GPU_FELL_OFF_BUS,
    "gpu005": FaultKind.ROW_REMAP_WAITS,
}
HARMLESS_AGAIN = frozenset({EntryKind.DRAIN, EntryKind.START_CHECK})
"""A drain twice is a drain; a test begins once under its key."""
SOAK = replace(POLICY, durations=replace(POLICY.durations, soak=timedelta(seconds=10)))


def verify(autopilot: SmallAutopilot) -> None:
    """Do what a run of `verify_nodes` does."""
    present = autopilot.cluster.ledger.read_state(autopilot.clock.now()).incidents
    try:
        plans = plans_to_carry_out((), present, autopilot.cluster)
        carry_out(plans, autopilot.cluster, lease=autopilot.lease, patience=timedelta(0))
        verify_repaired(autopilot.cluster, lease=autopilot.lease, patience=timedelta(0))
    except (SourceError, LedgerConflict):
        return  # The run fails; the next one is another.


class Beside:
    """An autopilot beside which a verification runs just before every `every`th step that may change something."""

    def __init__(self, autopilot: SmallAutopilot, *, every: int) -> None:
        self._step_count, self._every, self._is_verifying = 0, every, False
        self.verification_count = 0
        self._other = SmallAutopilot.on_disk(
            autopilot.directory, at=autopilot.clock.now(), messages=autopilot.messages, policy=SOAK
        )
        self._other.clock = autopilot.clock
        self._other.restart()
        cluster = autopilot.cluster
        autopilot.cluster = replace(
            cluster,
            ledger=self._watched(cluster.ledger, reads=READS_OF_LEDGER),
            scheduler=self._watched(cluster.scheduler),
            fleet=self._watched(cluster.fleet),
        )
        self._autopilot = autopilot

    def _watched(self, port: object, **options: Any) -> Any:
        return cast("Any", Watched(port, self._before, **options))

    def _before(self, _step: str, _subject: str) -> None:
        self._step_count += 1
        if self._step_count % self._every == 0 and not self._is_verifying:
            self._is_verifying = True
            self._other.lease = self._autopilot.lease
            verify(self._other)
            self.verification_count += 1
            self._is_verifying = False


def run_until_all_is_well(autopilot: SmallAutopilot) -> None:
    for _ in range(120):
        token = autopilot.cluster.ledger.take_lease(holder="code server", ttl=TTL, now=autopilot.clock.now())
        autopilot.lease = Lease(holder="code server", given=token)
        try:
            autopilot.run_once()
        except (SourceError, LedgerConflict):
            continue  # The run fails; the sensor asks for the next one.
        finally:
            autopilot.let_pass(3)
        if len(autopilot.incidents()) == len(BROKEN) and all(
            each.state is IncidentState.RESOLVED for each in autopilot.incidents()
        ):
            return


def told(autopilot: SmallAutopilot) -> Counter[tuple[object, ...]]:
    """Return how often each node and job was reported what would harm it the second time."""
    kinds = tuple(each for each in COMMANDS if each not in HARMLESS_AGAIN)
    return Counter((entry.kind, entry.nodes, entry.job) for entry in autopilot.received(*kinds))


@pytest.mark.parametrize("every", [2, 3, 7])
def test_verification_in_the_middle_of_a_remediation_sends_nothing_twice_and_changes_no_end(
    tmp_path: Path, every: int
) -> None:
    alone, both = (SmallAutopilot(tmp_path / name, TRAINING, node_count=6, policy=SOAK) for name in ("alone", "both"))
    for autopilot in (alone, both):
        autopilot.let_pass(15)
        for node, kind in BROKEN.items():
            autopilot.twin.inject(kind, node, gpu=1)
    beside = Beside(both, every=every)

    run_until_all_is_well(alone)
    run_until_all_is_well(both)

    assert beside.verification_count > 10
    for autopilot in (alone, both):
        assert {each.state for each in autopilot.incidents()} == {IncidentState.RESOLVED}
        assert [node for node in BROKEN if autopilot.node(node).is_drained] == []
    assert told(both) == told(alone)
    assert both.cluster.ledger.verify_chain().problem == ""
