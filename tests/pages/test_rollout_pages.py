"""Pages of rollouts: what is there in each state, what a person can say, and words of others that stay text."""

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName, cause_of
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.release import ReleaseName
from ops_pipelines.core.rollout import FINAL, Direction, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.report.html import page_of
from ops_pipelines.report.pictures.story import Tint
from ops_pipelines.rollouts.course import ROLLOUT_TABLE
from ops_pipelines.rollouts.gate.evidence import GateVerdict, TestLine, VerdictKind
from ops_pipelines.rollouts.pictures import MOST_DRAWN, draw_course
from ops_pipelines.rollouts.plan_report import MOST_ROLLOUTS, LyingRelease, rollouts_document
from ops_pipelines.rollouts.report import MOST_NODES, RolloutMatter, possible_orders, rollout_document
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import HOUR, RELEASE, node, rollout, rollout_plan

EVIL = '"><script>alert(1)</script>\u202e'
WAITING = (node(1, "gpu001"), node(1, "gpu002", wave=2), node(1, "gpu003", wave=2))
ONE_WAY = replace(
    RELEASE,
    changes=tuple(replace(each, reversibility=type(each.reversibility).NO, bundle="") for each in RELEASE.changes),
)
PAUSED_FROM = {RolloutState.PAUSED: RolloutState.RUNNING, RolloutState.ASKING: RolloutState.SOAKING}


def in_state(state: RolloutState) -> Rollout:
    return replace(rollout(1, state=state), paused_from=PAUSED_FROM.get(state))


def matter(known: Rollout | None = None, nodes: Sequence[RolloutNode] = WAITING, **others: object) -> RolloutMatter:
    shown = known or rollout(1)
    usual = RolloutMatter(
        cluster="small",
        rollout=shown,
        nodes=nodes,
        release=RELEASE,
        plan=rollout_plan(shown),
        calendar=WorkCalendar(windows=None),
        racks={},
        records=(),
        verdict=None,
        now=NOW,
    )
    return replace(usual, **others)  # type: ignore[arg-type] # of any field


def words_of(known: Rollout, nodes: Sequence[RolloutNode] = WAITING) -> set[str]:
    """Return the verbs that the page offers."""
    return {each.command.split()[2] for each in possible_orders(known, nodes, RELEASE)}


def listed(*rollouts: Rollout, releases: Sequence[LyingRelease] = (), policy: Policy | None = None) -> str:
    return page_of(
        rollouts_document(
            cluster="small",
            rollouts=rollouts,
            nodes={each.rollout: WAITING for each in rollouts},
            releases=releases,
            policy=policy or Policy(mode=Mode.AUTO),
            now=NOW,
        )
    )


def page_for(shown: RolloutMatter) -> str:
    return page_of(rollout_document(shown))


# -- one rollout --


@pytest.mark.parametrize("state", list(RolloutState))
def test_page_of_each_state_says_the_state_and_why(state: RolloutState) -> None:
    page = page_for(matter(in_state(state)))

    assert "<title>ROLL-0001 · small</title>" in page
    assert re.search(
        rf"<h1>ROLL-0001 · (<span class=.\w*.><bdi>)?{state.value.replace('_', ' ')}(</bdi></span>)?</h1>", page
    )
    assert "<b><bdi>started by ada</bdi></b>" in page


@pytest.mark.parametrize("state", list(RolloutState))
def test_whoever_can_say_nothing_is_told_that_it_is_over_and_nobody_else(state: RolloutState) -> None:
    orders = possible_orders(in_state(state), WAITING, RELEASE)

    assert bool(orders) is (state not in FINAL)
    assert ("Nothing: it is over." in page_for(matter(in_state(state)))) is (state in FINAL)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RolloutState.AWAITING_YES, {"approve", "abort", "skip"}),
        (RolloutState.RUNNING, {"pause", "back", "abort", "skip"}),
        (RolloutState.SOAKING, {"pause", "back", "abort", "skip"}),
        (RolloutState.PAUSED, {"resume", "back", "abort", "skip"}),
        (RolloutState.ASKING, {"resume", "back", "abort", "skip"}),
        (RolloutState.GOING_BACK, {"pause"}),
        (RolloutState.STUCK, {"back", "abort", "skip"}),
        (RolloutState.ENDING, {"back", "skip"}),
        (RolloutState.DONE, set()),
    ],
)
def test_what_a_person_can_say_is_what_the_state_takes(state: RolloutState, words: set[str]) -> None:
    assert words_of(in_state(state)) == words


