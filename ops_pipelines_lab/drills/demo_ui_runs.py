"""Runs that a person of the demo launches in the Dagster UI: releases, versions, and each job of a morning once."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from time import monotonic

from ops_pipelines_lab.drills.dagster_api import ENDED, DagsterApi, DagsterApiError

PLAN_ROLLOUT, LOOK_AT_VERSIONS = "plan_rollout", "look_at_versions"
REBALANCE, SET_QUOTAS = "rebalance_quotas", "set_quotas"
_PROVED = "gpu_quotas"
_LIMIT_SECONDS = 180.0


class UiRuns:
    """Runs of jobs that need nothing to be said but a partition, each launched once."""

    def __init__(self, api: DagsterApi) -> None:
        self._api = api
        self._runs: dict[str, str] = {}
        self._over: set[str] = set()

    def launch(self, job: str, *, partition: str | None = None) -> None:
        self._runs[job] = self._api.launch_job(job, partition=partition)

    def launch_all(self, partitions: Mapping[str, str]) -> None:
        for job, partition in partitions.items():
            self.launch(job, partition=partition)

    def is_over(self, job: str) -> bool:
        """Return whether the run of a job that was launched has ended, well or not."""
        if job not in self._over and self._api.run_status(self._runs[job]) in ENDED:
            self._over.add(job)
        return job in self._over

    def is_over_after(self, job: str, *, first: str) -> bool:
        """Return whether a job has ended that is launched here as soon as the `first` has."""
        if not self.is_over(first):
            return False
        if job not in self._runs:
            self.launch(job)
        return self.is_over(job)

    def await_all(self, pass_time: Callable[[float], None]) -> None:
        """Let time pass until every run has ended, or is late."""
        until = monotonic() + _LIMIT_SECONDS
        while not all(self.is_over(job) for job in self._runs) and monotonic() < until:
            pass_time(0.5)

    def differences(self, pass_time: Callable[[float], None]) -> tuple[str, ...]:
        """Wait for every run; return those that did not end well, and proofs of quotas that did not pass."""
        self.await_all(pass_time)
        states = {job: self._api.run_status(run) for job, run in self._runs.items()}
        unproved = self._unproved() if REBALANCE in self._runs else ()
        return (*(f"{job} is {state}" for job, state in states.items() if state != "SUCCESS"), *unproved)

    def _unproved(self) -> Iterator[str]:
        proofs = self._api.check_states(_PROVED)
        if not proofs:
            yield f"{_PROVED} has no proofs"
        for name, state in proofs.items():
            if state != "SUCCEEDED":
                yield f"proof {name} of {_PROVED}: {state or 'not executed'}"


class InTurn:
    """Runs that follow a back-fill, one after the other: they read what it fills, and leave room for repairs."""

    def __init__(self, api: DagsterApi, *, backfill: str) -> None:
        self._api = api
        self._backfill = backfill
        self._runs = UiRuns(api)
        self._left: dict[str, str] | None = None
        self._running = ""

    def go_on(self, partitions: Callable[[], Mapping[str, str]]) -> None:
        """Launch the next job if it is its turn; `partitions` is asked for once, when the back-fill is over.

        A web server that does not answer is asked again at the next call.
        """
        with suppress(DagsterApiError):
            self._launch_next(partitions)

    def _launch_next(self, partitions: Callable[[], Mapping[str, str]]) -> None:
        if self._left is None:
            runs = self._api.runs_of(self._backfill)
            if not runs or any(run.status not in ENDED for run in runs):
                return
            self._left = dict(partitions())
        if self._running and not self._runs.is_over(self._running):
            return
        if self._left:
            job, partition = next(iter(self._left.items()))
            self._runs.launch(job, partition=partition)
            self._running = job
            del self._left[job]
