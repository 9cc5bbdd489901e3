"""What must have come of the lab's rollouts: judged on what Slurm and the nodes wrote down, then on our ledger; the
work that runs while versions move, and what the act leaves for its judge.

The work: a queue that never runs dry, gangs, a job that saves, and what became of each, as Slurm's accounting has it.
All of it runs on the nodes of the rollout and nowhere else, and each job ends by itself: nothing moves it. Playing the
act is `lab_rollout`'s.
"""

import math
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.core.action import MESSAGES, ActionRecord, Verb
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import JobId, NodeName, cause_of
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines_lab.drills.lab_node import FIRST_KERNEL, GOOD_KERNEL, NodeDisk
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
    """One attempt of a job, as sacct reports it."""

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
        """Take back what has not started; what runs is let be."""
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


OPERATORS_REASON = "OPS-21 fan tray"


@dataclass(slots=True)
class Story:
    """What was done when."""

    good: Rollout | None = None
    bad: Rollout | None = None
    operators_node: NodeName | None = None
    operators_return_at: datetime | None = None
    waiting_in_pause: frozenset[NodeName] = frozenset()
    paused_at: datetime | None = None
    resumed_at: datetime | None = None
    was_asked: bool = False
    was_killed: bool = False
    operators_reasons: set[str | None] = field(default_factory=set)
    """Everything that stood as the reason of the operator's node while it was theirs."""
    kept_off: set[NodeName] = field(default_factory=set)
    """Nodes that soaked, and that the waiting gang was kept off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The lab as who watches versions sees it."""

    view: LabView
    members: Sequence[NodeName]
    """The nodes of the model that the releases are for."""

    @property
    def lab(self) -> Path:
        return self.view.stage.cluster_file.parent

    def rollouts(self) -> tuple[Rollout, ...]:
        """Return the rollouts since the drill began, in order; none while the ledger does not answer."""
        try:
            return self.view.stage.cluster.ledger.rollouts(final_since=self.view.since)
        except LedgerError:
            return ()

    def nodes_of(self, rollout: Rollout) -> tuple[RolloutNode, ...]:
        try:
            return self.view.stage.cluster.ledger.rollout_nodes(rollout.rollout)
        except LedgerError:
            return ()

    def running_versions(self) -> Mapping[NodeName, str]:
        """Return which kernel runs on each node, as its own disk has it."""
        return {node: NodeDisk(self.lab, node).running for node in self.members}


_LINE = re.compile(
    r"\[(?P<at>[0-9T:.-]+)\] update_node: node (?P<node>\S+) "
    r"(?:(?P<ours>reason set to: ops_pipelines ROLL-)|state set to (?P<back>IDLE|MIXED|ALLOCATED)$)"
)

_BOOKED = re.compile(r"Created reservation=(ops-ROLL-\d+-w\d+)")


def demands_on(sight: Sight, story: Story, *, good: Rollout, bad: Rollout) -> Iterator[Demand]:
    """Yield what must be so of versions, nodes and people once both releases are over."""
    yield from _good_release(sight, story, good)
    yield from _bad_release(sight, bad)
    yield from _people(sight, story, good)
    limit = sight.view.stage.cluster.rules.policy.rollouts.max_out_count
    most = most_out(sight.view.stage.slurm.read_controller_log())
    yield Demand(is_so=0 < len(most) <= limit, otherwise=f"{', '.join(most)} were out by us at once, not {limit}")
    yield from _nothing_is_left(sight)


def _good_release(sight: Sight, story: Story, good: Rollout) -> Iterator[Demand]:
    yield Demand(is_so=good.state is RolloutState.DONE, otherwise=f"{good.release} ended {good.state.value}")
    updated = {each.node for each in sight.nodes_of(good) if each.stage is NodeStage.UPDATED}
    yield Demand(
        is_so=updated == set(sight.members), otherwise=f"{sorted(set(sight.members) - updated)} were not updated"
    )
    sizes = [len(wave.nodes) for wave in good.waves]
    rest = len(sight.members) - 7
    yield Demand(is_so=sizes == [1, 2, 4, rest], otherwise=f"its waves were of {sizes} nodes")
    for node, version in sight.running_versions().items():
        yield Demand(is_so=version == GOOD_KERNEL, otherwise=f"{node} runs {version}, not {GOOD_KERNEL}")
    yield Demand(is_so=bool(story.kept_off), otherwise="the gang was never kept off a node that soaks")
    booked = _BOOKED.findall(sight.view.stage.slurm.read_controller_log())
    yield Demand(is_so=bool(booked), otherwise="Slurm was never notified of maintenance")


