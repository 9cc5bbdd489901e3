"""The Dagster graph as it is meant to be: a change of it is made on purpose, here too."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.definitions import LAKE_ASSETS, RESOURCES
from ops_pipelines.definitions import defs as load_definitions
from ops_pipelines.lake.schema import TELEMETRY_TABLES

ROOT = Path(__file__).resolve().parents[2]
defs = load_definitions()
MEANING = ("inventory", "gpu_efficiency", "monitoring_coverage")
HISTORY = ("lemon_scores", "wear_out", "fleet_defects", "interruption_costs")
HEAVY = (
    "pandas",
    "pyarrow",
    "duckdb",
    "numpy",
    "hyperscan",
    "great_expectations",
    "kubernetes",
    "matplotlib",
    "plotly",
    "scipy",
    "statsmodels",
)


def test_asset_graph_follows_the_flow() -> None:
    graph = defs.resolve_asset_graph()

    parents = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }

    assert parents == {
        **{name: [] for name in LAKE_ASSETS if name not in (*MEANING, "gpu_demand")},
        "inventory": ["gpu_telemetry"],
        "gpu_efficiency": ["fabric_telemetry", "gpu_telemetry", "job_allocations"],
        "monitoring_coverage": sorted([*TELEMETRY_TABLES, "inventory"]),
        "gpu_demand": ["gpu_efficiency", "inventory", "job_accounting", "job_allocations"],
        "gpu_demand_daily": ["gpu_demand"],
        "daily_peaks": sorted(
            [
                *("gpu_demand", "inventory", "job_accounting", "job_allocations", "storage_telemetry"),
                *("node_telemetry", "fabric_telemetry", "facility_telemetry"),
            ]
        ),
        "gpu_quotas": ["gpu_demand"],
        "applied_quotas": ["gpu_quotas"],
        "placement_report": ["gpu_efficiency", "inventory", "job_accounting", "job_allocations"],
        "efficiency_advice": [
            "gpu_efficiency",
            "inventory",
            "job_accounting",
            "job_allocations",
            "job_logs",
            "job_steps",
        ],
        "capacity_forecast": ["daily_peaks"],
        "capacity_plan": ["capacity_forecast"],
        "usage_ledger": ["gpu_efficiency", "inventory", "job_allocations", "storage_telemetry"],
        "chargeback": ["job_accounting", "job_allocations", "job_logs", "usage_ledger"],
        "lemon_scores": ["inventory", "job_accounting", "kernel_events"],
        "wear_out": ["fabric_telemetry", "gpu_telemetry", "storage_telemetry"],
        "fleet_defects": ["inventory"],
        "policy_comparison": [],
        "weekly_review": [
            "inventory",
            "job_accounting",
            "job_allocations",
            "job_logs",
            "kernel_events",
            "monitoring_coverage",
        ],
        "interruption_costs": ["job_accounting", "job_allocations", "job_logs"],
        "validated_observations": [],
        "health_findings": ["validated_observations"],
        "incidents": ["health_findings"],
        "remediation_plan": ["incidents"],
        "action_log": ["remediation_plan"],
        "verifications": ["action_log"],
        "remediation_page": ["verifications"],
        "incident_reports": ["verifications"],
        "shift_report": ["verifications"],
        "fleet_versions": [],
        "rollout_plan": [],
        "rollout_pass": [],
        "rollout_progress": ["rollout_pass"],
    }


def test_every_asset_has_a_group_and_a_description() -> None:
    graph = defs.resolve_asset_graph()

    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}

    assert groups == {
        **dict.fromkeys(TELEMETRY_TABLES, "telemetry"),
        **dict.fromkeys(["job_accounting", "job_allocations", "job_steps", "job_logs", "kernel_events"], "jobs"),
        **dict.fromkeys(MEANING, "telemetry_meaning"),
        **dict.fromkeys(["gpu_demand", "gpu_demand_daily"], "quotas"),
        **dict.fromkeys(["daily_peaks", "capacity_forecast", "capacity_plan"], "capacity"),
        **dict.fromkeys(["usage_ledger", "chargeback"], "costs"),
        "placement_report": "advice",
        **dict.fromkeys(["gpu_quotas", "applied_quotas"], "quotas"),
        "efficiency_advice": "advice",
        **dict.fromkeys(HISTORY, "history"),
        "policy_comparison": "policy",
        "weekly_review": "history",
        "validated_observations": "observe",
        "health_findings": "understand",
        "incidents": "understand",
        "remediation_plan": "act",
        "action_log": "act",
        "verifications": "verify",
        "remediation_page": "report",
        "incident_reports": "report",
        "shift_report": "report",
        **dict.fromkeys(["fleet_versions", "rollout_plan", "rollout_pass", "rollout_progress"], "lifecycle"),
    }
    assert all(graph.get(key).description for key in graph.get_all_asset_keys())


def test_plan_checks_hold_up_nobody_since_the_ledger_blocks() -> None:
    repository = defs.get_repository_def()

    checks = {
        key.name: repository.asset_graph.get(key).blocking
        for key in repository.asset_graph.asset_check_keys
        if key.asset_key.to_user_string() == "remediation_plan"
    }

    assert checks == {
        "targets_are_known": False,
        "order_is_hold_fence_exclude_release": False,
        "stays_within_drain_budget": False,
        "stays_within_blast_caps": False,
        "keeps_freeze_windows": False,
        "keeps_services_serving": False,
        "mass_event_is_left_alone": False,
        "only_repairs_touch_nodes": False,
        "keeps_consents": False,
    }


def test_errors_in_an_hour_of_the_lake_block_what_is_downstream_and_warnings_do_not() -> None:
    graph = defs.get_repository_def().asset_graph

    blocking = {
        (key.asset_key.to_user_string(), key.name): graph.get(key).blocking
        for key in graph.asset_check_keys
        if key.asset_key.to_user_string() in LAKE_ASSETS
    }

    assert blocking == {
        **{(asset, name): name == "hard_gates" for asset in LAKE_ASSETS for name in ("hard_gates", "expected_data")},
        ("gpu_demand", "teams_are_declared"): False,
    }


def test_jobs_sensors_and_schedules_are_these() -> None:
    repository = defs.get_repository_def()

    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}

    assert jobs == {
        "remediate",
        "verify_nodes",
        "report_shift",
        "fill_hour",
        "weigh_history",
        "review_week",
        "advise_teams",
        "warn_of_idle",
        "sum_demand",
        "charge_teams",
        "rebalance_quotas",
        "set_quotas",
        "report_placement",
        "plan_capacity",
        "compare_policies",
        "keep_lake",
        "pause_autopilot",
        "resume_autopilot",
        "approve_plan",
        "drain_node",
        "return_node",
        "advance_rollouts",
        "plan_rollout",
        "start_rollout",
        "steer_rollout",
        "look_at_versions",
    }
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "fault_sensor",
        "remediation_sensor",
        "drained_node_sensor",
        "live_cycle_sensor",
        "records_sensor",
        "message_sensor",
        "alert_sensor",
        "rollout_sensor",
    }
    assert {schedule.name for schedule in repository.schedule_defs} == {
        "shift_report_schedule",
        "hour_schedule",
        "history_schedule",
        "weekly_review_schedule",
        "advice_schedule",
        "idle_schedule",
        "demand_schedule",
        "charge_schedule",
        "quota_schedule",
        "set_quotas_schedule",
        "placement_schedule",
        "capacity_schedule",
        "keep_lake_schedule",
        "rollout_schedule",
        "version_schedule",
    }


KINDS = {
    "act": {"remediate", "verify_nodes", "advance_rollouts", "set_quotas", "drain_node", "return_node"},
    "ask": {"pause_autopilot", "resume_autopilot", "approve_plan", "start_rollout", "steer_rollout"},
    "inspect": {
        *("report_shift", "weigh_history", "review_week", "compare_policies", "look_at_versions", "plan_rollout"),
        *("charge_teams", "advise_teams", "warn_of_idle", "report_placement", "plan_capacity", "rebalance_quotas"),
    },
    "maintain": {"fill_hour", "sum_demand", "keep_lake"},
}


def test_each_job_is_of_one_kind_by_which_people_find_it() -> None:
    found: dict[str, set[str]] = {}
    for job in defs.get_repository_def().get_all_jobs():
        if not job.name.startswith("__"):
            found.setdefault(job.tags["ops_pipelines/kind"], set()).add(job.name)

    assert found == KINDS


@pytest.mark.parametrize("name", sorted(set().union(*KINDS.values())))
def test_each_job_says_what_it_does_when_to_launch_it_and_what_it_changes(name: str) -> None:
    what, when, changes = (defs.resolve_job_def(name).description or "").split("\n\n")

    assert what
    assert when.startswith("When: ")
    assert changes.startswith("Changes: ")


def test_every_asset_has_an_owner() -> None:
    graph = defs.resolve_asset_graph()

    owners = {key.to_user_string(): graph.get(key).owners for key in graph.get_all_asset_keys()}

    assert {name: len(each) for name, each in owners.items() if len(each) != 1} == {}


def test_an_asset_that_a_schedule_makes_for_people_is_late_when_one_turn_was_missed() -> None:
    graph = defs.resolve_asset_graph()
    every = {"hour": 1, "shift": 8, "day": 24, "week": 7 * 24, "month": 31 * 24}
    made = {
        **dict.fromkeys(("monitoring_coverage", "gpu_efficiency", "fleet_versions"), "hour"),
        "shift_report": "shift",
        **dict.fromkeys((*HISTORY, "gpu_demand_daily", "gpu_quotas", "chargeback", "placement_report"), "day"),
        **dict.fromkeys(("weekly_review", "efficiency_advice"), "week"),
        "capacity_plan": "month",
    }

    policies = {key.to_user_string(): graph.get(key).freshness_policy for key in graph.get_all_asset_keys()}

    with_policy = {name: policy for name, policy in policies.items() if policy is not None}
    assert set(with_policy) == set(made)
    for name, policy in with_policy.items():
        hours = every[made[name]]
        assert hours < policy.warn_window.to_timedelta() / timedelta(hours=1) <= 2 * hours, name


def test_sensors_and_schedules_run_by_default() -> None:
    repository = defs.get_repository_def()

    statuses = {each.name: each.default_status for each in (*repository.sensor_defs, *repository.schedule_defs)}

    assert statuses == {
        "fault_sensor": dg.DefaultSensorStatus.RUNNING,
        "remediation_sensor": dg.DefaultSensorStatus.RUNNING,
        "drained_node_sensor": dg.DefaultSensorStatus.RUNNING,
        "live_cycle_sensor": dg.DefaultSensorStatus.RUNNING,
        "message_sensor": dg.DefaultSensorStatus.RUNNING,
        "alert_sensor": dg.DefaultSensorStatus.RUNNING,
        "rollout_sensor": dg.DefaultSensorStatus.RUNNING,
        "records_sensor": dg.DefaultSensorStatus.RUNNING,
        "rollout_schedule": dg.DefaultScheduleStatus.RUNNING,
        "version_schedule": dg.DefaultScheduleStatus.RUNNING,
        "shift_report_schedule": dg.DefaultScheduleStatus.RUNNING,
        "hour_schedule": dg.DefaultScheduleStatus.RUNNING,
        "history_schedule": dg.DefaultScheduleStatus.RUNNING,
        "weekly_review_schedule": dg.DefaultScheduleStatus.RUNNING,
        "advice_schedule": dg.DefaultScheduleStatus.RUNNING,
        "idle_schedule": dg.DefaultScheduleStatus.STOPPED,
        "keep_lake_schedule": dg.DefaultScheduleStatus.RUNNING,
        "demand_schedule": dg.DefaultScheduleStatus.RUNNING,
        "charge_schedule": dg.DefaultScheduleStatus.RUNNING,
        "quota_schedule": dg.DefaultScheduleStatus.RUNNING,
        "set_quotas_schedule": dg.DefaultScheduleStatus.RUNNING,
        "placement_schedule": dg.DefaultScheduleStatus.RUNNING,
        "capacity_schedule": dg.DefaultScheduleStatus.RUNNING,
    }


REPORTED = ("validated_observations", "health_findings", "incidents", "remediation_plan")
ACTING = ("action_log", "verifications", "rollout_pass", "applied_quotas")


@pytest.mark.parametrize("name", [*REPORTED, *ACTING])
def test_what_acts_and_what_leads_to_it_is_reported_by_a_job_and_nobody_can_materialise_it(name: str) -> None:
    node = defs.resolve_asset_graph().get(dg.AssetKey(name))
    everything = defs.resolve_implicit_global_asset_job_def()

    assert (node.is_external, node.is_materializable, node.is_executable) == (True, False, False)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="executable"):  # A click on Materialize asks for this.
        everything.get_subset(asset_selection={dg.AssetKey(name)})
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        dg.Definitions.merge(
            defs, dg.Definitions(jobs=[dg.define_asset_job("by_hand", selection=[name])])
        ).resolve_job_def("by_hand")


@pytest.mark.parametrize("name", ["remediate", "verify_nodes", "advance_rollouts", "set_quotas"])
def test_job_that_acts_has_no_partitions_that_could_be_filled_back_and_is_not_retried(name: str) -> None:
    job = defs.resolve_job_def(name)

    assert job.partitions_def is None
    assert not job.asset_layer.executable_asset_keys
    assert job.tags["dagster/max_retries"] == "0"


@pytest.mark.parametrize("step", ["health_findings", "incidents", "remediation_plan", "action_log"])
def test_step_that_needs_what_another_computed_cannot_be_launched_alone_nor_be_given_it_by_a_form(step: str) -> None:
    with pytest.raises(dg.DagsterInvalidSubsetError):
        defs.resolve_job_def("remediate").get_subset(op_selection=[step])


def test_morning_that_proposes_sets_nothing() -> None:
    keys = defs.resolve_job_def("rebalance_quotas").asset_layer.executable_asset_keys

    assert {key.to_user_string() for key in keys} == {"gpu_quotas"}


def test_jobs_that_act_are_in_the_lane_of_their_kind_and_are_never_retried_by_dagster() -> None:
    lanes = {"remediate": "act", "verify_nodes": "verify", "drain_node": "person", "return_node": "person"}
    for name, lane in lanes.items():
        tags = defs.resolve_job_def(name).tags

        assert tags["lane"] == lane
        assert tags["dagster/max_retries"] == "0"


def test_loading_the_definitions_imports_nothing_heavy() -> None:
    program = f"import sys, ops_pipelines.definitions; print([name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_day_that_is_over_is_weighed_each_night() -> None:
    schedule = defs.get_repository_def().get_schedule_def("history_schedule")
    with dg.instance_for_test() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2026, 11, 21, 1, 20, tzinfo=UTC),
            repository_def=defs.get_repository_def(),
        )
        requests = schedule.evaluate_tick(context).run_requests or ()

    assert schedule.cron_schedule == "20 1 * * *"
    assert [request.partition_key for request in requests] == ["2026-11-20"]
    assert {
        key.to_user_string() for key in defs.resolve_job_def("weigh_history").asset_layer.executable_asset_keys
    } == {*HISTORY}


def test_what_looks_back_over_weeks_is_no_hour_of_the_lake() -> None:
    assert not set(HISTORY) & set(LAKE_ASSETS)


def asked_at_two_past(filled: list[str], *, uncounted: Sequence[str] = ()) -> list[str | None]:
    """Return the hours that the schedule asks for at 00:02, where these were filled; of some no demand was counted."""
    at = datetime(2026, 11, 21, 0, 2, tzinfo=UTC)
    repository = defs.get_repository_def()
    with dg.instance_for_test() as instance:
        for name in ("gpu_telemetry", "job_accounting", "kernel_events", "job_logs", "gpu_demand"):
            for key in filled if name != "gpu_demand" else [each for each in filled if each not in uncounted]:
                instance.report_runless_asset_event(dg.AssetMaterialization(name, partition=key))
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=at, repository_def=repository)
        requests = repository.get_schedule_def("hour_schedule").evaluate_tick(context).run_requests or ()
    return [request.partition_key for request in requests]


def test_the_hour_that_is_over_is_filled_two_minutes_later() -> None:
    before = [f"2026-11-20-{hour:02}:00" for hour in range(18, 23)]

    assert asked_at_two_past(before) == ["2026-11-20-23:00"]


def test_hours_whose_source_was_silent_are_asked_for_again_for_six_hours() -> None:
    filled = [f"2026-11-20-{hour:02}:00" for hour in (19, 20, 22)]

    assert asked_at_two_past(filled) == ["2026-11-20-23:00", "2026-11-20-21:00", "2026-11-20-18:00"]


def test_an_hour_whose_demand_alone_failed_is_asked_for_again() -> None:
    filled = [f"2026-11-20-{hour:02}:00" for hour in range(18, 23)]

    assert asked_at_two_past(filled, uncounted=["2026-11-20-20:00"]) == ["2026-11-20-23:00", "2026-11-20-20:00"]


_WATCHED_IMPORT = """
import os, sys

