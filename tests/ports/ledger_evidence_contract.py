"""The part of the ledger's contract on what is no history: documents, evidence, cursors, conditions."""

from dataclasses import replace

import pytest

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Rejected, Signal
from ops_pipelines.core.plan import Snapshot
from tests.ports.ledger_samples import (
    HOSTILE,
    INPUTS,
    NO_LIMIT,
    NOW,
    SECOND,
    decide,
    drain,
    incident,
    observation,
    record,
    take_in,
)


class LedgerEvidenceContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    # -- documents --

    def test_document_is_kept_under_its_sha256_and_storing_it_again_changes_nothing(self, ledger: Ledger) -> None:
        digest = ledger.store('{"a":1}')

        assert digest == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
        assert ledger.store('{"a":1}') == digest
        assert ledger.load(digest) == '{"a":1}'

    def test_unknown_document_is_an_error(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerError, match="no document"):
            ledger.load(INPUTS)

    def test_snapshot_comes_back_equal(self, ledger: Ledger) -> None:
        snapshot = Snapshot(
            taken_at=NOW,
            rules_digest=INPUTS,
            ledger_head=3,
            evidence_through=7,
            observations=(observation("1"),),
            conditions=(),
            nodes=(),
            jobs=(),
            telemetry=(),
            is_telemetry_available=True,
            incidents=(incident(1),),
            incident_count=1,
            records=(record(drain(1)),),
            is_paused=False,
        )

        assert ledger.load_snapshot(ledger.store_snapshot(snapshot)) == snapshot

    # -- evidence --

    def test_observation_taken_in_twice_is_kept_once(self, ledger: Ledger) -> None:
        first = take_in(ledger, observation("1"), observation("2"))
        second = take_in(ledger, observation("2"), observation("3"), observation("3"))

        assert (first, second) == (2, 1)
        kept = ledger.evidence_after(0, limit=NO_LIMIT)
        assert [each.observation.position for each in kept] == ["1", "2", "3"]
        assert [each.seq for each in kept] == sorted({each.seq for each in kept})
        assert ledger.read_state(NOW).evidence_head == kept[-1].seq

    def test_same_position_of_another_source_is_another_observation(self, ledger: Ledger) -> None:
        assert take_in(ledger, observation("1", source="loki"), observation("1", source="journal")) == 2

    def test_evidence_is_read_in_order_after_a_sequence_number_and_up_to_a_limit(self, ledger: Ledger) -> None:
        take_in(ledger, *(observation(str(number)) for number in range(5)))
        kept = ledger.evidence_after(0, limit=NO_LIMIT)

        assert ledger.evidence_after(kept[1].seq, limit=2) == kept[2:4]
        assert ledger.evidence_after(kept[-1].seq, limit=2) == ()

    def test_undecided_is_what_came_after_the_last_decision_up_to_a_limit(self, ledger: Ledger) -> None:
        assert ledger.undecided(limit=NO_LIMIT) == (0, ())
        take_in(ledger, *(observation(str(number)) for number in range(5)))
        kept = ledger.evidence_after(0, limit=NO_LIMIT)

        assert ledger.undecided(limit=NO_LIMIT) == (0, kept)
        decide(ledger, through=kept[1].seq)
        assert ledger.undecided(limit=NO_LIMIT) == (kept[1].seq, kept[2:])
        assert ledger.undecided(limit=2) == (kept[1].seq, kept[2:4])
        decide(ledger, through=kept[-1].seq)
        assert ledger.undecided(limit=NO_LIMIT) == (kept[-1].seq, ())

    def test_evidence_is_found_by_its_rule_and_the_time_at_which_it_happened(self, ledger: Ledger) -> None:
        late = observation("1", at=NOW + SECOND)
        first = observation("2", at=NOW)
        too_old = observation("3", at=NOW - SECOND / 1_000_000)
        other = replace(observation("4"), code=48)
        switch = replace(observation("5", at=NOW + 2 * SECOND), signal=Signal.SXID)
        line = replace(observation("6", at=NOW + 3 * SECOND), signal=Signal.LOG_SIGNATURE, signature="mlx5_link_down")
        condition = replace(observation("7"), signal=Signal.GPU_HOT, signature="xid_79")
        take_in(ledger, late, first, too_old, other, switch, line, condition)

        found = ledger.evidence_since(NOW, rules=["xid_79", "sxid_79", "mlx5_link_down"], limit=NO_LIMIT)

        assert [each.observation for each in found] == [first, late, switch, line]
        assert set(found) <= set(ledger.evidence_after(0, limit=NO_LIMIT))

    def test_of_too_much_evidence_of_a_rule_the_newest_is_found(self, ledger: Ledger) -> None:
        take_in(ledger, *(observation(str(number), at=NOW + number * SECOND) for number in (3, 0, 2, 1)))
        take_in(ledger, replace(observation("old"), code=48))

        found = ledger.evidence_since(NOW, rules={"xid_79", "xid_48"}, limit=2)

        assert [each.observation.position for each in found] == ["old", "2", "3"]

    def test_no_rule_and_hostile_rules_find_nothing_of_others(self, ledger: Ledger) -> None:
        take_in(ledger, observation("1"), replace(observation("2"), signal=Signal.LOG_SIGNATURE, signature=HOSTILE))

        assert ledger.evidence_since(NOW, rules=(), limit=NO_LIMIT) == ()
        assert [each.observation.position for each in ledger.evidence_since(NOW, rules=[HOSTILE], limit=9)] == ["2"]

    def test_cursor_moves_with_its_rows_and_none_leaves_it(self, ledger: Ledger) -> None:
        before = ledger.cursor("loki")
        take_in(ledger, observation("1"), cursor="17")
        take_in(ledger, observation("2"), cursor=None)

        assert before is None
        assert ledger.cursor("loki") == "17"
        assert ledger.cursor("journal") is None
        take_in(ledger, cursor="18")
        assert ledger.cursor("loki") == "18"

    def test_rejected_rows_are_kept_with_their_reason_newest_first(self, ledger: Ledger) -> None:
        rows = [Rejected(source="loki", position=str(n), reason="no time", text="Xid") for n in range(3)]
        for row in rows:
            ledger.take_in(source="loki", observations=(), rejected=(row, row), cursor=None, now=NOW)

        assert ledger.rejected(limit=2) == (rows[2], rows[1])

    def test_rejected_row_of_any_length_is_kept_cut(self, ledger: Ledger) -> None:
        row = Rejected(source="loki", position="1", reason="too long", text="x" * 1_000_000)

        ledger.take_in(source="loki", observations=(), rejected=(row,), cursor=None, now=NOW)

        (kept,) = ledger.rejected(limit=1)
        assert kept.reason == "too long"
        assert len(kept.text) < 10_000

    def test_condition_becomes_evidence_once_while_it_lasts_and_again_when_it_returns(self, ledger: Ledger) -> None:
        silent = observation("gpu003", source="scheduler")
        later = replace(silent, observed_at=NOW + SECOND)
        much_later = replace(silent, observed_at=NOW + 3 * SECOND)

        counts = [
            ledger.take_in_conditions(source="scheduler", present=present, now=NOW + number * SECOND)
            for number, present in enumerate([(silent,), (later,), (), (much_later,)])
        ]

        assert counts == [1, 0, 0, 1]
        positions = [each.observation.position for each in ledger.evidence_after(0, limit=NO_LIMIT)]
        assert positions == [
            "gpu003@2026-03-01T12:00:00.123456+00:00",
            "gpu003@2026-03-01T12:00:03.123456+00:00",
        ]
        assert ledger.conditions() == (much_later,)

    def test_changes_leave_what_they_do_not_name(self, ledger: Ledger) -> None:
        first, second = observation("1", source="alerts"), observation("2", source="alerts")
        ledger.take_in_conditions(source="scheduler", present=(observation("1", source="scheduler"),), now=NOW)

        counts = [
            ledger.change_conditions(source="alerts", begun=begun, ended=ended, now=NOW)
            for begun, ended in [((first, second), ()), ((first,), ()), ((), ("1", "unknown")), ((), ())]
        ]

        assert counts == [2, 0, 0, 0]
        assert [(each.source, each.position) for each in ledger.conditions()] == [("alerts", "2"), ("scheduler", "1")]
        assert len(ledger.evidence_after(0, limit=NO_LIMIT)) == 3

    def test_what_has_come_and_gone_is_evidence_and_not_remembered(self, ledger: Ledger) -> None:
        count = ledger.change_conditions(
            source="alerts", begun=(observation("1", source="alerts"),), ended=("1",), now=NOW
        )

        assert (count, ledger.conditions()) == (1, ())

    def test_lasting_condition_keeps_the_time_it_began(self, ledger: Ledger) -> None:
        began = observation("gpu003", source="scheduler")
        ledger.take_in_conditions(source="scheduler", present=(began,), now=NOW)

        still = replace(began, observed_at=NOW + 30 * SECOND)
        ledger.take_in_conditions(source="scheduler", present=(still,), now=NOW + 30 * SECOND)

        assert [condition.observed_at for condition in ledger.conditions()] == [NOW]

    def test_a_reading_that_began_before_the_remembered_one_changes_nothing(self, ledger: Ledger) -> None:
        silent = observation("node_unreachable/gpu001", source="scheduler")
        ledger.take_in_conditions(source="scheduler", present=(silent,), now=NOW)
        ledger.take_in_conditions(source="scheduler", present=(), now=NOW + 2 * SECOND)

        late = ledger.take_in_conditions(source="scheduler", present=(silent,), now=NOW + SECOND)

        assert (late, ledger.conditions()) == (0, ())
        assert ledger.take_in_conditions(source="scheduler", present=(silent,), now=NOW + 2 * SECOND) == 1

    @pytest.mark.parametrize(("seconds_back", "began_count"), [(59, 0), (60, 0), (61, 1)])
    def test_a_clock_that_was_set_back_blinds_nobody(self, ledger: Ledger, seconds_back: int, began_count: int) -> None:
        silent = observation("node_unreachable/gpu001", source="scheduler")
        ledger.take_in_conditions(source="scheduler", present=(), now=NOW)

        count = ledger.take_in_conditions(source="scheduler", present=(silent,), now=NOW - seconds_back * SECOND)

        assert count == began_count

    def test_conditions_of_one_source_do_not_end_those_of_another(self, ledger: Ledger) -> None:
        silent = observation("gpu003", source="scheduler")
        ledger.take_in_conditions(source="scheduler", present=(silent,), now=NOW)

        ledger.take_in_conditions(source="telemetry", present=(), now=NOW)

        assert ledger.conditions() == (silent,)
