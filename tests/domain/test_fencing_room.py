"""Whether there is room to hold a silent node's jobs before the scheduler starts them elsewhere."""

from datetime import timedelta

import pytest

from ops_pipelines.core.policy import Durations, Mode, Policy, Risk
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.remediate.timeliness import find_objections


def limits(
    *,
    silence: float | None = 300.0,
    ping: float | None = None,
    answer: float = 10.0,
    unguarded: str = "there is none",
    **changes: bool,
) -> SchedulerLimits:
    """Slurm's defaults, with changes; without `ping` a node is asked every third of the silence limit, as by Slurm."""
    asked_every = ping if ping is not None or silence is None else silence / 3
    settings = {"is_every_down_node_returned": False, "is_requeue_the_default": True} | changes
    return SchedulerLimits(
        silence_limit=None if silence is None else timedelta(seconds=silence),
        ping_interval=None if asked_every is None else timedelta(seconds=asked_every),
        answer_limit=timedelta(seconds=answer),
        unguarded=unguarded,
        **settings,
    )


QUICK = Durations(confirm_unreachable_after=timedelta(0), look_every=timedelta(0), retry_after=timedelta(seconds=1))


def policy(*, mode: Mode = Mode.AUTO, confirm: float = 0.0, look: float = 0.0) -> Policy:
    durations = Durations(
        confirm_unreachable_after=timedelta(seconds=confirm),
        look_every=timedelta(seconds=look),
        retry_after=timedelta(seconds=max(1.0, confirm)),
    )
    return Policy(mode=mode, durations=durations, accepted_risks={Risk.NO_START_GUARD: "the operator's word"})


def refusals(limits: SchedulerLimits, policy: Policy) -> list[str]:
    return [objection.reason for objection in find_objections(limits, policy) if objection.is_refusal]


def cautions(limits: SchedulerLimits) -> list[str]:
    found = [objection.reason for objection in find_objections(limits, policy()) if not objection.is_refusal]
    return [reason for reason in found if "the risk is taken" not in reason]


def test_defaults_of_slurm_and_of_our_policy_leave_room() -> None:
    assert find_objections(limits(unguarded=""), Policy(mode=Mode.AUTO)) == ()


def test_restarts_that_nobody_guards_refuse_auto_until_the_risk_is_taken() -> None:
    (objection,) = find_objections(limits(), Policy(mode=Mode.AUTO))
    (taken,) = find_objections(limits(), policy())

    assert objection.is_refusal
    assert "restarts are not guarded: there is none" in objection.reason
    assert not taken.is_refusal
    assert taken.reason == "restarts are not guarded (there is none); the risk is taken: the operator's word"


def test_the_guard_turns_a_lack_of_room_into_a_warning() -> None:
    (objection,) = find_objections(limits(silence=240, unguarded=""), Policy(mode=Mode.AUTO, durations=QUICK))

    assert not objection.is_refusal
    assert objection.reason.startswith("the start guard will have to hold jobs: at SlurmdTimeout (240 s)")


@pytest.mark.parametrize(
    ("silence", "answer", "is_refused"),
    [
        # A third of it, the answer limit and a look 35 s late must stay below a half: 6 x (answer + 35).
        pytest.param(269, 10, True, id="below the boundary"),
        pytest.param(270, 10, True, id="at the boundary: 90 + 10 + 35 is half of 270"),
        pytest.param(271, 10, False, id="above the boundary"),
        pytest.param(180, 10, True, id="where it was measured: seen after 120 s, of which a look takes 15"),
        pytest.param(10, 10, True, id="far below"),
        pytest.param(210, 0, True, id="the look counts without any answer limit"),
        pytest.param(211, 0, False, id="just above, without an answer limit"),
        pytest.param(300, 14, False, id="slow answers: 100 + 14 + 35"),
        pytest.param(300, 15, True, id="slow answers: 100 + 15 + 35 is half of 300"),
        pytest.param(300, 16, True, id="slower answers"),
    ],
)
def test_silence_must_be_seen_before_half_of_the_limit_has_passed(
    silence: float, answer: float, is_refused: bool
) -> None:
    assert bool(refusals(limits(silence=silence, answer=answer), policy())) is is_refused


