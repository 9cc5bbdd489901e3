"""Quotas in Dagster, on a small twin with a past: what a morning shows, what is refused, who sets what, and once."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.acting_jobs import ASKED_TAG, set_quotas, set_quotas_schedule
from ops_pipelines.core.entries import AUTOPILOT, Pause
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proposal import ProposalEvent, ProposalRecord, ProposalState, SentChange
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.quotas.apply import SETTLED_AFTER, prove_now
from ops_pipelines.quotas.proof import PROOFS
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.run_lanes import WITHOUT_LOGIN
from ops_pipelines.run_share import LEASE_TAG
from tests.flow.quota_mornings import BY_ITSELF, HOUR, LIMITS, ON_YES, SCIENCE, TODAY, Past, QuotaStage
from tests.shell.definitions_on import definitions_on
from tests.shell.launched import launch

KEY = TODAY.isoformat()
PERSON = "alice"
OLD_LIMITS = {str(team): limit for team, limit in LIMITS.items()}


class GreedyLedger(SqlLedger):
    """A ledger whose first line of each proposal somebody has put up to all GPUs, past the proofs of who made it."""

    def keep_proposal(self, record: ProposalRecord, *, now: datetime) -> ProposalRecord:
        first, *others = record.proposal.lines
        greedy = replace(record.proposal, lines=(replace(first, after=48), *others))
        return super().keep_proposal(replace(record, proposal=greedy), now=now)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def run(stage: QuotaStage, instance: dg.DagsterInstance, **tags: str) -> dg.ExecuteInProcessResult:
    """Propose, as the morning's run does."""
    definitions = definitions_on(stage.desk.cluster, teams_desk=stage.desk)
    return definitions.resolve_job_def("rebalance_quotas").execute_in_process(
        instance=instance, partition_key=KEY, raise_on_error=False, tags=tags
    )


def click(stage: QuotaStage, instance: dg.DagsterInstance, *, login: str | None = PERSON) -> ProposalRecord:
    """Materialise `gpu_quotas` in the catalogue; return the newest proposal."""
    definitions = definitions_on(stage.desk.cluster, teams_desk=stage.desk)
    job = definitions.resolve_implicit_global_asset_job_def()
    result = launch(job, instance, login=login, partition_key=KEY, asset_selection=[dg.AssetKey("gpu_quotas")])
    assert result.success
    return stage.desk.cluster.ledger.proposals(limit=1)[0]


def tick(stage: QuotaStage, instance: dg.DagsterInstance) -> dg.RunRequest | dg.SkipReason:
    """Evaluate the schedule once, where a code server holds the lease."""
    stage.desk.cluster.ledger.take_lease(holder="the code server", ttl=HOUR, now=stage.now)
    at = datetime.combine(TODAY, time(5), tzinfo=UTC)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, resources={"cluster": stage.desk.cluster}
    ) as context:
        found = set_quotas_schedule(context)
    assert isinstance(found, dg.RunRequest | dg.SkipReason)
    return found


def carry_out(stage: QuotaStage, instance: dg.DagsterInstance, **tags: str) -> dict[str, object]:
    """Run the job that sets; return what the page of `applied_quotas` shows then."""
    result = set_quotas.execute_in_process(instance=instance, resources={"teams_desk": stage.desk}, tags=tags)
    (event,) = result.asset_materializations_for_node("applied_quotas")
    assert (event.asset_key.to_user_string(), event.partition) == ("applied_quotas", KEY)
    return {name: value.value for name, value in event.metadata.items()}


def turn(stage: QuotaStage, instance: dg.DagsterInstance) -> dict[str, object] | str:
    """Let the schedule look, and do what it asks for; return what came of it, or why it asked for nothing."""
    found = tick(stage, instance)
    if isinstance(found, dg.SkipReason):
        return found.skip_message or ""
    return carry_out(stage, instance, **found.tags)


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    (materialization,) = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in materialization.metadata.items()}


def outcome(found: dict[str, object] | str) -> object:
    return found if isinstance(found, str) else found["outcome"]


