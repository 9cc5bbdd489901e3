"""The act of quotas: a proposal is kept, applied while slurmdbd dies, completed and rolled back, by the program itself.

A job that its team's limit holds must start once the team is raised, and jobs of the team that is lowered keep running.
Read in Slurm: limits by sacctmgr, jobs by squeue. The act is played after all others, for its limits would hold their
jobs, and leaves none behind. Contracts and the past are `lab_configuration`'s. Between its first order to slurmdbd and
its second the program is stopped: by a sacctmgr that waits, and a kill meanwhile.
"""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus
from ops_pipelines.terminal.edge import ExitCode
from ops_pipelines_lab.drills.lab_act import SOON_SECONDS, Act
from ops_pipelines_lab.drills.lab_configuration import PLATFORM, PRODUCT, old_limits, pretend_labs_past
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView

_BEGUN, _REACHED, _GONE = "begun", "reached", "gone"
_LIMIT_SECONDS = 240.0
"""While slurmdbd is gone each look at it takes its time, and the program looks often before it gives up."""
_WAIT_COUNT = 3000
"""Tenths of a second that sacctmgr waits at most: a drill that died leaves nothing hanging."""

Wait = Callable[[str, Callable[[], bool]], None]
"""Returns once something named is so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program ended and what it printed."""

    returncode: int
    stdout: str


