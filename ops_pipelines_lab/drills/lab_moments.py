"""The acts about when a job is moved, and how often: by the age of its checkpoint, and not for ever.

An attempt bounds the age of its checkpoint: what it has not computed it cannot lose. A drill of minutes has no attempt
of an hour, and Slurm's clock cannot be turned back; so the start of the two jobs is dated back on its way to us
(`squeue_program`), and their declared checkpoint is a file that the drill dates as it likes.
"""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines_lab.drills.lab_act import MOVED, RETURNED, Act, HealedAct, done_verbs, is_done
from ops_pipelines_lab.drills.lab_stage import Demand, LabView
from ops_pipelines_lab.simulator.journal import FaultKind

AGED = "aged-"
"""Begins the name of a job whose start is dated back."""
AGED_SECONDS = 2 * 3600
_LEFT_AT_MOST_SECONDS = 50.0
"""Well below the limit at which a person would have the node."""
_LEFT_ALONE_SECONDS = 8.0
"""So long a job is seen to be left running before the drill continues."""
_HELD_WITHIN_SECONDS = 60.0
"""From the checkpoint to the hold: some seconds, and more while a run is busy with other nodes."""


def squeue_program(python: str, squeue: str) -> str:
    """Return a program that is before the real squeue: first attempts of jobs named `aged-...` began earlier."""
    return f"""\
#!{python} -SE
import json, subprocess, sys

done = subprocess.run([{squeue!r}, *sys.argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
try:
    answer = json.loads(done.stdout)
    for job in answer["jobs"]:
        if job["name"].startswith({AGED!r}) and not job["restart_cnt"] and job["start_time"] and job["nodes"]:
            job["start_time"] -= {AGED_SECONDS}
    sys.stdout.write(json.dumps(answer))
except (ValueError, KeyError, TypeError):
    sys.stdout.buffer.write(done.stdout)
sys.exit(done.returncode)
"""


class _AgedCheckpoint(HealedAct):
    """A GPU asks for a reset when its job ends; the job could continue for days."""

    options = ("--time=2-0",)
    story = (*MOVED, Verb.RESET_GPU, *RETURNED)
    age_seconds: float

    @property
    def job_name(self) -> str:
        return f"{AGED}{self.name}"

    @property
    def comment(self) -> str:
        return f"workload=training ckpt={self._saved} ckpt_every=3600"

    @property
    def _saved(self) -> Path:
        return self.checkpoint.with_name(f"{self.name}.saved")

    def submit(self) -> None:
        self._date_back()
        super().submit()

    def _break(self) -> str:
        self._date_back()
        self._write_kernel_line(
            "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
        )
        return (
            f"GPU of {self.node} wants a reset at the job's end; its checkpoint is {self.age_seconds / 60:.0f} min old"
        )

    def _date_back(self) -> None:
        self._saved.touch()
        saved_at = time.time() - self.age_seconds
        os.utime(self._saved, (saved_at, saved_at))

    def _first(self, verb: Verb) -> ActionRecord | None:
        return next((each for each in self.view.records_of(self.node) if each.action.verb is verb), None)


class YoungCheckpoint(_AgedCheckpoint):
    """Little is lost by moving the job now, and the next checkpoint is an hour away: it is moved at once."""

    fault = "reset at job end, checkpoint 1 min old"
    age_seconds = 60.0

    def _go_on(self) -> None:
        if self._first(Verb.DRAIN) is None:
            self._date_back()  # However long the fault takes to be seen, it is a minute old then.

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        yield Demand(
            is_so=any("from its last checkpoint" in text for text in self._notices(self.job)),
            otherwise=f"the owner was notified of {self._notices(self.job)}",
        )