import dagster  # Reads settings of its own.

asked, read = [], []

class Watched(dict):
    def __getitem__(self, key):
        asked.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        asked.append(key)
        return super().get(key, default)
    def __contains__(self, key):
        asked.append(key)
        return super().__contains__(key)

os.environ = Watched(os.environ)
sys.addaudithook(lambda event, args: event == "open" and isinstance(args[0], str) and read.append(args[0]))

import ops_pipelines.definitions as definitions

print([name for name in asked if name.startswith("OPS_PIPELINES")])
print([path for path in read if path.startswith(os.getcwd()) or path.endswith((".yaml", ".yml", ".json"))])
definitions.defs().get_repository_def()
"""


def test_importing_the_definitions_reads_no_environment_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").mkdir()  # Anyone who reads it fails, whatever user runs this.

    done = subprocess.run(
        [sys.executable, "-c", _WATCHED_IMPORT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_resources_have_no_setting_that_a_form_could_override() -> None:
    assert [name for name, resource in RESOURCES.items() if type(resource).model_fields] == []


def test_partitions_begin_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPS_PIPELINES_FIRST_HOUR", "2025-05-20-07:00")

    graph = load_definitions().resolve_asset_graph()

    names = ("gpu_telemetry", "lemon_scores", "gpu_quotas", "weekly_review", "efficiency_advice", "chargeback")
    first = {name: graph.get(dg.AssetKey(name)).partitions_def for name in (*names, "capacity_plan")}
    assert {name: each.get_first_partition_key() for name, each in first.items() if each is not None} == {
        "gpu_telemetry": "2025-05-20-07:00",
        "lemon_scores": "2025-05-20",
        "gpu_quotas": "2025-05-20",
        "weekly_review": "2025-05-26",
        "efficiency_advice": "2025-05-26",
        "chargeback": "2025-05",
        "capacity_plan": "2025-04-01",
    }
