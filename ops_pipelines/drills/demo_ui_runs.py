"""Runs that a person of the demo launches in the Dagster UI: what a release would do, which versions run where."""

from collections.abc import Callable
from time import monotonic

from ops_pipelines.drills.dagster_api import ENDED, DagsterApi

PLAN_ROLLOUT, LOOK_AT_VERSIONS = "plan_rollout", "look_at_versions"
_LIMIT_SECONDS = 120.0


class UiRuns:
    """Runs of jobs that need nothing to be said, each launched once."""

    def __init__(self, api: DagsterApi) -> None:
        self._api = api
        self._runs: dict[str, str] = {}
        self._over: set[str] = set()

    def launch(self, job: str) -> None:
        self._runs[job] = self._api.launch_job(job)

    def is_over(self, job: str) -> bool:
        """Return whether the run of a job that was launched has ended, well or not."""
        if job not in self._over and self._api.run_status(self._runs[job]) in ENDED:
            self._over.add(job)
        return job in self._over

    def differences(self, pass_time: Callable[[float], None]) -> tuple[str, ...]:
        """Wait for every run, and return those that did not end well."""
        until = monotonic() + _LIMIT_SECONDS
        while not all(self.is_over(job) for job in self._runs) and monotonic() < until:
            pass_time(0.5)
        states = {job: self._api.run_status(run) for job, run in self._runs.items()}
        return tuple(f"{job} is {state}" for job, state in states.items() if state != "SUCCESS")