def stop_half_way(program: Sequence[str], *, directory: Path, kill: Callable[[], None], wait: Wait) -> Ended:
    """Run `program`, call `kill` before its second order is sent, and return how it ended.

    `directory` must not be there yet. Raises DrillError where it printed nothing.
    """
    real = shutil.which("sacctmgr")
    if real is None:
        raise DrillError("the program sacctmgr is missing; run: apt-get install --no-install-recommends slurm-client")
    directory.mkdir()
    shim = directory / "sacctmgr"
    shim.write_text(sacctmgr_program(real, directory))
    shim.chmod(0o755)
    with subprocess.Popen(
        program,
        env={**os.environ, "PATH": os.pathsep.join([str(directory), os.environ.get("PATH", os.defpath)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            wait("the second order", lambda: (directory / _REACHED).exists() or running.poll() is not None)
            kill()
            (directory / _GONE).touch()
            said, complaint = running.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise DrillError(f"{shlex.join(program)} did not end within {_LIMIT_SECONDS:.0f} s") from None
        finally:
            running.kill()
    if not said:
        raise DrillError(f"{shlex.join(program)} ended with {running.returncode}: {complaint.strip()[-500:]}")
    return Ended(returncode=running.returncode, stdout=said)


def sacctmgr_program(sacctmgr: str, directory: Path) -> str:
    """Return a program that is before the real sacctmgr: the second order waits until the drill says continue."""
    marks = {mark: shlex.quote(str(directory / mark)) for mark in (_BEGUN, _REACHED, _GONE)}
    return f"""\
#!/bin/sh
if [ "$1 $2" = "-i modify" ]; then
    if [ -e {marks[_BEGUN]} ]; then
        touch {marks[_REACHED]}
        count=0
        until [ -e {marks[_GONE]} ] || [ "$count" -ge {_WAIT_COUNT} ]; do
            sleep 0.1
            count=$((count + 1))
        done
    fi
    touch {marks[_BEGUN]}
fi
exec {shlex.quote(sacctmgr)} "$@"
"""


HELD = "AssocGrpGRES"
"""Why Slurm says that a job waits which its account's limit on GPUs holds."""
_RUNNING_NODES = 4
"""Of platform: more than it may have afterwards."""
Limits = Mapping[str, int | None]


class QuotasMove(Act):
    """One proposal on its way in and out again."""

    fault = "slurmdbd killed in the middle of setting quotas"

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._demands: list[Demand] = []
        self._jobs: list[JobId] = []
        self._step = "not started"

    # -- what a drill calls --

    def submit(self) -> None:
        """Its jobs are part of the play."""

    def play(self) -> None:
        """Play all of it; whatever comes of it, no limit and no job is left."""
        self.began_at = time.monotonic()
        try:
            self.did = self._break()
        finally:
            self._clear()
        self.ended_at = time.monotonic()
        self.view.say(f"{self.name}: over after {self.seconds:.0f} s")

    def _is_over(self) -> bool:
        return self.ended_at is not None

    def demands(self) -> Iterator[Demand]:
        yield from self._demands
        verdict = self.view.stage.cluster.ledger.verify_chain()
        yield Demand(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}")

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return ()

    def how_it_stands(self) -> str:
        return f"it was at: {self._step}"

    # -- the play --

    def _break(self) -> str:
        stage = self.view.stage
        hours = pretend_labs_past(stage.observatory.lake, now=stage.cluster.clock.now())
        gpu_count = stage.cluster.rules.topology.gpus_per_node * len(stage.slurm.node_names)
        old: Limits = old_limits(gpu_count)
        for account, limit in old.items():
            stage.slurm.limit_account(account, limit)
        self._say(f"{hours} simulated hours of demand are in the lake; an operator has set {_told(old)}")

        self._begin_step("a job of product is held by the old limit")
        running = self._submit(PLATFORM, node_count=_RUNNING_NODES), self._submit(PRODUCT)
        self._wait("jobs to run", lambda: self._run(running))
        held = self._submit(PRODUCT)
        self._wait("the old limit to hold a job", lambda: self._is_held(held))
        before = self._runs_of(running)

        name, proposed = self._propose(old)
        self._stop_half_way(name, old=old, proposed=proposed)
        self._complete(name, proposed=proposed)

        self._begin_step("the held job starts, and what runs continues")
        self._wait("the held job to start", lambda: self._run([held]))
        self._expect_same_runs(before, "once platform was lowered")
        self._expect_held(PLATFORM, "the new limit of platform")

        before = self._runs_of([*running, held])
        self._take_back(name, old=old)
        self._expect_same_runs(before, "once it was undone")
        self._expect_held(PRODUCT, "the old limit of product")
        return (
            f"{name} of a simulated past: {_told(proposed)}; slurmdbd killed after the first limit, the rest applied "
            f"again; job {held} of product started, {_RUNNING_NODES} nodes of platform ran on; undone"
        )

    def _propose(self, old: Limits) -> tuple[str, dict[str, int | None]]:
        """Keep a proposal; return its name and what it says."""
        self._begin_step("proposing")
        answer = self._ask("propose", "--keep")
        proposed: dict[str, int | None] = {line["team"]: line["after"] for line in answer["lines"]}
        name = str(answer["proposal"])
        self._expect(answer["state"] == "proposed", f"{name} is {answer['state']}: {answer['contradictions']}")
        self._expect(self._limits() == old, f"proposing set limits: {_told(self._limits())}")
        told = self.view.command("quota", "explain", PRODUCT)
        self._expect(f"{old[PRODUCT]} -> {proposed.get(PRODUCT)}" in told, "quota explain does not tell the change")
        self._say(f"{name} says {_told(proposed)}")
        return name, proposed

    def _stop_half_way(self, name: str, *, old: Limits, proposed: Limits) -> None:
        self._begin_step("slurmdbd dies between the first limit and the second")
        slurm = self.view.stage.slurm
        ended = self._apply_while_database_dies(name)
        code, answer = ended.returncode, json.loads(ended.stdout)
        self._expect(code == ExitCode.NO_ANSWER, f"quota apply ended with {code}, not {int(ExitCode.NO_ANSWER)}")
        self._expect(answer.get("state") == "half_applied", f"{name} is {answer.get('state')}, not half applied")
        self._say(f"slurmdbd is gone, and the program says: {str(answer.get('reason'))[:200]}")
        slurm.start_accounting()
        found = self._limits()
        are_in = {team for team, limit in proposed.items() if found.get(team) == limit != old.get(team)}
        changed = {team for team, limit in proposed.items() if limit != old.get(team)}
        self._expect(bool(are_in) and are_in < changed, f"half-way in should be some limits, found {_told(found)}")
        diff = self._ask("diff")
        told: Limits = {row["team"]: row["in_force"] for row in diff["rows"]}
        self._expect(diff["state"] == "half_applied", f"quota diff says {diff['state']}, not half_applied")
        self._expect(told == found, f"quota diff says {_told(told)}, Slurm {_told(found)}")
        self._say(f"slurmdbd is back; in are {', '.join(sorted(are_in)) or 'none'}, as quota diff says")

    def _complete(self, name: str, *, proposed: Limits) -> None:
        self._begin_step("applying again")
        answer = self._ask("apply", name)
        self._expect(answer["state"] == "applied", f"{name} is {answer['state']}: {answer['reason']}")
        self._expect(self._limits() == proposed, f"read back: {_told(self._limits())}, not {_told(proposed)}")
        again = self._ask("apply", name)
        self._expect("nothing was changed" in str(again["reason"]), f"a third time it says: {again['reason']}")

    def _take_back(self, name: str, *, old: Limits) -> None:
        self._begin_step("undoing")
        answer = self._ask("undo", name)
        self._expect(answer["state"] == "undone", f"{name} is {answer['state']}: {answer['reason']}")
        self._expect(self._limits() == old, f"undone: {_told(self._limits())}, not {_told(old)}")

    def _clear(self) -> None:
        """Do an operator's part: end the jobs, and limit nobody."""
        slurm = self.view.stage.slurm
        slurm.start_accounting()
        for job in self._jobs:
            slurm.cancel(job)
        for account in slurm.account_limits():
            slurm.limit_account(account, None)
        self._wait("the jobs to be gone", lambda: not any(self._has_processes(job) for job in self._jobs))
        self._expect(set(self._limits().values()) == {None}, f"limits are left: {_told(self._limits())}")

    # -- the program --

    def _ask(self, *words: str) -> dict[str, Any]:
        """Return a JSON answer of `ops-pipelines quota`."""
        return dict(json.loads(self.view.command("quota", *words, "--json")))

    def _apply_while_database_dies(self, name: str) -> Ended:
        stage = self.view.stage
        return stop_half_way(
            self.view.program("quota", "apply", name, "--json"),
            directory=stage.cluster_file.parent / "half-way",
            kill=stage.slurm.kill_accounting,
            wait=self._wait,
        )

    # -- Slurm --

    def _limits(self) -> dict[str, int | None]:
        return self.view.stage.slurm.account_limits()

    def _submit(self, account: str, *, node_count: int = 1) -> JobId:
        name = f"{self.name}-{account}-{len(self._jobs) + 1}"
        job = self.view.stage.slurm.submit_sleeping(name=name, account=account, node_count=node_count)
        self._jobs.append(job)
        return job

    def _is_held(self, job: JobId) -> bool:
        return self.view.stage.slurm.reason_of(job) == HELD

    def _expect_held(self, account: str, what: str) -> None:
        job = self._submit(account)
        self._wait(f"{what} to hold a job", lambda: self._is_held(job))

    def _run(self, jobs: Sequence[JobId]) -> bool:
        found = [self.view.job(job) for job in jobs]
        return all(each is not None and each.state is JobState.RUNNING for each in found)

    def _has_processes(self, job: JobId) -> bool:
        found = self.view.job(job)
        return found is not None and found.state in MAY_HAVE_PROCESSES

    def _runs_of(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus | None]:
        return {job: self.view.job(job) for job in jobs}

    def _expect_same_runs(self, before: Mapping[JobId, JobStatus | None], when: str) -> None:
        """Demand that each job still runs in the same attempt, where it ran."""
        for job, was in before.items():
            now = self.view.job(job)
            is_running = was is not None and now is not None and now.state is JobState.RUNNING
            is_same = is_running and _where(was) == _where(now)
            self._expect(is_same, f"job {job} did not run on {when}")

    # -- telling --

    def _begin_step(self, what: str) -> None:
        self._step = what
        self._say(what)

    def _say(self, what: str) -> None:
        self.view.say(f"{self.name}: {what}")

    def _expect(self, is_so: bool, otherwise: str) -> None:
        self._demands.append(Demand(is_so=is_so, otherwise=otherwise))

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        self.view.wait(what, is_so, limit_seconds=SOON_SECONDS)


def _where(job: JobStatus | None) -> object:
    return None if job is None else (job.attempt, job.nodes)


def _told(limits: Limits) -> str:
    return ", ".join(f"{team} {'no limit' if gpus is None else gpus}" for team, gpus in sorted(limits.items()))
