"""`make lab`: the same program on a real Slurm, watched by a real Prometheus, on loopback, in one directory.

Real: scheduler, accounting, jobs, metrics server, ledger, Dagster. Pretended: the GPUs, as the twin's exporter and
kernel log show them. The drill breaks a node under a training job, and judges the end on what Slurm itself says.
"""

import argparse
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml
from rich.console import Console

from ops_pipelines.clock import SystemClock
from ops_pipelines.domain.action import OutcomeKind, Verb
from ops_pipelines.domain.finding import Response
from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.domain.incident import Incident, IncidentState
from ops_pipelines.domain.observation import JobState, JobStatus, NodeStatus
from ops_pipelines.drills.daemon_processes import Daemons, wait_until
from ops_pipelines.drills.lab_hardware import SLURM_DIRECTORY, TWIN_DIRECTORY
from ops_pipelines.drills.slurm_cluster import SlurmCluster, SlurmClusterError
from ops_pipelines.drills.slurm_cluster_files import SlurmClusterSettings
from ops_pipelines.drills.stack import LOOPBACK, DagsterStack, StackError, free_port, project_file, sole_owner
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.simulator.journal import FaultKind
from ops_pipelines.simulator.scenario import Scenario, lab_scenario
from ops_pipelines.simulator.twin import Twin
from ops_pipelines.wiring import open_cluster

_NODE_COUNT = 16
_SEED = 7
_HEAL_LIMIT_SECONDS = 180.0
_SOCKET_ROOM_BYTES = 60
"""What a state directory may be long, so that Slurm's sockets below it stay under 107 bytes."""

_POLICY = """\
# The lab's own policy: acts by itself, on short durations.
mode: auto
drain_budget: {max_out_count: 4, max_out_per_rack_count: 4, max_new_per_hour_count: 100, min_in_service_ratio: 0.5}
durations:
  confirm_unreachable_after_seconds: 30
  confirm_gpu_missing_after_seconds: 10
  telemetry_stale_after_seconds: 30
  look_every_seconds: 2
  retry_after_seconds: 3
  run_patience_seconds: 20
  soak_seconds: 5
  fence_limit_seconds: 60
  reset_limit_seconds: 60
  reboot_limit_seconds: 120
"""


class LabError(RuntimeError):
    """The lab did not come up, or did not end as stated. The message says what was found and expected."""


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the lab up; with --once run the drill, print the verdict and end."""
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("--once", action="store_true", help="run the fixed drill, print the verdict, and end")
    parser.add_argument("--port", type=int, default=3000, help="port of the Dagster UI on 127.0.0.1")
    parser.add_argument("--state", type=Path, default=None, help="where the lab keeps its state")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state = options.state.resolve() if options.state is not None else _default_state()
    try:
        with sole_owner(state):
            return _run(state, port=options.port, is_once=options.once, console=console)
    except (LabError, StackError, SlurmClusterError, TimeoutError) as problem:
        console.print(f"lab: {problem}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped.")
        return 130 if options.once else 0


def _default_state() -> Path:
    """Return `.lab` here, or a directory with a short name where this one's is too long for Unix sockets."""
    state = (Path.cwd() / ".lab").resolve()
    if len(os.fsencode(state)) <= _SOCKET_ROOM_BYTES:
        return state
    mark = hashlib.sha256(os.fsencode(state)).hexdigest()[:8]
    return Path(tempfile.gettempdir()).resolve() / f"ops-lab-{mark}"


def _run(state: Path, *, port: int, is_once: bool, console: Console) -> int:
    lab = Lab(state, port=port)
    lab.clean()
    try:
        with console.status("starting") as status:
            lab.start(lambda what: status.update(f"starting {what}"))
        console.print(f"Dagster UI: {lab.stack.url}   Prometheus: {lab.prometheus_url}")
        if is_once:
            _Drill(lab, console).run()
            console.print("the lab ended as expected")
            return 0
        _explain(lab, console)
        signal.pause()
        return 0
    finally:
        with console.status("stopping"):
            lab.stop()


def _explain(lab: "Lab", console: Console) -> None:
    console.print(f"Slurm:      export SLURM_CONF={lab.slurm.settings.slurm_conf}; then sinfo, squeue, sbatch ...")
    console.print(f"break one:  {sys.executable} -m ops_pipelines.drills.lab_hardware break_gpu {lab.state} gpu003 5")
    console.print(f"look:       {Path(sys.executable).with_name('ops-pipelines')} --cluster {lab.cluster_file} status")
    console.print("Ctrl-C stops everything.")


