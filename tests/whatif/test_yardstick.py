"""The simulation beside the yardstick: the same constants, the same peers, and the same answer to the same inputs."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ops_pipelines_lab.whatif import peers
from ops_pipelines_lab.whatif.fault_mix import Group, read_scenario
from ops_pipelines_lab.whatif.play import play_autopilot
from ops_pipelines_lab.whatif.training import BLOCK_SECONDS, SAVE_SECONDS, best_regime, summarise
from tests.whatif import yardstick
from tests.whatif.small_world import rules_for, small_measured, small_scenario

pytestmark = pytest.mark.skipif(
    not yardstick.SCRIPT.exists(), reason="the yardstick (../shared/yardstick/ettr_sim.py) is not there"
)


@pytest.fixture(scope="module")
def sim() -> ModuleType:
    return yardstick.load()


def test_spares_and_start_and_checkpoints_are_the_yardsticks(sim: ModuleType) -> None:
    ours, scenario, theirs = sim.POLICIES["ours_target"], read_scenario("llama3"), sim.SCEN["llama3"]

    assert (scenario.spare_count, scenario.repair_hours) == (theirs.spares, theirs.repair_h)
    assert (scenario.repeat_seconds, scenario.slow_ratio) == (theirs.repeat_mean_s, theirs.slow_frac)
    assert scenario.wide_network_ratio == theirs.p_catastrophic
    assert scenario.published_running_ratio == theirs.run_fraction_ref
    assert ours.sched_s == peers.STANDBY.seconds == ours.planned_sched_s
    assert ours.sched_short_s == pytest.approx(peers.RESCHEDULE.seconds, rel=0.002)
    assert (peers.START.seconds, ours.planned_merge) == (160.0, 0.5)
    assert (sim.Ckpt().block_s, sim.Ckpt().save_s) == (BLOCK_SECONDS, SAVE_SECONDS)
    interval, overhead = sim.Ckpt(0.0).resolve(scenario.mtbf_seconds)
    regime = best_regime(scenario.mtbf_seconds)
    assert (regime.interval_seconds, regime.overhead_ratio) == (pytest.approx(interval), pytest.approx(overhead))


def test_the_mix_is_the_yardsticks_row_by_row(sim: ModuleType) -> None:
    mix = [kind for kind in read_scenario("llama3").kinds if kind.group is not Group.PLANNED]

    found = [(each.count, each.hang_ratio, each.silent is not None, each.ends_node, each.persist_ratio) for each in mix]
    theirs = [
        (count, hang, silent is not None, down, persist) for _, count, _, hang, silent, down, persist in sim.LLAMA3
    ]
    assert found == theirs


@pytest.mark.parametrize("name", sorted(peers.PEERS))
def test_a_peer_comes_out_as_the_yardstick_says(name: str, sim: ModuleType) -> None:
    common = replace(sim.POLICIES[name], u0_s=160.0, ckpt=sim.Ckpt(0.0))

    theirs = sim.batch(sim.SCEN["llama3"], common, 12, 1000)["ettr"]
    ours = summarise([peers.play(peers.PEERS[name], read_scenario("llama3"), seed) for seed in range(1000, 1012)])

    assert ours.ettr_mean == pytest.approx(theirs, abs=0.012 if theirs < 0.85 else 0.005)


def test_the_yardstick_fed_with_our_inputs_agrees_within_a_point(tmp_path: Path) -> None:
    scenario, measured = small_scenario(days=54.0), small_measured()
    rules = rules_for(scenario)

    ours = summarise([play_autopilot(rules, scenario, measured, seed) for seed in range(1000, 1005)])
    found = yardstick.run(yardstick.policy_of(rules, scenario, measured), reps=40, directory=tmp_path)

    assert ours.ettr_mean == pytest.approx(found["ours_measured"]["ettr"], abs=0.01)
    assert ours.ettr_mean < found["oracle"]["ettr"]
