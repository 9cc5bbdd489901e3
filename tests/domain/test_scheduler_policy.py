"""What settings of a scheduler mean for who waits: each row of the catalogue is found, and only where it holds."""

from collections.abc import Mapping

import pytest

from ops_pipelines.core.scheduler import SettingsRead, seconds_of
from ops_pipelines.efficiency.placement.rows import read_scheduler_policy
from ops_pipelines.efficiency.placement.scheduler_policy import ClusterFacts, PolicyFindings, find_policy_faults
from tests.domain.placement_cluster import DAY

GOOD = {
    "ClusterName": "lab",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_window=10080,bf_max_job_test=1000,bf_continue",
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "1000",
    "PriorityWeightFairShare": "100000",
    "PriorityWeightJobSize": "0",
    "PriorityWeightTRES": "(null)",
    "PriorityDecayHalfLife": "7-00:00:00",
    "PriorityUsageResetPeriod": "NONE",
    "PriorityFavorSmall": "No",
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "PreemptExemptTime": "00:30:00",
    "EnforcePartLimits": "ALL",
    "TopologyPlugin": "topology/tree",
}
PARTITION = {
    "DefaultTime": "04:00:00",
    "MaxTime": "7-00:00:00",
    "OverSubscribe": "NO",
    "PreemptMode": "REQUEUE",
    "TRES": "cpu=128,gres/gpu=16",
    "TRESBillingWeights": "CPU=1.0,GRES/gpu=16",
}
QOS = {"PreemptMode": "cluster", "UsageFactor": "1.000000", "Flags": ""}
FACTS = ClusterFacts(queue_length=700, leaf_count=4)


def judged(
    *,
    cluster: Mapping[str, str] | None = None,
    partition: Mapping[str, str] | None = None,
    qos: Mapping[str, str] | None = None,
    facts: ClusterFacts = FACTS,
) -> PolicyFindings:
    settings = SettingsRead(
        cluster={**GOOD, **(cluster or {})},
        partitions={"batch": {**PARTITION, **(partition or {})}},
        qos={"normal": {**QOS, **(qos or {})}},
        read_at=DAY,
    )
    return find_policy_faults(read_scheduler_policy(), settings, facts=facts)


def rules(found: PolicyFindings) -> list[str]:
    return [each.rule for each in found.findings]


