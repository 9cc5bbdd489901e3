"""The main job in Dagster, on the twin: what a run materialises, shows and leaves in the cluster."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines import acting_jobs
from ops_pipelines.assets import loop
from ops_pipelines.core.action import Verb
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.remediate import decide as decision
from ops_pipelines.remediate import plan_proof
from ops_pipelines.remediate.reflex import react
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.shell.definitions_on import definitions_on
from tests.shell.launched import launch
from tests.simulator.small_cluster import TRAINING


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING)
    autopilot.let_pass(15)
    return autopilot


def run_job(
    autopilot: SmallAutopilot, name: str, instance: dg.DagsterInstance, **config: object
) -> dg.ExecuteInProcessResult:
    definitions = definitions_on(autopilot.cluster)
    return launch(definitions.resolve_job_def(name), instance, login="operator", run_config=dict(config))


def hand_config(op: str, **config: object) -> dict[str, object]:
    return {"ops": {op: {"config": config}}}


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    (materialization,) = [
        event.step_materialization_data.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(asset)
    ]
    return {name: value.value for name, value in materialization.metadata.items()}


def test_a_run_on_a_healthy_cluster_plans_and_does_nothing(autopilot: SmallAutopilot) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "remediate", instance)

    assert result.success
    assert metadata_of(result, "remediation_plan")["plan_count"] == 0
    assert metadata_of(result, "action_log")["step_count"] == 0
    assert autopilot.received(*EntryKind) == ()


def test_a_fallen_gpu_is_healed_over_a_few_runs_and_every_asset_tells_its_part(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    with dg.DagsterInstance.ephemeral() as instance:
        first = run_job(autopilot, "remediate", instance)
        for _ in range(6):
            autopilot.let_pass(4.0)
            last = run_job(autopilot, "remediate", instance)

    assert first.success
    assert last.success
    assert metadata_of(first, "health_findings")["repair_finding_count"] >= 2
    assert metadata_of(first, "incidents")["changed_count"] == 1
    assert metadata_of(first, "remediation_plan")["plan_count"] == 1
    assert metadata_of(first, "action_log")["step_count"] >= 6
    assert "Healed" in str(metadata_of(last, "shift_report")["hand_over"])
    (incident,) = autopilot.cluster.ledger.incidents_since(autopilot.twin.began_at)
    assert incident.state is IncidentState.RESOLVED
    assert [entry.kind for entry in autopilot.received(*EntryKind)][1:] == [
        EntryKind.DRAIN,
        EntryKind.RESERVE,
        EntryKind.HOLD,
        EntryKind.EXCLUDE,
        EntryKind.UNRESERVE,
        EntryKind.RELEASE,
        EntryKind.REBOOT,
        EntryKind.START_CHECK,
        EntryKind.RESUME,
    ]


def test_a_run_takes_one_snapshot_finds_once_and_decides_once(
    autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    computed: list[str] = []

    def count(where: object, name: str) -> None:
        real = getattr(where, name)

        def counted(*args: object, **options: object) -> object:
            computed.append(name)
            return real(*args, **options)

        monkeypatch.setattr(where, name, counted)

    count(acting_jobs, "take_snapshot")
    count(type(autopilot.cluster.ledger), "load_snapshot")
    count(decision, "find")
    count(loop, "find")
    count(decision, "correlate")
    count(decision, "plan_remediation")
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "remediate", instance)

    observed = metadata_of(result, "health_findings")["finding_count"]
    assert result.success
    assert Counter(computed) == {"take_snapshot": 1, "find": observed, "correlate": 1, "plan_remediation": 1}


def test_findings_are_handed_on_and_not_what_they_were_found_in(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)

    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "remediate", instance)

    found = result.output_for_node("health_findings")
    decided = result.output_for_node("remediation_plan")
    assert {each.node for each in found.findings} == {"gpu001"}
    assert decided.findings is found.findings
    assert decided.incidents is result.output_for_node("correlation").changed
    assert [plan.incident for plan in decided.plans] == ["INC-0001"]


def test_verifying_by_itself_shows_what_the_whole_loop_shows_from_there_on(autopilot: SmallAutopilot) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "verify_nodes", instance)

    assert result.success
    shown = [event.asset_key.to_user_string() for event in result.get_asset_materialization_events() if event.asset_key]
    assert sorted(shown) == ["incident_reports", "remediation_page", "shift_report", "verifications"]


CHECKS = [dg.AssetCheckKey(dg.AssetKey("remediation_plan"), name) for name in plan_proof.PROOFS]


def test_page_of_the_plan_shows_each_check_as_the_run_reported_it(autopilot: SmallAutopilot) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "remediate", instance)
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(CHECKS)

    assert {key.name: record.run_id for key, record in latest.items()} == dict.fromkeys(
        plan_proof.PROOFS, result.dagster_run.run_id
    )


def test_checks_asked_for_by_a_click_tell_of_the_plans_in_force_and_act_on_nothing(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.let_pass(1)
    take_in_logs(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)
    before = autopilot.received(*EntryKind)
    everything = definitions_on(autopilot.cluster).resolve_implicit_global_asset_job_def()

    with dg.DagsterInstance.ephemeral() as instance:
        clicked = everything.get_subset(asset_selection=set(), asset_check_selection=set(CHECKS))
        checks = clicked.execute_in_process(instance=instance).get_asset_check_evaluations()

    assert {each.check_name for each in checks if each.passed} == plan_proof.PROOFS.keys()
    assert {each.metadata["plan_count"].value for each in checks} == {1}
    assert autopilot.received(*EntryKind) == before


def test_a_plan_that_is_contradicted_is_not_begun_and_keeps_no_other_waiting(
    autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspect(plans: Sequence[IncidentPlan], *_: object) -> tuple[str, ...]:
        drains = (each for plan in plans for each in plan.actions if each.verb is Verb.DRAIN)
        return tuple("gpu001 is none of ours" for each in drains if each.node == "gpu001")

    monkeypatch.setitem(plan_proof.PROOFS, "targets_are_known", ("", suspect))  # type: ignore[arg-type]
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu009", gpu=3)

    with dg.DagsterInstance.ephemeral() as instance:
        result = run_job(autopilot, "remediate", instance)

    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert result.success
    assert checks.keys() == plan_proof.PROOFS.keys()
    assert [name for name, passed in checks.items() if not passed] == ["targets_are_known"]
    assert (autopilot.node("gpu001").is_drained, len(autopilot.received(EntryKind.DRAIN))) == (False, 1)
    assert any("This is a fault of the autopilot" in page.body for page in autopilot.pages())


def test_a_paused_autopilot_plans_and_waits_until_it_is_resumed(autopilot: SmallAutopilot) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        paused = run_job(
            autopilot,
            "pause_autopilot",
            instance,
            **hand_config("pause_new_actions", reason="a test"),
        )
        autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
        run_job(autopilot, "remediate", instance)
        before = autopilot.received(EntryKind.DRAIN)
        run_job(autopilot, "resume_autopilot", instance)
        run_job(autopilot, "remediate", instance)

    assert paused.success
    assert before == ()
    assert len(autopilot.received(EntryKind.DRAIN)) == 1


def test_a_node_drained_by_hand_is_returned_by_hand(autopilot: SmallAutopilot) -> None:
    config = {"node": "gpu009", "reason": "replace a fan"}
    with dg.DagsterInstance.ephemeral() as instance:
        drained = run_job(autopilot, "drain_node", instance, **hand_config("drain_one_node", **config))
        (owner,) = autopilot.cluster.ledger.read_state(autopilot.clock.now()).incidents
        returned = run_job(autopilot, "return_node", instance, **hand_config("return_one_node", **config))

    assert drained.success
    assert owner.nodes == {"gpu009"}
    assert returned.success
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()).incidents == ()
    assert [entry.kind for entry in autopilot.received(*EntryKind)] == [EntryKind.DRAIN, EntryKind.RESUME]


@pytest.mark.parametrize(
    ("op", "config"),
    [
        pytest.param("drain_one_node", {"node": "gpu999", "reason": "x"}, id="unknown node"),
        pytest.param("drain_one_node", {"node": "$(reboot)", "reason": "x"}, id="hostile name"),
        pytest.param("drain_one_node", {"actor": "ada", "node": "gpu009", "reason": "x"}, id="a name from a form"),
        pytest.param("drain_one_node", {"nodes": ["gpu009"], "reason": "x"}, id="misspelt key"),
    ],
)
def test_a_drain_by_hand_of_what_is_not_known_fails_and_touches_nothing(
    autopilot: SmallAutopilot, op: str, config: dict[str, object]
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        try:
            succeeded = run_job(autopilot, "drain_node", instance, **hand_config(op, **config)).success
        except dg.DagsterInvalidConfigError:
            succeeded = False

    assert not succeeded
    assert autopilot.received(*EntryKind) == ()


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        ("pause_autopilot", "pause_new_actions", {"reason": "x"}),
        ("resume_autopilot", None, {}),
        ("approve_plan", "approve_one_plan", {"plan": "PLAN-0123456789ab"}),
        ("drain_node", "drain_one_node", {"node": "gpu009", "reason": "x"}),
        ("return_node", "return_one_node", {"node": "gpu009", "reason": "x"}),
    ],
)
def test_a_job_of_a_person_without_a_login_acts_on_nothing_and_names_the_way_to_go(
    autopilot: SmallAutopilot, job: str, op: str | None, config: dict[str, object]
) -> None:
    definition = definitions_on(autopilot.cluster).resolve_job_def(job)
    given = {} if op is None else {"run_config": hand_config(op, **config)}
    with dg.DagsterInstance.ephemeral() as instance:
        before = autopilot.cluster.ledger.read_state(autopilot.clock.now())
        result = launch(definition, instance, login=None, **given)

    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = str(failure.step_failure_data.error)
    assert "nobody's login is behind this run" in said
    assert "instead: " in said
    assert autopilot.received(*EntryKind) == ()
    assert autopilot.cluster.ledger.read_state(autopilot.clock.now()) == before