@pytest.mark.parametrize(
    ("confirm", "look", "is_refused"),
    [
        # 100 + 10 + 35 s until the silence is seen and 45 s for a run to start, of 300: 110 are left.
        pytest.param(109, 0, False, id="below the boundary"),
        pytest.param(110, 0, True, id="at the boundary"),
        pytest.param(111, 0, True, id="above the boundary"),
        pytest.param(94, 15, False, id="nodes are looked at every 15 s: 94 are left"),
        pytest.param(95, 15, True, id="nodes are looked at every 15 s: 95 are too many"),
    ],
)
def test_jobs_must_be_held_before_the_limit_although_we_wait_for_confirmation(
    confirm: float, look: float, is_refused: bool
) -> None:
    assert bool(refusals(limits(), policy(confirm=confirm, look=look))) is is_refused


@pytest.mark.parametrize(("confirm", "is_refused"), [(96, False), (97, True)])
def test_what_waits_is_tried_at_doubling_distances_and_not_when_it_may(confirm: float, is_refused: bool) -> None:
    durations = Durations(
        confirm_unreachable_after=timedelta(seconds=confirm),
        look_every=timedelta(0),
        retry_after=timedelta(seconds=12),
    )

    # Tried after 12, 24, 48, 96 and 192 s; 110 are left.
    reasons = refusals(limits(), Policy(mode=Mode.AUTO, durations=durations))

    assert any("held only after" in reason for reason in reasons) is is_refused


def test_refusal_names_both_keys_and_a_remedy_for_either() -> None:
    (reason,) = refusals(limits(), policy(confirm=150, look=2))

    assert reason.startswith("mode: auto is refused: at SlurmdTimeout (300 s)")
    assert (
        "held only after up to 342 s (a ping every 100 s, MessageTimeout 10 s and a look that is up to 35 s" in reason
    )
    assert "Raise SlurmdTimeout above 363 s" in reason
    assert "durations.look_every_seconds, 2 s, the first try after " in reason
    assert "durations.confirm_unreachable_after_seconds, 150 s, and 45 s for a run to start" in reason
    assert reason.endswith("or set the duration below 108 s")


def test_refusal_for_late_noticing_says_what_would_be_enough() -> None:
    (reason,) = refusals(limits(silence=240), policy())

    assert "while the old processes may still write" in reason
    assert (
        "noticed only after up to 125 s (a ping every 80 s, MessageTimeout 10 s and a look that is up to 35 s" in reason
    )
    assert reason.endswith("Raise SlurmdTimeout above 270 s")


@pytest.mark.parametrize("seconds", [271, 361])
def test_remedy_of_a_refusal_is_one(seconds: float) -> None:
    confirm = 0 if seconds == 271 else 150

    assert refusals(limits(silence=seconds), policy(confirm=confirm)) == []


def test_scheduler_that_asks_too_seldom_is_told_to_ask_more_often() -> None:
    (reason,) = refusals(limits(silence=1000, ping=500), policy())

    assert reason.endswith("Let the scheduler ask its nodes more often")


def test_no_time_for_any_confirmation_is_no_remedy() -> None:
    reasons = refusals(limits(silence=10), policy(confirm=60))

    assert len(reasons) == 2
    assert not any("set the duration" in reason for reason in reasons)


def test_scheduler_that_never_gives_a_node_up_leaves_room_but_sees_no_silence() -> None:
    objections = find_objections(limits(silence=None, unguarded=""), policy(confirm=86_400))

    assert [objection.is_refusal for objection in objections] == [False]
    assert "SlurmdTimeout=0" in objections[0].reason


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
def test_other_modes_are_told_and_not_refused(mode: Mode) -> None:
    objection, _ = find_objections(limits(silence=240), policy(mode=mode))

    assert not objection.is_refusal
    assert objection.reason.startswith("mode: auto would be refused: ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"is_every_down_node_returned": True}, "ReturnToService=2", id="down nodes come back"),
        pytest.param({"is_requeue_the_default": False}, "JobRequeue=0", id="jobs stay where they are"),
    ],
)
def test_setting_that_works_against_us_is_a_caution_in_every_mode(change: dict[str, bool], named: str) -> None:
    (caution,) = cautions(limits(**change))

    assert named in caution


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"silence": 0.0, "ping": 1.0}, id="gives up at once"),
        pytest.param({"ping": 0.0}, id="asks all the time"),
        pytest.param({"answer": -1.0}, id="negative"),
    ],
)
def test_limits_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        limits(**wrong)  # type: ignore[arg-type]  # keywords of one call


def test_who_gives_silent_nodes_up_listens_to_them() -> None:
    with pytest.raises(ValueError, match="without ping_interval"):
        SchedulerLimits(
            silence_limit=timedelta(seconds=40),
            ping_interval=None,
            answer_limit=timedelta(0),
            is_every_down_node_returned=False,
            is_requeue_the_default=True,
            unguarded="",
        )
