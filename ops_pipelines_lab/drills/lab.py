"""`make lab`: the same program on a real Slurm, watched by a real Prometheus, on loopback, in one directory.

Real: scheduler, accounting, jobs, metrics server, Alertmanager, Dagster, `ops-pipelines serve`, and the PostgreSQL that
Dagster and the ledger are kept on. Simulated: the GPUs, as the twin's exporter and kernel log show them, and the site
that gets our messages. The drill breaks nodes under training jobs, and judges the end on what Slurm itself says.
"""

import argparse
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from rich.console import Console

from ops_pipelines.clock import SystemClock
from ops_pipelines.resources.config.cluster_config import RebootBy
from ops_pipelines.wiring import forget_opened, open_cluster, open_observatory
from ops_pipelines_lab.drills import lab_hardware
from ops_pipelines_lab.drills.daemon_processes import DaemonError, Daemons
from ops_pipelines_lab.drills.lab_configuration import (
    TEAMS,
    TEAMS_FILE,
    cluster_settings,
    prometheus_settings,
    versioned_nodes,
    write_releases,
)
from ops_pipelines_lab.drills.lab_drill import QUOTAS, ROLLOUT, DrillError, LabDrill, Stage
from ops_pipelines_lab.drills.lab_hardware import SERVE, SLURM_DIRECTORY, TWIN_DIRECTORY, socket_of
from ops_pipelines_lab.drills.lab_moments import squeue_program
from ops_pipelines_lab.drills.lab_node import FIRST_KERNEL, NodeDisk
from ops_pipelines_lab.drills.lab_surroundings import Surroundings
from ops_pipelines_lab.drills.postgres_server import PostgresServer, PostgresServerError, find_closed_directory
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster, SlurmClusterError, search_path
from ops_pipelines_lab.drills.slurm_cluster_files import SlurmClusterSettings
from ops_pipelines_lab.drills.stack import (
    CODE_SERVER,
    DATABASE_PREFIX,
    DEFINITIONS,
    LOOPBACK,
    DagsterStack,
    DocumentedStepError,
    free_port,
    free_ports,
    port_number,
    project_file,
    sole_owner,
)
from ops_pipelines_lab.simulator.scenario import Scenario, lab_scenario
from ops_pipelines_lab.simulator.twin import Twin

_NODE_COUNT = 32
_FEW_NODES_COUNT = 16
"""Enough where versions or quotas move and nothing else is played: each node costs the machine some of its time."""
_LEDGER_URL_FILE = "ledger.url"
_DAGSTER_DATABASE, _LEDGER_DATABASE = "dagster", "ledger"
_SEED = 7
_SLURMD_TIMEOUT_SECONDS = 180
"""Long enough to hold a silent node's jobs first: once Slurm gives the node up, it starts them again by itself."""
_SOCKET_ROOM_BYTES = 60
"""What a state directory may be long, so that Slurm's sockets below it stay under 107 bytes."""

POLICY = """\
# The lab's own policy: acts by itself, on short durations, and lets a drill break many nodes within minutes.
mode: auto
# Limits are the drill's to set: a schedule that came in the middle of an act would hold its jobs.
consents: {quotas: approve}
drain_budget: {max_out_count: 16, max_out_per_rack_count: 8, max_new_per_hour_count: 100, min_in_service_ratio: 0.5}
mass_event: {min_node_count: 20, window_seconds: 60, brake_window_seconds: 60}
durations:
  confirm_unreachable_after_seconds: 10
  confirm_gpu_missing_after_seconds: 10
  telemetry_stale_after_seconds: 30
  look_every_seconds: 2
  retry_after_seconds: 3
  run_patience_seconds: 20
  soak_seconds: 5
  fence_limit_seconds: 60
  reset_limit_seconds: 30
  reboot_limit_seconds: 60
  check_limit_seconds: 120
  probation_seconds: 12
  job_end_limit_seconds: 95
ladder: {max_gpu_resets_count: 3, max_reboots_count: 3, max_power_cycles_count: 3, cool_down_seconds: 0}
recovery: {max_requeues_count: 1}
blast_caps: {max_on_probation_count: 20}
rollouts:
  max_out_count: 3
  canary_counts: [1, 2, 4]
  bounds: []  # seconds of a few nodes show no rates: it would ask before every wave
  soak_seconds: 10
  soak_limit_seconds: 25
  gang_cap_node_count: 2
  job_end_limit_seconds: 120
  install_limit_seconds: 60
  verify_limit_seconds: 45
  good_read_count: 2
  good_read_every_seconds: 2
  answer_limit_seconds: 600
"""


