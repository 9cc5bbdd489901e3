"""The fixed drill of `make lab ONCE=1`: in which order the acts are played, what is waited for, and the end.

What an act breaks is its own business, the verdict `lab_judge`'s. Bringing the lab up is `lab`'s business.
"""

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from ops_pipelines_lab.drills.daemon_processes import DaemonError
from ops_pipelines_lab.drills.lab_act import Act
from ops_pipelines_lab.drills.lab_acts import (
    AccountingDown,
    ApplicationErrs,
    ControllerKilled,
    DatabaseRestarted,
    ForeignDrainBefore,
    ForeignDrainMeanwhile,
    GpuFallsOff,
    HostileWords,
    SilentNode,
    WorkerKilled,
)
from ops_pipelines_lab.drills.lab_alertmanager import AlertmanagerView
from ops_pipelines_lab.drills.lab_alerts import AlertedNode
from ops_pipelines_lab.drills.lab_judge import judge_acts, judge_drill, judge_telling
from ops_pipelines_lab.drills.lab_ladder import (
    NeverDrains,
    ProbationFails,
    RebootHangs,
    ResetDoesNotHelp,
    TestsFailTwice,
)
from ops_pipelines_lab.drills.lab_moments import OldCheckpoint, RequeueLoop, YoungCheckpoint
from ops_pipelines_lab.drills.lab_quotas import QuotasMove
from ops_pipelines_lab.drills.lab_rollout import VersionsMove
from ops_pipelines_lab.drills.lab_stage import DrillError, LabView, Stage
from ops_pipelines_lab.drills.recorded_past import fill_lake
from ops_pipelines_lab.drills.writer_watch import TwoWritersError, WriterWatch

__all__ = ["QUOTAS", "ROLLOUT", "DrillError", "LabDrill", "Stage"]

ROLLOUT = "rollout"
"""The act that is played in a lab of its own: what the others break would be taken for its doing."""
QUOTAS = "quotas"
"""The act that is played after all others, alone: its limits would hold their jobs, and a fault soon after the
end of its jobs could be taken for theirs."""

_NOT_FED = ("application_telemetry",)
"""What nothing in the lab measures: its jobs have no exporter."""
_NOT_BROKEN = ("kernel_events", "job_logs")
"""What has nothing to say where quotas alone are played: nothing breaks, and its jobs sleep."""
_READY_SECONDS = 120.0
_HEAL_SECONDS = 600.0
"""Far above what an act needs, on a loaded machine too: a drill that waits this long has failed."""
_ROLLOUT_SECONDS = 1_800.0
"""The same, of sixteen nodes three at a time."""


