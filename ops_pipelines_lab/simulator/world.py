"""Hardware and scheduler on one time line: what an entry does, what follows from it later, and when.

`advance` makes happen what is due; `apply` takes an accepted entry. Nothing else changes the world, so that its
state depends on seed, scenario, entries and time only. Whether an entry is acceptable is `commands`' business.
"""

import heapq
import random
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.release import Activation
from ops_pipelines_lab.simulator import kernel_lines
from ops_pipelines_lab.simulator.controller import Controller, Happening
from ops_pipelines_lab.simulator.course import Cure
from ops_pipelines_lab.simulator.faults import Faults, ReleaseEffects
from ops_pipelines_lab.simulator.hardware import Hardware, Node
from ops_pipelines_lab.simulator.installs import NodeInstalls
from ops_pipelines_lab.simulator.jobs import Job, ServingLog
from ops_pipelines_lab.simulator.journal import Entry, EntryKind
from ops_pipelines_lab.simulator.node_checks import NodeChecks
from ops_pipelines_lab.simulator.scenario import Arrivals, Scenario


class World:
    """The simulated cluster at one moment."""

    def __init__(self, scenario: Scenario, *, seed: int, began_at: datetime) -> None:
        self.scenario = scenario
        self.seed = seed
        self.began_at = began_at
        self.now = began_at
        self.last_job: JobId | None = None
        """The job that the last applied submission created."""
        self._due: list[tuple[datetime, int, Happening]] = []
        self._arranged_count = 0
        self.hardware = Hardware(scenario, seed=seed, began_at=began_at)
        self.controller = Controller(scenario, self.hardware, began_at=began_at, later=self._later)
        self.faults = Faults(self.hardware, self.controller, later=self._later)
        self.effects = ReleaseEffects(scenario, self.hardware, self.faults, seed=seed, later=self._later)
        self.installs = NodeInstalls(scenario, self.effects, later=self._later)
        self.checks = NodeChecks(
            scenario, self.hardware, self.faults.defects, seed=seed, lowers=self.effects.lowers, later=self._later
        )
        self._let_versions_listen()
        self.serving = ServingLog()
        for spec in sorted(scenario.initial_jobs, key=lambda job: -job.priority):
            self.controller.submit(spec, began_at)
        for position, arrivals in enumerate(scenario.arrivals):
            self._arrange_arrival(arrivals, random.Random(f"{seed}:arrivals:{position}"), number=1, after=began_at)
        if scenario.benign_lines_per_node_hour:
            self._arrange_benign_line(random.Random(f"{seed}:benign lines"), after=began_at)
        self._note_serving(None)

    def _let_versions_listen(self) -> None:
        """Apply what versions do to work that begins, after what is broken knows of it."""
        breaks, bugs, effects = self.hardware.work_begins, self.controller.job_starts, self.effects

        def work_begins(node: Node, attempt: JobAttempt, at: datetime) -> None:
            breaks(node, attempt, at)
            effects.work_begins(node, attempt, at)

        def job_starts(job: Job, at: datetime) -> None:
            bugs(job, at)
            job.slowdown_ratio = effects.slowdown_of(self.hardware.nodes[name] for name in job.allocation)

        self.hardware.work_begins, self.controller.job_starts = work_begins, job_starts

    def advance(self, until: datetime) -> None:
        """Let everything happen that is due up to and at `until`, each thing at its own time."""
        if until < self.now:
            raise ValueError(f"the world is at {self.now.isoformat()} and cannot return to {until.isoformat()}")
        while self._due and self._due[0][0] <= until:
            at, _, happening = heapq.heappop(self._due)
            self.now = at
            happening(at)
            self._note_serving(None)
        self.now = until

    def apply(self, entry: Entry) -> None:
        """Let an entry take effect; call with entries in order. A refused one changes nothing."""
        self.advance(entry.at)
        if entry.refusal is None:
            self._apply_accepted(entry)
            self._note_serving(entry.kind)
        # What follows without delay belongs to this moment, and comes before the next entry of the same time.
        self.advance(entry.at)

    def _note_serving(self, cause: EntryKind | None) -> None:
        if self.controller.has_services:
            self.serving.note(self.controller.jobs.values(), self.now, cause)

    def node(self, name: str) -> Node:
        return self.hardware.nodes[NodeName(name)]

    def _apply_accepted(self, entry: Entry) -> None:
        at, controller = entry.at, self.controller
        nodes = [NodeName(name) for name in entry.nodes]
        match entry.kind:
            case EntryKind.FAULT:
                self.faults.happen(entry)
            case EntryKind.SUBMIT if entry.spec is not None:
                self.last_job = controller.submit(entry.spec, at).job
            case EntryKind.DRAIN:
                for name in nodes:
                    controller.records[name].is_drained = True
                    controller.set_reason(name, entry.reason, at)
            case EntryKind.RESUME:
                for name in nodes:
                    self._resume(name, at)
            case EntryKind.DECLARE_DOWN:
                for name in nodes:
                    controller.set_reason(name, entry.reason, at)
                    controller.declare_down(name, at)
                controller.start_jobs(at)
            case EntryKind.RESET_GPU:
                for name in nodes:
                    self._reset(self.node(name), str(entry.gpu), at)
            case EntryKind.REBOOT:
                for name in nodes:
                    controller.records[name].expects_reboot = True
                    self._go_down(self.node(name), at, keeps_power=True)
                    self._boot(self.node(name), at, seconds=self.scenario.durations.reboot_seconds, repair=Cure.REBOOT)
            case EntryKind.POWER_OFF:
                for name in nodes:
                    self._go_down(self.node(name), at, keeps_power=False)
            case EntryKind.POWER_ON:
                for name in nodes:
                    self._power_on(self.node(name), at, repair=Cure.POWER_CYCLE)
            case EntryKind.REIMAGE:
                for name in nodes:
                    self._reimage(self.node(name), at)
            case EntryKind.REPAIR_BY_HAND:
                for name in nodes:
                    self._go_down(self.node(name), at, keeps_power=False)
                    self._power_on(self.node(name), at, repair=Cure.REPLACEMENT)
            case _ if entry.job is None:
                self._apply_beside_jobs(entry, nodes)
            case _:
                self._apply_to_job(entry, nodes)

    def _apply_beside_jobs(self, entry: Entry, nodes: list[NodeName]) -> None:
        at, controller = entry.at, self.controller
        match entry.kind:
            case EntryKind.RESERVE if entry.until is not None:
                controller.reserve(nodes, name=entry.reservation, until=entry.until, at=at)
            case EntryKind.BOOK if entry.begins_at is not None and entry.until is not None:
                controller.book(nodes, name=entry.reservation, begins_at=entry.begins_at, ends_at=entry.until, at=at)
            case EntryKind.SET_QUOTAS:
                # What runs continues, also above a limit.
                controller.quotas.set(entry.quotas)
                controller.start_jobs(at)
            case EntryKind.UNRESERVE:
                controller.unreserve(entry.reservation, at)
            case EntryKind.PUT_LAST | EntryKind.PUT_BACK:
                for name in nodes:
                    controller.records[name].is_last_choice = entry.kind is EntryKind.PUT_LAST
            case EntryKind.START_CHECK if entry.check is not None:
                for name in nodes:
                    self.checks.start(self.node(name), entry.check, at)
            case EntryKind.START_INSTALL if entry.install is not None:
                for name in nodes:
                    self.installs.start(self.node(name), entry.install, at)
            case EntryKind.RELOAD_DRIVER:
                for name in nodes:
                    self._reload_driver(self.node(name), at)

    def _apply_to_job(self, entry: Entry, nodes: list[NodeName]) -> None:
        at, controller = entry.at, self.controller
        job = controller.jobs[JobId(str(entry.job))]
        match entry.kind:
            case EntryKind.HOLD:
                job.is_held = True
                if job.is_running:
                    controller.requeue(job, at)
            case EntryKind.MARK:
                job.is_held = True
            case EntryKind.REQUEUE:
                if job.is_running:
                    controller.requeue(job, at)
            case EntryKind.EXCLUDE:
                job.excluded.update(nodes)
            case EntryKind.READMIT:
                job.excluded.difference_update(nodes)
            case EntryKind.RELEASE:
                job.is_held = False
            case EntryKind.CANCEL:
                controller.cancel(job, at)
        controller.start_jobs(at)

    def _resume(self, name: NodeName, at: datetime) -> None:
        record = self.controller.records[name]
        record.is_drained = False
        record.is_down = record.is_down and not record.is_responding
        if not record.is_down:
            record.reason = record.reason_set_at = None
        self.controller.start_jobs(at)

    # -- repairs --

    def _reset(self, node: Node, address: str, at: datetime) -> None:
        gpu, boot_count = node.gpu_at(address), node.boot_count
        if gpu is None:
            return
        self.hardware.begin_reset(gpu)

        def finish(then: datetime) -> None:
            if node.boot_count == boot_count and gpu.is_resetting:
                self.hardware.finish_reset(gpu)
                self.faults.defects.repaired(node, gpu, Cure.RESET, then)

        self._later(at + timedelta(seconds=self.scenario.durations.gpu_reset_seconds), finish)

    def _reload_driver(self, node: Node, at: datetime) -> None:
        boot_count = node.boot_count
        self.hardware.unload_driver(node)

        def finish(then: datetime) -> None:
            if node.boot_count != boot_count or not node.is_up:
                return
            self.installs.activate(node, Activation.DRIVER_RELOAD)
            self.hardware.load_driver(node, then)
            for gpu in node.gpus:
                if gpu.is_on_bus:
                    self.faults.defects.repaired(node, gpu, Cure.RESET, then)
            self.effects.loaded(node, then)

        self._later(at + timedelta(seconds=self.scenario.durations.driver_reload_seconds), finish)

    def _go_down(self, node: Node, at: datetime, *, keeps_power: bool) -> None:
        self.hardware.go_down(node, at, keeps_power=keeps_power)
        self.checks.cut_short(node, at)
        self.installs.cut_short(node, at)
        self.controller.expect_change(node.name, at)
        self.controller.notice_hangs(at)

    def _power_on(self, node: Node, at: datetime, *, repair: Cure) -> None:
        if not node.is_powered:
            self.hardware.give_power(node)
            self._boot(node, at, seconds=self.scenario.durations.power_on_seconds, repair=repair)

    def _reimage(self, node: Node, at: datetime) -> None:
        self._go_down(node, at, keeps_power=True)
        self.hardware.install_anew(node)
        told = next(each for each in self.scenario.nodes if each.name == node.name)
        self.installs.begin_anew(node, self.scenario.versions_of(told))
        self._boot(node, at, seconds=self.scenario.durations.reimage_seconds, repair=Cure.REIMAGE)

    def _boot(self, node: Node, at: datetime, *, seconds: float, repair: Cure) -> None:
        node.boot_number += 1
        boot_number = node.boot_number

        def finish(then: datetime) -> None:
            # A boot that was overtaken by another, or by a loss of power, never ends.
            if node.boot_number != boot_number or not node.is_powered:
                return
            self.installs.activate(node, _ACTIVATES.get(repair, Activation.REBOOT))
            if self.faults.defects.stops_boot(node, repair) or self.effects.stops_boot(node):
                return
            self.hardware.come_up(node, then)
            for defect in self.faults.defects.repaired(node, None, repair, then):
                if repair is Cure.REPLACEMENT and defect.gpu is not None:
                    self.hardware.replace_board(node, defect.gpu)
            self.effects.loaded(node, then)
            if node.answers:
                self.controller.register(node.name, then)

        self._later(at + timedelta(seconds=seconds), finish)

    # -- time --

    def _later(self, at: datetime, happening: Happening) -> None:
        self._arranged_count += 1
        heapq.heappush(self._due, (at, self._arranged_count, happening))

    def _arrange_arrival(self, arrivals: Arrivals, rng: random.Random, *, number: int, after: datetime) -> None:
        gap = timedelta(seconds=rng.expovariate(1 / arrivals.mean_gap_seconds))
        work_seconds = round(rng.uniform(arrivals.min_work_seconds, arrivals.max_work_seconds), 3)
        spec = replace(arrivals.job, name=f"{arrivals.job.name}-{number}", work_seconds=work_seconds)

        def arrive(at: datetime) -> None:
            self.controller.submit(spec, at)
            self._arrange_arrival(arrivals, rng, number=number + 1, after=at)

        self._later(after + gap, arrive)

    def _arrange_benign_line(self, rng: random.Random, *, after: datetime) -> None:
        lines_per_second = self.scenario.benign_lines_per_node_hour * len(self.hardware.nodes) / 3600
        name, text = rng.choice(tuple(self.hardware.nodes)), rng.choice(kernel_lines.BENIGN)

        def write(at: datetime) -> None:
            self.hardware.mutter(self.hardware.nodes[name], text, at)
            self._arrange_benign_line(rng, after=at)

        self._later(after + timedelta(seconds=rng.expovariate(lines_per_second)), write)


_ACTIVATES = {Cure.POWER_CYCLE: Activation.POWER_CYCLE, Cure.REPLACEMENT: Activation.AC_CYCLE}
"""What a boot as part of a repair activates beyond what each boot does: who opens a machine takes it off the mains."""
