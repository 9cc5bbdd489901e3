"""The second opinion on acts: where a guardrail is wrong, one check of it is in the way, and no other does."""

from pathlib import Path

import pytest

from ops_pipelines.remediate import act_proof
from tests.safety.hostile_plans import HOSTILE_PLANS, attempt_to_send
from tests.safety.mutations import without, without_in_ledger
from tests.safety.stage import Stage

WRONG_GUARDRAILS = {
    "target_is_known": "untouchable",
    "attempt_is_the_same": "same_attempt",
    "no_work_is_lost": "idle_node",
    "never_two_writers": "fenced_first",
    "power_is_off_first": "off_first",
    "caps_hold": "max_out_count",
    "freeze_windows_hold": "freeze_window",
    "consents_hold": "consent",
}
"""For each check a guardrail that has a fault, so that a hostile plan passes it by."""


def broken_rules(case: str, directory: Path) -> set[str]:
    plan = HOSTILE_PLANS[case]
    taken_out = (case, *plan.also)
    with without(*taken_out, keeps_second_opinion=True):
        stage = Stage(directory, plan.setting, dress=without_in_ledger(*taken_out))
        attempt_to_send(plan.arrange(stage), stage)
        stage.close()
        return set(stage.judge.broken_rules)


@pytest.mark.parametrize(("check", "case"), WRONG_GUARDRAILS.items())
def test_what_a_wrong_guardrail_lets_pass_one_check_of_the_second_opinion_holds(
    check: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken_rules(case, tmp_path / "with") == set()

    monkeypatch.setitem(act_proof.ACT_CHECKS, check, lambda _: iter(()))  # type: ignore[arg-type]

    assert case in broken_rules(case, tmp_path / "without")


def test_every_check_of_acts_is_tried() -> None:
    assert WRONG_GUARDRAILS.keys() == act_proof.ACT_CHECKS.keys()