def test_every_state_that_is_not_final_has_a_way_out_for_people() -> None:
    assert {state for state, _ in ROLLOUT_TABLE} == set(RolloutState) - FINAL
    assert all(words_of(in_state(state)) for state in RolloutState if state not in FINAL)


def test_what_cannot_go_back_is_not_offered_to() -> None:
    offered = possible_orders(rollout(1), WAITING, ONE_WAY)

    assert "back" not in {each.command.split()[2] for each in offered}


def test_no_node_is_offered_to_be_left_out_when_none_waits() -> None:
    assert "skip" not in words_of(rollout(1), [replace(each, stage=NodeStage.UPDATED) for each in WAITING])


@pytest.mark.parametrize(("minutes", "is_late"), [(59, False), (60, True), (61, True)])
def test_node_whose_deadline_has_passed_is_marked(minutes: int, is_late: bool) -> None:
    page = page_for(matter(nodes=[node(1, "gpu001", stage=NodeStage.INSTALLING)], now=NOW + timedelta(minutes=minutes)))

    assert ("UTC, over" in page) is is_late


def test_node_on_its_way_back_and_its_failure_are_told() -> None:
    failed = replace(
        node(1, "gpu001", stage=NodeStage.DRAINING),
        direction=Direction.BACK,
        reason="failed alone",
        failure="testing: gpu_count",
    )

    page = page_for(matter(nodes=[failed]))

    assert "draining, while it rolls back" in page
    assert "failed alone; failed while testing: gpu_count" in page


def test_gate_shows_every_test_with_what_it_saw() -> None:
    tests = (
        TestLine(name="updates", state=VerdictKind.GOOD, said="0 of 1 did not come well", evidence_ratio=-0.7),
        TestLine(name="events", state=VerdictKind.UNDECIDED, said="nobody counts", evidence_ratio=0.0),
    )
    verdict = GateVerdict(kind=VerdictKind.UNDECIDED, reason="soaks", tests=tests, decides_by=NOW + 7 * HOUR)

    page = page_for(matter(verdict=verdict))

    assert page.index("0 of 1 did not come well") < page.index("nobody counts")
    assert "it decides by 2026" in page


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RolloutState.RUNNING, "Nothing was updated yet"),
        (RolloutState.GOING_BACK, "It has decided"),
        (RolloutState.DONE, "It is over: the gate"),
    ],
)
def test_gate_without_a_verdict_says_why(state: RolloutState, words: str) -> None:
    assert words in page_for(matter(in_state(state)))


def test_wave_without_a_node_and_one_with_all_of_them_have_their_rows() -> None:
    page = page_for(matter())

    assert page.count('<svg class="bar"') == 3
    assert "1 to come" in page
    assert "2 to come" in page


@pytest.mark.parametrize(("count", "more"), [(MOST_NODES - 1, ""), (MOST_NODES, ""), (MOST_NODES + 1, "and 1 more")])
def test_only_so_many_nodes_are_listed_and_the_others_counted(count: int, more: str) -> None:
    many = [node(1, f"gpu{number:04d}", stage=NodeStage.INSTALLING) for number in range(count)]

    page = page_for(matter(nodes=many))

    assert page.count('<td class="name" data-name="Node"') == min(count, MOST_NODES)
    assert (f"{more};" in page) if more else ("more;" not in page)


@pytest.mark.parametrize("bare", [replace(matter(), plan=None), replace(matter(), calendar=None)])
def test_page_without_plan_or_calendar_has_no_picture_and_all_the_rest(bare: RolloutMatter) -> None:
    page = page_for(bare)

    assert "data:image/png" not in page
    assert "What you can do" in page
    assert "data:image/png;base64," in page_for(matter())


