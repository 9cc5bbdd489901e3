"""A policy that allows everything, or nothing, by accident is refused with its reason; a sensible one never is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.policy import (
    BlastCaps,
    DrainBudget,
    Durations,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    RecoveryLimits,
)
from ops_pipelines.remediate.guardrails.judge import read_rulebook
from ops_pipelines.remediate.guardrails.lints import lint_policy
from tests.domain.builders import node_names, policy, topology

BEGIN = datetime(2026, 12, 1, tzinfo=UTC)


def window(begin_day: float, end_day: float) -> FreezeWindow:
    return FreezeWindow(
        name=f"day {begin_day:g}",
        begins_at=BEGIN + timedelta(days=begin_day),
        ends_at=BEGIN + timedelta(days=end_day),
    )


def in_domains(node_count: int, *, size: int) -> Topology:
    places = topology(node_count).places
    return replace(
        topology(node_count),
        places={
            name: replace(place, nvlink_domain=f"d{index // size}")
            for index, (name, place) in enumerate(places.items())
        },
    )


WIDE = DrainBudget(max_out_count=40, min_in_service_ratio=0.0, max_out_per_rack_count=40, max_new_per_hour_count=40)


@pytest.mark.parametrize(
    ("given", "places", "key"),
    [
        pytest.param(policy(), topology(40), None, id="the defaults"),
        pytest.param(policy(), topology(4), None, id="the defaults on four nodes"),
        pytest.param(policy(), topology(1), None, id="the defaults on one node"),
        pytest.param(policy(drain_budget=WIDE), topology(40), "drain_budget.max_out_count", id="all may go"),
        pytest.param(policy(drain_budget=replace(WIDE, max_out_count=39)), topology(40), None, id="all but one"),
        pytest.param(
            policy(drain_budget=replace(WIDE, min_in_service_ratio=0.001)), topology(40), None, id="one must stay"
        ),
        pytest.param(
            policy(drain_budget=DrainBudget(min_in_service_ratio=0.98)),
            topology(40),
            "drain_budget.min_in_service_ratio",
            id="none may go",
        ),
        pytest.param(policy(drain_budget=DrainBudget(min_in_service_ratio=0.97)), topology(40), None, id="one may go"),
        pytest.param(policy(drain_budget=DrainBudget(max_out_count=0)), topology(40), None, id="none shall go"),
        pytest.param(
            policy(drain_budget=DrainBudget(max_out_per_rack_count=0)),
            topology(40),
            "drain_budget.max_out_per_rack_count",
            id="none of any rack",
        ),
        pytest.param(
            policy(drain_budget=DrainBudget(max_new_per_hour_count=0)),
            topology(40),
            "drain_budget.max_new_per_hour_count",
            id="none an hour",
        ),
        pytest.param(
            policy(drain_budget=replace(WIDE, max_out_count=30), mass_event=MassEvent(min_node_count=41)),
            topology(40),
            "mass_event.min_node_count",
            id="more than there are",
        ),
        pytest.param(
            policy(drain_budget=replace(WIDE, max_out_count=30), mass_event=MassEvent(min_node_count=40)),
            topology(40),
            None,
            id="as many as there are",
        ),
        pytest.param(
            policy(mass_event=MassEvent(brake_window=timedelta(seconds=119))),
            topology(40),
            "mass_event.brake_window_seconds",
            id="a brake that forgets at once",
        ),
        pytest.param(
            policy(mass_event=MassEvent(brake_window=timedelta(seconds=120))), topology(40), None, id="a short brake"
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_out_per_leaf_count=0)),
            topology(40),
            "blast_caps.max_out_per_leaf_count",
            id="none of any leaf",
        ),
        pytest.param(policy(blast_caps=BlastCaps(max_out_per_leaf_count=7)), topology(40), None, id="all but one"),
        pytest.param(
            policy(blast_caps=BlastCaps(max_out_per_leaf_count=8)),
            topology(40),
            "blast_caps.max_out_per_leaf_count",
            id="a whole leaf",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_out_per_nvlink_domain_count=0)), topology(40), None, id="domains of one"
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_out_per_nvlink_domain_count=0)),
            in_domains(40, size=4),
            "blast_caps.max_out_per_nvlink_domain_count",
            id="none of any domain",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_out_per_nvlink_domain_count=4)),
            in_domains(40, size=4),
            "blast_caps.max_out_per_nvlink_domain_count",
            id="a whole domain",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_jobs_per_plan_count=0)),
            topology(40),
            "blast_caps.max_jobs_per_plan_count",
            id="no job",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_gpu_hours_per_plan=8 * 744 + 1)),
            topology(1),
            "blast_caps.max_gpu_hours_per_plan",
            id="more than there is",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_gpu_hours_per_plan=8 * 744)), topology(1), None, id="all there is"
        ),
        pytest.param(policy(freeze_windows=(window(0, 60),)), topology(40), None, id="sixty days"),
        pytest.param(policy(freeze_windows=(window(0, 60.01),)), topology(40), "freeze_windows", id="longer"),
        pytest.param(
            policy(freeze_windows=(window(30, 61), window(0, 30))), topology(40), "freeze_windows", id="without a gap"
        ),
        pytest.param(policy(freeze_windows=(window(0, 30), window(30.01, 61))), topology(40), None, id="with a gap"),
        pytest.param(policy(freeze_windows=(window(-400, -399),)), topology(40), None, id="long past"),
        pytest.param(
            policy(durations=Durations(soak=timedelta(0))), topology(40), "durations.soak_seconds", id="no soak"
        ),
        pytest.param(
            policy(Mode.APPROVE, durations=Durations(soak=timedelta(0))), topology(40), None, id="somebody looks"
        ),
        pytest.param(policy(durations=Durations(probation=timedelta(0))), topology(40), None, id="no probation"),
        pytest.param(
            policy(durations=Durations(reboot_limit=timedelta(0))),
            topology(40),
            "durations.reboot_limit_seconds",
            id="no time to reboot",
        ),
        pytest.param(
            policy(ladder=LadderLimits(max_gpu_resets_count=0, max_reboots_count=0, max_power_cycles_count=0)),
            topology(40),
            "ladder.max_reboots_count",
            id="no repair",
        ),
        pytest.param(
            policy(ladder=LadderLimits(max_gpu_resets_count=0, max_reboots_count=0)), topology(40), None, id="one"
        ),
        pytest.param(policy(ladder=LadderLimits(max_reboots_count=10)), topology(40), None, id="10 reboots a day"),
        pytest.param(
            policy(ladder=LadderLimits(max_reboots_count=11)),
            topology(40),
            "ladder.max_reboots_count",
            id="11 reboots a day",
        ),
        pytest.param(policy(recovery=RecoveryLimits(max_requeues_count=24)), topology(40), None, id="24 moves a day"),
        pytest.param(
            policy(recovery=RecoveryLimits(max_requeues_count=25)),
            topology(40),
            "recovery.max_requeues_count",
            id="25 moves a day",
        ),
        pytest.param(
            policy(recovery=RecoveryLimits(requeue_window=timedelta(seconds=3599))),
            topology(40),
            "recovery.requeue_window_seconds",
            id="moves kept for 3599 s",
        ),
        pytest.param(
            policy(recovery=RecoveryLimits(requeue_window=timedelta(seconds=3600))),
            topology(40),
            None,
            id="moves kept for 3600 s",
        ),
        pytest.param(
            policy(recovery=RecoveryLimits(requeue_window=timedelta(0), max_requeues_count=0)),
            topology(40),
            None,
            id="no moves at all",
        ),
        pytest.param(
            policy(ladder=LadderLimits(memory=timedelta(seconds=3599))),
            topology(40),
            "ladder.memory_seconds",
            id="repairs kept for 3599 s",
        ),
        pytest.param(
            policy(ladder=LadderLimits(memory=timedelta(seconds=3600))),
            topology(40),
            None,
            id="repairs kept for 3600 s",
        ),
        pytest.param(
            policy(durations=Durations(telemetry_stale_after=timedelta(seconds=3600))),
            topology(40),
            None,
            id="metrics of 3600 s",
        ),
        pytest.param(
            policy(durations=Durations(telemetry_stale_after=timedelta(seconds=3601))),
            topology(40),
            "durations.telemetry_stale_after_seconds",
            id="metrics of 3601 s",
        ),
        pytest.param(
            policy(durations=Durations(check_limit=timedelta(0))),
            topology(40),
            "durations.check_limit_seconds",
            id="no time for tests",
        ),
        pytest.param(policy(durations=Durations(reimage_limit=timedelta(0))), topology(40), None, id="no installing"),
        pytest.param(
            policy(durations=Durations(reimage_limit=timedelta(0)), ladder=LadderLimits(max_reimages_count=1)),
            topology(40),
            "durations.reimage_limit_seconds",
            id="no time to install",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_jobs_per_plan_count=320)), topology(40), None, id="320 jobs on 320 GPUs"
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_jobs_per_plan_count=321)),
            topology(40),
            "blast_caps.max_jobs_per_plan_count",
            id="321 jobs on 320 GPUs",
        ),
        pytest.param(
            policy(blast_caps=BlastCaps(max_gpu_hours_per_hour=1e9)),
            topology(40),
            "blast_caps.max_gpu_hours_per_hour",
            id="all work of a lifetime",
        ),
        pytest.param(
            policy(untouchable_nodes=frozenset(node_names(40))), topology(40), "untouchable_nodes", id="no node"
        ),
        pytest.param(policy(untouchable_nodes=frozenset(node_names(39))), topology(40), None, id="one node"),
    ],
)
def test_an_accident_is_told_by_its_key(given: Policy, places: Topology, key: str | None) -> None:
    reasons = lint_policy(given, places)

    assert [reason.split(" ", 1)[0].rstrip(":") for reason in reasons] == ([] if key is None else [key])


def test_the_rulebook_names_each_guardrail_once_and_says_what_it_is_judged_on() -> None:
    rows = read_rulebook(policy(freeze_windows=(window(0, 1),)))

    assert len({row.guardrail for row in rows}) == len(rows)
    assert all(row.judged_on for row in rows)
    assert next(row.limit for row in rows if row.guardrail == "freeze_window") == "day 0 until 2026-12-02 00:00 UTC"
