"""What every outbox must do: keep each fact once, let one process at a time try it, and lose nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.entries import LedgerConflict, LedgerError
from ops_pipelines.core.notes import NOT_SENT, Audience, KeptNote, Lane, Note, NoteState, Severity
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.ports.ledger_samples import NOW

SOURCE = "messages"
SECOND = timedelta(seconds=1)


def note(key: str = "INC-0001/owner/a", **changes: object) -> Note:
    sample = Note(
        key=key,
        audience=Audience.OWNER,
        recipient="alice",
        thread="INC-0001",
        subject="INC-0001 since 07:00 UTC",
        title="your job 42 runs again",
        body="What happened: Xid 79",
        line="job 42 runs again",
        severity=Severity.NOTICE,
        lane=Lane.AT_ONCE,
        likeness="goes-on",
        made_at=NOW,
        ready_at=NOW,
    )
    return replace(sample, **changes)  # type: ignore[arg-type]  # of many types


def hand_in(ledger: SqlLedger, *notes: Note, after: str | None = None, cursor: str = "1") -> int:
    return ledger.hand_in(notes, source=SOURCE, after=after, cursor=cursor, now=NOW)


def only(notes: tuple[KeptNote, ...]) -> KeptNote:
    (kept,) = notes
    return kept


class OutboxContract:
    """A subclass provides the fixture `ledger`, an empty one."""

    def test_note_comes_back_as_it_was_handed_in_and_waits(self, ledger: SqlLedger) -> None:
        given = note(recipient="bob \u202e@all", body="line\nline", lost_gpu_hours=1.5, is_last=True)

        assert hand_in(ledger, given) == 1

        kept = only(ledger.waiting_notes(limit=10))
        assert (kept.note, kept.state, kept.batch, kept.attempt_count) == (given, NoteState.WAITING, None, 0)
        assert kept.next_at == given.ready_at

    def test_the_same_fact_is_kept_once_and_in_its_first_words(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note(), note(title="other words"))
        count = hand_in(ledger, note(title="later words"), note("INC-0001/owner/b"), after="1", cursor="2")

        assert count == 1
        assert [each.note.title for each in ledger.notes_of("INC-0001")] == ["your job 42 runs again"] * 2

    def test_cursor_moves_with_the_notes_or_neither_does(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note())

        with pytest.raises(LedgerConflict, match="somebody else notified in between"):
            hand_in(ledger, note("INC-0002/owner/b"), after=None, cursor="7")

        assert ledger.cursor(SOURCE) == "1"
        assert len(ledger.waiting_notes(limit=10)) == 1

    def test_nothing_to_tell_moves_the_cursor_alone(self, ledger: SqlLedger) -> None:
        assert hand_in(ledger) == 0
        assert ledger.cursor(SOURCE) == "1"

    def test_waiting_notes_come_in_order_up_to_the_limit(self, ledger: SqlLedger) -> None:
        hand_in(ledger, *(note(f"INC-{number:04d}/owner/a", thread=f"INC-{number:04d}") for number in range(5)))

        assert [each.note.thread for each in ledger.waiting_notes(limit=2)] == ["INC-0000", "INC-0001"]

    def test_claimed_notes_are_nobody_elses_until_the_claim_runs_out(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note())
        until = NOW + 60 * SECOND

        assert ledger.claim_notes("MSG-1", [note().key], until=until, now=NOW)
        assert not ledger.claim_notes("MSG-2", [note().key], until=until, now=NOW)
        assert not ledger.claim_notes("MSG-1", [note().key], until=until, now=until - SECOND)
        assert ledger.claim_notes("MSG-1", [note().key], until=until, now=until)
        assert not ledger.claim_notes("MSG-2", [note().key], until=until, now=until + SECOND)
        assert only(ledger.waiting_notes(limit=10)).attempt_count == 2

    def test_notes_are_claimed_together_or_not_at_all(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note("a"), note("b"))
        ledger.claim_notes("MSG-1", ["a"], until=NOW + SECOND, now=NOW)

        assert not ledger.claim_notes("MSG-2", ["a", "b"], until=NOW + SECOND, now=NOW)
        assert not ledger.claim_notes("MSG-2", [], until=NOW + SECOND, now=NOW)
        assert [each.batch for each in ledger.waiting_notes(limit=10)] == ["MSG-1", None]

    def test_delivered_notes_count_as_one_message_to_their_recipient(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note("a"), note("b"), note("c", recipient="bob"))
        ledger.claim_notes("MSG-1", ["a", "b"], until=NOW + SECOND, now=NOW)
        ledger.mark_delivered("MSG-1", receipt="taken by JSON", now=NOW)

        assert ledger.sent_times(NOW) == {(Audience.OWNER, "alice"): (NOW,)}
        assert ledger.sent_times(NOW + SECOND) == {}
        assert [each.receipt for each in ledger.recent_notes(limit=10)] == ["", "taken by JSON", "taken by JSON"]

    def test_what_was_settled_before_it_went_out_counts_as_no_message(self, ledger: SqlLedger) -> None:
        """Else questions that nobody got would use up the room for the one that waits for an answer."""
        hand_in(ledger, note("a"), note("b"))
        for name in ("a", "b"):
            ledger.claim_notes(f"MSG-{name}", [name], until=NOW + SECOND, now=NOW)
        ledger.mark_delivered("MSG-a", receipt=f"{NOT_SENT}it was settled before", now=NOW)
        ledger.mark_delivered("MSG-b", receipt="taken", now=NOW)

        assert ledger.sent_times(NOW) == {(Audience.OWNER, "alice"): (NOW,)}

    def test_failed_message_waits_and_one_given_up_stays_listed(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note("a"), note("b"))
        for name in ("a", "b"):
            ledger.claim_notes(f"MSG-{name}", [name], until=NOW + SECOND, now=NOW)
        ledger.mark_undelivered("MSG-a", problem="no answer", again_at=NOW + 30 * SECOND, now=NOW)
        ledger.mark_undelivered("MSG-b", problem="no answer", again_at=None, now=NOW)

        waiting = only(ledger.waiting_notes(limit=10))
        assert (waiting.note.key, waiting.next_at, waiting.problem) == ("a", NOW + 30 * SECOND, "no answer")
        assert ledger.count_notes() == {NoteState.WAITING: 1, NoteState.SENT: 0, NoteState.UNDELIVERABLE: 1}

    def test_delivery_of_what_was_never_begun_is_an_error(self, ledger: SqlLedger) -> None:
        with pytest.raises(LedgerError, match="never started"):
            ledger.mark_delivered("MSG-9", receipt="", now=NOW)

    def test_only_what_was_sent_long_ago_is_forgotten(self, ledger: SqlLedger) -> None:
        hand_in(ledger, note("a"), note("b"))
        ledger.claim_notes("MSG-a", ["a"], until=NOW, now=NOW)
        ledger.mark_delivered("MSG-a", receipt="", now=NOW)

        assert ledger.forget_sent(NOW) == 0
        assert ledger.forget_sent(NOW + SECOND) == 1
        assert [each.note.key for each in ledger.recent_notes(limit=10)] == ["b"]
