"""The work that goes on while versions move: a queue that never runs dry, gangs, a job that saves; and what became of
each, as Slurm's accounting has it.

All of it runs on the nodes of the rollout and nowhere else, and each job ends by itself: nothing moves it.
"""

import math
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines_lab.drills.lab_stage import Demand, LabView, saved_step

SHORT, GANG, SAVING = "short", "gang", "saving"
GANG_NODE_COUNT = 4
_SHORT_SECONDS, _WAITING_COUNT, _ARRAY_COUNT = 15, 8, 16
_STEPS = 40
_STEP_SECONDS = 0.5
_LIMIT_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 2.0
_FIELDS = "JobID,JobName,State,ExitCode,ElapsedRaw"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedJob:
    """One attempt of a job, as sacct tells it."""

    job: str
    name: str
    state: str
    exit_code: str
    ran_seconds: int


class Work:
    """Jobs on some nodes, submitted as a site's users do."""

    def __init__(self, view: LabView, nodes: Sequence[NodeName]) -> None:
        self._view = view
        slurm = view.stage.slurm
        self._elsewhere = ",".join(sorted(set(slurm.node_names).difference(nodes)))
        self._gangs: list[JobId] = []
        self._saving: list[JobId] = []
        self._is_over = False
        self._looked_at = -math.inf

    @property
    def gangs(self) -> tuple[JobId, ...]:
        return tuple(self._gangs)

    def keep_going(self) -> None:
        """Submit what the queue lacks: short jobs, one gang at a time, one job that saves."""
        if self._is_over or time.monotonic() - self._looked_at < _LOOK_EVERY_SECONDS:
            return
        self._looked_at = time.monotonic()
        queue = Counter(self._squeue("--format=%j %t", "--array"))
        if queue[f"{SHORT} PD"] < _WAITING_COUNT:
            self._ask(
                *(
                    "sbatch",
                    "--parsable",
                    f"--job-name={SHORT}",
                    f"--array=1-{_ARRAY_COUNT}",
                    "--comment=workload=batch",
                ),
                *("--time=1", "--nodes=1", f"--gres=gpu:{self._view.stage.slurm.settings.gpus_per_node}"),
                *(f"--output={self._view.stage.checkpoints}/%A_%a.out", *self._only_here, "--nice=1000"),
                *("--wrap", f"sleep {_SHORT_SECONDS}"),
            )
        for name, submitted, node_count in ((GANG, self._gangs, GANG_NODE_COUNT), (SAVING, self._saving, 1)):
            if not any(line.startswith(name) for line in queue):
                submitted.append(self._train(name, number=len(submitted) + 1, node_count=node_count))

    def end(self) -> None:
        """Take back what has not begun; what runs is let be."""
        self._is_over = True
        self._ask("scancel", "--state=PENDING", f"--name={SHORT},{GANG},{SAVING}")

    def is_over(self) -> bool:
        return self._is_over and not self._squeue("--format=%i", f"--name={SHORT},{GANG},{SAVING}")

    def demands(self) -> Iterator[Demand]:
        """No job was lost: each that began ran to its end, once, and saved all of its steps."""
        jobs = self.accounted()
        for name in (SHORT, GANG, SAVING):
            count = sum(each.state == "COMPLETED" for each in jobs if each.name == name)
            yield Demand(is_so=count > 0, otherwise=f"no job {name} ran to its end, so nothing was put to the test")
        yield from find_lost_jobs(jobs)
        for name, submitted in ((GANG, self._gangs), (SAVING, self._saving)):
            done = {each.job for each in jobs if each.name == name and each.state == "COMPLETED"}
            for number, job in enumerate(submitted, start=1):
                step = saved_step(self._view.stage.checkpoints / f"{name}-{number}")
                yield Demand(
                    is_so=job not in done or step == _STEPS,
                    otherwise=f"job {job} ({name}) ended at step {step}, not {_STEPS}",
                )

    def accounted(self) -> tuple[AccountedJob, ...]:
        """Return every attempt since the work began, duplicates of requeued jobs included."""
        since = self._view.since.strftime("%Y-%m-%dT%H:%M:%S")
        told = self._ask("sacct", "-n", "-P", "-X", "-D", "-S", since, "-o", _FIELDS, f"--name={SHORT},{GANG},{SAVING}")
        return read_accounting(told)

    def _train(self, name: str, *, number: int, node_count: int) -> JobId:
        return self._view.stage.slurm.submit_training(
            name=name,
            node_count=node_count,
            comment=f"workload=training ckpt={self._view.stage.checkpoints / f'{name}-{number}'}",
            checkpoint=self._view.stage.checkpoints / f"{name}-{number}",
            step_seconds=_STEP_SECONDS,
            steps_per_checkpoint=4,
            time_limit=timedelta(minutes=2),
            options=(f"--export=ALL,STEPS={_STEPS}", *self._only_here),
        )

    @property
    def _only_here(self) -> tuple[str, ...]:
        return (f"--exclude={self._elsewhere}",) if self._elsewhere else ()

    def _squeue(self, *words: str) -> list[str]:
        return self._ask("squeue", "--noheader", *words).splitlines()

    def _ask(self, *argv: str) -> str:
        done = subprocess.run(
            argv,
            env=self._view.stage.slurm.client_environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=True,
        )
        return done.stdout


def read_accounting(text: str) -> tuple[AccountedJob, ...]:
    """Return the rows of `sacct -n -P` with the columns that `Work` asks for."""
    found = []
    for line in text.splitlines():
        job, name, state, exit_code, seconds = line.split("|")
        found.append(
            # "CANCELLED by 0": by whom is not asked.
            AccountedJob(
                job=job, name=name, state=state.partition(" ")[0], exit_code=exit_code, ran_seconds=int(seconds)
            )
        )
    return tuple(found)


def find_lost_jobs(jobs: Sequence[AccountedJob]) -> Iterator[Demand]:
    """Demand that whatever began ended well, and began once; what never began may have been taken back."""
    for each in jobs:
        is_well = each.state == "COMPLETED" and each.exit_code == "0:0"
        is_taken_back = each.state == "CANCELLED" and each.ran_seconds == 0
        yield Demand(
            is_so=is_well or is_taken_back,
            otherwise=f"job {each.job} ({each.name}) ended {each.state} {each.exit_code} after {each.ran_seconds} s",
        )
    names = [each.job for each in jobs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Demand(is_so=False, otherwise=f"job {name} began {names.count(name)} times")
