"""What the simulation rests on: tables, the evidence that they lead to, a policy written for another cluster."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName
from ops_pipelines.core.policy import Mode, PolicyError
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.config.policy_file import read_borrowed_policy
from ops_pipelines_lab.whatif.autopilot import EPOCH, cluster_of, refuse_unknown
from ops_pipelines_lab.whatif.fault_mix import Group, read_scenario
from ops_pipelines_lab.whatif.measured import (
    NOTHING,
    Classification,
    Fixed,
    Sign,
    read_measured,
    seconds_held,
    seconds_until_hold,
)
from ops_pipelines_lab.whatif.play import NodePool
from ops_pipelines_lab.whatif.simulation import assumptions_changed

LARGE = Path(__file__).parents[2] / "deploy" / "policy-large-training.yaml"
TOPOLOGY = cluster_of(2_112, gpus_per_node=8)


def test_the_mix_has_as_many_interruptions_as_were_published() -> None:
    scenario = read_scenario("llama3")

    failures = sum(kind.count for kind in scenario.kinds if kind.group is not Group.PLANNED)
    assert (failures, sum(kind.count for kind in scenario.kinds)) == (419, 466)
    hangs = sum(kind.count * kind.hang_ratio for kind in scenario.kinds)
    assert hangs / failures == pytest.approx(0.125, abs=0.01)


def test_half_the_nodes_are_struck_half_as_often() -> None:
    whole = read_scenario("llama3")

    assert replace(whole, gpu_count=8_192).mean_gap_seconds == pytest.approx(2 * whole.mean_gap_seconds)


def test_every_rule_of_the_tables_is_a_rule_of_the_catalogue() -> None:
    refuse_unknown(read_measured().rules, read_catalogue(), at=EPOCH)

    with pytest.raises(ValueError, match="no_such_rule"):
        refuse_unknown(frozenset({"no_such_rule"}), read_catalogue(), at=EPOCH)


def test_every_class_that_the_mix_shows_was_measured() -> None:
    measured, scenario = read_measured(), read_scenario("llama3")

    classes = {name for kind in scenario.kinds for name, _ in kind.shows_as} - {NOTHING}
    assert classes | {"hang_one_rank", "hang_of_program"} <= measured.verdicts.keys()
    assert classes <= measured.delays.keys()


def test_most_verdicts_have_cases_of_their_own() -> None:
    measured = read_measured()

    shares = [
        (key in measured.cases, share)
        for fault, found in measured.verdicts.items()
        for (verdict, share) in _apart(found)
        if verdict.rule != NOTHING
        for key in [(fault, verdict)]
    ]
    assert sum(share for is_known, share in shares if is_known) / sum(share for _, share in shares) > 0.95


def _apart(found: tuple[tuple[Classification, float], ...]) -> list[tuple[Classification, float]]:
    bounds = [0.0, *(bound for _, bound in found)]
    return [(verdict, bound - before) for (verdict, bound), before in zip(found, bounds, strict=False)]


def test_what_is_covered_less_is_seen_less() -> None:
    half, random = replace(read_measured(), coverage_ratio=0.5), np.random.default_rng(3)

    seen = sum(half.verdict_on("gpu_off_bus", random).rule != NOTHING for _ in range(400))

    assert 150 < seen < 250


@pytest.mark.parametrize(
    ("token", "sign"),
    [
        ("xid_79@5", Sign(rule="xid_79", code=None, after_seconds=5.0)),
        ("recovery_action=2@0", Sign(rule="recovery_action", code=2, after_seconds=0.0)),
    ],
)
def test_a_sign_is_read_as_it_was_written(token: str, sign: Sign) -> None:
    assert Sign.read(token) == sign


@pytest.mark.parametrize("token", ["", "xid_79", "xid_79@", "recovery_action=x@3"])
def test_a_sign_that_says_nothing_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match=r"could not convert|invalid literal"):
        Sign.read(token)


def test_what_lies_between_the_acts_counts() -> None:
    attempt = JobAttempt(job=JobId("1"), started_at=EPOCH)
    actions = (
        Action(verb=Verb.DRAIN, incident=IncidentId("I"), node=NodeName("n")),
        *(
            Action(verb=verb, incident=IncidentId("I"), attempt=attempt)
            for verb in (Verb.NOTIFY_OWNER, Verb.HOLD, Verb.FENCE)
        ),
        Action(verb=Verb.RELEASE, incident=IncidentId("I"), attempt=attempt),
        Action(verb=Verb.REBOOT, incident=IncidentId("I"), node=NodeName("n")),
    )
    latencies = {
        "drain": Fixed(1.0), "notify_owner": Fixed(2.0), "hold": Fixed(4.0), "fence": Fixed(8.0),
        "release": Fixed(16.0), "reboot": Fixed(1e6),
        "first_act": Fixed(100.0), "run_start": Fixed(200.0), "between_acts": Fixed(1_000.0),
    }  # fmt: skip
    random = np.random.default_rng(0)

    assert seconds_until_hold(actions, latencies, random) == 100 + 200 + 1 + 2 + 1_000
    assert seconds_held(actions, latencies, random) == 4 + 8 + 16 + 3 * 1_000


def test_nodes_are_neither_made_nor_lost() -> None:
    names = [NodeName(f"n{number}") for number in range(6)]
    pool = NodePool(names, job_node_count=4)

    assert pool.send_away(names[:3]) == (names[4], names[5])
    assert (pool.vacant_count, pool.spare_count, pool.away_count) == (1, 0, 3)
    assert pool.take_back(names[0]) == (names[0],)
    assert pool.take_back(names[1]) == ()
    assert (pool.vacant_count, pool.spare_count, pool.away_count) == (0, 1, 1)
    assert len(set(pool.job_nodes)) == 4


def test_the_shipped_policy_for_one_large_training_may_be_acted_under() -> None:
    policy, left_out = read_borrowed_policy(LARGE, topology=TOPOLOGY)

    assert policy.mode is Mode.AUTO
    assert left_out == ()


def test_what_a_policy_says_of_its_own_cluster_is_left_out_and_said(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "untouchable_nodes: [login1, node00003]\n"
        "freeze_windows: [{name: visit, begins_at: 2026-01-05T00:00:00Z, ends_at: 2026-01-06T00:00:00Z}]\n"
    )

    policy, left_out = read_borrowed_policy(file, topology=TOPOLOGY)

    assert policy.untouchable_nodes == {"node00003"}
    assert policy.freeze_windows == ()
    assert [sentence.split(":")[0] for sentence in left_out] == ["untouchable_nodes", "freeze_windows"]


@pytest.mark.parametrize("text", ["untouchable_nodes: login1\n", "untouchable_nodes: ['a[']\n", "mode: yes\n", "- 1\n"])
def test_a_broken_policy_is_refused_as_ever(text: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)

    with pytest.raises(PolicyError):
        read_borrowed_policy(file, topology=TOPOLOGY)


def test_each_assumption_is_changed_alone() -> None:
    scenario, measured = read_scenario("llama3"), read_measured()

    for changed, seen in assumptions_changed(scenario, measured).values():
        assert (changed != scenario) != (seen is not measured)
