"""What raw lines mean: one verdict a line, never empty, never destructive for what is not known."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
from ops_pipelines.observe.logs import classify
from ops_pipelines.observe.logs.classify import MAX_LINE_BYTES, read_lines
from ops_pipelines.observe.logs.guess import GUESSES
from ops_pipelines.resources.catalogue_files import read_catalogue
from tests.frames.judged_lines import judge, judge_all

LABELS = Path(__file__).parents[3] / "shared" / "facts" / "labelled_log_lines.tsv"
CATALOGUE = read_catalogue()
XID_79 = b"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


def labelled() -> list[tuple[str, str, str, str]]:
    if not LABELS.is_file():
        return []
    rows = [line.split("\t") for line in LABELS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [(row[0], row[2], row[3], row[4]) for row in rows]


@pytest.mark.skipif(not LABELS.is_file(), reason="the labelled lines (../shared/facts) are not here")
def test_labelled_lines_get_an_accepted_first_action_and_none_a_destructive_one_that_it_does_not_accept() -> None:
    verdicts = [(accepted.split("|"), judge(text).actions[0]) for _, _, accepted, text in labelled()]

    right = sum(action.value in accepted for accepted, action in verdicts)
    assert right >= 0.97 * len(verdicts)
    for accepted, action in verdicts:
        if action in DESTRUCTIVE_ACTIONS:
            assert not DESTRUCTIVE_ACTIONS.isdisjoint(map(FirstAction, accepted))


@pytest.mark.parametrize("code", [1, 177, 178, 200, 999, 1234, 99999])
def test_xid_that_nobody_knows_is_its_own_class(code: int) -> None:
    verdict = judge(f"NVRM: Xid (PCI:0000:1b:00): {code}, pid=1, name=python3, Fatal error, GPU has fallen off the bus")

    assert verdict.actions == (FirstAction.MONITOR,) or code == 1
    assert verdict.actions[0] not in DESTRUCTIVE_ACTIONS
    assert verdict.signature == ("xid_1" if code == 1 else "xid_unknown")
    assert verdict.category == "gpu_unknown_xid"


@pytest.mark.parametrize("word", ["Fatal", "Non-fatal"])
def test_sxid_that_nobody_knows_is_not_destructive_whatever_its_word(word: str) -> None:
    verdict = judge(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, {word}, Link 02 something new")

    assert (verdict.signature, verdict.actions) == ("sxid_unknown", (FirstAction.MONITOR,))


@given(code=st.integers(0, 999_999), rest=st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=80))
def test_no_code_without_a_row_is_ever_destructive(code: int, rest: str) -> None:
    verdict = judge(f"NVRM: Xid (PCI:0000:1b:00): {code}, {rest}")

    if code not in CATALOGUE.xids:
        assert verdict.actions[0] not in DESTRUCTIVE_ACTIONS


def test_known_xids_are_judged_by_their_rows() -> None:
    for code, row in CATALOGUE.xids.items():
        verdict = judge(f"kernel: NVRM: Xid (PCI:0000:1b:00): {code}, pid=1, name=python3, Ch 00000008")

        if code == 154:
            assert verdict.actions[0] is FirstAction.MONITOR
        else:
            assert (verdict.actions[0], verdict.signature) == (row.first_action, f"xid_{code}")


def test_known_sxids_are_not_destructive_where_the_driver_says_non_fatal() -> None:
    for code, row in CATALOGUE.sxids.items():
        fatal = judge(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Fatal, Link 02 words")
        mild = judge(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Non-fatal, Link 02 words")

        assert (fatal.signature, mild.signature) == (f"sxid_{code}", f"sxid_{code}")
        assert mild.actions[0] not in DESTRUCTIVE_ACTIONS, row
        assert fatal.actions[0] in DESTRUCTIVE_ACTIONS or row.family.value == "heat", row


@pytest.mark.parametrize(
    ("number", "action"),
    [
        pytest.param(0, FirstAction.NONE, id="withdrawn"),
        pytest.param(1, FirstAction.RESET_GPU, id="reset"),
        pytest.param(2, FirstAction.REBOOT_NODE, id="reboot"),
        pytest.param(3, FirstAction.DRAIN_INSPECT, id="no peer-to-peer work"),
        pytest.param(4, FirstAction.RESET_GPU_AT_JOB_END, id="drain, then reset"),
        pytest.param(5, FirstAction.RESET_FABRIC, id="memory-sharing domain"),
        pytest.param(6, FirstAction.MONITOR, id="a number that nobody knows"),
    ],
)
@pytest.mark.parametrize("words", ["PF FLR", "GPU Reset Required", "None"])
def test_recovery_action_is_read_from_its_number_and_never_from_its_words(
    number: int, action: FirstAction, words: str
) -> None:
    verdict = judge(
        f"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to {number:#x} ({words})"
    )

    assert verdict.actions[0] is action


def test_hearsay_of_a_fatal_xid_is_watched_and_nothing_more() -> None:
    verdict = judge(
        "nvidia-device-plugin: XidCriticalError: Xid=79 on Device=GPU-8dcd427f; marking device as unhealthy."
    )

    assert verdict.actions[0] is FirstAction.MONITOR


@pytest.mark.parametrize(
    ("line", "category", "action"),
    [
        pytest.param(b"", "blank", FirstAction.NONE, id="empty"),
        pytest.param(b" \t ", "blank", FirstAction.NONE, id="white"),
        pytest.param(b"\r", "blank", FirstAction.NONE, id="CRLF of an empty line"),
        pytest.param(b"\x00\x01\x02\xff\xfe\x80", "unreadable", FirstAction.MONITOR, id="garbage"),
        pytest.param(b"\x00\x00\x00\x00", "unreadable", FirstAction.MONITOR, id="zeros of a lost block"),
        pytest.param(b"all is well", "unknown", FirstAction.NONE, id="no word of a fault"),
        pytest.param(b"flux capacitor failed", "unknown", FirstAction.MONITOR, id="a fault that no row names"),
        pytest.param(b"\xff\xfe " + XID_79 + b" \x80", "gpu_off_bus", FirstAction.REBOOT_NODE, id="bad bytes around"),
        pytest.param(XID_79 + b"\r", "gpu_off_bus", FirstAction.REBOOT_NODE, id="CRLF"),
    ],
)
def test_odd_line_has_its_verdict(line: bytes, category: str, action: FirstAction) -> None:
    verdict = judge(line)

    assert (verdict.category, verdict.actions[0]) == (category, action)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([XID_79, b"", b"\r", b"nfs: server a OK"])), max_size=30)
)
@example([b"\x0b\x0c\x1c\x85 separators that are no newline"])
def test_every_physical_line_has_one_verdict_that_is_never_empty(lines: list[bytes]) -> None:
    body = b"\n".join(lines)
    physical = body.count(b"\n") + (not body.endswith(b"\n") and body != b"")

    read = list(read_lines(io.BytesIO(body)))
    verdicts = judge_all([line for _, line in read])

    if not body.startswith(classify.LABELLED_HEADING):
        assert [number for number, _ in read] == list(range(1, physical + 1))
    assert len(verdicts) == len(read)
    for verdict in verdicts:
        assert verdict.actions
        assert len(set(verdict.actions)) == len(verdict.actions)
        assert 0 < verdict.confidence <= 1
        assert verdict.signature is not None or DESTRUCTIVE_ACTIONS.isdisjoint(verdict.actions)


@pytest.mark.parametrize("block_lines", [1, 2, 3, 1000])
def test_verdicts_do_not_depend_on_the_size_of_blocks(block_lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [row.encode() for _, _, _, row in labelled()] or [XID_79, b"", b"x"]
    expected = judge_all(lines)

    monkeypatch.setattr(classify, "BLOCK_LINES", block_lines)

    assert judge_all(lines) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"\n", [(1, b"")], id="one blank line"),
        pytest.param(b"a", [(1, b"a")], id="no final newline"),
        pytest.param(b"a\n", [(1, b"a")], id="a final newline"),
        pytest.param(b"a\n\nb", [(1, b"a"), (2, b""), (3, b"b")], id="blank between"),
        pytest.param(b"a\r\nb\r\n", [(1, b"a\r"), (2, b"b\r")], id="CRLF"),
        pytest.param(b"# comment\nx", [(1, b"# comment"), (2, b"x")], id="a comment is a line of a raw log"),
        pytest.param(b"# id\tsource\tx\n# more\nRL1\ts\tc\ta\ttext\n", [(3, b"text")], id="labelled"),
        pytest.param(b"# id\tsource\n\nRL1\ts\n", [(2, b""), (3, b"")], id="labelled, rows without the column"),
        pytest.param(b"# id\tsource\nRL1\ts\tc\ta\tt\tsix\n", [(2, b"t")], id="labelled, a sixth column"),
        pytest.param(b"x\n# id\tsource\ny", [(1, b"x"), (2, b"# id\tsource"), (3, b"y")], id="heading not first"),
        pytest.param(b"# id source\ny", [(1, b"# id source"), (2, b"y")], id="blank instead of a tab"),
    ],
)
def test_lines_are_numbered_as_they_stand_in_the_file(body: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert list(read_lines(io.BytesIO(body))) == expected


@pytest.mark.parametrize("size", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 3_000_000])
def test_endless_line_is_kept_to_its_limit_and_the_next_one_is_whole(size: int) -> None:
    lines = list(read_lines(io.BytesIO(b"x" * size + b"\n" + XID_79)))

    assert [len(line) for _, line in lines] == [min(size, MAX_LINE_BYTES), len(XID_79)]
    assert lines[1] == (2, XID_79)


def test_categories_of_examples_are_those_of_their_rows() -> None:
    from importlib.resources import files

    text = (files("ops_pipelines.catalogue") / "log_signatures.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))

    judged = {row["id"]: judge(row["example"]).category for row in rows}

    assert {row["id"]: row["category"] for row in rows} == judged


@pytest.mark.parametrize(
    ("line", "action"),
    [
        pytest.param("frobnicate: no errors were found", FirstAction.NONE, id="a negated fault"),
        pytest.param("frobnicate: 0 errors, all disks are online", FirstAction.NONE, id="a count of none"),
        pytest.param("[INFO] frobnicate failed over as it should", FirstAction.NONE, id="its own level"),
        pytest.param('level=info msg="frobnicate error budget is full"', FirstAction.NONE, id="its own level, by key"),
        pytest.param("frobnicate: error: No such device", FirstAction.FIX_SOFTWARE, id="no such is no none"),
        pytest.param("frobnicate failed: 3 of 8, no route", FirstAction.INVESTIGATE_FABRIC, id="no route"),
        pytest.param("frobnicate error: failed to get debug info", FirstAction.MONITOR, id="debug info is no level"),
        pytest.param("frobnicate broken, could not be recovered", FirstAction.MONITOR, id="a negated success"),
        pytest.param("frobnicate: 0 succeeded, 12 failed", FirstAction.MONITOR, id="nobody succeeded"),
        pytest.param("LustreFrobnicate: unable to talk", FirstAction.INVESTIGATE_STORAGE, id="storage"),
        pytest.param("slurmd: error: frobnication is broken", FirstAction.FIX_SOFTWARE, id="scheduler"),
        pytest.param("mlx5_0: frobnication is broken", FirstAction.INVESTIGATE_FABRIC, id="fabric"),
        pytest.param("frobnicate failed to mount /data", FirstAction.INVESTIGATE_STORAGE, id="what it speaks of"),
        pytest.param("frobnicate: 1:0 error: broken", FirstAction.MONITOR, id="a number before an error is no count"),
        pytest.param("[WARNING] slurmd: frobnication is broken", FirstAction.MONITOR, id="a warning, by its own level"),
        pytest.param(
            "E0102 03:04:05.000000 1 frobnicate.cc:7] driver is odd", FirstAction.FIX_SOFTWARE, id="glog's level"
        ),
        pytest.param("acme.errors.FrobnicationError: broken", FirstAction.FIX_APP, id="program"),
    ],
)
def test_a_guess_is_by_level_subsystem_and_words(line: str, action: FirstAction) -> None:
    verdict = judge(line)

    assert verdict.signature is None
    assert verdict.actions[0] is action


def test_no_guess_is_stronger_than_a_look() -> None:
    assert DESTRUCTIVE_ACTIONS.isdisjoint(action for guess in GUESSES for action in guess.actions)
