"""The page of remediation: pictures first, shown in place; nothing to show is reported; no word of others is markup."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.assets.reports import PLANS_SHOWN, describe_remediation, plan_paragraph, remediation_page
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import JobId, PlanId
from ops_pipelines.core.incident import IncidentState, Recovery, Try
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, Moment, Remaining, TouchedJob
from ops_pipelines.remediate.by_hand import WaitingRepair
from ops_pipelines.remediate.ladder import Rung
from ops_pipelines.remediate.repair_report import write_report
from ops_pipelines.remediate.standings import Probation, Standing
from ops_pipelines.review.cost import RecentRemediation, Saving
from tests.domain.builders import INCIDENT, NODE, NOW, after, ago, attempt, incident, xid
from tests.scenarios.small_autopilot import SmallAutopilot

NOTHING = RecentRemediation(savings=(), uncounted_job_count=0, recoveries=(), plans=())
KNOWN = incident(state=IncidentState.IN_REPAIR, tries=(Try(response=Response.REBOOT_NODE, ended_at=ago(60), why="x"),))


def plan(text: str = "research", *, count: int = 3, proof: bool = True, name: str = "PLAN-1") -> IncidentPlan:
    touched = TouchedJob(job=text, account=text, gpu_count=8, lost_gpu_hours=1.5, is_interrupted=True)
    part = Remaining(kind="rack", name=text, total_count=4, out_before_count=1, out_after_count=2, limit=text)
    radius = BlastRadius(
        jobs=(touched,) * count, teams=(text,) * count, lost_gpu_hours=12.5, unknown_loss_count=1,
        remaining=(part,) * count, violations=(text,) * (count // 4),
    )  # fmt: skip
    return IncidentPlan(
        plan=PlanId(name), incident=INCIDENT, response=Response.REBOOT_NODE, actions=(), reason=text, effects=(),
        rejected_alternatives=(), proof=radius if proof else None,
    )  # fmt: skip


def standing(rung: Rung = Rung.REBOOT) -> Standing:
    return Standing(
        node=NODE, incident=KNOWN, rung=rung, since=ago(600), failed=frozenset({Rung.REBOOT}),
        next_rung=Rung.POWER_CYCLE, waits_for="its plan to begin",
    )  # fmt: skip


def waiting() -> WaitingRepair:
    report = write_report(
        KNOWN, records=(), checks=(), inspection=None, earlier=(), gates=(), driver_versions=(),
        is_evidence_kept=False, now=NOW,
    )  # fmt: skip
    return WaitingRepair(incident=KNOWN, since=ago(86_400), age=timedelta(days=1), report=report)


def probation(jobs: tuple[JobId, ...] | None = ()) -> Probation:
    return Probation(node=NODE, incident=KNOWN, since=ago(3600), until=after(3600), jobs=jobs)


def recovery(**changes: object) -> Recovery:
    known = Recovery(attempt=attempt(), gpu_count=8, held_at=ago(600), checkpointed_at=None)
    return replace(known, **changes)  # type: ignore[arg-type]  # whatever the test is about


def recent(**changes: object) -> RecentRemediation:
    return replace(NOTHING, **changes)  # type: ignore[arg-type]  # whatever the test is about


def rows_of(value: dg.MetadataValue) -> list[dict[str, object]]:
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_pictures_come_before_words_and_words_before_tables() -> None:
    shown = describe_remediation([standing()], [waiting()], [probation()], recent(plans=((KNOWN, plan()),)), now=NOW)

    names = list(shown)
    assert names[:6] == ["ladder", "repair_queue", "probation", "time_saved", "plan_1_leaves", "plan_1"]
    assert names[-4:] == ["ladder_large", "repair_queue_large", "probation_large", "plan_1_leaves_large"]
    assert all(str(shown[name].value).startswith("![") for name in ("ladder", "repair_queue", "probation"))


def test_nothing_is_said_to_be_nothing() -> None:
    shown = describe_remediation([], [], [], NOTHING, now=NOW)

    assert [shown[name].value for name in ("ladder", "repair_queue", "probation", "time_saved")] == [
        "No node is above watching.",
        "The repair queue is empty.",
        "No node is on probation.",
        "No moment was chosen yet that saved or cost GPU-hours.",
    ]
    assert {shown[name].value for name in shown if name.startswith(("nodes_", "jobs_", "saved_by"))} == {"none"}


def test_rows_say_what_did_not_help_what_is_next_and_what_is_asked_for() -> None:
    shown = describe_remediation([standing()], [waiting()], [probation(None)], NOTHING, now=NOW)

    (stands,) = rows_of(shown["nodes_on_ladder"])
    assert (stands["did_not_help"], stands["next"]) == ("reboot_node: x", "power_cycle")
    (waits,) = rows_of(shown["nodes_in_repair"])
    assert waits["days"] == 1.0
    assert str(waits["what_is_asked_for"]).startswith("Replace gpu 0000:1b:00 of gpu001")
    (watched,) = rows_of(shown["nodes_on_probation"])
    assert watched["jobs"] == "not known"


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        pytest.param({}, "not started again yet", id="held"),
        pytest.param({"resumed_at": ago(60)}, "none yet", id="runs"),
        pytest.param(
            {"resumed_at": ago(60), "progressed_at": NOW}, "a newer checkpoint at 21 Nov 07:30", id="continues"
        ),
        pytest.param({"ended_as": "cancelled"}, "none: cancelled", id="ended"),
    ],
)
def test_moved_job_is_shown_with_its_proof_of_progress(changes: dict[str, object], proof: str) -> None:
    shown = describe_remediation([], [], [], recent(recoveries=(recovery(**changes),)), now=NOW)

    (row,) = rows_of(shown["jobs_moved"])
    assert (row["job"], row["checkpoint"], row["proof_of_progress"]) == ("42", "not known", proof)


def test_saved_hours_are_a_number_over_time_and_a_table_by_day_and_team() -> None:
    saving = Saving(attempt=attempt(), team="a", moment=Moment.JOB_END, decided_at=NOW, saved_gpu_hours=2.25)

    shown = describe_remediation([], [], [], recent(savings=(saving, replace(saving, team="b"))), now=NOW)

    assert shown["saved_gpu_hours"].value == 4.5
    assert rows_of(shown["saved_by_day"]) == [
        {"day": "2026-11-21", "team": "a", "gpu_hours": 2.25},
        {"day": "2026-11-21", "team": "b", "gpu_hours": 2.25},
    ]


def test_only_the_newest_plans_are_shown_and_one_that_only_tells_says_so() -> None:
    many = tuple((KNOWN, plan(proof=False, name=f"PLAN-{number}")) for number in range(PLANS_SHOWN + 1))

    shown = describe_remediation([], [], [], recent(plans=many), now=NOW)

    assert [name for name in shown if name.startswith("plan_")] == ["plan_1", "plan_2", "plan_3"]
    assert "touches no node" in str(shown["plan_1"].value)


def test_plan_says_what_it_touches_and_what_remains() -> None:
    text = plan_paragraph(KNOWN, plan(count=1))

    assert (
        "**Touches** 1 jobs (research, 8 GPUs) of research; 1 interrupted, 12.5 GPU-hours lost, of 1 not known" in text
    )
    assert "- rack research: 2 of 4 stay, research" in text
    assert "It breaks no limit." in text


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.integers(0, 9))
def test_any_plan_is_shown_in_place(text: str, count: int) -> None:
    assert len(plan_paragraph(KNOWN, plan(text, count=count))) <= 890


@pytest.mark.parametrize(
    "hostile", ["![x](http://evil/x.png)", "[click](http://evil)", "<img src=x>", "`code`", "__loud__", "a\n\n- zzz"]
)
def test_no_markdown_of_others_is_left_as_such(hostile: str) -> None:
    text = plan_paragraph(incident(xid(79), name=hostile), plan(hostile, count=5))

    left = re.sub(r"\\.", "", text)
    for sign in ("![x]", "[click]", "<img", "`code`", "__loud__", "\n- zzz", "http://"):
        assert sign not in left


def test_page_is_made_on_an_empty_ledger(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=4)

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([remediation_page], resources={"cluster": autopilot.cluster}, instance=instance)

    (made,) = result.asset_materializations_for_node("remediation_page")
    assert made.metadata["ladder"].value == "No node is above watching."
