"""What a throw-away Slurm reads: its settings and its configuration files. Starts nothing.

Measured with Slurm 22.05.8 on Debian 12; the reasons stand beside the options that surprised us.
"""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.resources.slurm.guard.installation import Installation, own_python, prolog_of, with_prolog
from ops_pipelines.resources.slurm.guard.start_guard import Settings

CLUSTER_NAME = "drill"
ACCOUNT_SHARES: Mapping[str, int] = {"research": 60, "product": 30, "platform": 10}
"""Account -> fair share; a share is a weight among its siblings."""
GPU_TYPE = "h100"
NODE_MARK = "OPS_PIPELINES_DRILL_NODE"
"""Set in each slurmd's environment and inherited by its slurmstepd: names the node that a process claims to run on."""

_CPUS_PER_SOCKET = 32
_MEMORY_MEGABYTES = 512_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmClusterSettings:
    """One throw-away cluster. Everything it writes is in `directory`; it listens on loopback only.

    Ports used: `first_port` (slurmctld), +1 (slurmdbd), +101 and up (one slurmd a node).
    """

    directory: Path
    node_count: int = 16
    gpus_per_node: int = 8
    first_port: int = 16800
    slurmd_timeout_seconds: int = 10
    """Silence after which Slurm sets a node DOWN; it pings about every third of this."""
    defined_node_count: int = 0
    """More nodes, `cn0001` and up, that slurmctld knows and nobody runs: for tests of size."""
    is_guarded: bool = True
    """slurmctld runs the start guard, and each node has its witness. Ports: +102 + `node_count` and up."""
    prefix: Path | None = None
    """Where another Slurm is installed (`PREFIX/sbin/slurmctld`, `PREFIX/bin/scontrol`); None: the system's."""
    on_reboot: tuple[str, ...] = ()
    """Argument list called after a node rebooted, with the node's name appended; empty: nothing is called."""

    def __post_init__(self) -> None:
        if not 1 <= self.node_count <= 999:
            raise ValueError(f"node_count is {self.node_count}; it must lie in 1..999")
        if not 1 <= self.gpus_per_node <= 16:
            raise ValueError(f"gpus_per_node is {self.gpus_per_node}; it must lie in 1..16")
        if not 1024 <= self.first_port <= 65535 - self.port_count:
            raise ValueError(f"first_port is {self.first_port}; it must lie in 1024..{65535 - self.port_count}")

    @property
    def port_count(self) -> int:
        """How many ports in a row it may use."""
        return 102 + 2 * self.node_count

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """`gpu001` and up."""
        return tuple(parse_node_name(f"gpu{number:03d}") for number in range(1, self.node_count + 1))

    @property
    def defined_node_names(self) -> tuple[NodeName, ...]:
        """`cn0001` and up: known to slurmctld, never started."""
        return tuple(parse_node_name(f"cn{number:04d}") for number in range(1, self.defined_node_count + 1))

    @property
    def etc(self) -> Path:
        return self.directory / "etc"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def guard(self) -> Installation:
        """The start guard of this cluster."""
        return Installation(
            directory=self.etc / "start_guard",
            settings=Settings(
                state=self.state / "start_guard",
                fallback=self.run / "start_guard",
                slurm_conf=str(self.slurm_conf),
                port=0,
                addresses=self.etc / "start_guard.addresses",
                power_state=(str(self.etc / "power_state"), "{node}"),
                munge_socket=str(self.munge_socket),
                look_again_seconds=3.0,
            ),
            python=own_python(),
            programs=None if self.prefix is None else self.prefix / "bin",
        )

    def witness_port(self, node: NodeName) -> int:
        """Return where the witness of a node listens."""
        return self.first_port + 102 + self.node_count + self.node_names.index(node)

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "mariadb.sock"


