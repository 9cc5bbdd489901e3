"""Anyone who sets quotas dies at every step; another process settles and continues: the same end, and nothing sent
blindly.

A step is a call that changes something: a line of the ledger, or one limit in the scheduler. Both sides of each are
tried: just before it, and just after.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.core.proposal import ProposalId, ProposalRecord, ProposalState, TeamName
from ops_pipelines.core.scheduler import Change, QuotaChange
from ops_pipelines.quotas.apply import SETTLED_AFTER, apply, settle, undo
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.quota_stage import FIRST_LIMITS, ME, PLATFORM, PROPOSED, PassingOn, QuotaStage, morning
from tests.ports.ledger_samples import NO_LIMIT
from tests.scenarios.killed_at_every_step import READS_OF_LEDGER, Watched

Deed = Callable[[ProposalId, TeamsDesk], ProposalRecord]
AFTER = {**PROPOSED, PLATFORM: 6}
"""Three limits: with two, a batch has no middle."""
LEAST_STEP_COUNT = 5
"""A line before, three limits, a line after."""


class Died(BaseException):
    """The process is gone: nothing of it is caught, or cleaned up."""


class Killer:
    """Counts steps, on both sides of each, and dies at one of them."""

    def __init__(self, dies_at: int | None) -> None:
        self.count = 0
        self._dies_at = dies_at

    def step(self, *_: object) -> None:
        if self.count == self._dies_at:
            raise Died
        self.count += 1


class OneByOne(PassingOn):
    """As Slurm: a batch is as many transactions as it has changes."""

    def __init__(self, stage: QuotaStage, killer: Killer) -> None:
        super().__init__(stage.quotas)
        self._killer = killer

    def apply(self, changes: Sequence[Change]) -> None:
        self.batches.append(tuple(changes))
        for change in changes:
            self._killer.step()
            self.inner.apply([change])
            self._killer.step()


def watched(stage: QuotaStage, killer: Killer) -> TeamsDesk:
    ledger = Watched(stage.ledger, killer.step, killer.step, reads=READS_OF_LEDGER)
    cluster = replace(stage.desk.cluster, ledger=cast("Any", ledger))
    return replace(stage.desk, cluster=cluster, quotas=OneByOne(stage, killer))


def do_apply(name: ProposalId, desk: TeamsDesk) -> ProposalRecord:
    return apply(name, desk, actor=ME, lease_token=None)


def do_undo(name: ProposalId, desk: TeamsDesk) -> ProposalRecord:
    return undo(name, desk, actor=ME, lease_token=None)


def begun(directory: Path, deed: Deed) -> tuple[QuotaStage, ProposalId]:
    stage = QuotaStage(directory)
    stage.begin_with()
    name = stage.keep(morning(AFTER)).name
    if deed is do_undo:
        do_apply(name, stage.desk)
    return stage, name


def step_count(directory: Path, deed: Deed) -> int:
    stage, name = begun(directory, deed)
    killer = Killer(None)
    deed(name, watched(stage, killer))
    return killer.count


@pytest.mark.parametrize(
    ("deed", "limits", "state"),
    [(do_apply, AFTER, ProposalState.APPLIED), (do_undo, FIRST_LIMITS, ProposalState.UNDONE)],
    ids=["applying", "undoing"],
)
def test_whoever_dies_at_any_step_leaves_what_the_next_one_ends_alike(
    tmp_path: Path, deed: Deed, limits: dict[TeamName, int], state: ProposalState
) -> None:
    count = step_count(tmp_path / "whole", deed)
    assert count >= 2 * LEAST_STEP_COUNT
    for at in range(count):
        stage, name = begun(tmp_path / f"{at:02d}", deed)
        with pytest.raises(Died):
            deed(name, watched(stage, Killer(at)))
        stood = stage.limits()

        later = QuotaStage(stage.directory)
        later.clock.wait((stage.clock.now() - later.clock.now()).total_seconds() + SETTLED_AFTER.total_seconds())
        port = PassingOn(later.quotas)
        later.use(quotas=port)
        settle(later.desk, actor=ME, lease_token=None)
        sent_by_settling = len(port.batches)
        between = later.limits()
        ended = deed(name, later.desk)

        assert (sent_by_settling, between) == (0, stood), at
        assert (ended.state, later.limits()) == (state, limits), at
        assert later.ledger.verify_chain().problem == "", at
        lines = later.ledger.entries(after=0, limit=NO_LIMIT)
        assert len(lines) == len({line.body for line in lines}), at


@pytest.mark.parametrize("deed", [do_apply, do_undo], ids=["applying", "undoing"])
def test_what_somebody_else_changed_after_a_death_is_left_to_people(tmp_path: Path, deed: Deed) -> None:
    stage, name = begun(tmp_path, deed)
    with pytest.raises(Died):
        deed(name, watched(stage, Killer(3)))
    standing = stage.limits()[PLATFORM]
    stage.quotas.apply([QuotaChange(account=PLATFORM, before=standing, after=7)])
    stage.clock.wait(SETTLED_AFTER.total_seconds())

    (settled,) = settle(stage.desk, actor=ME, lease_token=None)

    expected = ProposalState.HALF_APPLIED if deed is do_apply else ProposalState.HALF_UNDONE
    assert settled.state is expected
    assert "platform all GPUs" in settled.reason
    assert "is 7: somebody else changed it" in settled.reason
    assert stage.limits()[PLATFORM] == 7
