"""Repetition turns software into hardware: on one part, across programs, bursts once, and never past a replacement."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import AtFault, Component, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import RESPONSES, Catalogue, CodeRule, LogRule, RepeatRule, Response
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName
from ops_pipelines.core.observation import NO_NODE, Observation, Signal
from ops_pipelines.observe.repeated import (
    BURST,
    Lineage,
    Occurrence,
    PartKey,
    Repetition,
    Seating,
    occurrences_of,
    part_of,
    program_of,
    repeat_rules,
    repeated,
    rule_of,
)
from ops_pipelines.observe.rules import find
from ops_pipelines.resources.catalogue_files import read_catalogue
from tests.domain.builders import GPU, NODE, NOW, OTHER_GPU, OTHER_NODE

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
TWICE_A_DAY = RepeatRule(count=2, within=DAY, then=FirstAction.DRAIN_INSPECT, source="test")
THRICE_A_DAY = replace(TWICE_A_DAY, count=3, then=FirstAction.RMA)


def code_rule(code: int, at_fault: AtFault, repeat: RepeatRule | None) -> CodeRule:
    return CodeRule(
        code=code,
        mnemonic=f"CODE_{code}",
        meaning="as the catalogue says",
        at_fault=at_fault,
        family=Family.GPU,
        first_action=FirstAction.FIX_APP,
        repeat=repeat,
    )


CATALOGUE = Catalogue(
    xids={
        31: code_rule(31, AtFault.APPLICATION, TWICE_A_DAY),
        43: code_rule(43, AtFault.APPLICATION, None),
        74: code_rule(74, AtFault.GPU, THRICE_A_DAY),
    },
    sxids={12028: code_rule(12028, AtFault.FABRIC, TWICE_A_DAY)},
    signatures={
        "pcie_aer_corrected": LogRule(
            signature="pcie_aer_corrected",
            category="pcie",
            component="pcie",
            meaning="a marginal PCIe link",
            at_fault=AtFault.NODE,
            family=Family.PCIE,
            actions=(FirstAction.MONITOR,),
            confidence=0.6,
            repeat=TWICE_A_DAY,
        )
    },
)
SHIPPED = read_catalogue()
PART = PartKey(kind="gpu", name="1650123")
OTHER_PART = PartKey(kind="gpu", name="1650999")


def occurrence(
    after: timedelta = timedelta(0), *, rule: str = "xid_31", part: PartKey = PART, job: str | None = None
) -> Occurrence:
    return Occurrence(rule=rule, part=part, at=NOW + after, job=None if job is None else JobId(job))


def judged(*occurrences: Occurrence, at: datetime = NOW + 30 * DAY) -> tuple[Repetition, ...]:
    return repeated(occurrences, CATALOGUE, at=at)


def test_an_application_xid_of_two_programs_on_one_gpu_makes_the_gpu_suspect() -> None:
    (found,) = judged(occurrence(job="11"), occurrence(5 * HOUR, job="12"))

    assert (found.rule, found.part, found.count) == ("xid_31", PART, 2)
    assert found.then is FirstAction.DRAIN_INSPECT
    assert found.reached_at == NOW + 5 * HOUR
    assert "jobs 11, 12" in found.explanation


def test_one_program_on_one_gpu_proves_nothing_however_often_it_fails() -> None:
    assert judged(*(occurrence(hour * HOUR, job="11") for hour in range(20))) == ()


def test_tasks_of_one_array_are_one_program() -> None:
    assert judged(occurrence(job="11_1"), occurrence(HOUR, job="11_2"), occurrence(2 * HOUR, job="11")) == ()
    assert program_of(JobId("40+1")) == "40"


def test_a_program_that_fails_on_several_gpus_brings_the_fault_along() -> None:
    elsewhere = occurrence(9 * HOUR, part=OTHER_PART, job="12")

    assert judged(occurrence(job="11"), occurrence(HOUR, job="12"), elsewhere) == ()


def test_a_program_that_fails_elsewhere_takes_nothing_from_the_others() -> None:
    elsewhere = occurrence(9 * HOUR, part=OTHER_PART, job="12")

    (found,) = judged(occurrence(job="11"), occurrence(HOUR, job="12"), occurrence(2 * HOUR, job="13"), elsewhere)

    assert found.count == 2
    assert {each.job for each in found.occurrences} == {"11", "13"}


def test_a_program_that_nobody_knows_may_be_any_of_the_known_ones() -> None:
    assert judged(occurrence(), occurrence(HOUR), occurrence(2 * HOUR, job="11")) == ()


def test_a_hardware_code_counts_whatever_ran() -> None:
    (found,) = judged(*(occurrence(hour * HOUR, rule="xid_74", job="11") for hour in (0, 1, 2)))

    assert (found.count, found.then) == (3, FirstAction.RMA)
    assert judged(*(occurrence(hour * HOUR, rule="xid_74") for hour in (0, 1))) == ()


@pytest.mark.parametrize(
    ("apart", "is_repeated"), [(DAY - SECOND, True), (DAY, False), (DAY + SECOND, False)], ids=["inside", "at", "past"]
)
def test_only_what_lies_within_the_rules_time_counts(apart: timedelta, is_repeated: bool) -> None:
    assert bool(judged(occurrence(job="11"), occurrence(apart, job="12"))) is is_repeated


@pytest.mark.parametrize(
    ("gap", "is_repeated"), [(BURST - SECOND, False), (BURST, False), (BURST + SECOND, True)], ids=["in", "at", "past"]
)
@pytest.mark.parametrize("rule", ["sxid_12028", "xid_31"])
def test_a_burst_counts_once(gap: timedelta, is_repeated: bool, rule: str) -> None:
    assert bool(judged(occurrence(rule=rule, job="11"), occurrence(gap, rule=rule, job="12"))) is is_repeated


def test_a_storm_without_a_pause_is_one_event() -> None:
    assert judged(*(occurrence(minute * BURST, rule="sxid_12028") for minute in range(100))) == ()


def test_what_came_later_is_not_known_yet() -> None:
    both = (occurrence(job="11"), occurrence(5 * HOUR, job="12"))

    assert judged(*both, at=NOW + 5 * HOUR - SECOND) == ()
    assert judged(*both, at=NOW + 5 * HOUR)


def test_what_was_repeated_once_stays_so() -> None:
    (found,) = judged(occurrence(job="11"), occurrence(HOUR, job="12"), occurrence(20 * DAY, job="13"))

    assert (found.count, found.reached_at) == (2, NOW + HOUR)


def test_a_rule_without_a_number_is_never_repeated() -> None:
    assert judged(*(occurrence(hour * HOUR, rule="xid_43", job=str(hour)) for hour in range(20))) == ()
    assert judged(*(occurrence(hour * HOUR, rule="xid_999", job=str(hour)) for hour in range(20))) == ()
    assert set(repeat_rules(CATALOGUE)) == {"xid_31", "xid_74", "sxid_12028", "pcie_aer_corrected"}


def test_no_history_is_no_repetition() -> None:
    assert repeated((), CATALOGUE, at=NOW) == ()
    assert occurrences_of((), Lineage()) == ()


# -- which part ---------------------------------------------------------------------------------------------------

OLD, NEW = GpuUuid("GPU-old"), GpuUuid("GPU-new")
SWAPPED_AT = NOW + 2 * HOUR
LINEAGE = Lineage(
    seatings=(
        Seating(node=NODE, pci=GPU, uuid=OLD, serial="1650123", since=NOW - DAY, until=SWAPPED_AT),
        Seating(node=NODE, pci=GPU, uuid=NEW, since=SWAPPED_AT, until=None),
        Seating(node=OTHER_NODE, pci=OTHER_GPU, uuid=OLD, serial="1650123", since=SWAPPED_AT, until=None),
    )
)


def xid(after: timedelta, *, job: str, node: NodeName = NODE, pci: str = GPU, code: int = 31) -> Observation:
    return Observation(
        signal=Signal.XID,
        node=node,
        observed_at=NOW + after,
        source="kernel",
        position=f"{node}/{after}/{pci}",
        code=code,
        gpu=type(GPU)(pci),
        job=JobId(job),
    )


def repeated_in(observations: Sequence[Observation], lineage: Lineage = LINEAGE) -> tuple[Repetition, ...]:
    findings = [find(each, CATALOGUE) for each in observations]
    return repeated(occurrences_of(findings, lineage), CATALOGUE, at=NOW + 30 * DAY)


def test_a_replaced_gpu_starts_anew() -> None:
    assert repeated_in([xid(HOUR, job="11"), xid(3 * HOUR, job="12")]) == ()


def test_a_moved_gpu_brings_its_past_along() -> None:
    (found,) = repeated_in([xid(HOUR, job="11"), xid(3 * HOUR, job="12", node=OTHER_NODE, pci=OTHER_GPU)])

    assert found.part == PartKey(kind="gpu", name="1650123")
    assert found.where == Component(kind=ComponentKind.GPU, name=OTHER_GPU, node=OTHER_NODE)


def test_the_moment_of_the_swap_belongs_to_the_new_gpu() -> None:
    at = xid(SWAPPED_AT - NOW, job="11")

    assert part_of(at, LINEAGE) == PartKey(kind="gpu", name=NEW)
    assert part_of(replace(at, observed_at=SWAPPED_AT - SECOND), LINEAGE) == PartKey(kind="gpu", name="1650123")


def test_a_uuid_in_the_line_outranks_the_place() -> None:
    moved = replace(xid(HOUR, job="11"), gpu_uuid=NEW)

    assert part_of(moved, LINEAGE) == PartKey(kind="gpu", name=NEW)
    assert part_of(replace(moved, gpu_uuid=OLD), LINEAGE) == PartKey(kind="gpu", name="1650123")


def test_a_gpu_that_nobody_can_name_is_blamed_for_nothing() -> None:
    nameless = [xid(HOUR, job="11", pci=OTHER_GPU), xid(3 * HOUR, job="12", pci=OTHER_GPU)]

    assert [part_of(each, LINEAGE) for each in nameless] == [None, None]
    assert repeated_in(nameless) == ()


def test_two_gpus_said_to_be_at_one_place_are_neither() -> None:
    both = Lineage(seatings=(*LINEAGE.seatings, replace(LINEAGE.seatings[0], uuid=NEW, serial=None)))

    assert part_of(xid(HOUR, job="11"), both) is None


def test_a_link_is_known_by_its_node_and_starts_anew_when_it_was_replaced() -> None:
    link = Component(kind=ComponentKind.LINK, name="mlx5_0/1", node=NODE)
    seen = [
        Observation(
            signal=Signal.SXID,
            node=NODE,
            observed_at=NOW + hour * HOUR,
            source="kernel",
            position=str(hour),
            code=12028,
            component=link,
        )
        for hour in (0, 5)
    ]
    key = PartKey(kind="link", name=f"{NODE}/mlx5_0/1")

    (found,) = repeated_in(seen, Lineage())

    assert found.part == key
    assert repeated_in(seen, Lineage(replaced_at={key: NOW + HOUR})) == ()


@pytest.mark.parametrize(
    ("component", "node", "expected"),
    [
        (None, NODE, PartKey(kind="node", name=NODE)),
        (None, NO_NODE, None),
        (Component(kind=ComponentKind.JOB, name="11"), NODE, None),
        (Component(kind=ComponentKind.LEAF_SWITCH, name="s3"), NO_NODE, PartKey(kind="leaf_switch", name="s3")),
        (Component(kind=ComponentKind.NODE, name=NODE, node=NODE), NODE, PartKey(kind="node", name=NODE)),
    ],
)
def test_what_is_no_gpu_is_known_by_its_name(
    component: Component | None, node: NodeName, expected: PartKey | None
) -> None:
    seen = Observation(
        signal=Signal.LOG_SIGNATURE,
        node=node,
        observed_at=NOW,
        source="kernel",
        position="1",
        signature="pcie_aer_corrected",
        component=component,
    )

    assert part_of(seen, LINEAGE) == expected


# -- invariants ---------------------------------------------------------------------------------------------------

OCCURRENCES = st.lists(
    st.builds(
        Occurrence,
        rule=st.sampled_from(["xid_31", "xid_74", "xid_43", "sxid_12028"]),
        part=st.sampled_from([PART, OTHER_PART]),
        at=st.integers(0, 72 * 60).map(lambda minutes: NOW + timedelta(minutes=minutes)),
        job=st.sampled_from([None, JobId("11"), JobId("12"), JobId("13_1"), JobId("13_2")]),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(OCCURRENCES, st.randoms(use_true_random=False))
def test_order_and_duplicates_change_nothing(occurrences: list[Occurrence], random: Random) -> None:
    told = [*occurrences, *occurrences[::2]]
    random.shuffle(told)

    assert judged(*told) == judged(*occurrences)


@settings(deadline=None)
@given(OCCURRENCES)
def test_a_repetition_rests_on_enough_events_on_its_own_part(occurrences: list[Occurrence]) -> None:
    rules = repeat_rules(CATALOGUE)

    for found in judged(*occurrences):
        wanted = rules[found.rule].repeat
        assert found.count >= wanted.count
        assert len(found.occurrences) >= found.count
        assert {(each.rule, each.part) for each in found.occurrences} == {(found.rule, found.part)}
        if rules[found.rule].at_fault is AtFault.APPLICATION:
            assert len({program_of(each.job) for each in found.occurrences if each.job is not None}) >= found.count


@settings(deadline=None)
@given(OCCURRENCES, OCCURRENCES)
def test_more_hardware_evidence_takes_no_repetition_back(before: list[Occurrence], more: list[Occurrence]) -> None:
    hardware = [each for each in before if each.rule != "xid_31"]

    known = {(each.rule, each.part) for each in judged(*hardware)}

    # Storms join bursts: evidence between two events may make one of them, so only later evidence is looked at.
    later = [replace(each, at=each.at + 100 * HOUR) for each in more if each.rule != "xid_31"]
    assert known <= {(each.rule, each.part) for each in judged(*hardware, *later)}


# -- a repetition as evidence --


def test_a_repetition_is_told_with_its_newest_burst_and_place() -> None:
    where = Component(kind=ComponentKind.GPU, name=GPU, node=NODE)
    (found,) = judged(*(replace(occurrence(each * HOUR, job=f"{11 + each}"), where=where) for each in range(3)))

    told = found.observation()

    assert (told.signal, told.source, told.observed_at) == (Signal.REPEATED, "history", NOW + 2 * HOUR)
    assert (told.node, told.gpu, told.component, told.signature, told.value) == (NODE, GPU, None, "xid_31", 3)
    assert told.text == found.explanation


@pytest.mark.parametrize(
    ("after", "is_news"),
    [(BURST - SECOND, False), (BURST, False), (BURST + SECOND, True)],
    ids=["within the burst", "at its end", "after it"],
)
def test_only_the_next_burst_is_news(after: timedelta, is_news: bool) -> None:
    before = (occurrence(rule="sxid_12028"), occurrence(HOUR, rule="sxid_12028"))
    (first,) = judged(*before)
    (second,) = judged(*before, occurrence(HOUR + after, rule="sxid_12028"))

    assert (second.observation().position != first.observation().position) is is_news


def test_parts_that_are_no_gpu_are_told_as_what_they_are() -> None:
    node = Component(kind=ComponentKind.NODE, name=NODE, node=NODE)
    link = Component(kind=ComponentKind.LINK, name="mlx5_0", node=NODE)
    fabric = Component(kind=ComponentKind.FABRIC, name="switch 3")
    told = {}
    for where in (node, link, fabric):
        part = PartKey(kind=where.kind.value, name=where.name)
        listed = (occurrence(each * HOUR, rule="pcie_aer_corrected", part=part) for each in range(2))
        (found,) = judged(*(replace(each, where=where) for each in listed))
        told[where.kind] = found.observation()

    assert [(each.node, each.gpu, each.component) for each in told.values()] == [
        (NODE, None, None),
        (NODE, None, link),
        (NO_NODE, None, fabric),
    ]


def test_evidence_is_counted_under_the_name_of_its_rule_and_its_repetition_means_what_the_rule_says() -> None:
    for name, rule in repeat_rules(SHIPPED).items():
        kind, _, code = name.rpartition("_")
        is_code = kind in ("xid", "sxid") and code.isdecimal()
        seen = Observation(
            signal=Signal(kind) if is_code else Signal.LOG_SIGNATURE, node=NODE, observed_at=NOW, source="log",
            position="1", code=int(code) if is_code else None, signature=None if is_code else name,
        )  # fmt: skip
        again = replace(seen, signal=Signal.REPEATED, source="history", signature=name, text="too often")

        finding = find(again, SHIPPED)

        assert rule_of(seen) == name == find(seen, SHIPPED).rule
        assert (finding.rule, finding.first_action) == (f"repeated_{name}", rule.repeat.then)
        assert finding.response is RESPONSES[finding.first_action] >= Response.PAGE, name
        assert finding.at_fault not in (AtFault.APPLICATION, AtFault.USER, AtFault.UNKNOWN, AtFault.NOTHING), name
        assert finding.family not in (Family.APPLICATION, Family.NORMAL, Family.UNKNOWN), name
        assert (finding.confidence, finding.is_lasting, finding.explanation) == (0.9, False, "too often")


def test_conditions_codes_that_are_not_told_and_repetitions_are_not_counted() -> None:
    seen = Observation(signal=Signal.GPU_HOT, node=NODE, observed_at=NOW, source="d", position="1", signature="xid_31")

    assert rule_of(seen) is None
    assert rule_of(replace(seen, signal=Signal.XID)) is None
    assert rule_of(replace(seen, signal=Signal.REPEATED)) is None