def write_files(settings: SlurmClusterSettings, *, user: str, package_root: Path) -> None:
    """Write everything that the daemons read; they must not run. Keeps munge's key, makes a new database password."""
    folders = (settings.etc, settings.run, settings.log, settings.state / "slurmctld", settings.directory / "jobs")
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    key = settings.etc / "munge.key"
    if not key.exists():
        _write_private(key, secrets.token_bytes(128))
    for index in range(settings.gpus_per_node):
        device = settings.etc / f"nvidia{index}"
        if not device.is_symlink():
            device.symlink_to(os.devnull)
    password = secrets.token_hex(16)
    _write_private(settings.etc / "slurmdbd.conf", slurmdbd_conf(settings, user=user, password=password).encode())
    _write_private(settings.etc / "database.sql", _database_sql(password).encode())
    # The start guard is installed on the running Slurm, as a site does it, and stays where it was.
    prolog = prolog_of(settings.slurm_conf.read_text()) if settings.slurm_conf.exists() else ""
    settings.slurm_conf.write_text(with_prolog(slurm_conf(settings, user=user), prolog))
    (settings.etc / "gres.conf").write_text(gres_conf(settings))
    program = reboot_program(python=Path(sys.executable), package_root=package_root, settings=settings)
    addresses = (f"{node} 127.0.0.1 {settings.witness_port(node)}\n" for node in settings.node_names)
    (settings.etc / "start_guard.addresses").write_text("".join(addresses))
    for name, text in (("reboot", program), ("train.sh", TRAINING_SCRIPT), ("power_state", _power_state(settings))):
        (settings.etc / name).write_text(text)
        (settings.etc / name).chmod(0o755)
    (settings.etc / "settings.json").write_text(settings_as_json(settings))


def settings_as_json(settings: SlurmClusterSettings) -> str:
    """Return the settings without the directory, which is where they are kept."""
    fields = {key: value for key, value in asdict(settings).items() if key != "directory"}
    return json.dumps(fields, sort_keys=True, default=str) + "\n"


def slurm_conf(settings: SlurmClusterSettings, *, user: str) -> str:
    """Return slurm.conf: all daemons run as `user`, jobs too."""
    last_port = settings.first_port + 100 + settings.node_count
    return f"""\
ClusterName={CLUSTER_NAME}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={settings.first_port}
# Without these two every daemon listens on 0.0.0.0.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits cred_expire + 1 s; 5 is the least that Slurm takes, 120 the default.
AuthInfo=socket={settings.munge_socket},cred_expire=5
StateSaveLocation={settings.state}/slurmctld
SlurmdSpoolDir={settings.state}/slurmd-%n
SlurmctldPidFile={settings.run}/slurmctld.pid
SlurmdPidFile={settings.run}/slurmd-%n.pid
SlurmctldLogFile={settings.log}/slurmctld.log
SlurmdLogFile={settings.log}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
# Processes are followed by their parents: containers have no cgroups to give.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
PropagateResourceLimits=NONE
# Sizes below win over what slurmd measures on the real machine.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PriorityType=priority/multifactor
PriorityWeightFairshare=100000
PriorityWeightAge=1000
JobRequeue=1
# Nobody preempts anybody before a QOS is made that says so.
PreemptType=preempt/qos
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={settings.first_port + 1}
AccountingStoragePass={settings.munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits
AccountingStoreFlags=job_comment
SlurmdTimeout={settings.slurmd_timeout_seconds}
KillWait=2
CompleteWait=0
# A host that starts hundreds of jobs at once is slow to end others: at 10 Slurm drained half of a lab for it.
UnkillableStepTimeout=60
MinJobAge=300
# A node that was DOWN stays so until it is resumed.
ReturnToService=0
RebootProgram={settings.etc}/reboot
ResumeTimeout=60
NodeName={_node_range(settings)} NodeHostname=localhost NodeAddr=127.0.0.1 \
Port=[{settings.first_port + 101}-{last_port}] Sockets=2 CoresPerSocket={_CPUS_PER_SOCKET} ThreadsPerCore=1 \
RealMemory={_MEMORY_MEGABYTES} Gres=gpu:{GPU_TYPE}:{settings.gpus_per_node} State=UNKNOWN
{_defined_nodes(settings)}\
PartitionName=batch Nodes=ALL Default=YES MaxTime=7-0 DefaultTime=1:00:00 State=UP
"""


def _defined_nodes(settings: SlurmClusterSettings) -> str:
    if settings.defined_node_count == 0:
        return ""
    names = settings.defined_node_names
    return (
        f"NodeName=cn[0001-{names[-1].removeprefix('cn')}] NodeAddr=127.0.0.1 Port=1 Sockets=2 "
        f"CoresPerSocket={_CPUS_PER_SOCKET} ThreadsPerCore=1 RealMemory={_MEMORY_MEGABYTES} "
        f"Gres=gpu:{GPU_TYPE}:{settings.gpus_per_node} State=UNKNOWN\n"
    )