def test_a_morning_proposes_and_proves_and_sets_nothing_until_the_job_that_acts(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    result = run(stage, instance)

    assert result.success
    shown = metadata_of(result, "gpu_quotas")
    assert "more for science" in str(shown["headline"])
    assert str(shown["changes"]).startswith("- **science** 8 → ")
    assert len(str(shown["changes"])) < INLINE_AT_MOST
    assert str(shown["quotas"]).startswith("![")
    assert result.asset_materializations_for_node("applied_quotas") == []
    assert stage.limits() == OLD_LIMITS
    assert {each.check_name for each in result.get_asset_check_evaluations() if each.passed} == set(PROOFS)
    assert outcome(turn(stage, instance)) == "applied"
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
    assert "is refused" in str(turn(stage, instance))
    assert carry_out(stage, instance)["outcome"] == "nothing to do"
    failed = {each.check_name for each in result.get_asset_check_evaluations() if not each.passed}
    assert "sum_within_supply" in failed
    (record,) = stage.desk.cluster.ledger.proposals(limit=9)
    assert record.state is ProposalState.REFUSED
    assert stage.limits() == OLD_LIMITS


def test_without_demand_the_run_fails_and_says_what_to_do(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, past=Past(days=0), policy=BY_ITSELF)

    result = run(stage, instance)

    assert not result.success
    assert stage.desk.cluster.ledger.proposals(limit=9) == ()


# -- the schedule and the job that sets --


def test_without_a_proposal_of_today_nothing_is_asked_for(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    assert turn(stage, instance) == f"there is no proposal for {TODAY}"
    assert carry_out(stage, instance)["outcome"] == "nothing to do"


def test_where_nobody_named_teams_nothing_is_asked_for(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)
    file = tmp_path / "cluster.yaml"
    file.write_text("teams: null\n", encoding="utf-8")
    monkeypatch.setenv("OPS_PIPELINES_CLUSTER", str(file))

    assert "names no file of teams" in str(turn(stage, instance))


def test_a_proposal_of_the_autopilot_is_carried_out_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)

    asked = tick(stage, instance)

    assert isinstance(asked, dg.RunRequest)
    assert asked.tags[LEASE_TAG] == stage.desk.cluster.ledger.current_lease(stage.now)
    assert asked.run_key == asked.tags[ASKED_TAG]
    assert asked.partition_key is None
    assert carry_out(stage, instance, **asked.tags)["outcome"] == "applied"
    (record,) = stage.desk.cluster.ledger.proposals(limit=9)
    assert turn(stage, instance) == f"{record.name} is applied"
    assert stage.limits() == {str(each.team): each.after for each in record.proposal.lines}


def test_a_run_that_is_on_its_way_is_not_asked_for_again(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)
    asked = tick(stage, instance)
    assert isinstance(asked, dg.RunRequest)
    on_its_way = dg.DagsterRunStatus.NOT_STARTED
    instance.add_run(dg.DagsterRun(job_name="set_quotas", status=on_its_way, tags=dict(asked.tags)))

    assert str(turn(stage, instance)).endswith("a run was asked to carry it out already")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        pytest.param(replace(BY_ITSELF, mode=Mode.OBSERVE), "shown", id="observe"),
        pytest.param(ON_YES, "waits", id="approve"),
    ],
)
def test_what_may_not_be_set_is_told_once_and_asked_again_when_the_policy_changes(
    tmp_path: Path, instance: dg.DagsterInstance, policy: object, said: str
) -> None:
    stage = QuotaStage(tmp_path, policy=policy)  # type: ignore[arg-type]  # Parametrised.
    run(stage, instance)

    first, second = turn(stage, instance), turn(stage, instance)
    limits = stage.limits()
    rules = replace(stage.desk.cluster.rules, policy=BY_ITSELF)
    stage.change(cluster=replace(stage.desk.cluster, rules=rules))
    third = turn(stage, instance)

    assert outcome(first) == said
    assert str(second).endswith("asked to carry it out already")
    assert limits == OLD_LIMITS
    assert outcome(third) == "applied"