class OldCheckpoint(_AgedCheckpoint):
    """Nearly an hour would be lost, and the next checkpoint is near: the job continues until then."""

    fault = "reset at job end, checkpoint 55 min old"
    age_seconds = 3_300.0

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._drained_since: float | None = None
        self._saved_at: datetime | None = None

    def _go_on(self) -> None:
        if self._saved_at is not None or Verb.DRAIN not in done_verbs(self.view.records_of(self.node)):
            return
        self._drained_since = self._drained_since or time.monotonic()
        left_for = time.monotonic() - self._drained_since
        if left_for < _LEFT_ALONE_SECONDS or (left_for < _LEFT_AT_MOST_SECONDS and self._is_much_going_on()):
            return
        self._saved.touch()
        self._saved_at = self.view.stage.cluster.clock.now()
        self.view.say(f"{self.name}: the job has gone on since the drain; now it saves")

    def _is_much_going_on(self) -> bool:
        """Return whether other nodes are at work: what is measured is our delay, not theirs."""
        return any(
            each.state in (IncidentState.OPEN, IncidentState.ACTING) and each.plan_count > 0
            for each in self.view.incidents()
            if self.node not in each.nodes
        )

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        hold = self._first(Verb.HOLD)
        if hold is None or self._saved_at is None:
            yield Demand(is_so=False, otherwise="its job was never held")
            return
        waited = (hold.begun_at - self._saved_at).total_seconds()
        self.did += f"; held {waited:.1f} s after its next one"
        yield Demand(
            is_so=0 <= waited <= _HELD_WITHIN_SECONDS, otherwise=f"the job was held {waited:.1f} s after its checkpoint"
        )
        yield Demand(
            is_so=any("after its next checkpoint" in text for text in self._notices(self.job)),
            otherwise=f"the owner was notified of {self._notices(self.job)}",
        )


class RequeueLoop(Act):
    """Wherever the job goes a GPU breaks: moved as often as allowed, it is left there, and its owner is notified."""

    fault = "a requeue loop"

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._broken: list[NodeName] = []
        self._left_since: float | None = None
        self._has_ended_job = False

    @property
    def node(self) -> NodeName:
        return self._broken[-1] if self._broken else super().node

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(self._broken)

    def _break(self) -> str:
        self._damage(super().node)
        return f"Xid 48 on {self.node}, and again on the node to which its job is moved"

    def _damage(self, node: NodeName) -> None:
        self._broken.append(node)
        self.view.stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=5)

    def _go_on(self) -> None:
        if len(self._broken) == 1 and self._is_going_on():
            job = self.view.job(self.job)
            if job is not None and job.nodes:
                self._damage(min(job.nodes))
                self.view.say(f"{self.name}: moved, and Xid 48 on {self.node} too")
        elif len(self._broken) == 2 and not self._has_ended_job and self._is_drained():
            self._left_since = self._left_since or time.monotonic()
            left_for = time.monotonic() - self._left_since
            if left_for > (_LEFT_ALONE_SECONDS if self._is_told() else _LEFT_AT_MOST_SECONDS):
                self._has_ended_job = True
                self._end_job()
                self.view.say(f"{self.name}: the job was left alone on {self.node}; its owner ends it")

    def _is_told(self) -> bool:
        records = self.view.records_of(self.node)
        return any(each.action.verb is Verb.NOTIFY_OWNER and is_done(each) for each in records)

    def _is_drained(self) -> bool:
        return Verb.DRAIN in done_verbs(self.view.records_of(self.node))

    def _is_over(self) -> bool:
        incidents = [each for node in self._broken for each in self._incidents(node)]
        is_closed = bool(incidents) and all(each.state is IncidentState.RESOLVED for each in incidents)
        return self._has_ended_job and is_closed and all(self.view.is_in_service(node) for node in self._broken)

    def demands(self) -> Iterator[Demand]:
        stories = ((*MOVED, Verb.RESET_GPU, *RETURNED), (Verb.DRAIN, Verb.RESET_GPU, *RETURNED))
        yield Demand(is_so=len(self._broken) == 2, otherwise=f"only {', '.join(self._broken)} was broken")
        for node, story in zip(self._broken, stories, strict=False):
            verbs = done_verbs(self.view.records_of(node))
            told = ", ".join(verb.value for verb in verbs)
            yield Demand(is_so=verbs == story, otherwise=f"of {node} the ledger holds {told}")
        last = self._notices(self.job)[-1:]
        yield Demand(
            is_so=any("moved 1 time" in text for text in last), otherwise=f"its owner was last notified of {last}"
        )
        reasons = [timing.reason for plan in self._plans(self.node) for timing in plan.timings]
        yield Demand(
            is_so=any("moved 1 time" in reason for reason in reasons), otherwise=f"the plan's reason is {reasons}"
        )
        job = self.view.job(self.job)
        yield Demand(
            is_so=job is None or job.restart_count == 1, otherwise=f"job {self.job} was not restarted exactly once"
        )