class LabDrill:
    """The drill: many faults at a time, each on nodes and under a job of its own."""

    def __init__(self, stage: Stage, console: Console, *, names: Sequence[str] | None = None) -> None:
        """Describe it; `names`: the acts to play, None: all but ROLLOUT. Raises DrillError for one that is none."""
        self._console = console
        self._watch = WriterWatch(stage.checkpoints)
        self._view = view = LabView(stage, console, self._watch)
        self._controller = ControllerKilled(view, "controller")
        self._silent = SilentNode(view, "silent")
        self._accounting = AccountingDown(view, "accounting")
        self._gpu = GpuFallsOff(view, "pretrain")
        self._application = ApplicationErrs(view, "application")
        self._worker = WorkerKilled(view, "worker")
        self._database = DatabaseRestarted(view, "database")
        self._foreign_before = ForeignDrainBefore(view, "foreign-before")
        self._foreign_meanwhile = ForeignDrainMeanwhile(view, "foreign-meanwhile")
        self._slow: Sequence[Act] = (
            *(NeverDrains(view, "never-drains"), RebootHangs(view, "reboot-hangs"), TestsFailTwice(view, "tests-fail")),
            *(RequeueLoop(view, "requeue-loop"), ProbationFails(view, "probation"), ResetDoesNotHelp(view, "reset")),
        )
        self._timed: Sequence[Act] = (YoungCheckpoint(view, "young"), OldCheckpoint(view, "old"))
        self._hostile = HostileWords(view, "hostile")
        self._alerted = AlertedNode(view, "alerted")
        self._rollout = VersionsMove(view, ROLLOUT)
        every: Sequence[Act] = (
            *(self._gpu, self._application, self._silent, self._controller, self._accounting, self._worker),
            *(self._database, self._foreign_before, self._foreign_meanwhile),
            *(*self._slow, *self._timed, self._hostile, self._alerted),
        )
        left_out: Sequence[Act] = ()
        if stage.around.alertmanager_url is None:
            left_out = (self._alerted,)
            view.say(f"{self._alerted.name} is left out: prometheus-alertmanager is not installed")
        self._moves_versions = names is not None and set(names) == {ROLLOUT}
        self._quotas = QuotasMove(view, QUOTAS)
        self._moves_quotas = names is None or QUOTAS in names
        others = None if names is None else [name for name in names if name != QUOTAS]
        is_alone = self._moves_versions or others == []
        self._acts = () if is_alone else choose_acts(every, others, left_out=left_out)

    def run(self) -> None:
        """Play everything, print the verdict; raise DrillError naming every demand that is not met."""
        self._watch.start()
        failures: tuple[str, ...] = ()
        try:
            self._view.wait("metrics of all nodes", self._sees_all_nodes, limit_seconds=_READY_SECONDS)
            self._view.wait("quiet", self._view.is_quiet, limit_seconds=_READY_SECONDS)
            self._view.begin()
            if self._acts:
                failures = (*self._unbroken(self._play), *judge_drill(self._view, self._acts, self._console))
            if self._moves_quotas:
                # Their jobs are judged by now, and take up nodes.
                self._view.stage.slurm.cancel_all()
                quotas = (*self._unbroken(self._quotas.play), *judge_acts([self._quotas], self._console))
                failures = (*failures, *quotas)
            if self._moves_versions:
                failures = (
                    *failures,
                    *self._unbroken(self._move_versions),
                    *judge_acts([self._rollout], self._console),
                )
        except TwoWritersError as problem:
            raise DrillError(str(problem)) from None
        finally:
            self._watch.stop()
        failures = (*failures, *self._fill_lake(), *self._judge_telling())
        self._tell_ledger()
        if failures:
            raise DrillError("the drill did not end as stated:\n  " + "\n  ".join(failures))

    def _play(self) -> None:
        """slurmctld dies while all else is quiet; then what is independent, side by side; then what interrupts us."""
        view = self._view
        for act in self._acts:
            act.submit()
        view.wait("every job to save", self._do_all_save, limit_seconds=_READY_SECONDS)
        view.say(f"{len(self._acts)} jobs train and save")

        self._begin(self._controller)
        # Until they do, none of them is room for a job, and when to move a job depends on that.
        view.wait("the nodes to answer", self._do_all_answer, limit_seconds=_READY_SECONDS)
        begun = (self._alerted, *self._slow, self._hostile, self._application, self._foreign_before)
        self._begin(*begun, self._accounting, self._gpu)
        self._wait_for(*begun, self._accounting, self._gpu, self._controller)
        # Slurm gives a silent node up by itself and starts its jobs elsewhere: the hold must come before. So it falls
        # silent when little else is continuing, and what delays our runs is played after it. In the minute in which
        # nobody knows of it yet, nothing delays the move of a job either.
        self._begin(self._silent, *self._timed)
        if self._silent in self._acts:
            self._wait_until(self._silent.is_held, "the silent node's job to be held")
        self._begin(self._worker, self._database, self._foreign_meanwhile)
        self._wait_for(*self._acts)

    def _unbroken(self, play: Callable[[], None]) -> tuple[str, ...]:
        """Play a part; return what it was given up for, empty if it came to its end."""
        try:
            play()
        except (TimeoutError, DaemonError, DrillError) as problem:
            self._view.say(f"given up: {problem}")
            return (f"given up: {problem}",)
        return ()

    def _move_versions(self) -> None:
        self._view.stage.take_up_rollouts()
        self._rollout.submit()
        self._rollout.play()
        act = self._rollout
        self._wait_until(lambda: act.is_over, "the end of both releases", acts=(act,), limit_seconds=_ROLLOUT_SECONDS)

    def _begin(self, *acts: Act) -> None:
        for act in acts:
            if act in self._acts:
                act.play()

    def _wait_for(self, *acts: Act) -> None:
        awaited = [act for act in acts if act in self._acts]
        names = ", ".join(act.name for act in awaited if not act.is_over)
        self._wait_until(lambda: all(act.is_over for act in awaited), f"the end of {names}")

    def _wait_until(
        self,
        is_so: Callable[[], bool],
        what: str,
        *,
        acts: Sequence[Act] | None = None,
        limit_seconds: float = _HEAL_SECONDS,
    ) -> None:
        watched = self._acts if acts is None else acts

        def is_so_now() -> bool:
            with self._view.one_look():
                for act in watched:
                    act.look()
                return is_so()

        self._view.wait(what, is_so_now, limit_seconds=limit_seconds, every_seconds=0.5)

    def _do_all_answer(self) -> bool:
        nodes = self._view.nodes()
        return bool(nodes) and all(node.is_responding for node in nodes.values())

    def _do_all_save(self) -> bool:
        return all(act.has_begun_to_save() for act in self._acts)

    def _sees_all_nodes(self) -> bool:
        cluster = self._view.stage.cluster
        samples = cluster.telemetry.read_samples(cluster.clock.now())
        return len({sample.labels.get("Hostname") for sample in samples}) == len(self._view.stage.slurm.node_names)

    def _fill_lake(self) -> list[str]:
        """Fill the hours of the drill from the real Prometheus and the real accounting, and say what is missing."""
        stage = self._view.stage
        may_be_empty = _NOT_FED if self._acts or self._moves_versions else (*_NOT_FED, *_NOT_BROKEN)
        fill = fill_lake(stage.stack, stage.observatory, hour_count=2, may_be_empty=may_be_empty, pass_time=time.sleep)
        self._console.print(f"{fill}", markup=False, soft_wrap=True)
        return [f"lake: {difference}" for difference in fill.differences]

    def _judge_telling(self) -> tuple[str, ...]:
        """Judge silences and messages last: our silences end within a look of ours after the last return."""
        url = self._view.stage.around.alertmanager_url
        alertmanager = None if url is None else AlertmanagerView(url=url)
        return judge_telling(self._view, alertmanager, self._console, kept=self._alerted.kept_silences)

    def _tell_ledger(self) -> None:
        ledger = self._view.stage.cluster.ledger
        for incident in self._view.incidents():
            self._console.print(
                f"  {incident.incident} {incident.state.value}: {incident.cause}", markup=False, soft_wrap=True
            )
            for record in ledger.records(incident.incident):
                witness = record.outcome.witness if record.outcome is not None else "under way"
                self._console.print(
                    f"    {record.begun_at:%H:%M:%S} {record.action.verb.value} {record.action.target}: {witness}",
                    markup=False,
                    soft_wrap=True,
                )
        verdict = ledger.verify_chain()
        self._console.print(f"  {verdict.entry_count} entries, head {verdict.head_hash[:16]}")


def choose_acts(every: Sequence[Act], names: Sequence[str] | None, *, left_out: Sequence[Act]) -> tuple[Act, ...]:
    """Return the acts of these names (None: all) without those that cannot be played here, in the drill's order.

    Raises DrillError for a name that no act has, and if no act is left: a drill of nothing proves nothing.
    """
    known = [act.name for act in every]
    unknown = sorted(set(names or ()).difference(known))
    if unknown:
        raise DrillError(
            f"there is no act {', '.join(unknown)}; expected some of {', '.join([*known, QUOTAS, ROLLOUT])}"
        )
    chosen = tuple(act for act in every if (names is None or act.name in names) and act not in left_out)
    if not chosen:
        raise DrillError(f"no act is left to play; expected some of {', '.join(known)}")
    return chosen