def test_answer_that_is_due_is_a_number_to_be_read_first() -> None:
    page = page_for(matter(in_state(RolloutState.ASKING)))

    assert re.search(r'<b class="warn">\d\d \w{3} \d\d:\d\d</b><span>UTC: an answer is due', page)


def test_words_of_others_stay_text_on_the_page_of_a_rollout() -> None:
    evil = replace(in_state(RolloutState.GOING_BACK), reason=EVIL, stopped_because=EVIL + "2", created_by=EVIL)
    nodes = [replace(node(1, "gpu001", stage=NodeStage.PULLED), reason=EVIL, failure=EVIL + "3", node=NodeName(EVIL))]
    line = TestLine(name=EVIL, state=VerdictKind.STOP, said=EVIL, evidence_ratio=9.0)
    verdict = GateVerdict(kind=VerdictKind.STOP, reason=EVIL, tests=(line,))
    release = replace(RELEASE, about=EVIL)

    page = page_for(matter(evil, nodes, verdict=verdict, release=release))

    assert "<script>" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;") >= 8


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RolloutState.RUNNING, "It asked before: too little was seen"),
        (RolloutState.DONE, "It asked before: too little was seen"),
        (RolloutState.GOING_BACK, "Stopped because: too little was seen"),
        (RolloutState.WENT_BACK, "Stopped because: too little was seen"),
    ],
)
def test_what_it_asked_is_not_said_to_have_stopped_it(state: RolloutState, words: str) -> None:
    assert words in page_for(matter(replace(in_state(state), stopped_because="too little was seen")))


# -- what was done --


def acted(
    verb: Verb, name: str, *, at: int, lasts: int = 5, part: str = "0 forward", try_number: int = 2
) -> ActionRecord:
    return ActionRecord(
        action=Action(
            verb=verb,
            incident=cause_of(rollout(1).rollout),
            node=NodeName(name),
            part=part,
            try_number=try_number,
            suite="release" if verb is Verb.CHECK else "",
        ),
        plan=None,
        begun_at=NOW + timedelta(seconds=at),
        outcome=Outcome(kind=OutcomeKind.DONE, witness="", finished_at=NOW + timedelta(seconds=at + lasts)),
    )


def drawn(nodes: Sequence[RolloutNode], *records: ActionRecord) -> str:
    """Return the SVG for a desk."""
    picture = draw_course(rollout(1), nodes, records, now=NOW + timedelta(seconds=100))
    assert picture is not None
    return b64decode(picture.wide.partition("base64,")[2]).decode()


def test_rollout_that_has_touched_nothing_has_no_picture_of_it() -> None:
    assert draw_course(rollout(1), WAITING, (), now=NOW) is None
    assert "What was done" not in page_for(matter())


def test_touched_nodes_are_drawn_by_wave_with_what_was_done_to_each() -> None:
    soaking = replace(node(1, "gpu001", stage=NodeStage.SOAKING), returned_at=NOW + timedelta(seconds=40))
    installing = node(1, "gpu002", stage=NodeStage.INSTALLING, wave=2)

    svg = drawn(
        [installing, soaking, node(1, "gpu003", wave=2)],
        acted(Verb.DRAIN, "gpu001", at=0, part=""),
        acted(Verb.INSTALL, "gpu001", at=10),
        acted(Verb.REBOOT, "gpu001", at=20),
        acted(Verb.CHECK, "gpu001", at=30, part=""),
        acted(Verb.RESUME, "gpu001", at=39, part=""),
        acted(Verb.DRAIN, "gpu002", at=50, part=""),
    )

    assert svg.index("gpu001") < svg.index("gpu002")
    assert "gpu003" not in svg
    assert all(f">{word}<" in svg for word in ("drained", "install", "reboot", "tests", "soaks"))


