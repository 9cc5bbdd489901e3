"""The part of the ledger's contract on actions and on the lease under which they begin."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.action import ActionRecord, OutcomeKind
from ops_pipelines.core.entries import (
    KEPT_ACTS,
    AlreadyBegun,
    Approval,
    Begun,
    EntryKind,
    LedgerConflict,
    LedgerError,
    LedgerState,
    Pause,
)
from ops_pipelines.core.identity import ActionKey, IncidentId, PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.proof import ActProof, Patience, Refusal
from tests.ports.ledger_samples import (
    NO_LIMIT,
    NOW,
    SECOND,
    allow,
    begin,
    decide,
    drain,
    incident,
    kinds,
    outcome,
    page,
    plan,
    record,
    refuse,
    refusing,
)


class LedgerActionContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    # -- actions --

    def test_action_begins_once_and_its_key_is_then_known(self, ledger: Ledger) -> None:
        first = begin(ledger, drain(1))
        second = begin(ledger, replace(drain(1), text="other words"), at=NOW + SECOND)

        assert first == Begun(record=record(drain(1)))
        assert second == AlreadyBegun(record=record(drain(1)))
        assert kinds(ledger) == [EntryKind.ACTION_BEGUN]

    def test_key_that_is_known_is_answered_whatever_else_holds(self, ledger: Ledger) -> None:
        begin(ledger, drain(1))
        ledger.finish(drain(1).key, outcome(), actor="autopilot")
        ledger.pause(Pause(actor="ada", since=NOW, reason="stop"))
        over = replace(record(drain(1)), outcome=outcome())

        again = ledger.begin(over, guard=refusing("no room"), lease_token="gone", actor="autopilot", now=NOW)

        assert again == AlreadyBegun(record=over)

    def test_action_that_is_over_before_it_began_is_an_error(self, ledger: Ledger) -> None:
        over = replace(record(drain(1)), outcome=outcome())

        with pytest.raises(LedgerError):
            ledger.begin(over, guard=allow, lease_token=None, actor="autopilot", now=NOW)

    def test_guard_sees_the_state_and_its_refusal_is_recorded_once_per_reason(self, ledger: Ledger) -> None:
        begin(ledger, drain(1))
        seen: list[LedgerState] = []

        def guard(act: ActionRecord, state: LedgerState) -> Refusal | None:
            seen.append(state)
            return refuse(f"{len(state.records)} node(s) are out")

        answers = [
            ledger.begin(record(drain(2)), guard=guard, lease_token=None, actor="autopilot", now=NOW) for _ in range(2)
        ]
        begin(ledger, drain(3))
        ledger.begin(record(drain(2)), guard=guard, lease_token=None, actor="autopilot", now=NOW)

        assert answers == [refuse("1 node(s) are out")] * 2
        assert seen[0].records == (record(drain(1)),)
        assert kinds(ledger).count(EntryKind.ACTION_REFUSED) == 2
        assert ledger.records(IncidentId("INC-0002")) == ()

    def test_guard_that_fails_leaves_nothing_behind(self, ledger: Ledger) -> None:
        def guard(act: ActionRecord, state: LedgerState) -> Refusal | None:
            raise ZeroDivisionError("a fault of ours")

        with pytest.raises(ZeroDivisionError):
            ledger.begin(record(drain(1)), guard=guard, lease_token=None, actor="autopilot", now=NOW)

        assert ledger.read_state(NOW).head_seq == 0
        assert isinstance(begin(ledger, drain(1)), Begun)

    def test_pause_refuses_acts_and_lets_messages_pass(self, ledger: Ledger) -> None:
        ledger.pause(Pause(actor="ada", since=NOW, reason="maintenance"))

        act = begin(ledger, drain(1))
        message = begin(ledger, page(1))

        assert isinstance(act, Refusal)
        assert (act.guardrail, act.patience) == ("pause", Patience.WAIT)
        assert isinstance(message, Begun)

    def test_actions_begun_together_are_judged_one_after_the_other_on_what_those_before_took(
        self, ledger: Ledger
    ) -> None:
        begin(ledger, drain(1))

        def room_for_two(act: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
            return refuse("no room") if len(state.records) >= 2 else act.proof

        answers = ledger.begin_all(
            [record(drain(number)) for number in (1, 2, 3)],
            guard=room_for_two,
            lease_token=None,
            actor="autopilot",
            now=NOW,
        )

        assert answers == (AlreadyBegun(record=record(drain(1))), Begun(record=record(drain(2))), refuse("no room"))
        assert kinds(ledger) == [EntryKind.ACTION_BEGUN, EntryKind.ACTION_BEGUN, EntryKind.ACTION_REFUSED]
        assert ledger.begin_all([], guard=room_for_two, lease_token=None, actor="autopilot", now=NOW) == ()

    def test_actions_begun_together_begin_together_or_not_at_all(self, ledger: Ledger) -> None:
        def fails_on_the_second(begun: ActionRecord, state: LedgerState) -> ActProof | None:
            if begun.action == drain(2):
                raise ZeroDivisionError("a fault of ours")
            return begun.proof

        with pytest.raises(ZeroDivisionError):
            ledger.begin_all(
                [record(drain(1)), record(drain(2))],
                guard=fails_on_the_second,
                lease_token=None,
                actor="autopilot",
                now=NOW,
            )

        assert ledger.read_state(NOW).head_seq == 0

    def test_actions_are_finished_together(self, ledger: Ledger) -> None:
        for number in (1, 2):
            begin(ledger, drain(number))

        ledger.finish_all({drain(1).key: outcome(), drain(2).key: outcome(OutcomeKind.FAILED)}, actor="autopilot")

        found = [ledger.records(IncidentId(f"INC-000{number}"))[0] for number in (1, 2)]
        assert [each.outcome for each in found] == [outcome(), outcome(OutcomeKind.FAILED)]
        assert ledger.verify_chain().first_broken_seq is None

    def test_outcomes_of_which_one_conflicts_are_all_left_unwritten(self, ledger: Ledger) -> None:
        for number in (1, 2):
            begin(ledger, drain(number))
        ledger.finish(drain(2).key, outcome(), actor="autopilot")

        with pytest.raises(LedgerConflict):
            ledger.finish_all({drain(1).key: outcome(), drain(2).key: outcome(OutcomeKind.FAILED)}, actor="autopilot")

        assert ledger.records(IncidentId("INC-0001"))[0].outcome is None

    # -- sending again --

    def test_of_two_that_want_to_send_again_only_the_first_may(self, ledger: Ledger) -> None:
        begin(ledger, drain(1))
        seen = len(ledger.resent_at(drain(1).key))

        answers = [
            ledger.begin_again(record(drain(1)), after=seen, guard=allow, lease_token=None, actor=name, now=NOW)
            for name in ("one", "other")
        ]

        assert answers == [Begun(record=record(drain(1))), AlreadyBegun(record=record(drain(1)))]
        assert ledger.resent_at(drain(1).key) == (NOW,)

    def test_resending_of_one_action_says_nothing_of_another(self, ledger: Ledger) -> None:
        for try_number in (1, 2):
            begin(ledger, drain(1, try_number=try_number))

        ledger.begin_again(record(drain(1)), after=0, guard=allow, lease_token=None, actor="autopilot", now=NOW)

        assert ledger.resent_at(drain(1, try_number=2).key) == ()

    @pytest.mark.parametrize("what", ["marked sent", "finished"])
    def test_what_was_accepted_or_is_over_is_not_sent_again(self, ledger: Ledger, what: str) -> None:
        begin(ledger, drain(1))
        if what == "marked sent":
            ledger.mark_sent(drain(1).key, actor="other", now=NOW)
        else:
            ledger.finish(drain(1).key, outcome(), actor="other")

        answer = ledger.begin_again(
            record(drain(1)), after=0, guard=allow, lease_token=None, actor="autopilot", now=NOW
        )

        assert isinstance(answer, AlreadyBegun)
        assert ledger.resent_at(drain(1).key) == ()

    @pytest.mark.parametrize("rule", ["lease", "pause", "drain_budget"])
    def test_sending_again_is_judged_like_the_first_time_and_a_refusal_writes_nothing(
        self, ledger: Ledger, rule: str
    ) -> None:
        begin(ledger, drain(1))
        if rule == "pause":
            ledger.pause(Pause(actor="ada", since=NOW, reason="maintenance"))
        head = ledger.read_state(NOW).head_seq

        answer = ledger.begin_again(
            record(drain(1)),
            after=0,
            guard=refusing("no room") if rule == "drain_budget" else allow,
            lease_token="outdated" if rule == "lease" else None,
            actor="autopilot",
            now=NOW,
        )

        assert isinstance(answer, Refusal)
        assert answer.guardrail == rule
        assert ledger.read_state(NOW).head_seq == head

    def test_sending_again_what_never_began_is_an_error(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError):
            ledger.begin_again(record(drain(1)), after=0, guard=allow, lease_token=None, actor="autopilot", now=NOW)

    def test_sent_mark_keeps_the_first_time(self, ledger: Ledger) -> None:
        begin(ledger, drain(1))

        for number in (1, 2):
            ledger.mark_sent(drain(1).key, actor="autopilot", now=NOW + number * SECOND)

        assert [each.sent_at for each in ledger.records(IncidentId("INC-0001"))] == [NOW + SECOND]
        assert kinds(ledger) == [EntryKind.ACTION_BEGUN, EntryKind.ACTION_SENT]

    def test_outcome_is_written_once_and_another_kind_conflicts(self, ledger: Ledger) -> None:
        begin(ledger, drain(1))
        ledger.finish(drain(1).key, outcome(), actor="autopilot")

        ledger.finish(drain(1).key, outcome(at=NOW + SECOND), actor="autopilot")
        with pytest.raises(LedgerConflict, match="already done"):
            ledger.finish(drain(1).key, outcome(OutcomeKind.FAILED), actor="autopilot")

        assert ledger.records(IncidentId("INC-0001")) == (replace(record(drain(1)), outcome=outcome()),)
        assert kinds(ledger) == [EntryKind.ACTION_BEGUN, EntryKind.ACTION_FINISHED]

    def test_action_that_never_began_is_neither_sent_nor_finished(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match="before-entry"):
            ledger.finish(ActionKey("0" * 32), outcome(), actor="autopilot")
        with pytest.raises(LedgerError, match="before-entry"):
            ledger.mark_sent(ActionKey("0" * 32), actor="autopilot", now=NOW)

    def test_records_of_an_incident_come_in_the_order_begun(self, ledger: Ledger) -> None:
        for action in (drain(1, try_number=2), drain(2), drain(1, try_number=1)):
            begin(ledger, action)

        assert [each.action.try_number for each in ledger.records(IncidentId("INC-0001"))] == [2, 1]

    @pytest.mark.parametrize(
        ("begun_at", "state", "is_finished", "is_shown"),
        [
            pytest.param(timedelta(hours=23), IncidentState.RESOLVED, True, True, id="recent"),
            pytest.param(timedelta(hours=24), IncidentState.RESOLVED, True, False, id="old, over and closed"),
            pytest.param(timedelta(hours=24), IncidentState.RESOLVED, False, True, id="old without an outcome"),
            pytest.param(timedelta(hours=24), IncidentState.ESCALATED, True, True, id="old, its incident open"),
        ],
    )
    def test_state_shows_the_actions_that_still_matter(
        self, ledger: Ledger, begun_at: timedelta, state: IncidentState, is_finished: bool, is_shown: bool
    ) -> None:
        decide(ledger, incident(1, state=state))
        begin(ledger, drain(1), at=NOW - begun_at)
        if is_finished:
            ledger.finish(drain(1).key, outcome(), actor="autopilot")

        assert bool(ledger.read_state(NOW).records) is is_shown

    def test_state_shows_what_is_kept_in_sight_however_old_it_is(self, ledger: Ledger) -> None:
        later = NOW + timedelta(days=3)
        for number in (1, 2):
            begin(ledger, drain(number))
            ledger.finish(drain(number).key, outcome(), actor="autopilot")
        before = ledger.read_state(later).records

        keep = f"{drain(2).key} {ActionKey('none-of-this-key')}"
        ledger.take_in(source=KEPT_ACTS, observations=(), rejected=(), cursor=keep, now=later)
        begin(ledger, drain(3), at=later)

        assert before == ()
        assert [each.action for each in ledger.read_state(later).records] == [drain(2), drain(3)]
        ledger.take_in(source=KEPT_ACTS, observations=(), rejected=(), cursor="", now=later)
        assert [each.action for each in ledger.read_state(later).records] == [drain(3)]

    def test_last_change_of_an_incident_is_the_line_of_its_own_its_plans_or_its_actions_last_change(
        self, ledger: Ledger
    ) -> None:
        name = IncidentId("INC-0001")
        decide(ledger, incident(1), incident(2), plans=(plan(1, drain(1)),))
        changes = [ledger.read_state(NOW).last_change_seq[name]]
        ledger.approve(Approval(plan=PlanId("PLAN-1"), actor="ada", given_at=NOW, expires_at=NOW + SECOND))
        changes.append(ledger.read_state(NOW).last_change_seq[name])
        begin(ledger, drain(1))
        changes.append(ledger.read_state(NOW).last_change_seq[name])
        begin(ledger, drain(2))
        ledger.begin(record(drain(1, node="gpu004")), guard=refusing("no"), lease_token=None, actor="a", now=NOW)
        changes.append(ledger.read_state(NOW).last_change_seq[name])
        ledger.finish(drain(1).key, outcome(), actor="autopilot")
        changes.append(ledger.read_state(NOW).last_change_seq[name])

        about = {entry.seq: entry.kind for entry in ledger.entries(after=0, limit=NO_LIMIT) if entry.incident == name}
        assert [about[seq] for seq in changes] == [
            EntryKind.PLAN,
            EntryKind.APPROVAL,
            EntryKind.ACTION_BEGUN,
            EntryKind.ACTION_BEGUN,
            EntryKind.ACTION_FINISHED,
        ]

    # -- lease --

    def test_lease_has_one_holder_until_it_runs_out(self, ledger: Ledger) -> None:
        ttl = 15 * SECOND

        first = ledger.take_lease(holder="a", ttl=ttl, now=NOW)
        refused = ledger.take_lease(holder="b", ttl=ttl, now=NOW + 14 * SECOND)
        taken = ledger.take_lease(holder="b", ttl=ttl, now=NOW + 15 * SECOND)

        assert first is not None
        assert refused is None
        assert taken not in (None, first)
        assert ledger.current_lease(NOW + 16 * SECOND) == taken

    def test_lease_is_renewed_by_its_holder_under_the_same_token(self, ledger: Ledger) -> None:
        first = ledger.take_lease(holder="a", ttl=15 * SECOND, now=NOW)

        renewed = ledger.take_lease(holder="a", ttl=15 * SECOND, now=NOW + 10 * SECOND)

        assert renewed == first
        assert ledger.current_lease(NOW + 24 * SECOND) == first
        assert ledger.current_lease(NOW + 25 * SECOND) is None

    def test_each_other_holder_begins_a_higher_epoch_and_the_same_one_keeps_its_own(self, ledger: Ledger) -> None:
        epochs = []
        for step, holder in enumerate(["a", "a", "b", "a"]):
            now = NOW + step * 15 * SECOND
            token = ledger.take_lease(holder=holder, ttl=15 * SECOND, now=now)
            held = ledger.held_lease(now)
            assert held is not None
            assert (held.token, held.holder, held.expires_at) == (token, holder, now + 15 * SECOND)
            epochs.append((held.epoch, held.taken_at))

        assert epochs == [(1, NOW), (1, NOW), (2, NOW + 30 * SECOND), (3, NOW + 45 * SECOND)]
        assert ledger.held_lease(NOW + 60 * SECOND) is None

    @pytest.mark.parametrize("gone", [pytest.param(True, id="gone"), pytest.param(False, id="may be there")])
    def test_only_a_holder_that_is_provably_gone_is_not_waited_for(self, ledger: Ledger, gone: bool) -> None:
        first = ledger.take_lease(holder="a", ttl=15 * SECOND, now=NOW)
        asked: list[str] = []

        def is_gone(holder: str) -> bool:
            asked.append(holder)
            return gone

        taken = ledger.take_lease(holder="b", ttl=15 * SECOND, now=NOW + SECOND, is_gone=is_gone)

        assert asked == ["a"]
        assert (taken is not None) is gone
        assert (ledger.current_lease(NOW + SECOND) == first) is not gone

    def test_withheld_sendings_are_told_apart_and_are_recorded_once(self, ledger: Ledger) -> None:
        begun = ledger.begin(record(drain(1)), guard=allow, lease_token=None, actor="autopilot", now=NOW)
        assert isinstance(begun, Begun)
        key = drain(1).key

        before = ledger.withheld(key)
        ledger.withhold(key, sending=0, actor="autopilot", now=NOW)
        ledger.withhold(key, sending=0, actor="autopilot", now=NOW + SECOND)
        once = ledger.withheld(key)
        ledger.begin_again(begun.record, after=0, guard=allow, lease_token=None, actor="autopilot", now=NOW)
        ledger.withhold(key, sending=1, actor="autopilot", now=NOW)

        assert (before, once, ledger.withheld(key)) == (frozenset(), {0}, {0, 1})
        refused = [entry for entry in ledger.entries(after=0, limit=50) if entry.kind is EntryKind.ACTION_REFUSED]
        assert len(refused) == 2
        assert ledger.verify_chain().problem == ""

    def test_no_lease_runs_before_one_is_taken(self, ledger: Ledger) -> None:
        assert ledger.current_lease(NOW) is None

    @pytest.mark.parametrize(
        ("after_seconds", "may_begin"),
        [pytest.param(14, True, id="runs"), pytest.param(15, False, id="ran out this instant")],
    )
    def test_action_begins_only_under_a_lease_that_runs(
        self, ledger: Ledger, after_seconds: int, may_begin: bool
    ) -> None:
        token = ledger.take_lease(holder="a", ttl=15 * SECOND, now=NOW)

        answer = ledger.begin(
            record(drain(1)), guard=allow, lease_token=token, actor="autopilot", now=NOW + after_seconds * SECOND
        )

        assert isinstance(answer, Begun) is may_begin

    def test_token_of_another_lease_is_refused_and_the_reason_does_not_tell_the_token(self, ledger: Ledger) -> None:
        token = ledger.take_lease(holder="a", ttl=15 * SECOND, now=NOW)
        assert token is not None

        answer = ledger.begin(record(drain(1)), guard=allow, lease_token="stale", actor="autopilot", now=NOW)

        assert isinstance(answer, Refusal)
        assert (answer.guardrail, answer.patience) == ("lease", Patience.WAIT)
        assert token not in answer.reason
