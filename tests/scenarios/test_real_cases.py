"""Real cases: what was pasted into issues, what diaries tell, and traces of slowed workers, as the docs say it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from bench.chronicles import (
    BASE_13B,
    BLOOM,
    FOLDER,
    LossLine,
    crash_without_end,
    hang_at_evaluation,
    loss_gauge,
    loss_in_lines,
    one_slow_gpu,
    quoted,
    read_losses,
)
from bench.classify import classify_texts
from bench.real_cases import (
    DOCS,
    JOB,
    KERNEL_LOGS,
    NODE,
    STRAGGLERS,
    TABLES,
    Pasted,
    Told,
    agreement,
    judge_trial,
    read_pasted,
    table_lines,
    tell_pasted,
    tell_quoted,
    tell_symptom,
    with_tables,
)
from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, AtFault, ComponentKind, FirstAction, Hypothesis
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import Signal

pytestmark = pytest.mark.skipif(
    not (KERNEL_LOGS.is_dir() and FOLDER.is_dir() and STRAGGLERS.is_dir()),
    reason="the public files (../shared/data) are not beside this checkout",
)


@cache
def pasted() -> Mapping[str, tuple[Pasted, Told]]:
    return {case.name: (case, tell_pasted(case)) for case in read_pasted()}


def why(incident: Incident) -> Hypothesis:
    assert incident.hypothesis is not None
    return incident.hypothesis


def only(told: Told) -> Hypothesis:
    (incident,) = told.incidents
    return why(incident)


def test_a_gpu_that_fell_off_the_bus_is_one_incident_of_that_gpu() -> None:
    case, told = pasted()["ogkm-1010"]

    (culprit,) = only(told).culprits
    assert (culprit.kind, culprit.name, culprit.node) == (ComponentKind.GPU, case.label["pci"], "robin-linux-x3d")
    assert only(told).first_action is FirstAction.REBOOT_NODE


def test_a_gpu_that_fell_off_without_an_xid_is_found_on_its_node() -> None:
    _, told = pasted()["nvsentinel-155"]

    assert only(told).first_action is FirstAction.REBOOT_NODE
    assert {part.node for part in only(told).culprits} == {NODE}


@pytest.mark.parametrize("name", ["nccl-1609", "ofa-271"])
def test_a_collective_that_timed_out_blames_no_hardware(name: str) -> None:
    _, told = pasted()[name]

    assert [(part.kind, part.name) for part in only(told).culprits] == [(ComponentKind.JOB, JOB)]
    assert only(told).first_action not in DESTRUCTIVE_ACTIONS


@pytest.mark.parametrize("name", ["gpud-pr46", "edac-ce-dunkel"])
def test_what_only_needs_watching_is_no_incident(name: str) -> None:
    _, told = pasted()[name]

    assert told.incidents == ()
    assert "-" not in told.signatures


def test_no_pasted_incident_is_missed_or_contradicts_its_label() -> None:
    judged = {name: agreement(case, told) for name, (case, told) in pasted().items()}

    assert {name: words for name, words in judged.items() if words.startswith("no")} == {}


def test_a_judgement_on_a_pasted_incident_can_fail() -> None:
    case, told = pasted()["ogkm-1010"]
    _, watched = pasted()["gpud-pr46"]

    assert agreement(case, watched) == "no: nothing is reported"
    assert agreement(pasted()["edac-ce-dunkel"][0], told).startswith("no")
    assert agreement(pasted()["nccl-1609"][0], told) == "no: a part is blamed"


def test_lines_quoted_in_the_diaries_never_call_for_destruction() -> None:
    lines = [line for path in sorted(FOLDER.glob("*.md")) for line in path.read_bytes().splitlines()]

    assert len(lines) > 1000
    assert {verdict.actions[0] for verdict in classify_texts(lines)} & DESTRUCTIVE_ACTIONS == set()


def test_the_hang_that_people_saw_after_three_hours_is_said_within_minutes_and_blames_no_node() -> None:
    rebuilt = hang_at_evaluation()

    after = rebuilt.seconds_until(Signal.JOB_HUNG)
    (incident,) = tell_symptom(rebuilt)

    assert after is not None
    assert after <= 180
    assert (why(incident).at_fault, why(incident).first_action) == (AtFault.APPLICATION, FirstAction.RESTART_JOB)
    assert [part.name for part in why(incident).culprits] == [JOB]


def test_a_rank_that_waits_for_its_data_loader_is_pointed_at() -> None:
    seen = hang_at_evaluation(idle_rank=5).first(Signal.JOB_HUNG)

    assert seen is not None
    assert (seen.node, seen.gpu) == ("n000", "0000:15:00")


def test_a_crash_after_which_the_job_goes_on_names_the_node_whose_processes_are_gone() -> None:
    rebuilt = crash_without_end(nodes=48)

    (incident,) = tell_symptom(rebuilt)

    assert incident.nodes == {"n000"}
    after = rebuilt.seconds_until(Signal.JOB_HUNG)
    assert after is not None
    assert after <= 120


def test_the_gpu_that_slowed_bloom_is_named_if_it_was_as_slow_as_the_job_became() -> None:
    seen = one_slow_gpu(slower_ratio=0.057).first(Signal.GPU_SLOW)

    assert seen is not None
    assert (seen.node, seen.gpu) == ("n000", "0000:10:00")
    assert one_slow_gpu(slower_ratio=0.0).first(Signal.GPU_SLOW) is None


def test_losses_are_read_as_the_diary_prints_them() -> None:
    losses = read_losses(quoted(BLOOM, "2022-04-12 First lm loss spike"))
    broken_lines = read_losses(quoted(BLOOM, "2022-04-28 sudden 5% drop in throughput"))

    assert [each.step for each in losses] == [*range(31214, 31223), 31250, 31251]
    assert (losses[5].loss, losses[5].step_seconds) == (5.098124, 106.36)
    assert [(each.step, each.step_seconds) for each in broken_lines][-1] == (42784, 111.14)


def test_a_spike_of_an_exported_loss_is_said_and_a_steady_loss_is_not() -> None:
    losses = read_losses(quoted(BASE_13B, "A huge lm loss spike"))
    steady = [replace(each, loss=losses[0].loss) for each in losses]

    assert loss_gauge(losses, jump=29050).seconds_until(Signal.LOSS_SPIKE) is not None
    assert loss_gauge(steady, jump=29050).seconds_until(Signal.LOSS_SPIKE) is None


def test_a_spike_that_only_the_log_tells_is_said_where_a_line_comes_every_few_seconds() -> None:
    losses = [LossLine(step=step, step_seconds=15.0, loss=2.8 if step < 20 else 7.3) for step in range(60)]

    assert loss_in_lines(losses, jump=20).seconds_until(Signal.LOSS_SPIKE) is not None


def test_an_ecc_error_that_only_the_job_tells_is_no_fault_of_its_program() -> None:
    lines = quoted(BASE_13B, "Corrupt GPU crashes the training multiple times", block=0)

    told = only(tell_quoted(lines, node=NODE))

    assert told.at_fault is AtFault.GPU
    assert told.first_action is FirstAction.RESTART_JOB


def test_the_slowed_worker_is_named_as_the_authors_analysis_does() -> None:
    verdict = judge_trial("AR")
    theirs = json.loads((STRAGGLERS / "result-AR.json").read_text(encoding="utf-8"))

    (slow,) = verdict.slow_ranks

    assert (slow.rank, slow.stage) == (0, int(_worst(theirs["blocking_decompose_by_stage"])))
    assert _worst(theirs["blocking_decompose_by_dp_rank"]) == "0"  # ranks 0 to 15: the first replica
    assert (verdict.uneven_stages, verdict.undecided_stages) == ((), ())


def test_an_uneven_split_names_the_authors_stage_and_no_worker() -> None:
    verdict = judge_trial("ST")
    theirs = json.loads((STRAGGLERS / "result-ST.json").read_text(encoding="utf-8"))

    assert verdict.slow_ranks == ()
    assert [str(each.stage) for each in verdict.uneven_stages] == [_worst(theirs["blocking_decompose_by_stage"])]
    assert verdict.undecided_stages == ()


def _worst(values: Mapping[str, float]) -> str:
    return max(values, key=lambda each: values[each])


@pytest.mark.parametrize("title", TABLES)
def test_the_docs_tell_what_the_command_prints(title: str) -> None:
    text = DOCS.read_text(encoding="utf-8")

    section = text.split(f"## {title}\n")[1].split("\n## ")[0]

    assert [line for line in section.splitlines() if line.startswith("|")] == table_lines(TABLES[title]())


def test_a_table_of_the_docs_is_replaced_in_its_section_alone() -> None:
    text = "# T\n\n## one\n\n| a |\n| --- |\n| 1 |\n\nwords\n\n## two\n\n| b |\n"

    written = with_tables(text, {"one": ["| a |", "| 2 |"]})

    assert written == text.replace("| --- |\n| 1 |", "| 2 |")
