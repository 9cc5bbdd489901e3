"""The report for the vendor: which part and why, what was tried and tested, what is not known, and hostile words."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.fault import Alternative, AtFault, Component, ComponentKind, Family, FirstAction, Hypothesis
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import ActionKey, Digest
from ops_pipelines.core.incident import IncidentState, Try
from ops_pipelines.core.node_tests import GPU_COUNT, HealthGate, Measurement, NodeCheck, Serial, TestResult, TestRun
from ops_pipelines.remediate.repair_report import RepairReport, as_markdown, fence, queued_at, write_report
from ops_pipelines.report.numbers import escape_markdown
from tests.domain.builders import (
    GPU,
    NODE,
    NOW,
    OTHER_GPU,
    action,
    after,
    ago,
    ended,
    gpu_inspection,
    incident,
    inspection,
    xid,
)

TRIES = (
    Try(response=Response.RESET_GPU, ended_at=ago(600), why="the GPU asked for a reset again"),
    Try(response=Response.REBOOT_NODE, ended_at=ago(60), why="test nccl_loopback failed"),
)
QUEUED = incident(xid(79, seconds_ago=900), state=IncidentState.IN_REPAIR, tries=TRIES)
FLOOR = HealthGate(
    test="nccl_loopback", measurement="busbw", unit="GB/s", gpu_model="H100", low=350.0, high=None, typical=380.0,
    physical=450.0, baseline_ratio=None, source="a vendor's guide",
)  # fmt: skip


def check(*tests: TestRun, **changes: Any) -> NodeCheck:
    return replace(
        NodeCheck(
            key=ActionKey("k-1"),
            node=NODE,
            suite="nvlink",
            started_at=ago(200),
            finished_at=ago(100),
            tests=tests,
            gpu_models=("NVIDIA H100 80GB HBM3",),
            serials=(
                Serial(part="chassis", serial="C-17"),
                Serial(part=f"gpu {GPU}", serial="1652823054567", model="H100", firmware="96.00.89"),
            ),
        ),
        **changes,
    )


def bandwidth(value: float, *, unit: str = "GB/s") -> TestRun:
    measured = Measurement(name="busbw", value=value, unit=unit, gpu=GPU)
    return TestRun(test="nccl_loopback", result=TestResult.FAILED, said="too slow", measurements=(measured,))


def report(given: Any = QUEUED, **changes: Any) -> RepairReport:
    known: dict[str, Any] = {
        "records": (), "checks": (), "inspection": None, "earlier": (), "gates": (FLOOR,), "driver_versions": (),
        "is_evidence_kept": False, "now": NOW,
    }  # fmt: skip
    return write_report(given, **{**known, **changes})


def test_report_asks_for_the_part_by_its_serial_and_says_why() -> None:
    told = report(checks=(check(bandwidth(211.5)),))

    (part,) = told.parts
    assert (part.part, part.pci_address, part.serial, part.firmware) == (f"gpu {GPU}", GPU, "1652823054567", "96.00.89")
    assert told.chassis_serial == "C-17"
    (ask,) = told.asks
    assert ask.startswith(f"Replace gpu {GPU} of gpu001 (RMA, serial 1652823054567). Why: Xid 79")
    assert "2 repairs of ours did not help" in ask
    assert "test nccl_loopback failed on it: too slow" in part.reasons


def test_node_that_healed_is_no_case_for_the_vendor() -> None:
    (asked,) = report(replace(QUEUED, state=IncidentState.RESOLVED)).asks

    assert asked.startswith("Nothing: ")
    assert "RMA" not in asked


def test_serial_that_the_tests_did_not_tell_is_the_nodes_own_word() -> None:
    seen = inspection(gpus=(gpu_inspection(GPU, serial="S-9", model="H200"),), chassis_serial="C-9")

    told = report(inspection=seen)

    assert (told.parts[0].serial, told.parts[0].model, told.chassis_serial) == ("S-9", "H200", "C-9")


def test_what_is_not_known_is_said_and_nothing_is_made_up() -> None:
    told = report()

    assert told.parts[0].serial == ""
    assert "serial not known" in told.asks[0]
    assert told.not_known == (
        "the serial of the chassis: nothing reported it",
        f"the serial of gpu {GPU}: nothing reported it; read it from the part",
        "how the node sees itself now: it did not answer",
        "how the node tests: no test was run on it",
        "the version of the driver: nothing kept names it",
        "what surrounded the fault: no evidence bundle was kept",
    )


def test_test_that_was_not_run_is_no_test_passed() -> None:
    absent = TestRun(test="dcgm_diag_r3", result=TestResult.NOT_RUN, said="dcgmi is not installed")

    told = report(checks=(check(absent),))

    assert [each.result for each in told.tests] == ["not_run"]
    assert "test dcgm_diag_r3 was not run: dcgmi is not installed" in told.not_known


def test_number_is_told_beside_the_limit_by_which_it_was_judged() -> None:
    of_eight = replace(FLOOR, gpu_count=8, low=460.0, typical=480.0, source="for eight GPUs")
    of_other_model = replace(FLOOR, gpu_model="GH100", low=10.0, source="for another model")
    used = Measurement(name=GPU_COUNT, value=8.0, unit="count")
    run = replace(bandwidth(400.0), measurements=(used, *bandwidth(400.0).measurements))

    (told,) = report(checks=(check(run),), gates=(of_other_model, FLOOR, of_eight)).tests
    (fewer,) = report(checks=(check(bandwidth(400.0)),), gates=(of_other_model, FLOOR, of_eight)).tests
    (other,) = report(checks=(replace(check(bandwidth(400.0)), gpu_models=("NVIDIA GH100H100",)),)).tests

    assert [(each.verdict, each.source) for each in told.values][1:] == [("below the floor", "for eight GPUs")]
    assert [(each.verdict, each.source) for each in fewer.values] == [("ok", "a vendor's guide")]
    assert [each.verdict for each in other.values] == ["no limit known"]


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        pytest.param(bandwidth(349.9), "below the floor", id="just below"),
        pytest.param(bandwidth(350.0), "ok", id="at the floor"),
        pytest.param(bandwidth(350.1), "ok", id="just above"),
        pytest.param(bandwidth(999.0, unit="Gbit/s"), "no limit known", id="in another unit"),
    ],
)
def test_measurement_stands_beside_its_floor(run: TestRun, verdict: str) -> None:
    (test,) = report(checks=(check(run),)).tests

    assert test.values[0].verdict == verdict


def test_floor_of_another_model_judges_nothing_and_that_is_said() -> None:
    told = report(checks=(check(bandwidth(100.0), gpu_models=("NVIDIA A100",)),))

    assert told.tests[0].values[0].verdict == "no limit known"
    assert any("nccl_loopback busbw: no limit is known" in each for each in told.not_known)


def test_incident_without_a_part_asks_for_the_broken_part_of_the_node() -> None:
    told = report(replace(QUEUED, gpus=frozenset()))

    assert [each.part for each in told.parts] == [NODE]
    assert told.asks[0].startswith("Find and replace the broken part of gpu001: which one it is was not shown.")
    assert "which part is at fault: nothing that was seen names one" in told.not_known


def test_link_that_the_diagnosis_blames_is_a_part_with_the_serial_of_its_nic() -> None:
    blamed = Hypothesis(
        statement="mlx5_0 flaps",
        culprits=(Component(kind=ComponentKind.LINK, name="mlx5_0", node=NODE),),
        at_fault=AtFault.NODE, family=Family.FABRIC, first_action=FirstAction.RMA, confidence=0.8,
        affected_nodes=frozenset(), evidence_for=(), evidence_against=(),
        alternatives=(Alternative(statement="the switch port", confidence=0.15, why_less_likely="others are well"),),
        settled_by="",
    )  # fmt: skip
    known = replace(QUEUED, gpus=frozenset(), hypothesis=blamed)

    told = report(known, checks=(check(serials=(Serial(part="nic mlx5_0", serial="MT2231"),)),))

    assert [(each.part, each.serial) for each in told.parts] == [("link mlx5_0", "MT2231")]
    assert (told.what_broke, told.sureness) == ("mlx5_0 flaps", 0.8)
    assert "whether it was not rather this (15%): the switch port" in told.not_known


def test_history_counts_the_earlier_incidents_that_named_the_same_part() -> None:
    same = incident(xid(79, seconds_ago=9000), name="INC-0007", state=IncidentState.RESOLVED)
    other = incident(xid(48, seconds_ago=5000, gpu=OTHER_GPU), name="INC-0008", state=IncidentState.RESOLVED)
    elsewhere = incident(xid(79, node="gpu002", seconds_ago=9000), name="INC-0009")
    later = incident(xid(79, seconds_ago=1), name="INC-0010")

    told = report(earlier=(later, other, elsewhere, same, QUEUED))

    assert [each.incident for each in told.history] == ["INC-0007", "INC-0008"]
    assert told.parts[0].earlier_incident_count == 1
    assert "1 earlier incident named it" in told.asks[0]


def test_repairs_are_told_with_their_witness_and_acts_on_jobs_are_not() -> None:
    failed = ended(action(Verb.RESET_GPU, on=NODE, gpu=GPU), OutcomeKind.FAILED, seconds_ago=650)
    drained = ended(action(Verb.DRAIN, on=NODE), seconds_ago=800)
    paged = ended(action(Verb.PAGE_HUMAN), seconds_ago=10)

    told = report(records=(failed, paged, drained))

    assert [(each.act, each.outcome, each.witness) for each in told.repairs] == [
        ("drain gpu001", "done", "seen"),
        (f"reset gpu gpu001 GPU {GPU}", "failed", "seen"),
    ]
    assert [each.repair for each in told.useless_repairs] == ["gpu_reset", "reboot"]


@pytest.mark.parametrize(("count", "left_out_count"), [(30, 0), (31, 1), (200, 170)])
def test_of_many_signs_the_earliest_and_the_latest_are_told_in_order(count: int, left_out_count: int) -> None:
    many = incident(*(xid(79, seconds_ago=count - number, position=str(number)) for number in range(count)))

    told = report(many)

    times = [each.first_at for each in told.signs]
    assert times == sorted(times)
    assert (len(times), told.left_out_sign_count) == (min(30, count), left_out_count)
    assert (times[0], times[-1]) == (ago(count), ago(1))


def test_node_waits_since_its_last_repair_failed() -> None:
    assert queued_at(QUEUED) == ago(60)
    assert queued_at(replace(QUEUED, tries=())) == QUEUED.changed_at


@pytest.mark.parametrize("names", [(), ("gpu001", "gpu002")])
def test_report_is_about_one_node(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a report is about one node"):
        report(replace(QUEUED, nodes=frozenset(names)))


def test_page_has_the_answers_in_the_order_of_the_questions() -> None:
    page = as_markdown(report(checks=(check(bandwidth(211.5)),), driver_versions=("570.1",), is_evidence_kept=True))

    titles = [line for line in page.splitlines() if line.startswith("#")]
    assert titles == [
        "# Repair of gpu001", "## What we ask for", "## Suspect parts", "## What failed", "## What was tried",
        "## Tests", "## Versions", "## Earlier trouble of this node", "## Evidence", "## What is not known",
    ]  # fmt: skip
    assert "xid 79 on gpu001\n```" in page  # the line as the machine wrote it
    assert "below the floor (at least 350 GB/s); a vendor's guide" in page
    assert "driver 570.1" in page


def test_evidence_is_named_by_its_digest() -> None:
    assert f"`{'a' * 64}`" in as_markdown(report(replace(QUEUED, bundle=Digest("a" * 64))))


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "``` \n# head\n```", "````", "![x](http://evil/x.png)", "[click](http://evil)", "<img src=x onerror=y>",
            "a | b |\n| --- |", "__loud__ **loud**", "- item", "1. item", "# head", "> quote", "&lt;b&gt;", "\x1b[2J",
            "http://evil www.evil.com a@evil.com", "~~~", "\u202etxt", "$(reboot)", "<!-- x -->", "a\\", "+ x", "= x",
        ]
    ),
)  # fmt: skip
ALLOWED = {
    "heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "bullet_list_open",
    "list_item_open", "bullet_list_close", "list_item_close", "table_open", "table_close", "thead_open",
    "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open", "td_close",
    "fence", "text", "strong_open", "strong_close", "softbreak", "text_special",
}  # fmt: skip
READER = MarkdownIt("commonmark").enable("table")


@settings(max_examples=150, deadline=None)
@given(HOSTILE)
def test_no_word_of_others_is_markup(hostile: str) -> None:
    seen = xid(79)
    (line,) = seen.evidence
    finding = replace(seen, explanation=hostile, evidence=(replace(line, text=hostile),))
    run = TestRun(test=hostile, result=TestResult.NOT_RUN, said=hostile)
    known = replace(QUEUED, findings=(finding,), tries=(replace(TRIES[0], why=hostile),))

    page = as_markdown(report(known, checks=(check(run, suite=hostile),), driver_versions=(hostile,)))

    blocks = READER.parse(page)
    kinds = [each.type for each in blocks] + [child.type for each in blocks for child in each.children or ()]
    assert set(kinds) <= ALLOWED
    assert kinds.count("heading_open") == 10
    assert kinds.count("table_open") == 2
    assert kinds.count("fence") == (1 if hostile else 0)


@given(st.text(max_size=300), st.integers(10, 100))
def test_escaped_text_reads_as_it_was_on_one_line(text: str, at_most: int) -> None:
    escaped = escape_markdown(text, at_most=at_most)

    assert "\n" not in escaped
    (paragraph,) = [each for each in READER.parse(f"x {escaped} x") if each.type == "inline"]
    read = "".join(child.content for child in paragraph.children or ())
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    shown = flat if len(flat) <= at_most else f"{flat[: at_most - 1]}…"
    assert read.split() == f"x {shown} x".split()


@given(st.lists(st.text(alphabet="`~ \na\x1b", max_size=12), max_size=4))
def test_fence_holds_its_lines_whatever_they_are(lines: list[str]) -> None:
    tokens = READER.parse(fence(lines) + "\n\nafter")

    assert [each.type for each in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content.count("\n") == len(lines)


def test_earlier_trouble_does_not_begin_after_this() -> None:
    assert report(earlier=(incident(xid(79), name="INC-0003", opened_at=after(5)),)).history == ()


def test_time_since_the_report_was_written_is_not_part_of_it() -> None:
    assert replace(report(now=NOW + timedelta(days=1)), written_at=NOW) == report()
