"""The page of two policies: it says what changes for whom, and words of others stay text."""

from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId
from ops_pipelines.report.charts import Mark, policy_columns
from ops_pipelines.report.document import Shade
from ops_pipelines.report.html import page_of
from ops_pipelines.review.replay import proof_sentence, sentences_of
from ops_pipelines.review.replay_document import ROWS_AT_MOST, replay_document
from ops_pipelines.review.replay_result import (
    Assessment,
    ComparedAct,
    Difference,
    KeyDifference,
    Lesson,
    Replay,
    ReplayedInterval,
    Reproduction,
    SideCounts,
    Source,
)
from tests.simulator.fake_clock import BEGINNING as AT

HOUR = timedelta(hours=1)
EVIL = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)> </style> {{7*7}} {% raw %} </svg> <a href=//evil.example>'
)
NOTHING = SideCounts(
    act_count=0, node_act_count=0, plan_count=0, lost_gpu_hours=0.0, unknown_loss_count=0, page_count=0,
    owner_message_count=0, approval_count=0, refusals={}, false_count=0, missed_count=0,
)  # fmt: skip
PROVEN = Reproduction(
    decision_count=7, same_count=7, different=(), without_rules_count=0, unreadable_count=0, unreadable=()
)


def act(
    difference: Difference = Difference.ONLY_NEW,
    *,
    text: str = "it broke",
    verb: Verb = Verb.HOLD,
    minutes: float = 5,
    incident: str = "INC-0001",
) -> ComparedAct:
    at = AT + timedelta(minutes=minutes)
    on_then, on_new = difference is not Difference.ONLY_NEW, difference is not Difference.ONLY_THEN
    return ComparedAct(
        at=at, source=Source.LEDGER, difference=difference, incident=IncidentId(incident), verb=verb,
        target=f"job {text}", nodes=frozenset({NodeName("gpu001")}), cause=text,
        plan_then=PlanId("PLAN-1") if on_then else None, plan_new=PlanId("PLAN-2") if on_new else None,
        then_at=at if on_then else None, new_at=at if on_new else None, done_at=at if on_then else None,
        outcome="done" if on_then else "", why=text, team=text, lost_gpu_hours=2.5, is_counterfactual=False,
    )  # fmt: skip


def replay_of(*acts: ComparedAct, text: str = "words", **changes: object) -> Replay:
    found = Replay(
        cluster="small", proposed="policy.proposed.yaml", since=AT, until=AT + HOUR,
        stretches=(
            ReplayedInterval(
                source=Source.LEDGER, since=AT, until=AT + HOUR, decision_count=7, then=text, unknown=(text,)
            ),
        ),
        policy_differences=(KeyDifference(key="mode", then=text, new="auto"),), policies_then_count=1,
        reproduction=PROVEN, acts=acts, then=NOTHING, new=NOTHING, understanding_difference_count=0,
        plan_difference_count=0, refused_when_due={}, follow_up_count=0, by_hand_count=0,
        lessons=(Lesson(incident=IncidentId("INC-0001"), verdict=Assessment.REAL, how=text),), cautions=(text,),
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]  # fields as the test names them


def page_on(found: Replay) -> str:
    return page_of(replay_document(found, now=AT))


