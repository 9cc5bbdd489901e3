"""The command line on four simulated nodes: exit codes, answers and their JSON, and text that means harm."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.people import orders
from ops_pipelines.remediate.oversight import beat
from tests.shell.desk import CLUSTER_YAML, HOSTILE, ME, Desk, incident_with, record


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def tick(desk: Desk, note: str = "nothing new", **answers: str | None) -> None:
    """Let the autopilot live: without a beat, `status` says blind."""
    desk.cluster.ledger.take_lease(holder="host-a:1", ttl=timedelta(minutes=2), now=desk.cluster.clock.now())
    beat(desk.cluster, name="fault_sensor", holder="host-a:1", note=note, answers=answers or {"kernel_log": None})


def keys_of(value: object) -> object:
    """Return the shape of a JSON document: keys in order, one element for a list."""
    if isinstance(value, dict):
        return {key: keys_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [keys_of(value[0])] if value else []
    return None


PLAN_KEYS = {
    "plan": None, "standing": None, "response": None, "reason": None, "steps": [None], "effects": [None],
    "rejected_alternatives": [], "approved_by": None, "approved_until": None, "left_to": None,
}  # fmt: skip
INCIDENT_KEYS = {
    "incident": None, "state": None, "response": None, "nodes": [None], "gpus": [None], "victims": [None],
    "what": None, "note": None, "opened_at": None, "changed_at": None, "closed_at": None,
    "open_for_seconds": None, "waits_for": None, "plan": PLAN_KEYS, "overlaps": [], "next_step": None,
    "diagnosis": {
        "cause": None, "culprits": [None], "places": [None], "at_fault": None, "family": None, "first_action": None,
        "confidence": None, "confidence_words": None, "affected_nodes": [], "evidence_for": [None],
        "evidence_against": [],
        "alternatives": [dict.fromkeys(("statement", "confidence", "why_less_likely"))], "settled_by": None,
    },
}  # fmt: skip


def test_help_names_every_exit_code() -> None:
    answer = CliRunner().invoke(cli.app, ["--help"])

    assert answer.exit_code == cli.ExitCode.OK
    for code in cli.ExitCode:
        assert f"\n    {code.value}  " in answer.stdout


def test_usable_configuration_is_summed_up_and_every_system_asked(desk: Desk) -> None:
    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.OK
    assert "4 of 8 GPUs in 1 rack(s)" in answer.stdout
    for system in ("scheduler", "telemetry", "kernel_log", "fleet", "ledger"):
        assert f"{system} " in answer.stdout
    assert answer.stdout.count("answers") == 5


def test_every_fault_of_a_file_is_shown_at_once(desk: Desk) -> None:
    (desk.cluster_file.parent / "policy.yaml").write_text("mode: full\ndrain_bugdet: {}\n", encoding="utf-8")

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "line 1: mode: found 'full'" in answer.stderr
    assert "did you mean drain_budget?" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_offline_check_asks_no_system(desk: Desk) -> None:
    desk.silence_scheduler()

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.OK
    assert "answer" not in answer.stdout


def test_system_that_does_not_answer_is_named_and_the_others_still_asked(desk: Desk) -> None:
    desk.silence_scheduler()

    answer = desk.run("check-config")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert "scheduler: slurmctld did not answer" in answer.stderr
    assert answer.stdout.count("answers: ") == 4


def test_status_without_a_scheduler_says_so_and_shows_the_rest(desk: Desk) -> None:
    desk.silence_scheduler()

    answer = desk.run("status", "--json")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    document = json.loads(answer.stdout)
    assert document["nodes_by_state"] is None
    assert document["mode"] == "approve"
    assert document["problems"] == ["slurmctld did not answer within 4 s; check that it runs"]
    assert "slurmctld did not answer" in answer.stderr


def test_status_in_json_has_the_documented_keys_and_stands_alone_on_standard_output(desk: Desk) -> None:
    desk.act(desk.lose_gpu("gpu002"))
    orders.pause(desk.cluster, actor="day-shift", reason="power work")
    tick(desk)

    answer = desk.run("status", "--json")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stderr == ""
    document = json.loads(answer.stdout)
    assert list(document) == [
        "cluster", "taken_at", "health", "mode", "paused", "is_autopilot_alive", "nodes_by_state", "jobs_by_state",
        "marked_jobs", "open_incidents_by_state", "actions_by_outcome", "waiting_evidence_count", "problems",
        "disk_bytes",
    ]  # fmt: skip
    heartbeat_keys = ["name", "at", "age_seconds", "holder", "note", "mode", "is_lease_held", "failing_sources"]
    assert list(document["health"]) == [
        "word", "reasons", "mode", "heartbeats", "newest_evidence_at", "newest_evidence_age_seconds",
        "waiting_evidence_count", "ledger_head",
    ]  # fmt: skip
    assert list(document["health"]["heartbeats"][0]) == heartbeat_keys
    assert document["health"]["word"] == "paused"
    assert document["paused"] == {"actor": "day-shift", "since": document["taken_at"], "reason": "power work"}
    assert document["nodes_by_state"] == {"allocated": 4}
    assert document["open_incidents_by_state"] == {"open": 1}


def test_pause_is_the_first_thing_that_status_says(desk: Desk) -> None:
    tick(desk)
    paused = desk.run("pause", "--reason", " moving racks ")
    answer = desk.run("status")

    assert (paused.exit_code, answer.exit_code) == (cli.ExitCode.OK, cli.ExitCode.OK)
    assert answer.stdout.startswith(f"paused: by {ME} since 2026-11-21 07:00:00 UTC: moving racks\n")


@pytest.mark.parametrize(
    ("policy", "first_line"),
    [
        ("mode: observe\n", "observing: plans, and acts on nothing"),
        ("mode: approve\n", "observing: acts only on approved plans"),
        ("mode: auto\n", "acting: acts within its limits by itself"),
    ],
)
def test_first_word_of_a_living_autopilot_is_what_it_may_do(tmp_path: Path, policy: str, first_line: str) -> None:
    desk = Desk(tmp_path, policy=policy)
    tick(desk)

    answer = desk.run("status")

    assert answer.exit_code == cli.ExitCode.OK
    assert answer.stdout.splitlines()[0] == first_line


def test_autopilot_that_does_not_run_is_blind_before_anything_else(desk: Desk) -> None:
    desk.run("pause", "--reason", "moving racks")

    never = desk.run("status", columns=200)
    tick(desk)
    desk.clock.wait(60)
    no_more = desk.run("status", columns=200)

    assert never.exit_code == no_more.exit_code == cli.ExitCode.NO_ANSWER
    assert never.stdout.startswith("blind: no heartbeat of fault_sensor, ever; start")
    assert no_more.stdout.startswith("blind: no heartbeat of fault_sensor for 60 s, the last by host-a:1")
    assert no_more.stdout.splitlines()[1].startswith(f"  - by {ME} since")
    assert "1 min ago: nothing new" in no_more.stdout


def test_source_that_the_autopilot_cannot_see_makes_it_blind(desk: Desk) -> None:
    tick(desk, scheduler="slurmctld did not answer within 4 s")

    answer = desk.run("status")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert answer.stdout.startswith("blind: scheduler does not answer: slurmctld did not answer within 4 s\n")


@pytest.mark.parametrize("columns", [80, 200])
def test_incidents_show_ids_whole_and_the_plan_that_waits(desk: Desk, columns: int) -> None:
    plan = desk.lose_gpu("gpu002")

    answer = desk.run("incidents", columns=columns)

    assert answer.exit_code == cli.ExitCode.OK
    assert "INC-0001" in answer.stdout
    assert plan in answer.stdout
    assert max(len(line) for line in answer.stdout.splitlines()) <= columns
    assert "\x1b" not in answer.stdout


def test_incidents_in_json_have_the_documented_keys(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")

    answer = desk.run("incidents", "--json")

    assert answer.stderr == ""
    document = json.loads(answer.stdout)
    assert keys_of(document) == {"cluster": None, "taken_at": None, "incidents": [INCIDENT_KEYS], "problems": []}
    assert document["incidents"][0]["plan"]["plan"] == plan
    assert document["incidents"][0]["plan"]["standing"] == "waits_for_approval"
    assert document["incidents"][0]["waits_for"] == "approval"


@pytest.mark.parametrize(
    ("policy", "standing", "waits_for"),
    [
        pytest.param("mode: observe\ndrain_budget: {min_in_service_ratio: 0.5}", "would_be_done", None, id="observe"),
        pytest.param("mode: auto\ndrain_budget: {min_in_service_ratio: 0.5}", "next", None, id="auto"),
    ],
)
def test_standing_of_a_plan_follows_the_mode(tmp_path: Path, policy: str, standing: str, waits_for: str | None) -> None:
    desk = Desk(tmp_path, policy=policy)
    desk.lose_gpu("gpu002")

    incident = json.loads(desk.run("incidents", "--json").stdout)["incidents"][0]

    assert incident["plan"]["standing"] == standing
    assert incident["waits_for"] == waits_for


def test_incident_that_a_guardrail_holds_back_says_what_it_waits_for(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.cluster.scheduler.drain([NodeName("gpu003"), NodeName("gpu004")], reason="by somebody else")

    listed = json.loads(desk.run("incidents", "--json").stdout)["incidents"][0]
    shown = json.loads(desk.run("show", "INC-0001", "--json").stdout)["incident"]

    assert listed["waits_for"].startswith("drain_budget: 3 nodes of rack r1 would be out")
    assert shown["plan"]["plan"] == plan
    assert shown["plan"]["standing"] == "held_back"


def test_incidents_without_a_scheduler_are_listed_without_plans(desk: Desk) -> None:
    desk.lose_gpu("gpu002")
    desk.silence_scheduler()

    answer = desk.run("incidents", "--json")

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert json.loads(answer.stdout)["incidents"][0]["plan"] is None


def test_all_incidents_include_the_closed_ones(desk: Desk) -> None:
    closed = incident_with("it was nothing", desk, state=IncidentState.RESOLVED)
    record(closed, desk)

    assert json.loads(desk.run("incidents", "--json").stdout)["incidents"] == []
    (listed,) = json.loads(desk.run("incidents", "--all", "--json").stdout)["incidents"]
    assert (listed["state"], listed["plan"]) == ("resolved", None)


def test_story_of_an_incident_goes_from_evidence_to_witness(desk: Desk) -> None:
    plan = desk.lose_gpu("gpu002")
    desk.run("approve", plan, "--yes")
    desk.act(plan)

    in_json = desk.run("show", "INC-0001", "--json")
    for_people = desk.run("show", "INC-0001", columns=160)

    document = json.loads(in_json.stdout)
    assert in_json.stderr == ""
    assert keys_of(document) == {
        "cluster": None,
        "taken_at": None,
        "incident": INCIDENT_KEYS,
        "findings": [
            dict.fromkeys(("rule", "node", "response", "found_at", "explanation", "source"))
            | {"evidence": [dict.fromkeys(("source", "position", "observed_at", "text"))]}
        ],
        "actions": [dict.fromkeys(("action", "plan", "begun_at", "sent_at", "finished_at", "outcome", "witness"))],
        "entries": [dict.fromkeys(("seq", "written_at", "kind", "actor", "what", "entry_hash"))],
        "problems": [],
    }
    assert document["incident"]["plan"]["plan"] == plan
    assert document["actions"][0]["action"] == "drain gpu002"
    assert {action["outcome"] for action in document["actions"]} == {"done"}
    assert document["entries"][0]["kind"] == "incident"
    assert ("approval", ME) in {(entry["kind"], entry["actor"]) for entry in document["entries"]}
    assert "GPU has fallen off the bus." in for_people.stdout
    assert "done: drain flag read back" in for_people.stdout


def test_unknown_incident_is_not_found_and_near_names_are_told(desk: Desk) -> None:
    desk.lose_gpu("gpu002")

    answer = desk.run("show", "inc-01")

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert answer.stderr == "there is no incident inc-01; did you mean INC-0001?\n"
    assert answer.stdout == ""


def test_whole_ledger_passes_the_audit(desk: Desk) -> None:
    desk.lose_gpu("gpu002")

    answer = desk.run("audit", "verify", "--json")

    document = json.loads(answer.stdout)
    assert answer.exit_code == cli.ExitCode.OK
    assert list(document) == ["cluster", "is_whole", "entry_count", "head_hash", "first_broken_seq", "problem"]
    assert (document["is_whole"], document["entry_count"], document["first_broken_seq"]) == (True, 4, None)


@pytest.mark.parametrize("damage", ["half of the file", "a table"])
def test_ledger_that_can_no_longer_be_read_is_damaged(desk: Desk, damage: str) -> None:
    desk.lose_gpu("gpu002")
    desk.cluster.ledger.verify_chain()
    with closing(sqlite3.connect(desk.ledger_file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if damage == "a table":
            connection.execute("DROP TABLE entries")
            connection.commit()
    if damage == "half of the file":
        os.truncate(desk.ledger_file, desk.ledger_file.stat().st_size // 2)

    answer = desk.run("audit", "verify")

    assert answer.exit_code == cli.ExitCode.DAMAGED
    assert "restore it from a backup" in " ".join(answer.stderr.split())


def test_audit_fails_where_a_hash_that_was_noted_down_is_gone(desk: Desk) -> None:
    empty = desk.run("audit", "verify")
    desk.lose_gpu("gpu002")
    head = json.loads(desk.run("audit", "verify", "--json").stdout)["head_hash"]
    desk.run("pause", "--reason", "one line more")

    known = desk.run("audit", "verify", "--expect-head", head)
    foreign = desk.run("audit", "verify", "--expect-head", "0" * 64)

    assert "the ledger is empty" in empty.stdout
    assert known.exit_code == cli.ExitCode.OK
    assert foreign.exit_code == cli.ExitCode.DAMAGED
    assert "was cut or replaced" in " ".join(foreign.stdout.split())


def test_tampered_ledger_fails_the_audit_at_the_first_broken_line(desk: Desk) -> None:
    desk.run("pause", "--reason", "first")
    desk.run("pause", "--reason", "second")
    desk.run("pause", "--reason", "third")
    with sqlite3.connect(desk.ledger_file) as connection:
        connection.execute("UPDATE entries SET body = replace(body, 'second', 'nobody') WHERE seq = 2")
    connection.close()

    for_people = desk.run("audit", "verify")
    in_json = desk.run("audit", "verify", "--json")

    assert (for_people.exit_code, in_json.exit_code) == (cli.ExitCode.DAMAGED, cli.ExitCode.DAMAGED)
    assert "DAMAGED at entry 2" in for_people.stdout
    assert json.loads(in_json.stdout)["first_broken_seq"] == 2


def test_ledger_that_cannot_be_opened_is_a_system_that_does_not_answer(desk: Desk) -> None:
    other = desk.cluster_file.parent / "other.yaml"
    other.write_text(CLUSTER_YAML + "ledger: {url: 'sqlite:///no/such/directory/ledger.sqlite'}\n", encoding="utf-8")

    answer = CliRunner().invoke(cli.app, ["status", "--cluster", str(other)])

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert answer.stdout.startswith("blind: the ledger cannot be read; why is on standard error\n")
    assert "Traceback" not in answer.stderr
    assert answer.stderr.strip()


def test_state_directory_that_cannot_be_made_is_a_fault_of_the_configuration(desk: Desk) -> None:
    text = CLUSTER_YAML.replace("state_directory: state", "state_directory: policy.yaml/state")
    desk.cluster_file.write_text(text, encoding="utf-8")

    answer = CliRunner().invoke(cli.app, ["status", "--cluster", str(desk.cluster_file)])
    other = CliRunner().invoke(cli.app, ["show", "INC-0001", "--cluster", str(desk.cluster_file)])

    assert (answer.exit_code, other.exit_code) == (cli.ExitCode.NO_ANSWER, cli.ExitCode.USAGE)
    assert answer.stdout.startswith("blind: the configuration cannot be read")
    assert "its state directory cannot be used" in answer.stderr


def test_fault_of_this_program_is_not_hidden() -> None:
    def fail(cluster_file: Path) -> Cluster:
        raise KeyError("a bug")

    answer = CliRunner().invoke(cli.app, ["status"], obj=fail)

    assert answer.exit_code == cli.ExitCode.UNEXPECTED
    assert isinstance(answer.exception, KeyError)


@pytest.mark.parametrize("command", [("incidents",), ("show", "INC-0001"), ("status",), ("audit", "verify")])
def test_hostile_text_is_shown_in_letters_and_steers_nothing(desk: Desk, command: tuple[str, ...]) -> None:
    record(incident_with(HOSTILE, desk, state=IncidentState.ESCALATED), desk)
    desk.run("pause", "--reason", HOSTILE)
    tick(desk, HOSTILE)

    answer = desk.run(*command, columns=200)
    in_json = desk.run(*command, "--json")

    said = answer.stdout + answer.stderr + in_json.stdout + in_json.stderr
    assert answer.exit_code == in_json.exit_code == cli.ExitCode.OK
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
    if command != ("audit", "verify"):
        assert r"$(reboot) [bold]loud[/bold] \x1b]0;owned\x07 \x1b[2J\x9b31m \u202etxt.exe all is well" in answer.stdout
        assert json.dumps(HOSTILE).strip('"') in in_json.stdout


def test_hostile_arguments_come_back_harmless(desk: Desk) -> None:
    answer = desk.run("show", "INC-\x1b[2J[red]")

    assert answer.exit_code == cli.ExitCode.REFUSED
    assert r"INC-\x1b[2J[red]" in answer.stderr
    assert "\x1b" not in answer.stderr


def test_command_line_starts_without_anything_heavy_and_never_needs_dagster_or_pandas(desk: Desk) -> None:
    program = (
        "import sys; from ops_pipelines.cli import app\n"
        "print([name for name in ('rich', 'pydantic', 'sqlalchemy', 'dagster', 'pandas') if name in sys.modules])\n"
        "app(['status', '--cluster', sys.argv[1]], standalone_mode=False)\n"
        "print([name for name in ('dagster', 'pandas', 'pyarrow') if name in sys.modules])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(desk.cluster_file)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "[]")


def test_answer_of_a_node_loads_no_database(tmp_path: Path) -> None:
    """A node whose cores are taken by jobs answers the fleet within seconds or not at all."""
    program = (
        "import sys; from ops_pipelines.cli import app\n"
        "try: app(['node-install', 'result', '--key', 'a' * 32, '--state', sys.argv[1]])\n"
        "except SystemExit as end: print(end.code)\n"
        "print([name for name in ('sqlalchemy', 'dagster', 'pandas') if name in sys.modules])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout.splitlines()[-2:], done.stderr) == ([str(int(cli.ExitCode.REFUSED)), "[]"], "")


def test_pause_that_could_not_be_written_says_so_and_what_to_do(desk: Desk) -> None:
    text = CLUSTER_YAML.replace("state_directory: state", "state_directory: policy.yaml/state")
    desk.cluster_file.write_text(text, encoding="utf-8")

    answer = CliRunner().invoke(cli.app, ["pause", "--reason", "moving racks", "--cluster", str(desk.cluster_file)])

    assert answer.exit_code == cli.ExitCode.NO_ANSWER
    assert "NOT paused" in answer.stderr
    assert "systemctl stop ops-pipelines-code" in answer.stderr
