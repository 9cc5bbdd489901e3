"""`ladder`, `probation` and `repair`: what a person reads, what a script reads, and a person's word that is kept."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines import cli
from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.core.incident import Incident, IncidentState, Try
from ops_pipelines.remediate.ladder import RUNGS
from tests.ports.proved_plans import allow, as_step
from tests.shell.desk import HOSTILE, ME, Desk, incident_with, record

NODE = NodeName("gpu001")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def known(desk: Desk, state: IncidentState, text: str = "the GPU fell off the bus", **changes: Any) -> Incident:
    """Record INC-0001 on gpu001, whose reboot did not help an hour ago."""
    tried = Try(response=Response.REBOOT_NODE, ended_at=desk.clock.now() - timedelta(hours=1), why=text)
    given = replace(
        incident_with(text, desk, state=state),
        response=Response.REBOOT_NODE,
        gpus=frozenset({PciAddress("0000:1b:00")}),
        tries=(tried,),
        **changes,
    )
    record(given, desk)
    return given


def reboot(desk: Desk, given: Incident) -> None:
    now = desk.clock.now()
    act = Action(verb=Verb.REBOOT, incident=given.incident, node=NODE)
    before = as_step(ActionRecord(action=act, plan=None, begun_at=now), desk.cluster.ledger)
    desk.cluster.ledger.begin(before, guard=allow, lease_token=None, actor="autopilot", now=now)
    outcome = Outcome(kind=OutcomeKind.DONE, witness="the boot id changed", finished_at=now)
    desk.cluster.ledger.finish(act.key, outcome, actor="autopilot")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ladder",), "no node is above watching"),
        (("probation",), "no node is on probation"),
        (("repair", "list"), "the repair queue is empty"),
    ],
)
def test_nothing_is_said_to_be_nothing(desk: Desk, words: tuple[str, ...], said: str) -> None:
    answer = desk.run(*words)

    assert (answer.exit_code, answer.stdout.splitlines()[-1]) == (cli.ExitCode.OK, said)


def test_ladder_says_what_did_not_help_and_what_it_waits_for(desk: Desk) -> None:
    known(desk, IncidentState.IN_REPAIR)

    answer = desk.run("ladder", columns=200)

    assert "gpu001 11 return to vendor 1 h " in " ".join(answer.stdout.split())
    assert "reboot did not help: the GPU fell off the bus" in answer.stdout
    assert "waits for hands; then `ops-pipelines repair done INC-0001`" in answer.stdout


def test_ladder_in_json_has_the_documented_keys(desk: Desk) -> None:
    reboot(desk, known(desk, IncidentState.VERIFYING))

    view = json.loads(desk.run("ladder", "--node", NODE, "--json").stdout)

    assert list(view) == ["cluster", "taken_at", "nodes", "problems"]
    (node,) = view["nodes"]
    assert list(node) == [
        "node", "incident", "state", "rung", "rung_number", "since", "for_seconds", "cause", "tries", "next_rung",
        "waits_for",
    ]  # fmt: skip
    assert (node["rung"], node["rung_number"], node["next_rung"]) == ("reboot", 8, "power_cycle")
    assert [list(each) for each in node["tries"]] == [["repair", "ended_at", "why"]]


def test_ladder_of_another_node_is_empty_and_of_an_unknown_one_refused(desk: Desk) -> None:
    known(desk, IncidentState.IN_REPAIR)

    other, unknown = desk.run("ladder", "--node", "gpu002"), desk.run("ladder", "--node", "$(reboot)")

    assert "no node is above" in other.stdout
    assert unknown.exit_code == cli.ExitCode.REFUSED
    assert "is not declared in cluster.yaml" in unknown.stderr


def test_explained_ladder_has_every_rung_with_its_limits_here(desk: Desk) -> None:
    printed = desk.run("ladder", "--explain").stdout
    view = json.loads(desk.run("ladder", "--explain", "--json").stdout)

    assert [each["number"] for each in view["rungs"]] == [int(rung) for rung in RUNGS]
    by_name = {each["rung"]: each for each in view["rungs"]}
    assert by_name["reboot"]["max_tries"] == desk.cluster.rules.policy.ladder.max_reboots_count
    assert by_name["reboot"]["limit_seconds"] == desk.cluster.rules.policy.durations.reboot_limit.total_seconds()
    assert (by_name["monitor"]["limit_seconds"], by_name["monitor"]["max_tries"]) == (None, None)
    assert "9 power cycle" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_probation_says_until_when_and_what_ends_it(desk: Desk) -> None:
    known(desk, IncidentState.PROBATION, returned_at=desk.clock.now())

    printed = desk.run("probation", columns=200).stdout
    view = json.loads(desk.run("probation", "--json").stdout)

    length = desk.cluster.rules.policy.durations.probation
    (node,) = view["nodes"]
    assert list(node) == ["node", "incident", "since", "until", "left_seconds", "ends_with", "jobs"]
    assert (node["left_seconds"], node["jobs"]) == (length.total_seconds(), [])
    assert "gpu001" in printed
    assert "a fault ends it early" in printed


def test_probation_with_a_silent_scheduler_says_that_the_jobs_are_not_known(desk: Desk) -> None:
    known(desk, IncidentState.PROBATION, returned_at=desk.clock.now())
    desk.silence_scheduler()

    answer = desk.run("probation", "--json")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert json.loads(answer.stdout)["nodes"][0]["jobs"] is None


def test_queue_lists_what_is_asked_for(desk: Desk) -> None:
    known(desk, IncidentState.IN_REPAIR)

    printed = desk.run("repair", "list", columns=200).stdout
    (node,) = json.loads(desk.run("repair", "list", "--json").stdout)["nodes"]

    assert "Replace gpu 0000:1b:00 of gpu001 (RMA, serial not known)" in printed
    assert list(node) == ["node", "incident", "since", "age_seconds", "cause", "parts", "asks"]
    assert (node["age_seconds"], node["parts"]) == (3600.0, ["gpu 0000:1b:00"])


def test_report_is_markdown_for_people_and_json_for_programs(desk: Desk) -> None:
    known(desk, IncidentState.IN_REPAIR)

    page = desk.run("repair", "report", "INC-0001").stdout
    told = json.loads(desk.run("repair", "report", "INC-0001", "--json").stdout)

    assert page.startswith("# Repair of gpu001\n")
    assert list(told)[:4] == ["incident", "node", "chassis_serial", "written_at"]
    assert (told["node"], told["useless_repairs"][0]["repair"]) == ("gpu001", "reboot")


def test_mended_node_is_said_to_stay_drained_until_it_is_proven_well(desk: Desk) -> None:
    known(desk, IncidentState.IN_REPAIR)

    answer = desk.run("repair", "done", "INC-0001", "--note", "replaced GPU 3 by S-9", columns=200)

    assert answer.exit_code == cli.ExitCode.OK
    assert "the node stays drained until its tests have passed" in answer.stdout
    mended = desk.cluster.ledger.incident(incident_with("", desk, state=IncidentState.OPEN).incident)
    assert mended is not None
    assert (mended.state, mended.note) == (IncidentState.VERIFYING, f"repaired, says {ME}: replaced GPU 3 by S-9")
    assert desk.cluster.ledger.entries(after=0, limit=99)[-1].actor == ME


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        pytest.param(("INC-0001", "--note", " "), cli.ExitCode.USAGE, "name the part", id="no note"),
        pytest.param(("INC-0001", "--note", "x" * 1001), cli.ExitCode.USAGE, "1001", id="endless note"),
        pytest.param(("INC-0002", "--note", "x"), cli.ExitCode.REFUSED, "did you mean INC-0001", id="unknown"),
        pytest.param(("INC-0001", "--note", "x"), cli.ExitCode.REFUSED, "INC-0001 is escalated", id="not in repair"),
    ],
)
def test_word_that_cannot_be_taken_changes_nothing(
    desk: Desk, words: tuple[str, ...], exit_code: cli.ExitCode, message: str
) -> None:
    given = known(desk, IncidentState.ESCALATED)

    answer = desk.run("repair", "done", *words)

    assert answer.exit_code == exit_code
    assert message in answer.stderr
    assert desk.cluster.ledger.incident(given.incident) == given


@pytest.mark.parametrize(
    "words", [("ladder",), ("repair", "list"), ("repair", "report", "INC-0001"), ("ladder", "--json")]
)
def test_hostile_text_stays_text(desk: Desk, words: tuple[str, ...]) -> None:
    known(desk, IncidentState.IN_REPAIR, HOSTILE)

    answer = desk.run(*words, columns=200)

    assert answer.exit_code == cli.ExitCode.OK
    assert "reboot" in answer.stdout
    for sign in ("\x1b", "\x07", "\x9b", "\u202e"):
        assert sign not in answer.stdout
