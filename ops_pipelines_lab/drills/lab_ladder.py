"""The acts in which a repair does not help, or cannot be started: the ladder is climbed, or a person has the node.

What a technician or an operator does in them (replace a part, end a job, return a node) is played by the drill.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ops_pipelines.core.action import OutcomeKind, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.drills.lab_act import MOVED, RETURNED, Act, HealedAct, done_verbs
from ops_pipelines_lab.drills.lab_stage import Demand, LabView
from ops_pipelines_lab.simulator.course import Course, Cure
from ops_pipelines_lab.simulator.journal import FaultKind

_CHECK_SECONDS = 60.0
_ASKED_AT_MOST = 5


class NeverDrains(Act):
    """A job that must not be requeued runs on: its node waits, at the limit a person has it, nothing else is done."""

    fault = "a node that never drains (--no-requeue)"
    options = ("--no-requeue",)

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._waits_for = ""
        self._ask_count = 0
        self._has_ended_job = False
        self._is_mended = False
        self._is_returned = False

    def _break(self) -> str:
        self.view.stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, self.node, gpu=2)
        return f"Xid 48 on {self.node}; its job must not be requeued and runs on"

    def _go_on(self) -> None:
        incidents = self._incidents(self.node)
        if self._may_ask(incidents):
            self._waits_for = self._ask_why_it_waits()
            self._ask_count += 1
        elif not self._has_ended_job and self._is_handed_over():
            self._has_ended_job = True
            self._end_job()
            self.view.say(f"{self.name}: a person was paged; the job ends")
        elif self._has_ended_job and not self._is_mended and self._is_idle():
            self._is_mended = True
            self._mend(self.node)
        elif self._is_mended and not self._is_returned and self._is_well():
            self._is_returned = True
            self.view.stage.slurm.return_as_operator(self.node)
            self.view.say(f"{self.name}: repaired by hand, and returned by a person")

    def _may_ask(self, incidents: Sequence[Incident]) -> bool:
        """Return whether the answer is not known yet, and the owner was notified: then the repair is what waits."""
        is_known = self.job in self._waits_for or self._ask_count >= _ASKED_AT_MOST
        return (
            not is_known
            and bool(self._notices(self.job))
            and any(each.state is IncidentState.ACTING for each in incidents)
        )

    def _ask_why_it_waits(self) -> str:
        """Return what `ops-pipelines ladder` shows of the node."""
        shown = json.loads(self.view.command("ladder", "--node", self.node, "--json"))
        return " / ".join(str(node["waits_for"]) for node in shown["nodes"])

    def _is_idle(self) -> bool:
        job = self.view.job(self.job)
        return job is None or (job.state is not JobState.RUNNING and job.state is not JobState.COMPLETING)

    def _is_well(self) -> bool:
        seen = self.view.stage.cluster.ledger.conditions()
        status = self.view.nodes().get(self.node)
        is_up = status is not None and status.is_responding
        return is_up and not any(each.node == self.node for each in seen)

    def _is_over(self) -> bool:
        incidents = self._incidents(self.node)
        is_closed = bool(incidents) and all(each.state is IncidentState.RESOLVED for each in incidents)
        return is_closed and self._is_returned and self.view.is_in_service(self.node)

    @property
    def returned_by_people(self) -> Sequence[NodeName]:
        return (self.node,) if self._is_returned else ()

    def demands(self) -> Iterator[Demand]:
        records = self.view.records_of(self.node)
        verbs = [verb.value for verb in done_verbs(records)]
        yield Demand(is_so=verbs == [Verb.DRAIN.value], otherwise=f"nothing but a drain may be done; found {verbs}")
        yield Demand(
            is_so=self.job in self._waits_for, otherwise=f"`ladder` shows {self._waits_for!r} as what it waits for"
        )
        yield Demand(
            is_so=any("left running" in text for text in self._notices(self.job)),
            otherwise=f"the owner of job {self.job} was not notified that it is left running",
        )
        drained = next((each.begun_at for each in records if each.action.verb is Verb.DRAIN), None)
        paged = next((each.begun_at for each in records if each.action.verb is Verb.PAGE_HUMAN), None)
        limit = self.view.stage.cluster.rules.policy.durations.job_end_limit
        yield Demand(
            is_so=drained is not None and paged is not None and paged - drained > limit,
            otherwise=f"no page after {limit.total_seconds():.0f} s: drained {drained}, paged {paged}",
        )
        job = self.view.job(self.job)
        yield Demand(
            is_so=job is None or (job.restart_count == 0 and job.state is JobState.CANCELLED),
            otherwise=f"job {self.job} was touched before it ended",
        )


class RebootHangs(HealedAct):
    """The node does not come back from its reboot: its power is cycled."""

    fault = "a reboot that never returns"
    story = (*MOVED, Verb.DRAIN, Verb.POWER_OFF, Verb.POWER_ON, *RETURNED)

    def _break(self) -> str:
        self.view.stage.twin.inject(FaultKind.BOOT_HANGS, self.node)
        self._drop_gpu()
        return f"Xid 79 on {self.node}, whose next boot hangs"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        yield _tried_in_vain(self, Verb.REBOOT)


class ResetDoesNotHelp(HealedAct):
    """The GPU is as bad after its reset: the node is rebooted."""

    fault = "a GPU reset that does not help"
    story = (*MOVED, Verb.DRAIN, Verb.REBOOT, *RETURNED)

    def _break(self) -> str:
        course = Course(cure=Cure.REBOOT)
        self.view.stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, self.node, gpu=2, course=course)
        return f"Xid 48 on {self.node}, which only a reboot ends"

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        yield _tried_in_vain(self, Verb.RESET_GPU)


class TestsFailTwice(HealedAct):
    """Repaired twice, and twice its tests find it bad: hands must mend it, and then it must prove itself."""

    __test__ = False

    fault = "verification that fails twice"
    story = (
        *(*MOVED, Verb.REBOOT, Verb.CHECK),
        *(Verb.DRAIN, Verb.POWER_OFF, Verb.POWER_ON, Verb.CHECK),
        *(Verb.DRAIN, *RETURNED),
    )

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._report = ""
        self._own_check: Sequence[str] = ()

    def _break(self) -> str:
        course = Course(cure=Cure.REPLACEMENT, found_by=("dcgm_diag_r3",))
        self.view.stage.twin.inject(FaultKind.HIDDEN_DEFECT, self.node, gpu=3, course=course)
        self._drop_gpu()
        return f"Xid 79 on {self.node}; its tests fail until the board is replaced"

    def _go_on(self) -> None:
        waiting = [each for each in self._incidents(self.node) if each.state is IncidentState.IN_REPAIR]
        if self._report or not waiting:
            return
        (incident,) = waiting
        self._report = self.view.command("repair", "report", incident.incident)
        self._own_check = _check_this_machine(self.node)
        self._mend(self.node)
        self.view.command("repair", "done", incident.incident, "--note", "replaced GPU 3")
        self.view.say(
            f"{self.name}: in the repair queue, report of {len(self._report.splitlines())} lines; repaired by hand"
        )

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        for part in (self.node, "dcgm_diag_r3", "erial"):
            yield Demand(is_so=part in self._report, otherwise=f"the report for the vendor does not name {part!r}")
        tests = self.view.stage.cluster.ledger.checks(self.node, limit=10)
        verdicts = [was_well for _, was_well in reversed(tests)]
        yield Demand(is_so=verdicts == [False, False, True], otherwise=f"its tests were well: {verdicts}")
        for problem in self._own_check:
            yield Demand(is_so=False, otherwise=problem)


class ProbationFails(HealedAct):
    """Returned and broken again while on probation: drained again, and repaired by the next rung."""

    fault = "a probation that fails"
    story = (
        *(*MOVED, Verb.RESET_GPU, Verb.CHECK, Verb.PUT_LAST, Verb.RESUME),
        *(Verb.DRAIN, Verb.REBOOT, *RETURNED),
    )
    is_broken_again = False

    def _break(self) -> str:
        self._damage()
        return f"Xid 48 on {self.node}, again once it is on probation"

    def _go_on(self) -> None:
        if not self.is_broken_again and any(
            each.state is IncidentState.PROBATION for each in self._incidents(self.node)
        ):
            self.is_broken_again = True
            self._damage()
            self.view.say(f"{self.name}: {self.node} is on probation, and breaks again")

    def _damage(self) -> None:
        self.view.stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, self.node, gpu=4)

    def _is_over(self) -> bool:
        return self.is_broken_again and super()._is_over()

    def demands(self) -> Iterator[Demand]:
        yield Demand(is_so=self.is_broken_again, otherwise="it was never on probation")
        yield from super().demands()


def _tried_in_vain(act: Act, verb: Verb) -> Demand:
    records = [record for record in act.view.records_of(act.node) if record.action.verb is verb]
    failed = [each for each in records if each.outcome is not None and each.outcome.kind is not OutcomeKind.DONE]
    seen = ", ".join("under way" if each.outcome is None else each.outcome.witness for each in records)
    return Demand(
        is_so=len(failed) == 1 == len(records), otherwise=f"{verb.value} should have failed once; found: {seen}"
    )


def _check_this_machine(node: NodeName) -> Sequence[str]:
    """Run the node's own command for real, where we are; return what it reports wrongly of tools that are not here."""
    program = str(Path(sys.executable).with_name("ops-pipelines"))
    argv = [program, "node-check", "--json", "--node", node, "--limit", "30"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
    )
    try:
        results = {each["test"]: each["result"] for each in json.loads(done.stdout)["tests"]}
    except (ValueError, KeyError, TypeError):
        return (f"node-check ended with {done.returncode} and printed {done.stdout[:200]!r}",)
    tools = {"dcgm_diag_r2": "dcgmi", "nvidia_smi": "nvidia-smi"}
    return tuple(
        f"node-check says {results.get(test)} of {test}, and {tool} is not installed"
        for test, tool in tools.items()
        if shutil.which(tool) is None and results.get(test) != "not_run"
    )
