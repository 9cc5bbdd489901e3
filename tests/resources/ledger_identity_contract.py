"""What holds of a ledger's identity on both databases: one that is gone, older or another stops all acts."""

import json
import random
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ops_pipelines.core.entries import Begun, EntryKind, LedgerConflict, LedgerError, Pause
from ops_pipelines.core.observation import HISTORY
from ops_pipelines.core.proof import Refusal
from ops_pipelines.resources.ledger.copying import copy_out, put_in
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.watch import SEEN_FILE, SeenFile, mark_from
from tests.ports.ledger_samples import (
    NO_LIMIT,
    NOW,
    SECOND,
    allow,
    begin,
    decide,
    drain,
    fill,
    incident,
    observation,
    page,
    record,
    take_in,
)
from tests.resources import ledger_processes
from tests.resources.sql_ledger_contract import finish_all, start

LATER = NOW + 3600 * SECOND


def seen_ledger(url: str, directory: Path, *, now: datetime = NOW) -> SqlLedger:
    """Open a ledger as the program does: with its mark in a state directory."""
    ledger = SqlLedger(url, seen_file=SeenFile(directory))
    ledger.identify(now)
    return ledger


def live(ledger: SqlLedger, *, at: datetime = NOW) -> str | None:
    """Take the lease, as each tick does: it notes how far the ledger is."""
    return ledger.take_lease(holder="host:1", ttl=15 * SECOND, now=at)


def rules(ledger: SqlLedger) -> list[str]:
    return [each.reason for each in ledger.rejected(limit=NO_LIMIT)]