def slurmdbd_conf(settings: SlurmClusterSettings, *, user: str, password: str) -> str:
    """Return slurmdbd.conf. MariaDB's socket has no option: MYSQL_UNIX_PORT names it in slurmdbd's environment."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={settings.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={settings.first_port + 1}
CommunicationParameters=NoInAddrAny
SlurmUser={user}
LogFile={settings.log}/slurmdbd.log
PidFile={settings.run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_accounting
CommitDelay=0
"""


def gres_conf(settings: SlurmClusterSettings) -> str:
    """Return gres.conf. slurmd removes a GPU without a device file, so each is a link to /dev/null named `nvidiaN`."""
    return f"""\
AutoDetect=off
NodeName={_node_range(settings)} Name=gpu Type={GPU_TYPE} File={settings.etc}/nvidia[0-{settings.gpus_per_node - 1}]
"""


def reboot_program(*, python: Path, package_root: Path, settings: SlurmClusterSettings) -> str:
    """Return the RebootProgram: slurmd runs it without arguments, so the node's name comes from slurmd's environment.

    The reboot itself is left to a detached process without the mark; else it would be killed with the node.
    """
    return f"""\
#!/bin/sh
node=${NODE_MARK}
test -n "$node" || exit 1
cd {_quoted(package_root)} || exit 1
env -u {NODE_MARK} setsid {_quoted(python)} -m ops_pipelines_lab.drills.slurm_cluster_program reboot-node \\
    {_quoted(settings.directory)} "$node" >>{_quoted(settings.log / "reboot.out")} 2>&1 </dev/null &
"""


TRAINING_SCRIPT = """\
#!/bin/bash
#SBATCH --open-mode=append
# Simulated training: every node runs one rank; rank 0 counts steps and saves the count to $CHECKPOINT.
# Every save is signed in $CHECKPOINT.writes. Environment: CHECKPOINT (path), STEPS, STEP_SECONDS, STEPS_PER_CHECKPOINT.
export CHECKPOINT=${CHECKPOINT:-checkpoint.$SLURM_JOB_ID} STEPS=${STEPS:-1000000}
export STEP_SECONDS=${STEP_SECONDS:-1} STEPS_PER_CHECKPOINT=${STEPS_PER_CHECKPOINT:-10}
export ATTEMPT=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}

sign() {
    # Who writes, and when: one short line, appended in one piece. Read by drills/writer_watch.py.
    echo "${EPOCHREALTIME/[^0-9]/} $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME $$" >>"$CHECKPOINT.writes"
}

save() {
    sign
    # Each attempt has its own temporary name: two copies of one job must not mix their halves.
    echo "$step" >"$CHECKPOINT.$ATTEMPT" && mv "$CHECKPOINT.$ATTEMPT" "$CHECKPOINT"
    sign
}

rank() {
    if [ "$SLURM_PROCID" -ne 0 ]; then
        until [ "$(cat "$CHECKPOINT" 2>/dev/null || echo 0)" -ge "$STEPS" ]; do sleep 5; done
        exit 0
    fi
    step=$(cat "$CHECKPOINT" 2>/dev/null || echo 0)
    echo "attempt $ATTEMPT on $SLURM_JOB_NODELIST continues at step $step"
    trap 'save; echo "attempt $ATTEMPT was ordered to end at step $step"; exit 143' TERM
    while [ "$step" -lt "$STEPS" ]; do
        sleep "$STEP_SECONDS" &
        wait $!
        step=$((step + 1))
        [ $((step % STEPS_PER_CHECKPOINT)) -ne 0 ] || save
    done
    save
}

export -f rank save sign
exec srun --mpi=none --ntasks-per-node=1 bash -c rank
"""


def _power_state(settings: SlurmClusterSettings) -> str:
    """Return the switch as the start guard asks it: off is a node that was switched off, with nothing left of it."""
    return f"""\
#!/bin/sh
test -e {_quoted(settings.run)}/"$1".off || {{ echo on; exit; }}
left=$(grep -lsz -e "^{NODE_MARK}=$1$" -e "^SLURMD_NODENAME=$1$" /proc/[0-9]*/environ |
    xargs -r grep -lsz "^SLURM_CONF={settings.slurm_conf}$")
test -z "$left" && echo off || echo on
"""


def _node_range(settings: SlurmClusterSettings) -> str:
    return f"gpu[001-{settings.node_count:03d}]"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _database_sql(password: str) -> str:
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_accounting;\n"
        f"CREATE OR REPLACE USER slurm@localhost IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_accounting.* TO slurm@localhost;\n"
    )


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)
