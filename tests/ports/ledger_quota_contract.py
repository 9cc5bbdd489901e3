"""The part of the ledger's contract on proposals of quotas: superseded, moved by their table, one at a time."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.entries import EntryKind, LedgerConflict, LedgerError, Pause
from ops_pipelines.core.identity import IncidentId, digest_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.proof import QuotaProof
from ops_pipelines.core.proposal import (
    PROPOSAL_TABLE,
    GpuType,
    ProposalEvent,
    ProposalId,
    ProposalRecord,
    ProposalState,
    SentChange,
    TeamName,
)
from tests.ports.ledger_samples import HOSTILE, NO_LIMIT, kinds
from tests.ports.proved_plans import passed_quotas
from tests.ports.quota_samples import DAY, MADE_AT, kept, line, move, proposal

E = ProposalEvent
ONE_DAY = timedelta(days=1)
FIRST = (ProposalState.PROPOSED, ProposalState.REFUSED)
SENT = (
    SentChange(account=TeamName("product"), before=16, after=8),
    SentChange(account=TeamName("research"), gpu_type=GpuType("h100"), is_fairshare=True, before=None, after=3),
)
WAYS: dict[ProposalState, tuple[ProposalEvent, ...]] = {
    ProposalState.PROPOSED: (),
    ProposalState.REFUSED: (E.REFUSE,),
    ProposalState.APPLYING: (E.BEGIN,),
    ProposalState.APPLIED: (E.BEGIN, E.READ_BACK),
    ProposalState.HALF_APPLIED: (E.BEGIN, E.STOP_HALF_WAY),
    ProposalState.UNDOING: (E.BEGIN, E.READ_BACK, E.UNDO),
    ProposalState.HALF_UNDONE: (E.BEGIN, E.READ_BACK, E.UNDO, E.UNDO_STOPPED),
    ProposalState.UNDONE: (E.BEGIN, E.READ_BACK, E.UNDO, E.UNDO_READ_BACK),
    ProposalState.SUPERSEDED: (E.SUPERSEDE,),
}


UNPROVED: dict[str, Callable[[QuotaProof], QuotaProof | None]] = {
    "nobody has proved it": lambda _: None,
    "what was proved is another proposal": lambda proof: replace(proof, content=digest_of("a byte more")),
    "of another version": lambda proof: replace(proof, checks=proof.checks[1:]),
    "its proof has expired": lambda proof: replace(proof, made_at=MADE_AT - timedelta(minutes=5, seconds=1)),
    "more than there is": lambda proof: replace(proof, contradictions=("more than there is",)),
}


def of_day(number: int) -> ProposalRecord:
    made = proposal(day=DAY + number * ONE_DAY, made_at=MADE_AT + number * ONE_DAY)
    return ProposalRecord(proposal=made, state=ProposalState.PROPOSED, since=made.made_at, actor="autopilot")


class LedgerQuotaContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    def test_fresh_ledger_has_no_proposal(self, ledger: Ledger) -> None:
        assert (ledger.proposals(limit=9), ledger.proposal(ProposalId("QUOTA-1"))) == ((), None)
        with pytest.raises(LedgerError, match="there is no proposal QUOTA-1"):
            ledger.change_proposal(
                ProposalId("QUOTA-1"), E.BEGIN, actor="ada", reason="", lease_token=None, now=MADE_AT
            )

    def test_kept_proposal_comes_back_as_it_was_with_teams_that_have_no_upper_bound(self, ledger: Ledger) -> None:
        made = proposal(line("product", None, 8, guarantee=4.5), replace(line("research", 8, 16), most=20.0))

        record = kept(ledger, made)

        assert ledger.proposal(made.proposal) == record
        assert record.proposal == made
        assert ledger.proposals(limit=9) == (record,)
        assert kinds(ledger) == [EntryKind.QUOTAS]
        assert ledger.entries_about(IncidentId(made.proposal)) == ledger.entries(after=0, limit=NO_LIMIT)
        assert ledger.verify_chain().problem == ""

    def test_keeping_the_same_proposal_again_returns_what_became_of_it(self, ledger: Ledger) -> None:
        record = move(ledger, kept(ledger), E.BEGIN, E.READ_BACK, sent=SENT)

        again = kept(ledger)

        assert again == record
        assert (again.state, again.sent) == (ProposalState.APPLIED, SENT)
        assert len(kinds(ledger)) == 3

    def test_what_was_superseded_and_is_proposed_again_is_the_newest_and_waits(self, ledger: Ledger) -> None:
        first, other = proposal(), proposal(line("research", 8, 24))
        kept(ledger, first)
        kept(ledger, other)

        again = kept(ledger, first)

        assert again.state is ProposalState.PROPOSED
        assert [(each.name, each.state) for each in ledger.proposals(limit=9)] == [
            (first.proposal, ProposalState.PROPOSED),
            (other.proposal, ProposalState.SUPERSEDED),
        ]
        assert move(ledger, again, E.BEGIN, E.READ_BACK, sent=SENT).state is ProposalState.APPLIED
        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize(("actor", "comes_back"), [("autopilot", False), ("ada", True)])
    def test_what_was_undone_comes_back_by_a_persons_word_alone(
        self, ledger: Ledger, actor: str, comes_back: bool
    ) -> None:
        move(ledger, kept(ledger), E.BEGIN, E.READ_BACK, E.UNDO, E.UNDO_READ_BACK, sent=SENT)

        made = proposal()
        again = ledger.keep_proposal(
            ProposalRecord(proposal=made, state=ProposalState.PROPOSED, since=MADE_AT, actor=actor), now=MADE_AT
        )

        assert again.state is (ProposalState.PROPOSED if comes_back else ProposalState.UNDONE)
        assert again.sent == (() if comes_back else SENT)
        assert ledger.proposal(made.proposal) == again
        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize("state", [each for each in ProposalState if each not in FIRST])
    def test_new_proposal_is_proposed_or_refused(self, ledger: Ledger, state: ProposalState) -> None:
        with pytest.raises(LedgerError, match="a new one is proposed or refused"):
            kept(ledger, state=state)

        assert kinds(ledger) == []

    @pytest.mark.parametrize("state", ProposalState)
    def test_new_proposal_takes_the_place_of_those_that_were_not_begun_and_of_no_others(
        self, ledger: Ledger, state: ProposalState
    ) -> None:
        older = move(ledger, kept(ledger), *WAYS[state])
        newer = of_day(1)

        ledger.keep_proposal(newer, now=newer.since)

        now_it_is = ledger.proposal(older.name)
        assert now_it_is is not None
        if state is ProposalState.PROPOSED:
            assert (now_it_is.state, now_it_is.since) == (ProposalState.SUPERSEDED, newer.since)
            assert newer.name in now_it_is.reason
        else:
            assert now_it_is == older
        assert [each.name for each in ledger.proposals(limit=9)] == [newer.name, older.name]
        assert ledger.proposals(limit=1) == (newer,)
        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize(("state", "event"), PROPOSAL_TABLE)
    def test_proposal_moves_by_its_table(self, ledger: Ledger, state: ProposalState, event: ProposalEvent) -> None:
        record = move(ledger, kept(ledger), *WAYS[state])
        lines_before = len(kinds(ledger))

        move(ledger, record, event)

        after = ledger.proposal(record.name)
        assert after is not None
        assert after.state is PROPOSAL_TABLE[state, event]
        assert len(kinds(ledger)) == lines_before + 1
        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize("state", ProposalState)
    def test_proposal_moves_by_its_table_alone(self, ledger: Ledger, state: ProposalState) -> None:
        record = move(ledger, kept(ledger), *WAYS[state])
        lines_before = kinds(ledger)

        for event in ProposalEvent:
            if (state, event) not in PROPOSAL_TABLE:
                with pytest.raises(LedgerConflict, match=f"is {state.value} by now"):
                    move(ledger, record, event)

        assert ledger.proposal(record.name) == record
        assert kinds(ledger) == lines_before
        assert ledger.verify_chain().problem == ""

    def test_what_was_told_first_stays_while_some_of_it_is_in(self, ledger: Ledger) -> None:
        half = move(ledger, kept(ledger), E.BEGIN, E.STOP_HALF_WAY, sent=SENT)

        completed = move(ledger, half, E.BEGIN, E.READ_BACK, sent=SENT[:1])

        assert completed.sent == SENT

    def test_after_nothing_was_done_it_may_be_told_anew(self, ledger: Ledger) -> None:
        untouched = move(ledger, kept(ledger), E.BEGIN, E.NOTHING_DONE, sent=SENT)

        assert move(ledger, untouched, E.BEGIN, sent=SENT[:1]).sent == SENT[:1]

    def test_what_is_sent_is_told_with_the_beginning(self, ledger: Ledger) -> None:
        begun = move(ledger, kept(ledger), E.BEGIN)

        with pytest.raises(LedgerError, match="stated when it is started"):
            move(ledger, begun, E.READ_BACK, sent=SENT)

    @pytest.mark.parametrize("half_way", [ProposalState.APPLYING, ProposalState.UNDOING])
    def test_one_at_a_time(self, ledger: Ledger, half_way: ProposalState) -> None:
        other = move(ledger, kept(ledger), *WAYS[half_way])
        newer = of_day(1)
        ledger.keep_proposal(newer, now=newer.since)

        with pytest.raises(LedgerConflict, match=f"{other.name} is {half_way.value} since .* by ada"):
            move(ledger, newer, E.BEGIN)

        assert ledger.proposal(newer.name) == newer

    @pytest.mark.parametrize(
        ("newer_is", "may"),
        [
            (ProposalState.PROPOSED, True),
            (ProposalState.APPLIED, False),
            (ProposalState.HALF_APPLIED, False),
            (ProposalState.HALF_UNDONE, False),
            (ProposalState.UNDONE, True),
        ],
    )
    @pytest.mark.parametrize(
        ("older_is", "event"),
        [
            (ProposalState.APPLIED, E.UNDO),
            (ProposalState.HALF_APPLIED, E.UNDO),
            (ProposalState.HALF_APPLIED, E.BEGIN),
            (ProposalState.HALF_UNDONE, E.UNDO),
        ],
    )
    def test_only_the_newest_that_is_in_is_undone_or_completed(
        self, ledger: Ledger, newer_is: ProposalState, may: bool, older_is: ProposalState, event: ProposalEvent
    ) -> None:
        older = move(ledger, kept(ledger), *WAYS[older_is])
        newer = of_day(1)
        move(ledger, ledger.keep_proposal(newer, now=newer.since), *WAYS[newer_is])

        if may:
            move(ledger, older, event)
        else:
            with pytest.raises(LedgerConflict, match=f"{newer.name} was applied after {older.name}"):
                move(ledger, older, event)

    @pytest.mark.parametrize("event", [E.BEGIN, E.UNDO, E.READ_BACK])
    def test_who_shows_a_lease_must_hold_it_and_begins_nothing_while_paused(
        self, ledger: Ledger, event: ProposalEvent
    ) -> None:
        way = {E.BEGIN: (), E.UNDO: (E.BEGIN, E.READ_BACK), E.READ_BACK: (E.BEGIN,)}[event]
        record = move(ledger, kept(ledger), *way)
        token = ledger.take_lease(holder="a", ttl=timedelta(seconds=15), now=MADE_AT)

        with pytest.raises(LedgerConflict, match="the right to act"):
            move(ledger, record, event, token="another")
        with pytest.raises(LedgerConflict, match="the right to act"):
            move(ledger, record, event, token=token, at=MADE_AT + timedelta(seconds=15))
        ledger.pause(Pause(actor="eve", since=MADE_AT, reason="maintenance"))
        if event is E.READ_BACK:
            move(ledger, record, event, token=token)
        else:
            with pytest.raises(LedgerConflict, match=r"eve paused the autopilot \(maintenance\)"):
                move(ledger, record, event, token=token)
            ledger.resume_autopilot(actor="eve", now=MADE_AT)
            move(ledger, record, event, token=token, at=MADE_AT + timedelta(seconds=14))

        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize("why", UNPROVED)
    def test_proposal_is_not_begun_without_a_proof_of_just_now_that_has_passed(self, ledger: Ledger, why: str) -> None:
        record = kept(ledger)
        proof = UNPROVED[why](passed_quotas(record.proposal, ledger, at=MADE_AT))

        with pytest.raises(LedgerConflict, match=why):
            ledger.change_proposal(
                record.name, E.BEGIN, actor="ada", reason="", lease_token=None, now=MADE_AT, proof=proof
            )

        assert ledger.proposals(limit=9) == (record,)

    def test_person_may_begin_while_the_autopilot_is_paused(self, ledger: Ledger) -> None:
        ledger.pause(Pause(actor="eve", since=MADE_AT, reason="maintenance"))

        assert move(ledger, kept(ledger), E.BEGIN).state is ProposalState.APPLYING

    def test_hostile_words_come_back_as_they_were_stored(self, ledger: Ledger) -> None:
        record = kept(ledger, proposal(replace(line("research", 8, 16), reason=HOSTILE)))

        changed = ledger.change_proposal(
            record.name, E.REFUSE, actor=HOSTILE, reason=HOSTILE, lease_token=None, now=MADE_AT
        )

        stored = ledger.proposal(record.name)
        assert stored is not None
        assert stored.state is changed.state
        assert stored.reason == stored.proposal.lines[0].reason == HOSTILE.replace("\ud800", "\ufffd")
        assert ledger.verify_chain().problem == ""

    def test_team_whose_name_would_not_come_back_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match="no text"):
            kept(ledger, proposal(line("re\ud800search", 8, 16)))

        assert kinds(ledger) == []

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(moves=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ProposalEvent)), max_size=12))
    def test_whatever_is_tried_at_most_one_is_half_way_and_the_ledger_is_whole(
        self, ledger: Ledger, moves: list[tuple[int, ProposalEvent]]
    ) -> None:
        offset = len(ledger.proposals(limit=NO_LIMIT))
        records: dict[int, ProposalRecord] = {}
        for number, event in moves:
            if number not in records:
                fresh = of_day(offset + number)
                records[number] = ledger.keep_proposal(fresh, now=fresh.since)
            try:
                move(ledger, records[number], event)
            except LedgerConflict:
                continue
        for each in ledger.proposals(limit=NO_LIMIT):
            ends = {ProposalState.APPLYING: E.READ_BACK, ProposalState.UNDOING: E.UNDO_READ_BACK}
            half_way = [other for other in ledger.proposals(limit=NO_LIMIT) if other.state in ends]
            assert len(half_way) <= 1
            if each.state in ends:
                move(ledger, each, ends[each.state])

        assert ledger.verify_chain().problem == ""
