"""One simulated run: what is lost, what is not seen, who is called; and that the number is not flattered."""

from dataclasses import replace

import pytest

from ops_pipelines.core.policy import BlastCaps, Mode, Policy
from ops_pipelines_lab.whatif import peers
from ops_pipelines_lab.whatif.fault_mix import FaultKind, Group, Scenario, Silent
from ops_pipelines_lab.whatif.measured import NOTHING, Classification, Measured
from ops_pipelines_lab.whatif.play import play_autopilot
from ops_pipelines_lab.whatif.training import Cause, RunResult, summarise
from tests.whatif.small_world import ROOMY, rules_for, small_measured, small_scenario


def only(name: str, **changes: object) -> Scenario:
    """Return the small world in which one kind of fault strikes, as often as all of them."""
    scenario = small_scenario()
    kind = next(each for each in scenario.kinds if each.name == name)
    changed: FaultKind = replace(kind, count=466, **changes)  # type: ignore[arg-type]  # fields of FaultKind
    return replace(scenario, kinds=(changed,))


def play(
    scenario: Scenario, *, measured: Measured | None = None, policy: Policy = ROOMY, seed: int = 1000
) -> RunResult:
    rules = rules_for(scenario, policy)
    return play_autopilot(rules, scenario, small_measured() if measured is None else measured, seed)


def without_false_alarms() -> Measured:
    return replace(small_measured(), false_isolations=())


def test_equal_arguments_give_equal_results() -> None:
    assert play(small_scenario(days=2.0)) == play(small_scenario(days=2.0))


@pytest.mark.parametrize("seed", [1000, 1001, 1002])
def test_nobody_is_better_than_who_knows_everything_at_once(seed: int) -> None:
    scenario = small_scenario()

    ours, oracle = play(scenario, seed=seed), peers.play(peers.ORACLE, scenario, seed)

    assert ours.ettr < oracle.ettr


@pytest.mark.parametrize("mode", list(Mode))
def test_every_second_of_a_run_is_accounted_for(mode: Mode) -> None:
    found = play(small_scenario(), policy=replace(ROOMY, mode=mode))

    lost = sum(seconds for _, seconds in found.lost_seconds)
    assert found.ettr * found.days * 86_400 + lost == pytest.approx(found.days * 86_400, abs=1e-3)


def test_who_may_do_more_loses_less() -> None:
    found = [
        summarise([play(small_scenario(days=10.0), policy=replace(ROOMY, mode=mode), seed=seed) for seed in (1, 2)])
        for mode in (Mode.OBSERVE, Mode.APPROVE, Mode.AUTO)
    ]

    assert found[0].ettr_mean < found[1].ettr_mean < found[2].ettr_mean


def test_who_only_observes_drains_nothing() -> None:
    found = play(small_scenario(), policy=replace(ROOMY, mode=Mode.OBSERVE))

    assert found.wrong_drain_count == 0
    assert found.human_count > 0


def test_a_program_that_crashes_once_waits_for_its_launcher_and_not_for_a_verdict() -> None:
    scenario = only("software_bug", persist_ratio=0.0)

    found = play(scenario, measured=without_false_alarms())

    detect = dict(found.lost_seconds)[Cause.DETECT]
    assert detect == pytest.approx(30.0 * found.interruption_count, rel=0.05)
    assert (found.human_count, found.wrong_drain_count) == (0, 0)


def test_a_program_that_goes_on_crashing_is_its_owners() -> None:
    found = play(only("software_bug", persist_ratio=1.0), measured=without_false_alarms())

    assert found.human_count > 0
    assert dict(found.lost_seconds)[Cause.HUMAN] > 0
    assert found.wrong_drain_count == 0


def test_what_nobody_sees_is_left_to_people() -> None:
    blind = replace(without_false_alarms(), coverage_ratio=0.0)
    scenario = only("gpu_hbm3", hang_ratio=0.0, persist_ratio=1.0)

    seen, unseen = play(scenario, measured=without_false_alarms()), play(scenario, measured=blind)

    assert unseen.ettr < seen.ettr - 0.05
    assert unseen.human_count > seen.human_count


def test_a_dead_node_is_given_up_by_the_scheduler_even_if_nobody_sees_it() -> None:
    blind = replace(without_false_alarms(), coverage_ratio=0.0)

    found = play(only("power_supply"), measured=blind, policy=replace(ROOMY, mode=Mode.OBSERVE))

    assert found.human_count == 0
    assert dict(found.lost_seconds)[Cause.DETECT] == pytest.approx(300.0 * found.interruption_count, rel=0.05)


def test_a_wrong_drain_costs_a_stop_and_a_spare() -> None:
    quiet = only("power_supply", persist_ratio=0.0)
    quiet = replace(quiet, rate_scale=1e-9)
    alarmed = replace(small_measured(), false_isolations=(("gpu_missing", 0.2),))

    found = play(quiet, measured=alarmed)

    assert found.wrong_drain_count > 20
    assert 0 <= found.wrong_drain_count - found.interruption_count <= 1
    assert dict(found.lost_seconds)[Cause.START] == pytest.approx(160.0 * found.wrong_drain_count, abs=320.0)


def test_without_spares_the_job_waits_for_a_repair() -> None:
    found = play(replace(only("faulty_gpu", hang_ratio=0.0), spare_count=1))

    assert dict(found.lost_seconds)[Cause.SPARE_WAIT] > 0


def test_a_node_that_is_wrongly_named_is_drained_and_the_fault_stays() -> None:
    wrong = Classification(rule="gpu_missing", kind="gpu", is_culprit_named=False)
    scenario = only("faulty_gpu", hang_ratio=0.0, persist_ratio=1.0, shows_as=(("gpu_off_bus", 1.0),))
    astray = replace(without_false_alarms(), verdicts={"gpu_off_bus": ((wrong, 1.0),)}, cases={})

    found = play(scenario, measured=astray)

    assert found.wrong_drain_count > 0
    assert found.human_count > 0


def test_corrupted_work_is_lost_from_its_begin() -> None:
    scenario = only("silent_data_corruption", shows_as=((NOTHING, 1.0),))
    assert scenario.kinds[0].silent is Silent.CORRUPTS
    rare = replace(scenario, kinds=(replace(scenario.kinds[0], count=20),))

    found = play(rare, measured=without_false_alarms())

    assert found.human_count > 0
    assert dict(found.lost_seconds)[Cause.LOST_WORK] > 3600.0 * found.human_count * 0.9


def test_caps_that_are_too_low_for_the_job_are_named() -> None:
    tight = replace(ROOMY, blast_caps=BlastCaps(max_out_per_partition_ratio=1.0, max_gpu_hours_per_plan=0.1))

    found = play(only("gpu_thermal_sensor", shows_as=(("slow_gpu", 1.0),)), policy=tight)

    assert "blast_radius" in dict(found.held_back)


def test_a_group_without_a_node_is_never_drained() -> None:
    scenario = small_scenario()
    software = tuple(each for each in scenario.kinds if each.group is Group.SOFTWARE)

    found = play(replace(scenario, kinds=software), measured=without_false_alarms())

    assert found.wrong_drain_count == 0
