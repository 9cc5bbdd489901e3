"""The parts of the demo that climb the ladder, on the demo's own policy, without Dagster and on simulated time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines.cli import app
from ops_pipelines.drills.demo_evidence import Evidence, Injected, Part
from ops_pipelines.drills.demo_ladder import HANDS, STUBBORN, TIMING
from ops_pipelines.drills.demo_parts import ALONE, PARTS, SIDE_BY_SIDE
from ops_pipelines.drills.demo_setup import clear, write_configuration
from ops_pipelines.flow.lease import Lease
from ops_pipelines.resources.config.files import read_cluster
from ops_pipelines.simulator.scenario import (
    SWEEP_FIRST_SAVE_SECONDS,
    SWEEP_INTERVAL_SECONDS,
    cluster_nodes,
    demo_scenario,
)
from ops_pipelines.simulator.twin import Twin
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import FakeClock


class DemoAutopilot(SmallAutopilot):
    """The demo's own configuration, on 20 nodes and with the jobs of the sweep alone."""

    def __init__(self, state: Path) -> None:
        scenario = demo_scenario()
        sweep = tuple(job for job in scenario.initial_jobs if job.name.startswith("sweep-"))
        small = replace(scenario, nodes=cluster_nodes(20), initial_jobs=sweep, arrivals=())
        self.clock = FakeClock()
        self.state = state
        self.failures = []
        config = read_cluster(write_configuration(state))
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
        """Begin the parts at their moments, and let them go on until all are as expected or time is up."""
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
        )

    def _call(self, words: Sequence[str]) -> str:
        result = CliRunner().invoke(app, list(words), obj=lambda _file: self.cluster)
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoAutopilot:
    autopilot = DemoAutopilot(tmp_path_factory.mktemp("demo"))
    autopilot.go_through([STUBBORN, HANDS, TIMING], seconds=150)
    return autopilot


@pytest.mark.parametrize("part", [TIMING, STUBBORN, HANDS], ids=lambda part: part.letter)
def test_part_of_the_demo_reaches_its_end(demo: DemoAutopilot, part: Part) -> None:
    differences = part.differences(demo.evidence_of(part))

    assert differences == ()


def test_demo_says_what_each_moment_would_have_cost(demo: DemoAutopilot) -> None:
    fresh, stale = TIMING.tell(demo.evidence_of(TIMING))

    assert "moved now" in fresh
    assert "moved next checkpoint" in stale
    assert all("job end" in line and "work lost: 0.0" in line for line in (fresh, stale))


def test_demo_says_where_the_report_for_the_vendor_lies(demo: DemoAutopilot) -> None:
    (line,) = HANDS.tell(demo.evidence_of(HANDS))

    assert Path(line.rpartition(": ")[2]).read_text().startswith("# Repair of ")


def test_part_that_was_just_begun_is_not_at_its_end(tmp_path: Path) -> None:
    autopilot = DemoAutopilot(tmp_path)

    autopilot.go_through([STUBBORN, HANDS], seconds=0.1)

    assert all(part.differences(autopilot.evidence_of(part)) for part in (STUBBORN, HANDS))


def test_every_part_has_its_place_and_a_letter_of_its_own() -> None:
    letters = [part.letter for part in PARTS]

    assert letters == list("abcdefghij")
    assert sorted(part.letter for part in (*SIDE_BY_SIDE, *ALONE)) == letters


def test_what_an_earlier_demo_left_is_cleared_and_other_files_stay(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    for name in ("ledger.sqlite-wal", "repair-INC-0001.md", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "lake" / "hours").mkdir(parents=True)

    clear(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml", "notes.txt", "policy.yaml"]