def test_a_scheduler_that_is_set_up_well_is_not_complained_of() -> None:
    found = judged()

    assert (found.findings, found.unknown) == ((), ())


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"SchedulerType": "sched/builtin"}, ["no_backfill"]),
        ({"PriorityType": "priority/basic"}, ["first_come"]),
        (
            {"PriorityWeightAge": "0", "PriorityWeightFairShare": "0"},
            ["no_weights", "fair_share_weighs_nothing", "age_weighs_nothing"],
        ),
        ({"PriorityWeightFairShare": "0"}, ["fair_share_weighs_nothing"]),
        ({"PriorityDecayHalfLife": "00:00:00"}, ["usage_never_decays"]),
        ({"PriorityDecayHalfLife": "00:00:00", "PriorityUsageResetPeriod": "MONTHLY"}, []),
        ({"PriorityDecayHalfLife": "23:59:59"}, ["usage_forgotten_at_once"]),
        ({"PriorityDecayHalfLife": "1-00:00:00"}, []),
        ({"PriorityFavorSmall": "Yes"}, []),
        ({"PriorityFavorSmall": "Yes", "PriorityWeightJobSize": "10"}, ["favours_small"]),
        ({"PreemptMode": "CANCEL"}, ["preempts_by_cancel"]),
        ({"PreemptMode": "GANG,CANCEL"}, ["preempts_by_cancel"]),
        ({"PreemptMode": "CANCEL", "PreemptType": "preempt/none"}, []),
        ({"PreemptExemptTime": "00:00:00"}, ["no_exempt_time"]),
        ({"PreemptExemptTime": "00:00:00", "PreemptType": "(null)"}, []),
        ({"PreemptExemptTime": "00:00:00", "PreemptMode": "GANG,SUSPEND"}, []),
        ({"EnforcePartLimits": "NO"}, ["unrunnable_wait"]),
        ({"TopologyPlugin": "topology/default"}, ["no_topology"]),
        ({"SchedulerParameters": "bf_window=10079,bf_max_job_test=700"}, ["window_too_short"]),
        ({"SchedulerParameters": "bf_window=10080,bf_max_job_test=699"}, ["looks_at_too_few"]),
        ({"SchedulerParameters": "(null)"}, ["window_too_short", "looks_at_too_few"]),
    ],
)
def test_each_unwanted_setting_of_the_cluster_is_found(cluster: Mapping[str, str], expected: list[str]) -> None:
    assert rules(judged(cluster=cluster)) == expected


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ({"TRESBillingWeights": "CPU=1.0"}, ["gpus_bill_nothing"]),
        ({"TRESBillingWeights": "CPU=1.0", "TRES": "cpu=128"}, []),
        ({"TRESBillingWeights": "GRES/gpu:h100=2"}, []),
        ({"DefaultTime": "NONE"}, ["no_default_time"]),
        ({"OverSubscribe": "FORCE:4"}, ["gpus_oversubscribed"]),
        ({"OverSubscribe": "FORCE:1"}, []),
        ({"OverSubscribe": "FORCE:2"}, ["gpus_oversubscribed"]),
        ({"OverSubscribe": "EXCLUSIVE"}, []),
        ({"PreemptMode": "CANCEL"}, []),
    ],
)
def test_each_unwanted_setting_of_a_partition_is_found(partition: Mapping[str, str], expected: list[str]) -> None:
    found = judged(partition=partition)

    assert rules(found) == expected
    assert {each.where for each in found.findings} <= {"partition batch"}


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        ({"PreemptMode": "cancel"}, ["qos_preempts_by_cancel"]),
        ({"UsageFactor": "0.000000"}, ["usage_not_counted"]),
        ({"Flags": "DenyOnLimit,NoReserve"}, ["no_planned_start"]),
    ],
)
def test_each_unwanted_setting_of_a_qos_is_found(qos: Mapping[str, str], expected: list[str]) -> None:
    assert rules(judged(qos=qos)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("preempt/qos", ["qos_preempts_by_cancel"]),
        ("preempt/partition_prio", ["partition_preempts_by_cancel"]),
        ("preempt/none", []),
    ],
)
def test_whose_preempt_mode_counts_is_the_preempt_types_to_say(kind: str, expected: list[str]) -> None:
    mode = {"PreemptMode": "CANCEL"}

    assert rules(judged(cluster={"PreemptType": kind}, partition=mode, qos=mode)) == expected


def test_without_time_limits_the_window_of_the_backfill_cannot_be_judged() -> None:
    found = judged(partition={"MaxTime": "UNLIMITED"})

    assert rules(found) == ["no_longest_time"]
    assert found.unknown == ("bf_window: no partition has a time limit",)


def test_a_setting_that_nobody_shows_is_unknown_and_not_good() -> None:
    found = find_policy_faults(read_scheduler_policy(), SettingsRead(cluster={"ClusterName": "lab"}, read_at=DAY))

    assert found.findings == ()
    assert "SchedulerType: the scheduler did not show it" in found.unknown


def test_every_row_is_met_by_some_settings_and_has_its_source() -> None:
    listed = read_scheduler_policy()

    assert len({row.name for row in listed}) == len(listed)
    assert all(row.source and row.set_to and row.why for row in listed)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7-00:00:00", 604800.0), ("01:00:00", 3600.0), ("30", 1800.0), ("10:30", 630.0), ("1-12", 129600.0)],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "1:2:3:4"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        seconds_of(text)


def test_unlimited_is_no_limit() -> None:
    assert seconds_of("UNLIMITED") is None