class LabError(RuntimeError):
    """The lab did not come up. The message says what is missing."""


CANNOT_BE_PLAYED = (
    *(LabError, DrillError, DocumentedStepError, DaemonError),
    *(SlurmClusterError, PostgresServerError, TimeoutError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the lab up; with --once run the drill, print the verdict and end."""
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("--once", action="store_true", help="run the fixed drill, print the verdict, and end")
    parser.add_argument("--acts", nargs="+", metavar="NAME", help="with --once: play these acts only")
    parser.add_argument("--port", type=port_number, default=3000, help="port of the Dagster UI on 127.0.0.1")
    parser.add_argument("--state", type=Path, default=None, help="where the lab keeps its state")
    parser.add_argument("--slurm", type=Path, metavar="PREFIX", help="another Slurm: PREFIX/sbin/slurmctld")
    options = parser.parse_args(argv)
    prefix = None if options.slurm is None else options.slurm.resolve()
    if options.acts and not options.once:
        parser.error("--acts names what --once plays; add --once")
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state = options.state.resolve() if options.state is not None else default_state()
    try:
        with sole_owner(state):
            if not options.once:
                _keep_up(state, console, port=options.port, prefix=prefix)
            else:
                for acts in _apart(options.acts):
                    _play(state, console, port=options.port, acts=acts, prefix=prefix)
            return 0
    except CANNOT_BE_PLAYED as problem:
        console.print(f"lab: {problem}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped.")
        return 130 if options.once else 0


def default_state() -> Path:
    """Return `.lab` here, or a directory elsewhere.

    Elsewhere if this one's name is too long for Unix sockets, or if root's PostgreSQL, whose user is not root, may not
    enter it.
    """
    state = (Path.cwd() / ".lab").resolve()
    if len(os.fsencode(state)) <= _SOCKET_ROOM_BYTES and find_closed_directory(state) is None:
        return state
    mark = hashlib.sha256(os.fsencode(state)).hexdigest()[:8]
    return Path(tempfile.gettempdir()).resolve() / f"ops-lab-{mark}"


def _apart(acts: Sequence[str] | None) -> tuple[Sequence[str] | None, ...]:
    """Return what is played in which lab, one after the other; None: all that is not played apart."""
    if acts is None:
        return (None, (ROLLOUT,))
    others = tuple(each for each in acts if each != ROLLOUT)
    return (*((others,) if others else ()), *(((ROLLOUT,),) if ROLLOUT in acts else ()))


def _play(state: Path, console: Console, *, port: int, acts: Sequence[str] | None, prefix: Path | None) -> None:
    is_small = acts is not None and tuple(acts) in ((ROLLOUT,), (QUOTAS,))
    lab = Lab(state, port=port, node_count=_FEW_NODES_COUNT if is_small else _NODE_COUNT, slurm_prefix=prefix)
    with brought_up(lab, console):
        LabDrill(lab.stage(), console, names=acts).run()
        console.print("the lab ended as expected")


def _keep_up(state: Path, console: Console, *, port: int, prefix: Path | None) -> None:
    lab = Lab(state, port=port, slurm_prefix=prefix)
    with brought_up(lab, console):
        _explain(lab, console)
        signal.pause()


@contextmanager
def brought_up(lab: "Lab", console: Console) -> Iterator[None]:
    lab.clean()
    forget_opened()  # What the lab before this one opened is gone.
    try:
        with console.status("starting") as status:
            lab.start(lambda what: status.update(f"starting {what}"))
        around = lab.around.addresses
        console.print(f"Dagster UI: {lab.stack.url}   serve: {around.serve_url}   Prometheus: {lab.prometheus_url}")
        console.print(lab.stack.login_words)
        console.print(f"Alertmanager: {around.alertmanager_url or 'not installed: no alert is sent or silenced'}")
        yield
    finally:
        with console.status("stopping"):
            lab.stop()


def _explain(lab: "Lab", console: Console) -> None:
    console.print(f"Slurm:      export SLURM_CONF={lab.slurm.settings.slurm_conf}; then sinfo, squeue, sbatch ...")
    console.print(
        f"break one:  {sys.executable} -m ops_pipelines_lab.drills.lab_hardware break_gpu {lab.state} gpu003 5"
    )
    console.print(f"messages:   {lab.around.addresses.site.messages}")
    console.print(f"look:       {Path(sys.executable).with_name('ops-pipelines')} status --cluster {lab.cluster_file}")
    console.print("Ctrl-C stops everything.")


class Lab:
    """A real Slurm, a real Prometheus, a real PostgreSQL, the twin's exporter and Dagster, below one directory."""

    def __init__(
        self,
        state: Path,
        *,
        port: int,
        node_count: int = _NODE_COUNT,
        policy: str = POLICY,
        instance_file: Path | None = None,
        definitions: str = DEFINITIONS,
        slurmd_timeout_seconds: int = _SLURMD_TIMEOUT_SECONDS,
        has_own_code_server: bool = True,
        is_guarded: bool = True,
        slurm_prefix: Path | None = None,
    ) -> None:
        """Describe the lab; another policy, instance file or module of definitions is for comparisons.

        Without `has_own_code_server` Dagster's daemon runs one of its own, which it replaces every few minutes.
        """
        self.state = state
        self._policy = policy
        self._scenario = lab_scenario(node_count)
        self.cluster_file = state / "cluster.yaml"
        self.application_log = state / "log" / "application.log"
        self.slurm = SlurmCluster(
            SlurmClusterSettings(
                directory=state / SLURM_DIRECTORY,
                node_count=node_count,
                first_port=free_ports(102 + 2 * node_count),
                slurmd_timeout_seconds=slurmd_timeout_seconds,
                is_guarded=is_guarded,
                prefix=slurm_prefix,
                on_reboot=(sys.executable, "-m", "ops_pipelines_lab.drills.lab_node", "booted", str(state)),
            )
        )
        self.postgres = PostgresServer(
            state / "postgres", port=free_ports(1), databases=(_DAGSTER_DATABASE, _LEDGER_DATABASE)
        )
        self.stack = DagsterStack(
            state / "dagster",
            cluster_file=self.cluster_file,
            instance_file=instance_file if instance_file is not None else project_file("deploy/dagster.postgres.yaml"),
            port=port,
            definitions=definitions,
            has_own_code_server=has_own_code_server,
        )
        self.twin: Twin | None = None
        self._prometheus_port = free_port()
        self._exporter_port = free_port()
        self._daemons = Daemons(run=state / "run", log=state / "log")
        self.around = Surroundings(state, daemons=self._daemons)

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
            if path.name in ("lock", ".drill"):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def start(self, progress: Callable[[str], None]) -> None:
        """Start everything and return when each part answers."""
        self.around.refuse_if_required()
        for name in ("run", "log", "prometheus"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        progress("PostgreSQL")
        self.postgres.start()
        os.environ.update(self._dagster_database())
        progress("Slurm")
        self.slurm.start()
        # Clients of this process and of Dagster's find the throw-away Slurm here.
        os.environ["SLURM_CONF"] = str(self.slurm.settings.slurm_conf)
        if self.slurm.settings.prefix is not None:
            os.environ["PATH"] = f"{search_path(self.slurm.settings.prefix)}:{os.environ.get('PATH', os.defpath)}"
        self._put_squeue_first()
        progress("Prometheus, the exporter and the hardware")
        scenario = self._scenario
        self.twin = Twin.create(self.state / TWIN_DIRECTORY, scenario, seed=_SEED, clock=SystemClock())
        self.application_log.touch()
        self.around.write_files()
        self._start_exporter()
        self._start_hardware()
        self.around.start_monitoring(_environment())
        self._start_prometheus(scenario)
        self._write_configuration(scenario)
        progress("Dagster")
        self.stack.start(lambda what: progress(f"Dagster: {what}"))
        progress("serve")
        self.around.start_serve(self.cluster_file, _environment())
        self.around.await_answers()

    def stop(self) -> None:
        self.stack.stop()
        self._daemons.stop(self._daemons.names(), grace_seconds=5.0)
        self.slurm.stop()
        self.postgres.stop()

    def stage(self) -> Stage:
        """Return what the drill plays on; raise LabError before `start`."""
        if self.twin is None:
            raise LabError("the lab is not started")
        return Stage(
            cluster=open_cluster(self.cluster_file),
            observatory=open_observatory(self.cluster_file),
            slurm=self.slurm,
            postgres=self.postgres,
            twin=self.twin,
            stack=self.stack,
            cluster_file=self.cluster_file,
            checkpoints=self.checkpoints,
            application_log=self.application_log,
            around=self.around.addresses,
            take_up_rollouts=self._take_up_rollouts,
        )

    def _take_up_rollouts(self) -> None:
        """Write versions and releases, and have nodes rebooted by Slurm: a change that needs a new code server."""
        for node in versioned_nodes(self._scenario):
            NodeDisk(self.state, node).create(FIRST_KERNEL)
        write_releases(self.state)
        self._write_configuration(self._scenario, reboot_by=RebootBy.SLURM)
        self.stack.kill(CODE_SERVER)
        self.stack.start_code_server()

    def _put_squeue_first(self) -> None:
        """Put the drill's `squeue` before the real one, for this process and for Dagster's."""
        programs = self.state / "bin"
        real = shutil.which("squeue", path=os.environ.get("PATH"))
        if real is None:
            raise LabError("the program squeue is missing; run: apt-get install --no-install-recommends slurm-client")
        programs.mkdir(exist_ok=True)
        program = programs / "squeue"
        program.write_text(squeue_program(sys.executable, real))
        program.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])

    def _dagster_database(self) -> dict[str, str]:
        """Return what dagster.postgres.yaml asks the environment for."""
        url = self.postgres.url_of(_DAGSTER_DATABASE)
        parts = {
            "HOST": url.host,
            "PORT": url.port,
            "USER": url.username,
            "PASSWORD": url.password,
            "NAME": url.database,
        }
        return {f"{DATABASE_PREFIX}{name}": str(part) for name, part in parts.items()}

    def _start_exporter(self) -> None:
        words = ["--state", str(self.state / TWIN_DIRECTORY), "--port", str(self._exporter_port)]
        program = [
            sys.executable,
            "-m",
            "ops_pipelines_lab.simulator.exporter",
            *words,
            "--kernel-log",
            str(self.kernel_log),
        ]
        self._daemons.start("exporter", program, env=_environment())

    def _start_hardware(self) -> None:
        program = [sys.executable, "-m", lab_hardware.__name__, SERVE, str(self.state)]
        self._daemons.start("hardware", program, env=_environment())
        self._daemons.wait_for("hardware", socket_of(self.state).is_socket)

    def _start_prometheus(self, scenario: Scenario) -> None:
        server = shutil.which("prometheus")
        if server is None:
            raise LabError("the program prometheus is missing; run: apt-get install --no-install-recommends prometheus")
        settings = prometheus_settings(
            scenario, self.around, exporter_port=self._exporter_port, own_port=self._prometheus_port
        )
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

    def _write_configuration(self, scenario: Scenario, *, reboot_by: RebootBy = RebootBy.COMMAND) -> None:
        configuration = cluster_settings(
            self.state,
            scenario,
            self.around,
            slurm_conf=self.slurm.settings.slurm_conf,
            prometheus_url=self.prometheus_url,
            logs=(self.kernel_log, self.application_log),
            checkpoints=self.checkpoints,
            ledger_url_file=_LEDGER_URL_FILE,
            reboot_by=reboot_by,
        )
        url_file = self.state / _LEDGER_URL_FILE
        url_file.touch(mode=0o600)  # it holds the password
        url_file.write_text(self.postgres.url(_LEDGER_DATABASE))
        self.cluster_file.write_text(yaml.safe_dump(configuration, sort_keys=False))
        (self.state / TEAMS_FILE).write_text(yaml.safe_dump(TEAMS, sort_keys=False))
        (self.state / "policy.yaml").write_text(self._policy)


def _environment() -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "TZ", "SLURM_CONF")
    return {key: os.environ[key] for key in names if key in os.environ}


if __name__ == "__main__":
    sys.exit(main())
