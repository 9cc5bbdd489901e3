"""`explain`: one page that says what broke, why we believe so, the evidence against it, and what will be done."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.fault import Alternative, AtFault, Component, ComponentKind, Family, FirstAction, Hypothesis
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.report.document import to_json
from ops_pipelines.report.terminal import console, print_document
from ops_pipelines.resources.page_files import BUNDLE_DIRECTORY
from ops_pipelines.terminal.edge import ExitCode
from ops_pipelines.terminal.explain import DiagnosedTime, diagnosed_document, diagnosed_json
from ops_pipelines.terminal.incidents import confidence_words
from tests.shell.desk import HOSTILE, Desk, incident_with, record

SWITCH = Hypothesis(
    statement="leaf switch leaf2 lost its links to all of its 4 nodes at once",
    culprits=(Component(kind=ComponentKind.LEAF_SWITCH, name="leaf2"),),
    at_fault=AtFault.FABRIC,
    family=Family.FABRIC,
    first_action=FirstAction.INVESTIGATE_FABRIC,
    confidence=0.93,
    affected_nodes=frozenset(NodeName(f"gpu00{number}") for number in range(1, 5)),
    evidence_for=("07:00:01: 4 of 4 nodes below leaf2 report link down within 2 s", "no node elsewhere does"),
    evidence_against=("gpu003 still answers the scheduler",),
    alternatives=(
        Alternative(statement="a driver update", confidence=0.04, why_less_likely="it was rolled out everywhere"),
    ),
    settled_by="the port counters of leaf2",
)
TITLES = [
    "What broke", "Why we believe so", "Evidence against it", "What else it could be", "What would settle it",
    "What will be done", "What was done", "Evidence kept",
]  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def switch_down(desk: Desk, **changes: object) -> Incident:
    found = incident_with("mlx5_core: Link down", desk, state=IncidentState.OPEN)
    return replace(found, hypothesis=SWITCH, **changes)  # type: ignore[arg-type]  # whatever the test is about


def titles_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line in {*TITLES, "Related incidents"}]


@pytest.mark.parametrize("columns", [80, 200])
def test_page_answers_in_the_order_of_the_questions_and_fits(desk: Desk, columns: int) -> None:
    record(switch_down(desk), desk)

    answer = desk.run("explain", "INC-0001", columns=columns)

    assert answer.exit_code == ExitCode.OK
    assert titles_of(answer.stdout) == TITLES
    assert max(len(line) for line in answer.stdout.splitlines()) <= columns
    assert "\x1b" not in answer.stdout


def test_page_says_cause_sureness_culprit_victims_and_what_follows(desk: Desk) -> None:
    record(switch_down(desk), desk)

    page = desk.run("explain", "INC-0001", columns=200).stdout

    assert SWITCH.statement in page
    assert "very likely (93%); at fault: fabric, family: fabric" in page
    assert "culprit  leaf switch leaf2 " in page
    assert "4 nodes: gpu001, gpu002, gpu003, gpu004" in page
    assert "+ no node elsewhere does" in page
    assert "- gpu003 still answers the scheduler" in page
    assert "4% a driver update; less likely: it was rolled out everywhere" in page
    assert "the port counters of leaf2" in page
    assert "| mlx5_core: Link down" not in page  # the finding says nothing else than its line
    assert "gpu001  xid_79: mlx5_core: Link down" in page


def test_a_line_that_many_nodes_wrote_is_shown_twice_and_the_rest_is_counted(desk: Desk) -> None:
    known = switch_down(desk)
    (finding,) = known.findings
    many = tuple(
        replace(finding, node=NodeName(f"gpu00{number}"), explanation="a port is down") for number in range(1, 5)
    )
    record(replace(known, findings=many), desk)

    page = desk.run("explain", "INC-0001").stdout

    assert page.count("| mlx5_core: Link down") == 2
    assert "and 2 more; `ops-pipelines show INC-0001` lists all" in page


def test_many_that_became_part_of_one_are_one_line(desk: Desk) -> None:
    record(switch_down(desk), desk)
    for number in range(2, 6):
        part = switch_down(desk, incident=IncidentId(f"INC-000{number}"), state=IncidentState.MERGED)
        record(replace(part, note="part of INC-0001", closed_at=desk.clock.now()), desk)

    page, listed = desk.run("explain", "INC-0001").stdout, desk.run("incidents", "--all").stdout

    assert "4 became part of this one: INC-0002 to INC-0005" in page
    assert page.count("INC-0003") == 0
    assert "INC-0001" in listed
    assert "INC-0002" not in listed
    assert "4 more became part of one of these" in listed


def test_victims_are_jobs_with_their_gpus_as_the_scheduler_tells(desk: Desk) -> None:
    desk.lose_gpu("gpu002")

    page = desk.run("explain", "INC-0001").stdout
    document = json.loads(desk.run("explain", "INC-0001", "--json").stdout)

    assert "1 job, 32 GPUs: 1001 (running)" in page
    assert document["victims"] == [
        {"job": "1001", "state": "running", "gpu_count": 32, "nodes": ["gpu001", "gpu002", "gpu003", "gpu004"]}
    ]


def test_job_that_the_scheduler_forgot_is_a_victim_all_the_same(desk: Desk) -> None:
    forgotten = JobAttempt(job=JobId("77"), started_at=desk.clock.now())
    record(switch_down(desk, victims=frozenset({forgotten})), desk)

    assert "victims  1 job: 77 " in desk.run("explain", "INC-0001").stdout


def test_plan_that_waits_is_shown_with_its_steps_and_how_to_approve_it(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")

    page = desk.run("explain", "INC-0001").stdout

    assert "next     drain gpu002 and 6 more steps; waits for approval" in page
    assert "1. drain gpu002" in page
    assert f"`ops-pipelines approve {plan}` asks for your approval" in page
    assert "nothing yet" in page


def test_deeds_and_the_bundle_that_was_kept_before_them_are_shown(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.run("approve", plan, "--yes")
    desk.act(plan)

    page = desk.run("explain", "INC-0001", columns=200).stdout
    document = json.loads(desk.run("explain", "INC-0001", "--json").stdout)

    assert "drain gpu002: done, drain flag read back with our reason" in page
    assert "sha256 as in the ledger" in page
    (bundle,) = document["bundles"]
    assert bundle["is_in_ledger"] is True
    assert (
        Path(bundle["place"]) == desk.cluster_file.parent / "state" / BUNDLE_DIRECTORY / "INC-0001" / f"before-{plan}"
    )
    assert (Path(bundle["place"]) / "lines.txt").exists()
    assert bundle["saved_at"] <= document["actions"][0]["begun_at"]


def test_bundle_that_somebody_changed_no_longer_fits_the_ledger(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.run("approve", plan, "--yes")
    desk.act(plan)
    manifest = desk.cluster_file.parent / "state" / BUNDLE_DIRECTORY / "INC-0001" / f"before-{plan}" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"missing"', '"missing" '))

    assert json.loads(desk.run("explain", "INC-0001", "--json").stdout)["bundles"][0]["is_in_ledger"] is False


def test_incident_of_an_older_version_shows_what_its_findings_say(desk: Desk) -> None:
    record(incident_with("Xid 79 on a GPU", desk, state=IncidentState.OPEN), desk)

    page = desk.run("explain", "INC-0001").stdout
    document = json.loads(desk.run("explain", "INC-0001", "--json").stdout)

    assert "Xid 79 on a GPU" in page
    assert "how sure is not recorded" in page
    assert "culprit  gpu001" in page
    assert document["incident"]["diagnosis"]["confidence"] is None
    assert document["incident"]["diagnosis"]["culprits"] == ["gpu001"]


def test_drain_by_hand_has_no_evidence_and_says_so(desk: Desk) -> None:
    bare = replace(
        incident_with("x", desk, state=IncidentState.ESCALATED), findings=(), note="drained by hand by ada: new cables"
    )
    record(bare, desk)

    page = desk.run("explain", "INC-0001").stdout

    assert "no evidence is recorded: drained by hand by ada: new cables" in page
    assert "by you: drained by hand by ada: new cables" in page


def test_merged_incident_and_the_one_that_took_it_in_name_each_other(desk: Desk) -> None:
    record(switch_down(desk), desk)
    part = replace(
        incident_with("link down", desk, state=IncidentState.OPEN),
        incident=IncidentId("INC-0002"), nodes=frozenset({NodeName("gpu003")}),
    )  # fmt: skip
    record(part, desk)
    record(replace(part, state=IncidentState.MERGED, note="part of INC-0001", closed_at=desk.clock.now()), desk)

    whole, merged = desk.run("explain", "INC-0001").stdout, desk.run("explain", "INC-0002").stdout

    assert "INC-0002 merged: part of INC-0001" in whole
    assert "INC-0001 open: this one is part of INC-0001" in merged
    assert "nothing here: part of INC-0001" in merged


def test_incident_whose_name_merely_begins_alike_is_not_related(desk: Desk) -> None:
    record(switch_down(desk), desk)
    other = replace(
        incident_with("link down", desk, state=IncidentState.OPEN),
        incident=IncidentId("INC-0002"), nodes=frozenset({NodeName("gpu003")}), note="part of INC-00011",
    )  # fmt: skip
    record(other, desk)

    assert "Related incidents" not in desk.run("explain", "INC-0001").stdout


def test_unknown_incident_is_refused_with_the_names_that_come_near(desk: Desk) -> None:
    record(switch_down(desk), desk)

    near, far = desk.run("explain", "inc-0007"), desk.run("explain", "nonsense")

    assert (near.exit_code, far.exit_code) == (ExitCode.REFUSED, ExitCode.REFUSED)
    assert near.stderr == "there is no incident inc-0007; did you mean INC-0001?\n"
    assert "`ops-pipelines incidents --all` lists the recent ones" in far.stderr
    assert near.stdout == far.stdout == ""


def test_hostile_text_stays_text(desk: Desk) -> None:
    hostile = replace(
        SWITCH, statement=HOSTILE, evidence_for=(HOSTILE,), evidence_against=(HOSTILE,), settled_by=HOSTILE,
        alternatives=(Alternative(statement=HOSTILE, confidence=0.1, why_less_likely=HOSTILE),),
        culprits=(Component(kind=ComponentKind.RACK, name=HOSTILE),),
    )  # fmt: skip
    record(replace(incident_with(HOSTILE, desk, state=IncidentState.OPEN), hypothesis=hostile), desk)

    answer = desk.run("explain", "INC-0001")
    in_json = desk.run("explain", "INC-0001", "--json")

    assert answer.exit_code == ExitCode.OK
    for sign in ("\x1b", "\x07", "\x9b", "\u202e", "\r"):
        assert sign not in answer.stdout
        assert sign not in in_json.stdout
    assert "[bold]loud[/bold]" in answer.stdout
    assert titles_of(answer.stdout) == TITLES


def test_silent_scheduler_leaves_the_diagnosis_readable(desk: Desk) -> None:
    desk.lose_gpu("gpu002")
    desk.silence_scheduler()

    answer = desk.run("explain", "INC-0001")

    assert answer.exit_code == ExitCode.NO_ANSWER
    assert answer.stderr.count("slurmctld did not answer") == 1
    assert "Xid 79" in answer.stdout
    assert "1 job: 1001" in answer.stdout


def test_json_has_the_documented_keys(desk: Desk) -> None:
    record(switch_down(desk), desk)

    document = json.loads(desk.run("explain", "INC-0001", "--json").stdout)

    assert list(document) == [
        "cluster", "taken_at", "incident", "began_at", "victims", "sightings", "actions", "bundles", "related",
        "problems",
    ]  # fmt: skip
    assert list(document["sightings"][0]) == ["first_at", "last_at", "count", "where", "rule", "says", "line"]


def test_alike_evidence_is_one_line_with_a_count(desk: Desk) -> None:
    found = incident_with("link down", desk, state=IncidentState.OPEN)
    storm = replace(
        found.findings[0], count=511, found_at=desk.clock.now() + timedelta(seconds=1),
        last_at=desk.clock.now() + timedelta(seconds=40),
    )  # fmt: skip
    record(replace(found, findings=(*found.findings, storm)), desk)

    (sighting,) = json.loads(desk.run("explain", "INC-0001", "--json").stdout)["sightings"]

    assert sighting["count"] == 512
    assert "07:00:00 to 21 Nov 07:00:40, 512 times" in desk.run("explain", "INC-0001").stdout


@pytest.mark.parametrize(
    ("confidence", "words"),
    [
        (1.0, "almost certain"), (0.95, "almost certain"), (0.94, "very likely"), (0.85, "very likely"),
        (0.84, "likely"), (0.7, "likely"), (0.69, "more likely than not"), (0.5, "more likely than not"),
        (0.49, "a guess"), (0.0, "a guess"), (None, "how sure is not recorded"),
    ],
)  # fmt: skip
def test_confidence_has_words(confidence: float | None, words: str) -> None:
    assert confidence_words(confidence) == words


def test_recorded_time_is_told_one_paragraph_an_incident(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    now = desk.clock.now()
    shown = DiagnosedTime(
        cluster="test", since=now - timedelta(hours=1), at=now, incidents=(switch_down(desk),),
        gaps=("gpu_telemetry: no sample",), problems=(),
    )  # fmt: skip

    print_document(console(), diagnosed_document(shown))
    print_document(console(), diagnosed_document(replace(shown, incidents=())))

    page = capsys.readouterr().out
    assert "INC-0001  since 21 Nov 07:00:00" in page
    assert "culprit  leaf switch leaf2" in page
    assert "look at the fabric" in page
    assert "gpu_telemetry: no sample" in page
    assert "what nobody recorded cannot be called healthy" in " ".join(page.split())
    assert json.loads(to_json(diagnosed_json(shown)))["incidents"][0]["diagnosis"]["confidence"] == 0.93