class Lab:
    """A real Slurm, a real Prometheus, the twin's exporter and the Dagster processes, below one directory."""

    def __init__(self, state: Path, *, port: int) -> None:
        self.state = state
        self.cluster_file = state / "cluster.yaml"
        self.application_log = state / "log" / "application.log"
        self.slurm = SlurmCluster(SlurmClusterSettings(directory=state / SLURM_DIRECTORY, node_count=_NODE_COUNT))
        self.stack = DagsterStack(
            state / "dagster", cluster_file=self.cluster_file, instance_file=project_file("dagster.yaml"), port=port
        )
        self.twin: Twin | None = None
        self._prometheus_port = free_port()
        self._exporter_port = free_port()
        self._daemons = Daemons(run=state / "run", log=state / "log")

    @property
    def prometheus_url(self) -> str:
        return f"http://{LOOPBACK}:{self._prometheus_port}"

    @property
    def kernel_log(self) -> Path:
        return self.state / "log" / "kernel.log"

    @property
    def checkpoints(self) -> Path:
        return self.state / SLURM_DIRECTORY / "jobs"

    def clean(self) -> None:
        """Stop what an earlier lab left running, and begin with an empty directory."""
        self.stop()
        if (self.state / SLURM_DIRECTORY).exists():
            self.slurm.delete()
        for path in self.state.iterdir():
            if path.name == "lock":
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def start(self, progress: Callable[[str], None]) -> None:
        """Start everything and return when each part answers."""
        for name in ("run", "log", "prometheus"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        progress("Slurm")
        self.slurm.start()
        # Clients of this process and of Dagster's find the throw-away Slurm here.
        os.environ["SLURM_CONF"] = str(self.slurm.settings.slurm_conf)
        progress("Prometheus and the exporter")
        scenario = lab_scenario(_NODE_COUNT)
        self.twin = Twin.create(self.state / TWIN_DIRECTORY, scenario, seed=_SEED, clock=SystemClock())
        self.application_log.touch()
        self._start_exporter()
        self._start_prometheus(scenario)
        self._write_configuration(scenario)
        progress("Dagster")
        self.stack.start(lambda what: progress(f"Dagster: {what}"))

    def stop(self) -> None:
        self.stack.stop()
        self._daemons.stop(self._daemons.names(), grace_seconds=5.0)
        self.slurm.stop()

    def open(self) -> Cluster:
        return open_cluster(self.cluster_file)

    def _start_exporter(self) -> None:
        words = ["--state", str(self.state / TWIN_DIRECTORY), "--port", str(self._exporter_port)]
        program = [
            sys.executable,
            "-m",
            "ops_pipelines.simulator.exporter",
            *words,
            "--kernel-log",
            str(self.kernel_log),
        ]
        self._daemons.start("exporter", program, env=_environment())

    def _start_prometheus(self, scenario: Scenario) -> None:
        server = shutil.which("prometheus")
        if server is None:
            raise LabError("the program prometheus is missing; run: apt-get install --no-install-recommends prometheus")
        targets = [
            {
                "targets": [f"{LOOPBACK}:{self._exporter_port}"],
                "labels": {"__metrics_path__": f"/metrics/{node.name}", "instance": node.name},
            }
            for node in scenario.nodes
        ]
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "dcgm", "static_configs": targets}],
        }
        configuration = self.state / "prometheus" / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(settings))
        self._daemons.start(
            "prometheus",
            [
                server,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={self.state / 'prometheus' / 'data'}",
                f"--web.listen-address={LOOPBACK}:{self._prometheus_port}",
            ],
            env=_environment(),
        )

    def _write_configuration(self, scenario: Scenario) -> None:
        racks: dict[str, list[str]] = {}
        for node in scenario.nodes:
            racks.setdefault(node.rack, []).append(node.name)
        hardware = [sys.executable, "-m", "ops_pipelines.drills.lab_hardware"]
        plain = ("inspect", "reboot", "power_off", "power_on", "power_state")
        configuration = {
            "name": "lab",
            "state_directory": ".",
            "policy": "policy.yaml",
            "gpus_per_node": scenario.gpus_per_node,
            "racks": [{"name": rack, "nodes": ",".join(nodes)} for rack, nodes in racks.items()],
            "scheduler": {
                "kind": "slurm",
                "slurm_conf": str(self.slurm.settings.slurm_conf),
                "checkpoint_roots": [str(self.checkpoints)],
            },
            "telemetry": {
                "kind": "prometheus",
                "url": self.prometheus_url,
                "step_seconds": 1,
                "look_back_seconds": 5,
            },
            "logs": {"kind": "files", "paths": [str(self.kernel_log), str(self.application_log)]},
            "fleet": {
                "kind": "commands",
                **{verb: [*hardware, verb, str(self.state), "{node}"] for verb in plain},
                "reset_gpu": [*hardware, "reset_gpu", str(self.state), "{node}", "{gpu}"],
            },
            "ledger": {},
            "notifier": {"kind": "file"},
        }
        self.cluster_file.write_text(yaml.safe_dump(configuration, sort_keys=False))
        (self.state / "policy.yaml").write_text(_POLICY)


