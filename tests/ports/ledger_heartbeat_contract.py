"""The part of the ledger's contract on heartbeats: the last tick of each process, and who may overwrite it."""

from collections.abc import Mapping
from datetime import datetime

from ops_pipelines.core.health import Heartbeat
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.policy import Mode
from tests.ports.ledger_samples import HOSTILE, NOW, SECOND

TTL = 15 * SECOND
ANSWERS: Mapping[str, str | None] = {"kernel_log": None, "scheduler": "slurmctld did not answer"}


def beat(
    ledger: Ledger,
    *,
    holder: str = "host-a:1",
    note: str = "nothing new",
    name: str = "fault_sensor",
    at: datetime = NOW,
) -> None:
    ledger.beat(name=name, holder=holder, note=note, mode=Mode.AUTO, answers=ANSWERS, now=at)


class LedgerHeartbeatContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    def test_beat_comes_back_as_it_was_given(self, ledger: Ledger) -> None:
        beat(ledger)

        assert ledger.heartbeats() == (
            Heartbeat(
                name="fault_sensor",
                at=NOW,
                holder="host-a:1",
                note="nothing new",
                mode=Mode.AUTO,
                answers=ANSWERS,
                is_lease_held=False,
            ),
        )

    def test_fresh_ledger_has_no_heartbeat(self, ledger: Ledger) -> None:
        assert ledger.heartbeats() == ()

    def test_tick_replaces_the_one_before_of_its_name_only_and_leaves_no_history(self, ledger: Ledger) -> None:
        for second in range(3):
            beat(ledger, at=NOW + second * SECOND)
            beat(ledger, name="drained_node_sensor", note=f"tick {second}")

        told = [(each.name, each.at, each.note) for each in ledger.heartbeats()]
        assert told == [("drained_node_sensor", NOW, "tick 2"), ("fault_sensor", NOW + 2 * SECOND, "nothing new")]
        assert ledger.read_state(NOW).head_seq == 0

    def test_beat_after_the_clock_was_set_back_counts(self, ledger: Ledger) -> None:
        beat(ledger, at=NOW + 3600 * SECOND)

        beat(ledger, at=NOW)

        assert [each.at for each in ledger.heartbeats()] == [NOW]

    def test_beat_tells_whether_its_process_has_the_lease(self, ledger: Ledger) -> None:
        ledger.take_lease(holder="host-a:1", ttl=TTL, now=NOW)
        beat(ledger, at=NOW)
        with_lease = ledger.heartbeats()[0].is_lease_held
        beat(ledger, at=NOW + TTL)

        assert with_lease is True
        assert ledger.heartbeats()[0].is_lease_held is False

    def test_process_that_only_watches_does_not_cover_up_the_silence_of_the_one_that_acts(self, ledger: Ledger) -> None:
        ledger.take_lease(holder="host-a:1", ttl=TTL, now=NOW)
        beat(ledger, holder="host-a:1")

        beat(ledger, holder="host-b:2", at=NOW + TTL - SECOND)
        before_it_ends, beside = ledger.heartbeats()
        beat(ledger, holder="host-b:2", at=NOW + TTL)

        assert (before_it_ends.holder, before_it_ends.at) == ("host-a:1", NOW)
        assert (beside.is_beside, beside.holder, beside.is_lease_held) == (True, "host-b:2", False)
        assert (ledger.heartbeats()[0].holder, ledger.heartbeats()[0].at) == ("host-b:2", NOW + TTL)

    def test_who_only_watches_is_one_row_a_process_and_forgotten_once_gone(self, ledger: Ledger) -> None:
        ledger.take_lease(holder="host-a:1", ttl=3600 * SECOND, now=NOW)
        for second in range(3):
            beat(ledger, holder="host-b:2", at=NOW + second * SECOND)
        beat(ledger, holder="host-b:2", name="remediation_sensor")
        watching = ledger.heartbeats()

        beat(ledger, holder="host-a:1", at=NOW + 603 * SECOND)

        assert [(each.is_beside, each.holder, each.at) for each in watching] == [(True, "host-b:2", NOW + 2 * SECOND)]
        assert [each.holder for each in ledger.heartbeats()] == ["host-a:1"]

    def test_hostile_and_endless_words_of_a_beat_are_kept_harmless_and_cut(self, ledger: Ledger) -> None:
        ledger.beat(
            name=HOSTILE,
            holder=HOSTILE,
            note=HOSTILE * 1000,
            mode=Mode.OBSERVE,
            answers={HOSTILE: HOSTILE * 1000},
            now=NOW,
        )

        (kept,) = ledger.heartbeats()
        assert "DROP TABLE" in kept.name
        assert len(kept.note) < 1000
        ((source, problem),) = kept.answers.items()
        assert "DROP TABLE" in source
        assert problem is not None
        assert len(problem) < 1000
        assert ledger.verify_chain().problem == ""