def test_way_back_is_drawn_in_its_own_colour_from_its_first_act_with_the_failure() -> None:
    failed = replace(node(1, "gpu001", stage=NodeStage.BACK), direction=Direction.BACK, failure="testing: it fails")

    svg = drawn(
        [failed],
        acted(Verb.INSTALL, "gpu001", at=10),
        acted(Verb.CHECK, "gpu001", at=30, part=""),
        acted(Verb.INSTALL, "gpu001", at=50, part="0 back", try_number=3),
        acted(Verb.RESUME, "gpu001", at=60, part="", try_number=3),
    )

    assert svg.count(Tint.YELLOW.value) == 2  # one bar, and its colour in the key
    assert svg.count(Tint.ORANGE.value) == 2  # one mark, and its colour in the key
    assert ">soaks<" not in svg


@pytest.mark.parametrize("count", [MOST_DRAWN - 1, MOST_DRAWN, MOST_DRAWN + 1])
def test_only_the_first_nodes_are_drawn(count: int) -> None:
    nodes = [node(1, f"gpu{number:03d}", stage=NodeStage.DRAINING) for number in range(count)]

    svg = drawn(nodes, *(acted(Verb.DRAIN, each.node, at=number, part="") for number, each in enumerate(nodes)))

    assert len(re.findall(r">gpu\d{3}<", svg)) == min(count, MOST_DRAWN)


# -- all of them --


def test_the_newest_rollout_is_listed_first_with_its_page() -> None:
    page = listed(rollout(1), rollout(2))

    assert page.index('href="rollouts/ROLL-0002"') < page.index('href="rollouts/ROLL-0001"')


def test_of_many_rollouts_the_oldest_are_counted() -> None:
    page = listed(*(rollout(number) for number in range(1, MOST_ROLLOUTS + 3)))

    assert page.count('href="rollouts/') == MOST_ROLLOUTS
    assert "and 2 more; <code>ops-pipelines rollout history" in page
    assert "ROLL-0002" not in page


def test_what_stopped_it_is_told_of_one_that_went_back() -> None:
    gone = replace(
        rollout(1, state=RolloutState.WENT_BACK), reason="every touched node is back", stopped_because="two failed"
    )

    page = listed(gone)

    assert "two failed" in page
    assert "every touched node is back" not in page


def test_releases_that_lie_ready_are_told_with_how_to_start_them() -> None:
    page = listed(releases=[LyingRelease(name="driver-580", release=RELEASE)])

    assert "driver 580.95.05, gpu vbios 96.00.C1" in page
    assert "ops-pipelines rollout plan driver-580" in page
    assert "ops-pipelines rollout start driver-580" in page
    assert "None is under way" in page


def test_release_that_cannot_be_read_is_named_without_what_is_wrong_with_it() -> None:
    page = listed(releases=[LyingRelease(name="broken", release=None)])

    assert "cannot be read; </bdi></span><code>ops-pipelines rollout plan broken</code>" in page
    assert "rollout start" not in page


def test_the_commands_to_begin_name_a_release_that_can_be_read() -> None:
    releases = [LyingRelease(name="broken", release=None), LyingRelease(name="driver-580", release=RELEASE)]

    page = listed(releases=releases)

    assert "ops-pipelines rollout start driver-580" in page
    assert "ops-pipelines rollout start broken" not in page


@pytest.mark.parametrize(
    ("policy", "is_told"),
    [
        (Policy(mode=Mode.OBSERVE), True),
        (Policy(mode=Mode.AUTO, consents={ActionClass.UPDATE: Consent.FORBID}), True),
        (Policy(mode=Mode.APPROVE), False),
        (Policy(mode=Mode.AUTO), False),
    ],
)
def test_policy_under_which_nothing_starts_is_told(policy: Policy, is_told: bool) -> None:
    assert ("nothing starts" in listed(policy=policy)) is is_told


def test_words_of_others_stay_text_on_the_list() -> None:
    evil = replace(rollout(1), reason=EVIL, release=ReleaseName(EVIL))

    page = listed(
        evil, releases=[LyingRelease(name=EVIL, release=replace(RELEASE, about=EVIL, models=frozenset({EVIL})))]
    )

    assert "<script>" not in page
    assert "\u202e" not in page