def _bad_release(sight: Sight, bad: Rollout) -> Iterator[Demand]:
    yield Demand(is_so=bad.state is RolloutState.WENT_BACK, otherwise=f"{bad.release} ended {bad.state.value}")
    records = sight.view.stage.cluster.ledger.records(cause_of(bad.rollout))
    touched = {record.action.node for record in records if record.action.verb is Verb.INSTALL}
    canaries = {*bad.waves[0].nodes, *bad.waves[1].nodes}
    yield Demand(is_so=touched <= canaries, otherwise=f"{sorted(filter(None, touched - canaries))} were touched too")
    yield Demand(
        is_so=set(bad.waves[0].nodes) < touched, otherwise=f"no second opinion: only {sorted(filter(None, touched))}"
    )
    for each in sight.nodes_of(bad):
        wanted = NodeStage.BACK if each.node in touched else NodeStage.PENDING
        yield Demand(
            is_so=each.stage is wanted or (wanted is NodeStage.PENDING and each.stage is NodeStage.SKIPPED),
            otherwise=f"{each.node} is {each.stage.value}, not {wanted.value}",
        )
        # One boot for the first kernel's successor, then, if touched, one there and one back.
        boots = NodeDisk(sight.lab, each.node).boots
        count = 3 if each.node in touched else 1
        yield Demand(
            is_so=len(boots) == count and set(boots) == {GOOD_KERNEL} and FIRST_KERNEL not in boots,
            otherwise=f"{each.node} booted {', '.join(boots) or 'never'}; expected {count} boots of {GOOD_KERNEL}",
        )


def _people(sight: Sight, story: Story, good: Rollout) -> Iterator[Demand]:
    records = sight.view.stage.cluster.ledger.records(cause_of(good.rollout))
    theirs = [each for each in records if each.action.node == story.operators_node]
    first = min((each.begun_at for each in theirs), default=None)
    returned_at = story.operators_return_at
    yield Demand(
        is_so=first is not None and returned_at is not None and first >= returned_at,
        otherwise=f"{story.operators_node} was an operator's until {returned_at}, and we began there at {first}",
    )
    yield Demand(
        is_so=story.operators_reasons == {OPERATORS_REASON},
        otherwise=f"the operator's node was drained for {story.operators_reasons}",
    )
    begun = [
        each
        for each in records
        if each.action.verb is Verb.DRAIN and _is_within(each, story.paused_at, story.resumed_at)
    ]
    yield Demand(is_so=bool(story.waiting_in_pause), otherwise="nobody waited while it was paused")
    yield Demand(
        is_so=not begun,
        otherwise=f"{', '.join(each.action.target for each in begun)} was started while the rollout was paused",
    )
    yield Demand(is_so=story.was_asked, otherwise="the gate never asked")
    yield Demand(is_so=story.was_killed, otherwise="the code server was not killed")


def _nothing_is_left(sight: Sight) -> Iterator[Demand]:
    """No node is out without an owner, nobody's job is kept off, no incident acted, the chain is whole."""
    nodes = sight.view.nodes()
    for node in sight.members:
        status = nodes.get(node)
        yield Demand(
            is_so=status is not None and not status.is_drained and status.is_responding,
            otherwise=f"{node} is not in service: {'no answer' if status is None else status.reason}",
        )
    reserved = sorted({status.reserved_as for status in nodes.values() if status.reserved_as})
    yield Demand(is_so=not reserved, otherwise=f"reservations are left: {', '.join(reserved)}")
    for rollout in sight.rollouts():
        yield Demand(is_so=not rollout.kept_off, otherwise=f"{rollout.rollout} still keeps jobs off nodes")
        for record in sight.view.stage.cluster.ledger.records(cause_of(rollout.rollout)):
            name = f"{record.action.verb.value} of {record.action.target} ({rollout.rollout})"
            yield Demand(is_so=record.outcome is not None, otherwise=f"{name} has no outcome")
    for incident in sight.view.incidents():
        acted = [each.action for each in sight.view.stage.cluster.ledger.records(incident.incident)]
        beyond = [each.verb.value for each in acted if each.verb not in MESSAGES and each.node in sight.members]
        yield Demand(is_so=not beyond, otherwise=f"{incident.incident} ({incident.cause}) acted: {', '.join(beyond)}")
        paged = incident.nodes.intersection(sight.members) and any(each.verb is Verb.PAGE_HUMAN for each in acted)
        yield Demand(is_so=not paged, otherwise=f"{incident.incident} paged for what the update did: {incident.cause}")
    verdict = sight.view.stage.cluster.ledger.verify_chain()
    yield Demand(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}")


def most_out(log: str) -> tuple[NodeName, ...]:
    """Return the nodes that rollouts had out when these were most, as slurmctld wrote it down."""
    out: set[NodeName] = set()
    most: tuple[NodeName, ...] = ()
    for line in log.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        node = NodeName(found["node"])
        if found["ours"]:
            out.add(node)
            most = tuple(sorted(out)) if len(out) > len(most) else most
        else:
            out.discard(node)
    return most


def _is_within(record: ActionRecord, begins_at: datetime | None, ends_at: datetime | None) -> bool:
    return begins_at is not None and ends_at is not None and begins_at <= record.begun_at < ends_at


def tell(sight: Sight, *, good: Rollout, bad: Rollout, jobs: Sequence[AccountedJob]) -> str:
    """Return in words what came of both."""
    most = len(most_out(sight.view.stage.slurm.read_controller_log()))
    done = sum(each.state == "COMPLETED" for each in jobs)
    took = (good.since - good.created_at).total_seconds(), (bad.since - bad.created_at).total_seconds()
    back = sum(each.stage is NodeStage.BACK for each in sight.nodes_of(bad))
    return (
        f"{len(sight.members)} nodes updated in {took[0]:.0f} s, {most} out at most; the bad one back on {back} nodes "
        f"in {took[1]:.0f} s; {done} jobs ran to their end, none was lost"
    )