def _environment() -> dict[str, str]:
    return {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TZ") if key in os.environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """What must be so, and how it reads when it is not."""

    is_so: bool
    otherwise: str


class _Drill:
    """A GPU falls off under a real two-node job; later the job itself errs. Every claim is read from Slurm."""

    def __init__(self, lab: Lab, console: Console) -> None:
        assert lab.twin is not None  # the lab is started
        self._lab = lab
        self._twin = lab.twin
        self._cluster = lab.open()
        self._console = console
        self._began = time.monotonic()
        self._since = self._cluster.clock.now()

    def run(self) -> None:
        """Raise LabError with the first thing that is not as stated."""
        self._await("metrics of all nodes", self._sees_all_nodes, 60.0)
        checkpoint = self._lab.checkpoints / "checkpoint"
        job = self._lab.slurm.submit_training(
            name="pretrain", node_count=2, comment=f"workload=training ckpt={checkpoint}", checkpoint=checkpoint
        )
        self._await("the job to save its first checkpoint", lambda: _saved_step(checkpoint) > 0, 60.0)
        before = self._job(job)
        bad = min(before.nodes)
        saved_before = _saved_step(checkpoint)
        self._say(f"job {job} trains on {', '.join(sorted(before.nodes))}, saved step {saved_before}")

        self._twin.inject(FaultKind.GPU_FELL_OFF_BUS, bad, gpu=3)
        self._say(f"broke {bad}: Xid 79 in its kernel log, its series vanish")
        reason = self._await_reason(bad)
        self._say(f"{bad} is drained: {reason}")
        self._await("the node to be verified and returned", lambda: self._is_healed(bad), _HEAL_LIMIT_SECONDS)
        self._await("the job to pass its checkpoint", lambda: _saved_step(checkpoint) > saved_before, 60.0)
        after = self._job(job)
        self._check_healed(bad, before, after, reason)
        self._say(f"job {job} went on from its checkpoint on {', '.join(sorted(after.nodes))}; {bad} is back")

        node = max(after.nodes)
        self._write_application_xid(node)
        self._say(f"application Xid 31 on {node}")
        self._await("the owner to be told", lambda: self._told_owner() is not None, 60.0)
        self._check_application_error(job, after)
        self._tell_ledger()

    def _check_healed(self, bad: NodeName, before: JobStatus, after: JobStatus, reason: str) -> None:
        incident = self._incident_of(bad)
        verbs = [
            record.action.verb
            for record in self._cluster.ledger.records(incident.incident)
            if record.outcome is not None
            and record.outcome.kind is OutcomeKind.DONE
            and record.action.verb is not Verb.NOTIFY_OWNER
        ]
        story = [Verb.DRAIN, Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.REBOOT, Verb.RESUME]
        _demand(
            _Story(is_so=incident.incident in reason and "79" in reason, otherwise=f"the drain reason is {reason!r}"),
            _Story(is_so=verbs == story, otherwise=f"the ledger holds {', '.join(verb.value for verb in verbs)}"),
            _Story(is_so=after.state is JobState.RUNNING, otherwise=f"job {after.job} is {after.state.value}"),
            _Story(is_so=bad not in after.nodes, otherwise=f"job {after.job} runs on {bad} again"),
            _Story(
                is_so=after.restart_count == before.restart_count + 1,
                otherwise=f"job {after.job} was restarted {after.restart_count - before.restart_count} times",
            ),
        )

    def _check_application_error(self, job: JobId, before: JobStatus) -> None:
        told = self._told_owner()
        assert told is not None  # awaited just before
        records = self._cluster.ledger.records(told.incident)
        drained = [node.node for node in self._cluster.scheduler.read_nodes() if node.is_drained]
        now = self._job(job)
        _demand(
            _Story(
                is_so={record.action.verb for record in records} == {Verb.NOTIFY_OWNER},
                otherwise="more was done than telling the owner",
            ),
            _Story(is_so=not drained, otherwise=f"the application error cost {', '.join(drained)}"),
            _Story(is_so=now.started_at == before.started_at, otherwise=f"job {job} was restarted"),
        )

    def _tell_ledger(self) -> None:
        verdict = self._cluster.ledger.verify_chain()
        _demand(_Story(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}"))
        for incident in self._cluster.ledger.incidents_since(self._since):
            self._console.print(f"  {incident.incident} {incident.state.value}: {incident.cause}", markup=False)
            for record in self._cluster.ledger.records(incident.incident):
                witness = record.outcome.witness if record.outcome is not None else "under way"
                self._console.print(
                    f"    {record.begun_at:%H:%M:%S} {record.action.verb.value} {record.action.target}: {witness}",
                    markup=False,
                )
        self._console.print(f"  {verdict.entry_count} entries, chain whole, head {verdict.head_hash[:16]}")

    def _sees_all_nodes(self) -> bool:
        samples = self._cluster.telemetry.read_samples(self._cluster.clock.now())
        return len({sample.labels.get("Hostname") for sample in samples}) == _NODE_COUNT

    def _await_reason(self, node: NodeName) -> str:
        self._await("the broken node to be drained", lambda: self._node(node).is_drained, 60.0)
        return self._node(node).reason or ""

    def _is_healed(self, node: NodeName) -> bool:
        found = [each for each in self._incidents() if node in each.nodes]
        lost = [each for each in found if each.state is IncidentState.ESCALATED]
        if lost:
            raise LabError(f"{lost[0].incident} was handed to a human: {lost[0].note}")
        status = self._node(node)
        is_closed = bool(found) and all(each.state is IncidentState.RESOLVED for each in found)
        return is_closed and not status.is_drained and status.is_responding

    def _incident_of(self, node: NodeName) -> Incident:
        found = [each for each in self._incidents() if node in each.nodes]
        if len(found) != 1:
            raise LabError(f"{node} has {len(found)} incidents, one was expected")
        return found[0]

    def _told_owner(self) -> Incident | None:
        wanted = [
            each
            for each in self._incidents()
            if each.response is Response.NOTIFY_OWNER and each.state is IncidentState.RESOLVED
        ]
        return wanted[0] if wanted else None

    def _incidents(self) -> tuple[Incident, ...]:
        return self._cluster.ledger.incidents_since(self._since)

    def _node(self, name: NodeName) -> NodeStatus:
        return next(node for node in self._cluster.scheduler.read_nodes() if node.node == name)

    def _job(self, job: JobId) -> JobStatus:
        return next(each for each in self._cluster.scheduler.read_jobs() if each.job == job)

    def _write_application_xid(self, node: NodeName) -> None:
        now: datetime = self._cluster.clock.now()
        line = (
            f"{now.isoformat(timespec='microseconds')} {node} kernel: [ 4711.000001] NVRM: Xid (PCI:0000:1b:00): 31, "
            "pid=4711, name=python3, Ch 00000007, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_6 faulted\n"
        )
        with self._lab.application_log.open("a") as file:
            file.write(line)

    def _await(self, what: str, is_so: Callable[[], bool], limit_seconds: float) -> None:
        dead = self._lab.stack.dead()
        if dead:
            raise LabError(f"{', '.join(dead)} ended by itself; read {self._lab.state / 'dagster' / 'log'}")
        wait_until(what, is_so, timeout_seconds=limit_seconds, every_seconds=0.3)

    def _say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {what}", markup=False, soft_wrap=True)


def _saved_step(checkpoint: Path) -> int:
    """Return the step in the checkpoint; 0 if there is none yet."""
    try:
        return int(checkpoint.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _demand(*stories: _Story) -> None:
    for story in stories:
        if not story.is_so:
            raise LabError(story.otherwise)


if __name__ == "__main__":
    sys.exit(main())