class Markup(HTMLParser):
    """The tags and attributes that a browser would see, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_words_of_others_stay_text_wherever_they_stand() -> None:
    page = Markup(page_on(replay_of(act(text=EVIL), text=EVIL, proposed=EVIL)))

    assert {"script", "img", "a", "link", "iframe", "form"}.isdisjoint(page.tags)
    assert {"onerror", "href", "src"}.isdisjoint(page.attributes)
    assert page.text.count("<script>alert(1)</script>") > 6
    assert "{{7*7}}" in page.text


def test_what_does_not_print_and_what_does_not_end_stays_out() -> None:
    page = page_on(replay_of(act(text="\x1b]0;owned\x07 \u202etxt.exe\r\n" + "x" * 10_000)))

    assert "]0;owned\ufffd \ufffdtxt.exe" in page
    assert {"\x1b", "\x07", "\u202e", "\r"}.isdisjoint(page)
    assert len(page) < 40_000


def test_acts_of_one_plan_that_differ_alike_share_a_row() -> None:
    rows = [act(verb=Verb.HOLD), act(verb=Verb.RELEASE), act(Difference.ONLY_THEN), act(incident="INC-0002")]

    page = page_on(replay_of(*rows))

    assert page.count('data-name="Difference"') == 3
    assert "hold job it broke, release job it broke" in page
    assert "5.00" in page  # GPU-hours of both acts of the row


def test_a_page_of_many_acts_is_bounded_and_says_what_is_left_out() -> None:
    rows = [act(incident=f"INC-{number:04}") for number in range(ROWS_AT_MOST + 7)]

    page = page_on(replay_of(*rows))

    assert page.count('data-name="Difference"') == ROWS_AT_MOST
    assert "and 7 more; <code>ops-pipelines replay --json</code> has all" in page


def test_a_page_without_differences_says_so() -> None:
    page = page_on(replay_of(act(Difference.SAME), policy_differences=(), lessons=()))

    assert "None: the two policies say the same." in page
    assert "Nothing changes: both policies do the same 1 act." in page
    assert "All 7 recorded decisions came out the same again" in page


def test_the_sentences_say_what_changes_for_jobs_operators_and_guardrails() -> None:
    then = replace(NOTHING, page_count=1, refusals={"drain_budget": 2, "mode": 1}, lost_gpu_hours=1.0)
    new = replace(NOTHING, page_count=4, refusals={"mode": 1}, lost_gpu_hours=3.5, unknown_loss_count=1)
    found = replay_of(act(text="research"), act(Difference.ONLY_THEN, text="vision"), then=then, new=new)

    acts, jobs, operators, guardrails, lessons = sentences_of(found)

    assert acts.startswith("Of 2 acts, 0 stay the same, 1 would no longer be done, 1 would be new")
    assert "Jobs interrupted: 1 → 1; by team: research 0 → 1, vision 1 → 0;" in jobs
    assert "1.00 → 3.50 (without jobs whose loss nobody knows: 0 → 1)" in jobs
    assert "pages 1 → 4" in operators
    assert guardrails == "Incidents held back at least once, by guardrail: drain_budget 2 → 0."
    assert "1 was found real or false later" in lessons


def test_a_record_that_cannot_be_reproduced_is_said_to_be_so() -> None:
    again = replace(PROVEN, same_count=4, without_rules_count=2, unreadable_count=1, different=("line 9: otherwise",))

    found = replay_of(reproduction=again)

    assert proof_sentence(found) == (
        "4 of 7 recorded decisions came out the same again under the rules of then; 3 did not, or could not be tried "
        "(2 whose rules were not kept, 1 unreadable lines or snapshots)."
    )
    assert "line 9: otherwise" in page_on(found)


@given(
    minutes=st.lists(st.floats(-10, 70, allow_nan=False), max_size=30),
    shade=st.sampled_from(Shade),
    span_minutes=st.integers(1, 60 * 24 * 400),
)
@settings(max_examples=30, deadline=None)
def test_the_picture_is_whole_xml_whatever_the_times(minutes: list[float], shade: Shade, span_minutes: int) -> None:
    marks = [
        Mark(at=AT + timedelta(minutes=each), what="new", shade=shade, is_above=True, is_below=each > 30)
        for each in minutes
    ]

    svg = policy_columns(marks, since=AT, until=AT + timedelta(minutes=span_minutes))

    if not marks:
        assert svg == ""
        return
    tree = ElementTree.fromstring(svg)
    titles = [each.text or "" for each in tree.iter("{http://www.w3.org/2000/svg}title")][1:]
    above = sum(int(each.split(": ")[1].split()[0]) for each in titles if " new: " in each)
    assert above == len(marks)
    heights = [float(each.get("height", "0")) for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert all(0 < height <= 78.1 for height in heights)


def test_an_empty_stretch_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="empty"):
        policy_columns([], since=AT, until=AT)
