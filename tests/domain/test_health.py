"""The program's own health: which word, which reasons, and in which order a person is notified."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.health import (
    BESIDE,
    SILENT_AFTER,
    STUCK_AFTER,
    WATCHER,
    HealthWord,
    Heartbeat,
    VitalSigns,
    blind_without_ledger,
    judge_health,
)
from ops_pipelines.core.policy import Mode

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PAUSE = "by ada since 2026-11-21 06:00:00 UTC: power work"

BEAT = Heartbeat(
    name=WATCHER,
    at=NOW - 3 * SECOND,
    holder="host-a:1",
    note="nothing new",
    mode=Mode.AUTO,
    answers={"kernel_log": None, "scheduler": None, "telemetry": None},
    is_lease_held=True,
)
SIGNS = VitalSigns(
    taken_at=NOW,
    mode=Mode.AUTO,
    heartbeats=(BEAT,),
    is_lease_held=True,
    pause=None,
    head_seq=7,
    newest_evidence_at=NOW - 60 * SECOND,
    undecided_evidence_count=0,
    open_incidents={},
    unfinished_action_count=0,
    oldest_unfinished_begun_at=None,
)
"""A program in good health, in mode auto."""


def in_mode(mode: Mode) -> VitalSigns:
    return replace(SIGNS, mode=mode, heartbeats=(replace(BEAT, mode=mode),))


@pytest.mark.parametrize(
    ("mode", "word", "reason"),
    [
        (Mode.OBSERVE, HealthWord.OBSERVING, "plans, and acts on nothing"),
        (Mode.APPROVE, HealthWord.OBSERVING, "acts only on approved plans"),
        (Mode.AUTO, HealthWord.ACTING, "acts within its limits by itself"),
    ],
)
def test_healthy_program_is_what_its_mode_allows(mode: Mode, word: HealthWord, reason: str) -> None:
    health = judge_health(in_mode(mode))

    assert (health.word, health.reasons) == (word, (reason,))


@pytest.mark.parametrize(
    ("age", "word"),
    [
        pytest.param(SILENT_AFTER - SECOND, HealthWord.ACTING, id="59 s"),
        pytest.param(SILENT_AFTER, HealthWord.BLIND, id="60 s"),
        pytest.param(SILENT_AFTER + SECOND, HealthWord.BLIND, id="61 s"),
        pytest.param(-(SILENT_AFTER - SECOND), HealthWord.ACTING, id="59 s ahead"),
        pytest.param(-SILENT_AFTER, HealthWord.BLIND, id="60 s ahead"),
    ],
)
def test_watcher_that_is_silent_for_60_seconds_makes_it_blind(age: timedelta, word: HealthWord) -> None:
    signs = replace(SIGNS, heartbeats=(replace(BEAT, at=NOW - age),))

    assert judge_health(signs).word is word


def test_silence_is_told_with_its_length_its_process_and_what_to_look_at() -> None:
    (reason,) = judge_health(replace(SIGNS, heartbeats=(replace(BEAT, at=NOW - 90 * SECOND),))).reasons

    assert "no heartbeat of fault_sensor for 90 s, the last by host-a:1 at 2026-11-21 06:58:30 UTC" in reason
    assert "dagster-daemon" in reason


def test_beat_from_the_future_sends_a_person_to_the_clocks() -> None:
    (reason,) = judge_health(replace(SIGNS, heartbeats=(replace(BEAT, at=NOW + 3600 * SECOND),))).reasons

    assert "3600 s in the future; compare the clocks" in reason


def test_cluster_that_no_process_ever_watched_is_blind() -> None:
    other = replace(BEAT, name="drained_node_sensor")

    for heartbeats in ((), (other,)):
        health = judge_health(replace(SIGNS, heartbeats=heartbeats))
        assert health.word is HealthWord.BLIND
        assert health.reasons[0].startswith("no heartbeat of fault_sensor, ever")


@pytest.mark.parametrize("source", ["scheduler", "kernel_log", "telemetry"])
def test_source_that_does_not_answer_makes_it_blind_and_is_named(source: str) -> None:
    failing = replace(BEAT, answers={**BEAT.answers, source: "it timed out"})

    health = judge_health(replace(SIGNS, heartbeats=(failing,)))

    assert (health.word, health.reasons) == (HealthWord.BLIND, (f"{source} does not answer: it timed out",))


def test_source_that_fails_one_process_fails_the_program() -> None:
    other = replace(BEAT, name="drained_node_sensor", answers={"scheduler": "it timed out"})

    for heartbeats in ((BEAT, other), (other, BEAT)):
        signs = replace(SIGNS, heartbeats=heartbeats)
        assert signs.source_problems() == {"kernel_log": None, "scheduler": "it timed out", "telemetry": None}
        assert judge_health(signs).word is HealthWord.BLIND


def test_what_a_silent_process_said_of_a_source_long_ago_is_no_news() -> None:
    long_ago = replace(BEAT, name="drained_node_sensor", at=NOW - SILENT_AFTER, answers={"scheduler": "it timed out"})

    health = judge_health(replace(SIGNS, heartbeats=(long_ago, BEAT)))

    assert health.word is HealthWord.ACTING
    assert health.reasons[0].startswith("no heartbeat of drained_node_sensor for 60 s")


@pytest.mark.parametrize("mode", list(Mode))
def test_paused_outranks_every_mode_and_tells_by_whom(mode: Mode) -> None:
    health = judge_health(replace(in_mode(mode), pause=PAUSE))

    assert (health.word, health.reasons) == (HealthWord.PAUSED, (PAUSE,))


def test_blind_outranks_paused_and_the_pause_is_still_told() -> None:
    health = judge_health(replace(SIGNS, heartbeats=(), pause=PAUSE))

    assert health.word is HealthWord.BLIND
    assert health.reasons[1] == PAUSE


@pytest.mark.parametrize(
    ("age", "is_told"), [(STUCK_AFTER - SECOND, False), (STUCK_AFTER, True), (STUCK_AFTER + SECOND, True)]
)
def test_action_long_without_an_outcome_is_told_before_the_mode(age: timedelta, is_told: bool) -> None:
    health = judge_health(replace(SIGNS, unfinished_action_count=2, oldest_unfinished_begun_at=NOW - age))

    assert health.word is HealthWord.ACTING
    assert health.reasons[0].startswith("2 action(s) without an outcome") is is_told


def test_autopilot_that_still_works_in_the_mode_of_an_older_file_is_judged_by_what_it_does() -> None:
    health = judge_health(replace(SIGNS, mode=Mode.OBSERVE))

    assert health.word is HealthWord.ACTING
    assert "works in mode auto and by policy.yaml it is observe now" in health.reasons[0]


def test_mode_of_a_dead_autopilot_counts_no_more() -> None:
    signs = replace(SIGNS, mode=Mode.OBSERVE, heartbeats=(replace(BEAT, at=NOW - SILENT_AFTER),))

    assert signs.working_mode is Mode.OBSERVE
    assert len(judge_health(signs).reasons) == 1


def test_ledger_that_cannot_be_read_makes_it_blind() -> None:
    health = blind_without_ledger("the disk is full")

    assert (health.word, health.reasons) == (HealthWord.BLIND, ("the disk is full",))


def test_acting_never_stands_beside_a_lease_that_nobody_holds() -> None:
    health = judge_health(replace(SIGNS, is_lease_held=False))

    assert health.word is HealthWord.BLIND
    assert "no process holds the lease" in health.reasons[0]
    assert "dagster-daemon" in health.reasons[0]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
def test_who_acts_on_nothing_by_itself_is_no_blinder_without_the_lease(mode: Mode) -> None:
    assert judge_health(replace(in_mode(mode), is_lease_held=False)).word is HealthWord.OBSERVING


def test_a_second_daemon_is_named_with_what_to_do_and_changes_no_word() -> None:
    other = replace(BEAT, name=f"{WATCHER}{BESIDE}host-b:2", holder="host-b:2", is_lease_held=False)

    health = judge_health(replace(SIGNS, bystanders=(other,)))

    assert health.word is HealthWord.ACTING
    assert "host-b:2; stop the second code server or dagster-daemon" in health.reasons[0]
