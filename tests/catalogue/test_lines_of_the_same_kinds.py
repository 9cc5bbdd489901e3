"""Lines of the same kinds as the labelled ones, in the words of other drivers, releases and ways to keep a log.

They were written for this test (tests/data) and stand in no table of the catalogue; each names the first actions that
are right for it, taken alone.
"""

from pathlib import Path

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
from tests.frames.judged_lines import judge

DATA = Path(__file__).parents[1] / "data" / "lines_of_the_same_kinds.tsv"
LINES = [row.split("\t") for row in DATA.read_text(encoding="utf-8").splitlines()[1:]]


def test_first_actions_are_those_that_the_lines_accept() -> None:
    found = [(text, accepted, judge(text).actions[0]) for _, accepted, text in LINES]

    assert [each for each in found if each[2] not in {FirstAction(word) for word in each[1].split("|")}] == []


def test_nothing_destructive_is_said_of_a_line_that_accepts_nothing_destructive() -> None:
    harmless = [t for _, a, t in LINES if DESTRUCTIVE_ACTIONS.isdisjoint(map(FirstAction, a.split("|")))]

    assert len(harmless) > 50
    assert [t for t in harmless if judge(t).actions[0] in DESTRUCTIVE_ACTIONS] == []
