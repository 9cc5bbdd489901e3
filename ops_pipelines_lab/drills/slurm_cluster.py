"""A throw-away Slurm in one directory: munge, MariaDB, slurmdbd, slurmctld and one slurmd a node, on loopback.

Starts, stops, breaks and mends nodes; what its files say is `slurm_cluster_files`. Needs no root, and
of systemd one program. `slurm_cluster_program` makes a command of it.
"""

import fcntl
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.identity import JobId, NodeName, parse_job_id
from ops_pipelines.resources.slurm.guard.installation import prolog_of
from ops_pipelines_lab.drills.daemon_processes import (
    DaemonError,
    Daemons,
    find_holders,
    find_processes,
    kill_processes,
    wait_until,
)
from ops_pipelines_lab.drills.slurm_cluster_files import (
    ACCOUNT_SHARES,
    CLUSTER_NAME,
    NODE_MARK,
    SlurmClusterSettings,
    settings_as_json,
    write_files,
)
from ops_pipelines_lab.drills.stack import START_GUARD, DocumentedStepError, at, own_program, step, unit_command

PACKAGE_BY_PROGRAM: Mapping[str, str] = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "systemd-socket-activate": "systemd",
}
"""Program -> Debian package. Two more hold plugins only: slurm-wlm-basic-plugins and slurm-wlm-mysql-plugin."""
_OF_A_PREFIX = (
    "sbin/slurmctld",
    "sbin/slurmd",
    "sbin/slurmdbd",
    "bin/scontrol",
    "bin/sinfo",
    "bin/squeue",
    "bin/sacctmgr",
    "bin/srun",
)
"""What another Slurm must bring: with a part of it missing, versions would mix in silence."""
_PLUGIN_PACKAGES = ("slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SOCKET_PATH_MAX_BYTES = 107
"""sizeof(sun_path) - 1."""
_READY_SECONDS = 180.0


class SlurmClusterError(RuntimeError):
    """The throw-away cluster could not do what was asked. The message says what is missing or which log to read."""


def find_missing_packages(prefix: Path | None = None) -> tuple[str, ...]:
    """Return the Debian packages whose programs are not installed, sorted; empty if a cluster can start."""
    path = search_path(prefix)
    absent = {package for program, package in PACKAGE_BY_PROGRAM.items() if shutil.which(program, path=path) is None}
    return tuple(sorted(absent))


def search_path(prefix: Path | None) -> str:
    """Return where programs are looked for: those of another Slurm first, daemons and clients alike."""
    return _PATH if prefix is None else f"{prefix}/sbin:{prefix}/bin:{_PATH}"


class SlurmCluster:
    """One throw-away cluster. Any number of objects and processes may speak of the same directory."""

    def __init__(self, settings: SlurmClusterSettings) -> None:
        self.settings = replace(settings, directory=settings.directory.resolve())
        self._daemons = Daemons(run=self.settings.run, log=self.settings.log)
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        return self.settings.node_names

    @property
    def client_environment(self) -> dict[str, str]:
        """The whole environment with which Slurm's clients reach this cluster."""
        path = search_path(self.settings.prefix)
        return {"PATH": path, "LANG": "C.UTF-8", "TZ": "UTC", "SLURM_CONF": str(self.settings.slurm_conf)}

    # -- the whole cluster --

    def start(self) -> None:
        """Start what does not run and return when every started node has registered. Raises SlurmClusterError."""
        self._refuse_unusable_machine()
        with self._locked():
            self._write_files()
            try:
                self._start_munge()
                self._start_database()
                self._start_accounting()
                self._start_controller()
                if self.settings.is_guarded:
                    self._guard()
                self._start_nodes(node for node in self.node_names if not self._is_off(node).exists())
                wait_until(
                    "nodes to register", self._have_nodes_registered, timeout_seconds=_READY_SECONDS, every_seconds=0.2
                )
            except DocumentedStepError as exc:
                raise SlurmClusterError(str(exc)) from exc
            except (TimeoutError, DaemonError) as exc:
                raise SlurmClusterError(f"{exc}; read the logs in {self.settings.log}") from exc
            except subprocess.CalledProcessError as exc:
                raise SlurmClusterError(
                    f"{shlex.join(exc.cmd)} ended with {exc.returncode}: {exc.stderr.strip()}"
                ) from exc

    def stop(self) -> None:
        """Stop all daemons and kill the jobs' processes; keep the state for the next start. Twice is no error."""
        if not self.settings.run.exists():
            return
        with self._locked():
            slurmds = [self._slurmd(node) for node in self.node_names]
            witnesses = [f"witness-{node}" for node in self.node_names]
            for names in ([*slurmds, *witnesses, "start-guard"], ["slurmctld"], ["slurmdbd"], ["mariadbd"], ["munged"]):
                self._daemons.stop(names)
            kill_processes(find_processes(lambda env: self._is_ours(env) and NODE_MARK in env))
            kill_processes(
                find_processes(lambda env: self._is_ours(env) and "SLURM_JOB_ID" in env)
                | {pid: born for node in self.node_names for pid, born in self._step_daemons_of(node).items()}
            )

    def delete(self) -> None:
        """Stop, and remove the directory with everything in it. Refuses a directory that holds no cluster."""
        self.stop()
        if self.settings.directory.exists():
            if not self._settings_file.exists():
                raise SlurmClusterError(f"{self.settings.directory} holds no cluster; it is not deleted")
            shutil.rmtree(self.settings.directory)

    def is_running(self) -> bool:
        """Return whether slurmctld answers."""
        return self._daemons.pid_of("slurmctld") is not None and self._ask("scontrol", "ping").returncode == 0

    def clear(self) -> None:
        """Cancel every job, start every node and bring it back into service; return when all are idle.

        Reservations are deleted, and nodes weigh what slurm.conf says again.
        """
        self.cancel_all()
        for line in self._command("scontrol", "show", "reservation", "-o").splitlines():
            if line.startswith("ReservationName="):
                # One that is over is forgotten by Slurm itself, perhaps just now.
                self._ask("scontrol", "delete", line.partition(" StartTime=")[0])
        self._command("scontrol", "update", f"NodeName={','.join(self.node_names)}", "Weight=1")
        wait_until(
            "jobs to end", lambda: not self._command("squeue", "--noheader").strip(), timeout_seconds=_READY_SECONDS
        )
        for node in self.node_names:
            self.power_on_node(node)
        wait_until("nodes to be idle", self._is_every_node_idle, timeout_seconds=_READY_SECONDS, every_seconds=0.2)

    # -- single nodes --

    def kill_node(self, node: NodeName) -> None:
        """Kill the node's slurmd and nothing else: it looks dead to Slurm while its jobs keep writing."""
        self._daemons.kill([self._slurmd(node)])

    def stop_node(self, node: NodeName) -> None:
        """End the node's slurmd in order; its jobs continue and are taken up by `start_node`."""
        self._daemons.stop([self._slurmd(node)])

    def start_node(self, node: NodeName) -> None:
        """Start the node's slurmd, as after `kill_node` or `stop_node`; a node that runs stays as it is."""
        self._start_nodes([node])

    def power_off_node(self, node: NodeName) -> None:
        """Cut the power: slurmd and every process of a job on the node are gone when this returns.

        A slurmstepd whose slurmd was killed long ago ends too: it is the one that keeps writing.
        """
        self._slurmd_must_exist(node)
        self._is_off(node).touch()
        self._daemons.kill([self._slurmd(node)])
        # Again until none is left: what is about to be killed may still start others.
        while processes := self.find_processes_of(node):
            kill_processes(processes)

    def find_processes_of(self, node: NodeName) -> dict[int, int]:
        """Return pid -> start time of each live process that pretends to run on the node: the witness of its power."""
        # A process that left its slurmstepd behind still carries what Slurm gave the task.
        of_node = find_processes(
            lambda env: self._is_ours(env) and node in (env.get(NODE_MARK), env.get("SLURMD_NODENAME"))
        )
        return of_node | self._step_daemons_of(node)

    def _step_daemons_of(self, node: NodeName) -> dict[int, int]:
        """Return the slurmstepd of a node, by the log of its slurmd: that of 25.11 writes its title over its
        environment."""
        return find_holders(self.settings.log / f"slurmd-{node}.log", name="slurmstepd")

    def power_on_node(self, node: NodeName) -> None:
        """Boot a node that is off; a node that is on stays as it is, unless its slurmd died: that starts again."""
        booted = self._is_off(node).exists()
        self._is_off(node).unlink(missing_ok=True)
        self._start_nodes([node], *(("-b",) if booted else ()))

    def is_powered(self, node: NodeName) -> bool:
        """Return what the simulated power switch says: true also for a node whose slurmd was killed."""
        return not self._is_off(node).exists()

    def reboot_node(self, node: NodeName) -> None:
        """Cut the power, boot, and tell `on_reboot`; raise SlurmClusterError if that fails: the node is up then."""
        told_in = int(time.time())
        self.power_off_node(node)
        # slurmctld dates in whole seconds, and waits for ever for a boot dated like its order.
        wait_until("the next second", lambda: int(time.time()) > told_in, timeout_seconds=5)
        self.power_on_node(node)
        if self.settings.on_reboot:
            argv = [*self.settings.on_reboot, node]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
            )
            if done.returncode != 0:
                raise SlurmClusterError(f"{shlex.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")

    # -- what all nodes share --

    def kill_controller(self) -> None:
        """Kill slurmctld: what it was sent in the last seconds and has not saved is lost."""
        self._daemons.kill(["slurmctld"])

    def start_controller(self) -> None:
        """Start slurmctld on the state it saved, and return when it answers."""
        self._start_controller()

    def kill_accounting(self) -> None:
        """Kill slurmdbd: the controller continues and keeps what it would have sent it."""
        self._daemons.kill(["slurmdbd"])

    def start_accounting(self) -> None:
        """Start slurmdbd, and return when it answers."""
        self._start_accounting()

    def limit_account(self, account: str, gpu_count: int | None) -> None:
        """Limit the GPUs of an account as its site would; None: not at all."""
        limit = f"GrpTRES=gres/gpu={-1 if gpu_count is None else gpu_count}"
        # Without -i sacctmgr asks; it ends with 1 where all is so already.
        self._ask("sacctmgr", "-i", "modify", "account", "where", f"name={account}", "set", limit)

    def account_limits(self) -> dict[str, int | None]:
        """Return the GPUs that each account is limited to, as slurmdbd keeps it; None: not at all."""
        found: dict[str, int | None] = {}
        answer = self._command("sacctmgr", "-nP", "show", "associations", "user=", "format=account,grptres")
        for line in answer.splitlines():
            account, _, kept = line.partition("|")
            limits = dict(each.split("=", 1) for each in kept.split(",") if each)
            if account in ACCOUNT_SHARES:
                found[account] = int(limits["gres/gpu"]) if "gres/gpu" in limits else None
        return found

    def drain_as_operator(self, node: NodeName, *, reason: str) -> None:
        """Drain a node as a person would, over whatever drain there is."""
        self._slurmd_must_exist(node)
        self._command("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def return_as_operator(self, node: NodeName) -> None:
        """Put a drained node back into service as a person would."""
        self._slurmd_must_exist(node)
        self._command("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def remark(self, node: NodeName, text: str) -> None:
        """Write a comment on a node: the least that makes slurmctld save its state."""
        self._slurmd_must_exist(node)
        self._command("scontrol", "update", f"NodeName={node}", f"Comment={text}")

    def read_controller_log(self) -> str:
        """Return what slurmctld wrote down since the cluster was made."""
        return (self.settings.log / "slurmctld.log").read_text(errors="replace")

    def install_guard(self) -> None:
        """Put the start guard into slurm.conf; slurmctld knows nothing of it yet."""
        guard = self.settings.guard
        install = at(
            step(START_GUARD, "ops-pipelines", "guard", "install"),
            {"/etc/slurm/slurm.conf": str(self.settings.slurm_conf), "slurm": self._user},
        )
        places = [
            *("--directory", str(guard.directory), "--state", str(guard.settings.state)),
            *("--fallback", str(guard.settings.fallback), "--addresses", str(guard.settings.addresses)),
            *("--munge-socket", str(self.settings.munge_socket)),
            *("--power-state", " ".join(guard.settings.power_state)),
        ]
        self._command(own_program(install[0]), *install[1:], *places)

    def uninstall_guard(self) -> None:
        """Take the start guard out of slurm.conf; slurmctld knows nothing of it yet."""
        places = ["--slurm-conf", str(self.settings.slurm_conf), "--directory", str(self.settings.guard.directory)]
        self._command(own_program("ops-pipelines"), "guard", "uninstall", *places)

    def restart_controller(self) -> None:
        """Stop slurmctld in order and start it again; jobs continue."""
        self._daemons.stop(["slurmctld"])
        self._start_controller()

    # -- jobs --

    def submit_training(
        self,
        *,
        name: str,
        node_count: int,
        comment: str,
        checkpoint: Path,
        account: str = "research",
        step_seconds: float = 1.0,
        steps_per_checkpoint: int = 10,
        time_limit: timedelta = timedelta(hours=1),
        options: Sequence[str] = (),
    ) -> JobId:
        """Submit a requeueable, checkpointing job that takes all GPUs of `node_count` nodes and does not end.

        `time_limit` is in whole minutes. `options` are further words for sbatch, such as `--no-requeue`.
        """
        environment = {
            "CHECKPOINT": str(checkpoint),
            "STEP_SECONDS": str(step_seconds),
            "STEPS_PER_CHECKPOINT": str(steps_per_checkpoint),
        }
        answer = self._command(
            "sbatch",
            "--parsable",
            "--requeue",
            f"--job-name={name}",
            f"--comment={comment}",
            f"--account={account}",
            f"--nodes={node_count}",
            f"--time={time_limit // timedelta(minutes=1)}",
            f"--gres=gpu:{self.settings.gpus_per_node}",
            f"--output={self.settings.directory}/jobs/%j.out",
            f"--chdir={self.settings.directory}/jobs",
            *options,
            str(self.settings.etc / "train.sh"),
            environment=environment,
        )
        return parse_job_id(answer.strip().partition(";")[0])

    def submit_sleeping(self, *, name: str, account: str, node_count: int) -> JobId:
        """Submit a job that takes all GPUs of its nodes and does nothing; cancelled, it leaves no word of an error."""
        answer = self._command(
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--account={account}",
            f"--nodes={node_count}",
            f"--gres=gpu:{self.settings.gpus_per_node}",
            f"--output={self.settings.directory}/jobs/%j.out",
            f"--chdir={self.settings.directory}/jobs",
            "--wrap=exec sleep 3000",
        )
        return parse_job_id(answer.strip().partition(";")[0])

    def reason_of(self, job: JobId) -> str:
        """Return why Slurm says that a job waits; empty once Slurm has forgotten it."""
        return self._ask("squeue", "--noheader", f"--jobs={job}", "--format=%r").stdout.strip()

    def cancel(self, job: JobId) -> None:
        """Cancel a job as its owner would; return at once."""
        self._command("scancel", job)

    def cancel_all(self) -> None:
        """Cancel every job; return at once."""
        self._command("scancel", "--user", self._user)

    # -- starting --

    def _refuse_unusable_machine(self) -> None:
        prefix = self.settings.prefix
        absent = [each for each in _OF_A_PREFIX if prefix is not None and not (prefix / each).is_file()]
        if absent:
            raise SlurmClusterError(f"{prefix} is no installation of Slurm: it lacks {', '.join(absent)}")
        missing = find_missing_packages(prefix)
        if missing:
            wanted = " ".join((*missing, *_PLUGIN_PACKAGES))
            raise SlurmClusterError(f"programs are missing; run: apt-get install --no-install-recommends {wanted}")
        path = self.settings.munge_socket
        if len(os.fsencode(path)) > _SOCKET_PATH_MAX_BYTES:
            raise SlurmClusterError(f"{path} is too long for a Unix socket (107 bytes); use a shorter directory")
        host = socket.gethostname()
        try:
            address = socket.gethostbyname(host)
        except OSError as exc:
            raise SlurmClusterError(f"host name {host!r} does not resolve; map it to 127.0.1.1 in /etc/hosts") from exc
        # NoInAddrAny binds to what the host name resolves to, not to NodeAddr.
        if not address.startswith("127."):
            raise SlurmClusterError(
                f"the host name {host!r} resolves to {address}, where Slurm would listen; map it to 127.0.1.1 in "
                "/etc/hosts, or run inside `unshare --uts` after `hostname localhost`"
            )

    @property
    def _settings_file(self) -> Path:
        return self.settings.etc / "settings.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One start or stop at a time in a directory."""
        self.settings.directory.mkdir(parents=True, exist_ok=True)
        with (self.settings.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write_files(self) -> None:
        wanted = settings_as_json(self.settings)
        if any(self._daemons.pid_of(name) is not None for name in self._daemons.names()):
            if not self._settings_file.exists() or self._settings_file.read_text() != wanted:
                raise SlurmClusterError(f"{self.settings.directory} runs with other settings; stop it first")
            return
        write_files(self.settings, user=self._user, package_root=Path(__file__).resolve().parents[2])

    def _start_munge(self) -> None:
        run, log, etc, state = self.settings.run, self.settings.log, self.settings.etc, self.settings.state
        argv = [
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--socket={self.settings.munge_socket}",
            f"--key-file={etc}/munge.key",
            f"--pid-file={run}/munged.pid",
            f"--log-file={log}/munged.log",
            f"--seed-file={state}/munge.seed",
        ]
        self._daemons.start("munged", argv, env=self.client_environment)
        self._daemons.wait_for("munged", lambda: _connects(self.settings.munge_socket))

    def _start_database(self) -> None:
        files, ready = self.settings.state / "mariadb", self.settings.state / "mariadb.ready"
        # A MariaDB that starts deletes all temporary tables in its directory, those of another that shares it, too.
        temporary = self.settings.state / "mariadb.tmp"
        temporary.mkdir(exist_ok=True)
        own = [f"--datadir={files}", f"--tmpdir={temporary}", f"--user={self._user}"]
        if not ready.exists():
            shutil.rmtree(files, ignore_errors=True)
            install = ["mariadb-install-db", "--no-defaults", *own]
            self._command(*install, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
            ready.touch()
        argv = [
            "mariadbd",
            "--no-defaults",
            "--skip-networking",
            "--skip-log-bin",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=64M",
            # slurmdbd asks for a long lock wait and complains otherwise.
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0",
            *own,
            f"--socket={self.settings.database_socket}",
            f"--pid-file={self.settings.run}/mariadbd.pid",
        ]
        self._daemons.start("mariadbd", argv, env=self.client_environment)
        self._daemons.wait_for("mariadbd", lambda: _connects(self.settings.database_socket))
        source = f"source {self.settings.etc}/database.sql"
        self._command(
            "mariadb", "--no-defaults", f"--socket={self.settings.database_socket}", "--user=root", "-e", source
        )

    def _start_accounting(self) -> None:
        environment = {**self.client_environment, "MYSQL_UNIX_PORT": str(self.settings.database_socket)}
        self._daemons.start("slurmdbd", ["slurmdbd", "-D"], env=environment)
        self._daemons.wait_for("slurmdbd", lambda: self._ask("sacctmgr", "-n", "show", "cluster").returncode == 0)
        accounts = ",".join(ACCOUNT_SHARES)
        known = self._command("sacctmgr", "-nP", "show", "account", "format=account").split()
        if CLUSTER_NAME not in self._command("sacctmgr", "-nP", "show", "cluster", "format=cluster").split():
            self._command("sacctmgr", "-i", "add", "cluster", CLUSTER_NAME)
        for account, share in ACCOUNT_SHARES.items():
            if account not in known:
                self._command("sacctmgr", "-i", "add", "account", account, f"Fairshare={share}", "Organization=drill")
        # The database is born with a user root of account root, so having a default account proves nothing.
        if not self._command(
            "sacctmgr", "-nP", "show", "associations", f"user={self._user}", f"account={accounts}"
        ).strip():
            default = f"DefaultAccount={next(iter(ACCOUNT_SHARES))}"
            self._command(
                "sacctmgr", "-i", "add", "user", self._user, f"Account={accounts}", default, "AdminLevel=Admin"
            )

    def _start_controller(self) -> None:
        self._daemons.start("slurmctld", ["slurmctld", "-D"], env=self.client_environment)
        self._daemons.wait_for("slurmctld", lambda: self._ask("scontrol", "ping").returncode == 0)
        if self.settings.prefix is not None and "Duplicated NodeHostName" in self.read_controller_log():
            # Such nodes register and run jobs, and are given up soon after: "can't find address for host".
            raise SlurmClusterError(
                f"{self.settings.prefix} does not take several slurmd on one host; "
                "build it with --enable-multiple-slurmd (docs/SLURM.md)"
            )

    def _start_nodes(self, nodes: Iterable[NodeName], *flags: str) -> None:
        for node in nodes:
            self._slurmd_must_exist(node)
            (self.settings.state / self._slurmd(node)).mkdir(exist_ok=True)
            environment = {**self.client_environment, NODE_MARK: node}
            self._daemons.start(self._slurmd(node), ["slurmd", "-D", "-N", node, *flags], env=environment)
            if self.settings.is_guarded:
                self._start_witness(node, environment)

    def _guard(self) -> None:
        """Do what docs/START_GUARD.md has an operator do on the host of slurmctld, at this cluster's places."""
        guard = self.settings.guard
        if prolog_of(self.settings.slurm_conf.read_text()) != str(guard.wrapper):
            self.install_guard()
            step(START_GUARD, "systemctl", "restart", "slurmctld")  # Here, without systemd:
            self.restart_controller()
        watch = at(unit_command("ops-pipelines-start-guard.service"), {"/etc/slurm/start_guard": str(guard.directory)})
        # systemd would read PYTHON out of start_guard.env.
        environment = {**self.client_environment, "PYTHON": str(guard.python)}
        self._daemons.start("start-guard", watch, env=environment)

    def _start_witness(self, node: NodeName, environment: Mapping[str, str]) -> None:
        """Listen as the node's socket unit does: each question is answered by a process of its own."""
        listen = ["systemd-socket-activate", "--accept", "--inetd", f"--setenv={NODE_MARK}"]
        witness = at(
            unit_command("ops-pipelines-node-witness@.service"),
            {"/usr/local/lib/ops_pipelines": str(self.settings.guard.directory), "slurm": self._user},
        )
        # Another cluster on this machine, or what is left of one, has jobs and nodes of the same names.
        ours = (f"{NODE_MARK}|SLURMD_NODENAME={node}", f"SLURM_CONF={self.settings.slurm_conf}")
        own = ["--node", node, "--munge-socket", str(self.settings.munge_socket)]
        own += [word for each in ours for word in ("--only-with", each)]
        program = [*listen, f"--listen=127.0.0.1:{self.settings.witness_port(node)}", *witness, *own]
        self._daemons.start(f"witness-{node}", program, env=environment)

    # -- asking --

    def _ask(self, *argv: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env={**self.client_environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_READY_SECONDS,
            check=False,
        )

    def _command(self, *argv: str, environment: Mapping[str, str] | None = None) -> str:
        done = self._ask(*argv, environment=environment)
        done.check_returncode()
        return done.stdout

    def _have_nodes_registered(self) -> bool:
        on = {node for node in self.node_names if self.is_powered(node)}
        states = dict(line.split("|") for line in self._command("sinfo", "-hNo", "%N|%T").split())
        return all(states.get(node, "unknown*").rstrip("*") == states[node] != "unknown" for node in on)

    def _is_every_node_idle(self) -> bool:
        """Also asks for the service of those that are not: a node that has just booted may refuse it for a moment."""
        states = dict(line.split("|") for line in self._command("sinfo", "-hNo", "%N|%T").split())
        out = [node for node in self.node_names if states.get(node) != "idle"]
        for node in out:
            self._ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return not out

    def _slurmd(self, node: NodeName) -> str:
        return f"slurmd-{node}"

    def _is_off(self, node: NodeName) -> Path:
        return self.settings.run / f"{node}.off"

    def _slurmd_must_exist(self, node: NodeName) -> None:
        if node not in self.node_names:
            raise SlurmClusterError(
                f"{node} is no node of this cluster; it has {self.node_names[0]} to {self.node_names[-1]}"
            )

    def _is_ours(self, environment: Mapping[str, str]) -> bool:
        return environment.get("SLURM_CONF") == str(self.settings.slurm_conf)


def open_cluster(directory: Path) -> SlurmCluster:
    """Return the cluster that was once started in `directory`; raise SlurmClusterError if there is none."""
    try:
        fields = json.loads((directory / "etc" / "settings.json").read_text())
    except FileNotFoundError:
        raise SlurmClusterError(f"{directory} holds no cluster; start one there first") from None
    fields["on_reboot"] = tuple(fields["on_reboot"])
    fields["prefix"] = None if fields["prefix"] is None else Path(fields["prefix"])
    return SlurmCluster(SlurmClusterSettings(directory=directory, **fields))


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