class LedgerIdentityContract:
    """A subclass provides `url`, an empty database's."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError("a subclass of LedgerIdentityContract provides the fixture `url`")

    @pytest.fixture
    def ledger(self, url: str) -> Iterator[SqlLedger]:
        ledger = SqlLedger(url)
        yield ledger
        ledger.close()

    @pytest.fixture
    def used(self, url: str, tmp_path: Path) -> SqlLedger:
        """Return a ledger that was seen with five incidents in it."""
        ledger = seen_ledger(url, tmp_path)
        for number in range(1, 6):
            decide(ledger, incident(number))
        live(ledger)
        return ledger

    def test_first_start_is_accepted_and_its_mark_is_for_its_user_alone(self, url: str, tmp_path: Path) -> None:
        ledger = seen_ledger(url, tmp_path)

        token = live(ledger)

        assert (token is not None, ledger.why_refused(), ledger.untold_news()) == (True, None, ())
        assert stat.S_IMODE((tmp_path / SEEN_FILE).stat().st_mode) == 0o600

    @pytest.mark.parametrize("loss", ["gone", "older", "written on", "another"])
    def test_ledger_that_is_not_the_one_seen_stops_all_acts(
        self, used: SqlLedger, url: str, tmp_path: Path, loss: str
    ) -> None:
        lose(loss, used, url, tmp_path)
        ledger = seen_ledger(url, tmp_path, now=LATER)

        refusal = begin(ledger, drain(1, node="gpu009"), at=LATER)
        told = begin(ledger, page(9), at=LATER)

        assert (live(ledger, at=LATER), ledger.current_lease(LATER), ledger.held_lease(LATER)) == (None, None, None)
        assert isinstance(refusal, Refusal)
        assert refusal.guardrail == "ledger"
        assert isinstance(told, Begun)
        with pytest.raises(LedgerError, match="Nothing is started"):
            take_in(ledger, observation("new", at=LATER))
        (news,) = ledger.untold_news()
        assert news.is_refusal
        ledger.mark_told(news)
        assert seen_ledger(url, tmp_path).untold_news() == ()

    def test_person_and_resent_act_are_refused_as_well(self, used: SqlLedger, url: str, tmp_path: Path) -> None:
        begun = begin(used, drain(1))
        assert isinstance(begun, Begun)
        live(used, at=NOW + 10 * SECOND)
        older = json.loads((tmp_path / SEEN_FILE).read_text())
        (tmp_path / SEEN_FILE).write_text(json.dumps({**older, "seq": older["seq"] + 1}))

        again = used.begin_again(begun.record, after=0, guard=allow, lease_token=None, actor="ada", now=NOW)
        by_hand = used.begin(record(drain(2)), guard=allow, lease_token=None, actor="ada", now=NOW)

        assert [isinstance(each, Refusal) for each in (again, by_hand)] == [True, True]

    def test_mark_that_cannot_be_read_refuses(self, used: SqlLedger, tmp_path: Path) -> None:
        (tmp_path / SEEN_FILE).write_text("half a mar")

        assert used.why_refused() is not None
        assert live(used) is None

    def test_pause_is_recorded_in_a_refused_ledger(self, used: SqlLedger, url: str, tmp_path: Path) -> None:
        lose("older", used, url, tmp_path)
        ledger = seen_ledger(url, tmp_path)

        ledger.pause(Pause(actor="ada", since=NOW, reason="look first"))

        assert ledger.read_state(NOW).pause is not None

    @pytest.mark.parametrize("loss", ["gone", "older", "written on", "another"])
    def test_order_of_a_person_takes_it_and_what_was_before_is_history(
        self, used: SqlLedger, url: str, tmp_path: Path, loss: str
    ) -> None:
        lose(loss, used, url, tmp_path)
        ledger = seen_ledger(url, tmp_path, now=NOW)

        ledger.begin_anew(actor="ada", reason="the disk is gone", now=LATER)
        token = live(ledger, at=LATER)
        new_count = take_in(ledger, observation("old", at=LATER - SECOND), observation("new", at=LATER))

        assert token is not None
        assert isinstance(begin(ledger, drain(9), at=LATER), Begun)
        assert (new_count, rules(ledger)) == (1, [HISTORY])
        assert [each.kind for each in ledger.entries(after=0, limit=NO_LIMIT)].count(EntryKind.LEDGER) == 1
        assert "the disk is gone" in ledger.untold_news()[0].words
        held = ledger.held_lease(LATER)
        assert held is not None
        assert held.epoch > LATER.timestamp()  # The runs of another's epochs are remembered by Dagster.
        assert ledger.verify_chain().problem == ""

    def test_ledger_that_somebody_else_works_with_is_not_taken(self, used: SqlLedger, url: str, tmp_path: Path) -> None:
        lose("another", used, url, tmp_path)
        other = SqlLedger(url)
        other.take_lease(holder="elsewhere:1", ttl=15 * SECOND, now=NOW)
        other.close()

        with pytest.raises(LedgerConflict, match="elsewhere:1 works with this ledger"):
            seen_ledger(url, tmp_path).begin_anew(actor="ada", reason="mine", now=NOW + 14 * SECOND)
        seen_ledger(url, tmp_path).begin_anew(actor="ada", reason="mine", now=NOW + 15 * SECOND)

    def test_ledger_that_is_the_one_seen_is_not_begun_anew(self, used: SqlLedger) -> None:
        with pytest.raises(LedgerConflict, match="the one that was seen"):
            used.begin_anew(actor="ada", reason="to be sure", now=NOW)

    def test_mark_names_a_line_that_is_there_whenever_a_process_dies(self, url: str, tmp_path: Path) -> None:
        chance = random.Random(22)
        ledger, number, now = seen_ledger(url, tmp_path), 0, NOW
        for _ in range(60):
            now += chance.choice([0, 1, 7]) * SECOND
            if chance.random() < 0.5:
                number += 1
                decide(ledger, incident(number, at=now), at=now)
            else:
                live(ledger, at=now)
            file = tmp_path / SEEN_FILE
            if file.exists():
                mark = mark_from(file.read_text())
                lines = ledger.entries(after=mark.seq - 1, limit=1) if mark.seq else ()
                assert [line.entry_hash for line in lines] == ([mark.head_hash] if mark.seq else [])
                assert ledger.why_refused() is None

    def test_mark_is_not_written_with_each_look(self, used: SqlLedger, tmp_path: Path) -> None:
        before = (tmp_path / SEEN_FILE).stat().st_mtime_ns
        decide(used, incident(6))
        for tenth in range(40):
            live(used, at=NOW + tenth * SECOND / 10)

        assert (tmp_path / SEEN_FILE).stat().st_mtime_ns == before

    def test_mark_that_stands_elsewhere_refuses_where_the_state_directory_is_gone_too(
        self, used: SqlLedger, url: str, tmp_path: Path
    ) -> None:
        elsewhere = used.compare_seen(None)
        lose("gone", used, url, tmp_path)
        (tmp_path / SEEN_FILE).unlink()
        ledger = seen_ledger(url, tmp_path)

        kept = ledger.compare_seen(elsewhere)

        assert (kept, live(ledger)) == (None, None)
        ledger.begin_anew(actor="ada", reason="all is gone", now=LATER)
        after = ledger.compare_seen(elsewhere)
        assert after is not None
        assert (mark_from(after).ledger, live(ledger, at=LATER) is not None) == (ledger.found().ledger, True)

    def test_mark_elsewhere_that_lags_or_cannot_be_read_refuses_nothing(self, used: SqlLedger) -> None:
        elsewhere = used.compare_seen(None)
        decide(used, incident(6))
        live(used, at=NOW + 6 * SECOND)

        newer = used.compare_seen(elsewhere)

        assert newer is not None
        assert elsewhere is not None
        assert mark_from(newer).seq > mark_from(elsewhere).seq
        assert used.compare_seen("rubbish") == newer
        assert used.why_refused() is None

    # -- history --

    @pytest.mark.parametrize(("at", "is_evidence"), [(-1, False), (0, True), (1, True)])
    def test_what_happened_before_the_birth_is_kept_as_history(
        self, url: str, tmp_path: Path, at: int, is_evidence: bool
    ) -> None:
        ledger = seen_ledger(url, tmp_path)

        new_count = take_in(ledger, observation("1", at=NOW.replace(microsecond=0) + at * SECOND))

        assert (new_count, rules(ledger)) == ((1, []) if is_evidence else (0, [HISTORY]))
        assert len(ledger.evidence_after(0, limit=NO_LIMIT)) == new_count

    def test_alert_of_before_the_birth_counts_only_while_it_lasts(self, url: str, tmp_path: Path) -> None:
        ledger = seen_ledger(url, tmp_path)
        over, lasting = (observation(name, source="alerts", at=NOW - 60 * SECOND) for name in ("over", "lasting"))

        new_count = ledger.change_conditions(source="alerts", begun=(over, lasting), ended=("over",), now=NOW)

        remembered = [each.position for each in ledger.conditions()]
        assert (new_count, remembered, rules(ledger)) == (1, ["lasting"], [HISTORY])

    def test_ledger_of_an_older_version_was_born_with_its_first_line(self, url: str, tmp_path: Path) -> None:
        older = SqlLedger(url)
        decide(older, incident(1))
        older.close()

        first, second = (seen_ledger(url, tmp_path, now=LATER) for _ in range(2))

        assert first.history_until() == NOW
        assert first.found() == second.found()

    # -- copies --

    def test_copy_taken_while_another_process_writes_holds_a_whole_chain(
        self, ledger: SqlLedger, url: str, tmp_path: Path
    ) -> None:
        started = [start(ledger_processes.append, url, name) for name in (1, 2)]
        copies = []
        while not copies or (len(copies) < 4 and any(each.process.is_alive() for each in started)):
            copied = copy_out(url, tmp_path / f"{len(copies)}.sqlite")
            assert copied is not None
            copies.append(copied)
        finish_all(started)
        last = copy_out(url, tmp_path / "last.sqlite")

        assert last is not None
        assert last.found.head_seq == 100
        for copied in [*copies, last]:
            one = SqlLedger(f"sqlite:///{copied.file}")
            verdict = one.verify_chain()
            one.close()
            assert (verdict.problem, verdict.entry_count) == ("", copied.found.head_seq)

    def test_copy_put_in_place_is_the_ledger_that_it_was(self, ledger: SqlLedger, url: str, tmp_path: Path) -> None:
        fill(ledger)
        before, lines = ledger.read_state(NOW), ledger.entries(after=0, limit=NO_LIMIT)
        copied = copy_out(url, tmp_path / "copy.sqlite")
        assert copied is not None
        decide(ledger, incident(7), through=1)

        put_in(copied.file, url)

        assert (ledger.read_state(NOW), ledger.entries(after=0, limit=NO_LIMIT)) == (before, lines)
        assert ledger.verify_chain().problem == ""


def lose(how: str, ledger: SqlLedger, url: str, directory: Path) -> None:
    """Let the ledger be gone, or put a copy of earlier, the same written on, or another one in its place."""
    place = directory / "loss"
    place.mkdir()
    other = f"sqlite:///{place / 'other.sqlite'}"
    if how in ("gone", "another"):
        new = SqlLedger(other)
        if how == "another":
            new.identify(NOW)
            fill(new)
        new.close()
    else:
        copied = copy_out(url, place / "other.sqlite")
        assert copied is not None
        decide(ledger, incident(6))
        live(ledger, at=NOW + 10 * SECOND)
    put_in(place / "other.sqlite", url)
    if how == "written on":
        for number in range(11, 16):
            decide(ledger, incident(number))
