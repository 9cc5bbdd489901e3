"""How old a reading of the cluster is: as old as the question, however long the answer took."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

from ops_pipelines.core.action import Verb
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.remediate.judgement import read_facts
from tests.scenarios.small_autopilot import SmallAutopilot


class SlowToTellJobs:
    """A scheduler that lists its jobs half a minute after its nodes."""

    def __init__(self, autopilot: SmallAutopilot) -> None:
        self._scheduler = autopilot.cluster.scheduler
        self._autopilot = autopilot

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def read_jobs(self) -> tuple[JobStatus, ...]:
        self._autopilot.let_pass(31)
        return tuple(self._scheduler.read_jobs())


def test_facts_are_as_old_as_the_first_question(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=2)
    asked_at = autopilot.clock.now()
    cluster = replace(autopilot.cluster, scheduler=cast("Scheduler", SlowToTellJobs(autopilot)))

    facts = read_facts({Verb.DRAIN}, cluster)

    assert facts.taken_at == asked_at
    assert autopilot.clock.now() - asked_at >= timedelta(seconds=31)
