"""The parts of the demo that climb the ladder, on the demo's own policy, without Dagster and on simulated time."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from ops_pipelines.cli import app
from ops_pipelines.core.notes import BATCH_PREFIX, Audience
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.terminal.approval import SentForm, show_plan, take_yes
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble
from ops_pipelines_lab.drills.dagster_api import Shown
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part, leave_alone
from ops_pipelines_lab.drills.demo_ladder import HANDS, STUBBORN, TIMING
from ops_pipelines_lab.drills.demo_pages import proposed_policy
from ops_pipelines_lab.drills.demo_parts import ALONE, PARTS, SIDE_BY_SIDE, break_something
from ops_pipelines_lab.drills.demo_quotas import PERSON, consent_part
from ops_pipelines_lab.drills.demo_setup import ANSWERS_FILE, PROPOSED_FILE, clear, write_configuration
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import (
    SWEEP_FIRST_SAVE_SECONDS,
    SWEEP_INTERVAL_SECONDS,
    cluster_nodes,
    demo_scenario,
)
from ops_pipelines_lab.simulator.twin import Twin
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import FakeClock

PAGES_URL = "http://127.0.0.1:9750"
CONSENT = consent_part(reboot_count=2)


class DemoAutopilot(SmallAutopilot):
    """The demo's own configuration, on 20 nodes and with the jobs of the sweep alone."""

    def __init__(self, state: Path) -> None:
        scenario = demo_scenario()
        sweep = tuple(job for job in scenario.initial_jobs if job.name.startswith("sweep-"))
        small = replace(scenario, nodes=cluster_nodes(20), initial_jobs=sweep, arrivals=())
        self.clock = FakeClock()
        self.state = state
        self.failures = []
        config = read_cluster(write_configuration(state, pages_url=PAGES_URL))
        past = timedelta(seconds=SWEEP_INTERVAL_SECONDS)
        self.twin = Twin.create(state / TWIN_DIRECTORY, small, seed=7, clock=self.clock, past=past)
        self.clock.wait(SWEEP_FIRST_SAVE_SECONDS - 25.0)  # so that the parts overlap
        whole = assemble(config, self.clock)
        rules = replace(whole.rules, topology=small.topology)
        self.cluster = replace(whole, rules=rules, bundles=None, recollection=None)
        self.lease = Lease(holder="test", given=None)
        self._plans = ()
        self._refusals = ()
        self._begun: dict[str, Injected] = {}

    def go_through(self, parts: Sequence[Part], *, seconds: float) -> None:
        """Begin the parts at their moments, and let them continue until all are as expected or time is up."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < until:
            for part in parts:
                if part.letter not in self._begun and part.is_ready(self.twin):
                    self._begun[part.letter] = part.inject(self.twin)
            begun = [part for part in parts if part.letter in self._begun]
            left = [part for part in begun if part.differences(self.evidence_of(part))]
            if len(begun) == len(parts) and not left:
                return
            for part in left:
                part.proceed(self.evidence_of(part))
            self.run_for(1.0)

    def evidence_of(self, part: Part) -> Evidence:
        return Evidence(
            twin=self.twin,
            cluster=self.cluster,
            injected=self._begun[part.letter],
            state=self.state,
            call=self._call,
            browse=self._browse,
        )

    def _call(self, words: Sequence[str]) -> str:
        result = CliRunner().invoke(app, list(words), obj=lambda _file: self.cluster)
        assert result.exit_code == 0, result.output
        return result.output

    def _browse(self, url: str, form: dict[str, str] | None) -> Shown:
        """Open a link without HTTP, which `tests/shell/test_approval_pages.py` goes through."""
        token = url.removeprefix(f"{PAGES_URL}/approve/")
        if form is None:
            return Shown(status=200, page=show_plan(token, self.cluster))
        sent = SentForm(
            content_type="application/x-www-form-urlencoded",
            fetch_site=None,
            origin=None,
            host="127.0.0.1",
            body=urlencode(form).encode(),
        )
        return Shown(status=200, page=take_yes(token, sent, self.cluster))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoAutopilot:
    autopilot = DemoAutopilot(tmp_path_factory.mktemp("demo"))
    autopilot.go_through([STUBBORN, HANDS, TIMING, CONSENT], seconds=150)
    return autopilot


@pytest.mark.parametrize("part", [TIMING, STUBBORN, HANDS, CONSENT], ids=lambda part: part.letter)
def test_part_of_the_demo_reaches_its_end(demo: DemoAutopilot, part: Part) -> None:
    differences = part.differences(demo.evidence_of(part))

    assert differences == ()


def test_demo_says_what_each_moment_would_have_cost(demo: DemoAutopilot) -> None:
    fresh, stale = TIMING.tell(demo.evidence_of(TIMING))

    assert "moved now" in fresh
    assert "moved next checkpoint" in stale
    assert all("job end" in line and "work lost: 0.0" in line for line in (fresh, stale))


def test_demo_says_for_each_reboot_whose_yes_it_stands_on(demo: DemoAutopilot) -> None:
    lines = CONSENT.tell(demo.evidence_of(CONSENT))

    assert len(lines) == 2  # the stubborn node and the one that needs hands
    assert all(f"in the name of {PERSON!r}" in line for line in lines)


def test_no_reboot_is_begun_while_nobody_answers(tmp_path: Path) -> None:
    autopilot = DemoAutopilot(tmp_path)

    autopilot.go_through([STUBBORN, replace(CONSENT, proceed=leave_alone)], seconds=40)

    assert "1 plan(s) wait for approval" in CONSENT.differences(autopilot.evidence_of(CONSENT))
    assert not autopilot.evidence_of(STUBBORN).commands(EntryKind.REBOOT)


def test_demo_says_where_the_report_for_the_vendor_lies(demo: DemoAutopilot) -> None:
    (line,) = HANDS.tell(demo.evidence_of(HANDS))

    assert Path(line.rpartition(": ")[2]).read_text().startswith("# Repair of ")


def test_part_that_was_just_begun_is_not_at_its_end(tmp_path: Path) -> None:
    autopilot = DemoAutopilot(tmp_path)

    autopilot.go_through([STUBBORN, HANDS], seconds=0.1)

    assert all(part.differences(autopilot.evidence_of(part)) for part in (STUBBORN, HANDS))


def test_every_part_has_its_place_and_a_letter_of_its_own() -> None:
    letters = [part.letter for part in PARTS]

    assert letters == list("abcdefghijklmn")
    assert sorted(part.letter for part in (*SIDE_BY_SIDE, *ALONE)) == letters


def test_what_an_earlier_demo_left_is_cleared_and_other_files_stay(tmp_path: Path) -> None:
    write_configuration(tmp_path, pages_url=PAGES_URL)
    for name in ("ledger.sqlite-wal", "repair-INC-0001.md", ANSWERS_FILE, PROPOSED_FILE, "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "lake" / "hours").mkdir(parents=True)

    clear(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("capacity.yaml", "cluster.yaml", "notes.txt", "policy.yaml", "projects.yaml", "releases", "teams.yaml")
    ]


def test_the_proposed_policy_is_stricter_and_would_be_taken(tmp_path: Path) -> None:
    config = read_cluster(write_configuration(tmp_path, pages_url=PAGES_URL))
    proposed = tmp_path / PROPOSED_FILE
    proposed.write_text(proposed_policy())

    policy = read_policy(proposed, topology=config.topology)
    present = read_policy(tmp_path / "policy.yaml", topology=config.topology)

    assert policy.drain_budget.max_out_count < present.drain_budget.max_out_count
    assert policy.consent_to(ActionClass.RESET_GPU) is Consent.FORBID


def test_notes_about_an_incident_are_no_pages(tmp_path: Path) -> None:
    autopilot = DemoAutopilot(tmp_path)
    autopilot.go_through([STUBBORN], seconds=3)
    evidence = autopilot.evidence_of(STUBBORN)
    (incident,) = evidence.own_incidents
    lines = [
        {"audience": "on_call", "thread": incident.incident, "key": key}
        for key in (f"{BATCH_PREFIX}0123", "0123456789")
    ]
    evidence.messages.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert evidence.message_count(Audience.ON_CALL, [incident]) == 1


class OnlyLeaves(random.Random):
    """Chance that always falls on the switch."""

    def choices(self, population: Sequence[Any], *_: object, **__: object) -> list[Any]:
        return [FaultKind.LEAF_SWITCH_DOWN]


def test_fault_that_cannot_happen_now_ends_no_endless_demo(tmp_path: Path) -> None:
    twin = Twin.create(tmp_path / "twin", demo_scenario(), seed=1, clock=FakeClock())

    break_something(twin, OnlyLeaves(1))
    break_something(twin, OnlyLeaves(1))
