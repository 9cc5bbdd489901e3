"""The assets of quotas in Dagster, on a small twin with a past: what they show, what blocks, what is set."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.domain.quota.proposal import ProposalRecord, ProposalState
from ops_pipelines.domain.quota.proposal_proof import PROOFS
from ops_pipelines.frames.pictures.hours import INLINE_AT_MOST
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.flow.quota_mornings import BY_ITSELF, LIMITS, TODAY, Past, QuotaStage
from tests.shell.definitions_on import definitions_on

KEY = TODAY.isoformat()


class GreedyLedger(SqlLedger):
    """A ledger whose first line of each proposal somebody has put up to all GPUs, past the proofs of who made it."""

    def keep_proposal(self, record: ProposalRecord, *, now: datetime) -> ProposalRecord:
        first, *others = record.proposal.lines
        greedy = replace(record.proposal, lines=(replace(first, after=48), *others))
        return super().keep_proposal(replace(record, proposal=greedy), now=now)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def run(stage: QuotaStage, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    definitions = definitions_on(stage.desk.cluster, teams_desk=stage.desk)
    return definitions.resolve_job_def("rebalance_quotas").execute_in_process(
        instance=instance, partition_key=KEY, raise_on_error=False
    )


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    (materialization,) = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in materialization.metadata.items()}


def test_a_morning_proposes_proves_and_sets_by_itself(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    result = run(stage, instance)

    assert result.success
    shown = metadata_of(result, "gpu_quotas")
    assert "more for science" in str(shown["headline"])
    assert str(shown["changes"]).startswith("- **science** 8 → ")
    assert len(str(shown["changes"])) < INLINE_AT_MOST
    assert str(shown["quotas"]).startswith("![")
    assert metadata_of(result, "applied_quotas")["outcome"] == "applied"
    assert {each.check_name for each in result.get_asset_check_evaluations() if each.passed} == set(PROOFS)
    (record,) = stage.desk.cluster.ledger.proposals(limit=9)
    assert record.state is ProposalState.APPLIED
    assert stage.limits() == {str(each.team): each.after for each in record.proposal.lines}


def test_a_proposal_that_contradicts_its_proof_does_not_reach_the_scheduler(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    cluster = stage.desk.cluster
    stage.change(cluster=replace(cluster, ledger=GreedyLedger(f"sqlite:///{stage.autopilot.directory}/ledger.sqlite")))

    result = run(stage, instance)

    assert not result.success
    assert result.asset_materializations_for_node("applied_quotas") == []
    failed = {each.check_name for each in result.get_asset_check_evaluations() if not each.passed}
    assert "sum_within_supply" in failed
    (record,) = stage.desk.cluster.ledger.proposals(limit=9)
    assert record.state is ProposalState.REFUSED
    assert stage.limits() == {str(team): limit for team, limit in LIMITS.items()}


def test_without_demand_the_run_fails_and_says_what_to_do(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=0), policy=BY_ITSELF)

    result = run(stage, instance)

    assert not result.success
    assert stage.desk.cluster.ledger.proposals(limit=9) == ()