def test_what_a_pause_kept_back_is_asked_for_again_when_it_ends(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    ledger = stage.desk.cluster.ledger
    run(stage, instance)
    ledger.pause(Pause(actor=PERSON, reason="a visit", since=stage.now))

    paused, again = turn(stage, instance), turn(stage, instance)
    limits = stage.limits()
    ledger.resume_autopilot(actor=PERSON, now=stage.now)
    resumed = turn(stage, instance)

    assert outcome(paused) == "not applied"
    assert str(again).endswith("asked to carry it out already")
    assert limits == OLD_LIMITS
    assert outcome(resumed) == "applied"


def test_what_was_asked_for_under_another_code_server_is_asked_for_anew(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)
    died = tick(stage, instance)
    assert isinstance(died, dg.RunRequest)
    instance.add_run(dg.DagsterRun(job_name="set_quotas", status=dg.DagsterRunStatus.STARTED, tags=dict(died.tags)))
    stage.clock.wait(2 * HOUR.total_seconds())
    stage.desk.cluster.ledger.take_lease(holder="the code server after it", ttl=HOUR, now=stage.now)
    stage.clock.wait(2 * HOUR.total_seconds())

    assert outcome(turn(stage, instance)) == "applied"


# -- what a person proposed --


def test_a_click_proposes_in_the_persons_name_and_the_schedule_sets_nothing(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    record = click(stage, instance)

    assert (record.state, record.actor) == (ProposalState.PROPOSED, PERSON)
    assert "quota apply" in str(turn(stage, instance))
    shown = carry_out(stage, instance)
    assert shown["outcome"] == "waits"
    assert "proposed or touched by a person" in str(shown["said"])
    assert stage.limits() == OLD_LIMITS


@pytest.mark.parametrize("login", [None, AUTOPILOT], ids=["none", "named like us"])
def test_a_click_without_a_name_is_not_the_autopilots(
    tmp_path: Path, instance: dg.DagsterInstance, login: str | None
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    assert click(stage, instance, login=login).actor == WITHOUT_LOGIN


def test_a_back_fill_of_the_morning_sets_nothing(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)

    run(stage, instance, **{"dagster/backfill": "abc"})

    (record,) = stage.desk.cluster.ledger.proposals(limit=9)
    assert record.actor == WITHOUT_LOGIN
    assert "quota apply" in str(turn(stage, instance))
    assert carry_out(stage, instance)["outcome"] == "waits"
    assert stage.limits() == OLD_LIMITS


def test_what_a_person_proposed_first_stays_a_persons_when_the_morning_proposes_the_same(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    clicked = click(stage, instance)

    assert run(stage, instance).success

    assert stage.desk.cluster.ledger.proposals(limit=9) == (clicked,)
    assert "quota apply" in str(turn(stage, instance))
    assert carry_out(stage, instance)["outcome"] == "waits"
    assert stage.limits() == OLD_LIMITS


def test_a_click_on_what_the_autopilot_proposed_takes_nothing_from_it(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)

    assert click(stage, instance).actor == AUTOPILOT

    assert outcome(turn(stage, instance)) == "applied"


def test_a_click_that_overtakes_the_autopilots_proposal_is_not_set(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    run(stage, instance)
    stage.port.apply([QuotaChange(account=SCIENCE, before=8, after=10)])
    before = stage.limits()

    overtaking = click(stage, instance)

    assert overtaking.actor == PERSON
    assert "quota apply" in str(turn(stage, instance))
    assert carry_out(stage, instance)["outcome"] == "waits"
    assert stage.limits() == before


def test_what_a_person_died_over_does_not_become_the_autopilots_by_settling_it(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    stage = QuotaStage(tmp_path, policy=BY_ITSELF)
    ledger = stage.desk.cluster.ledger
    record = click(stage, instance)
    sent = (SentChange(account=SCIENCE, before=8, after=9),)
    proof = prove_now(record.proposal, stage.desk, now=stage.now)
    begun = {"actor": PERSON, "reason": "", "lease_token": None, "now": stage.now, "sent": sent, "proof": proof}
    ledger.change_proposal(record.name, ProposalEvent.BEGIN, **begun)
    stage.clock.wait(SETTLED_AFTER.total_seconds())

    shown = carry_out(stage, instance)

    settled = ledger.proposal(record.name)
    assert settled is not None
    assert (settled.state, settled.actor) == (ProposalState.PROPOSED, AUTOPILOT)
    assert shown["outcome"] == "waits"
    assert "quota apply" in str(turn(stage, instance))
    assert stage.limits() == OLD_LIMITS
