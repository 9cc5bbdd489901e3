"""A sacctmgr and a scontrol that keep limits in memory and print as Slurm 22.05.8 was recorded. Knows nothing of jobs.

Its first state is a recorded one; that it prints this state byte by byte is a test of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ops_pipelines.resources.commands import CommandAnswer

RECORDED = Path(__file__).parents[1] / "data" / "slurm"
ASSOCIATIONS = (RECORDED / "sacctmgr-assoc-22.05-limits-typed-and-none.txt").read_text()
ALL_QOS = (RECORDED / "sacctmgr-qos-22.05-one-limits-gpus.txt").read_text()
PARTITIONS = (RECORDED / "scontrol-partitions-22.05-gpus-billed-and-free.txt").read_text()
UNTYPED_CONFIG = (RECORDED / "scontrol-config-22.05-limits-enforced-types-not-counted.txt").read_text()
TYPED_CONFIG = (RECORDED / "scontrol-config-22.05-types-counted-and-set-by-lua.txt").read_text()
WAITING_JOBS = (RECORDED / "scontrol-jobs-22.05-types-set-by-lua-for-gres-alone.txt").read_text().splitlines()
CONNECTION_REFUSED = (
    "sacctmgr: error: slurm_persist_conn_open_without_init: failed to open persistent connection to "
    "host:127.0.0.1:24393: Connection refused\n"
    "sacctmgr: error: Sending PersistInit msg: Connection refused\n"
)
DENIED = "sacctmgr: error: Your user doesn't have privilege to perform this action\n"

Tres = dict[str, int]
WaitingJob = Callable[[Sequence[str]], str | None]


class FakeSlurm:
    """Fits RunCommand."""

    def __init__(self, *, config: str = UNTYPED_CONFIG, associations: str = ASSOCIATIONS, qos: str = ALL_QOS) -> None:
        self.config = config
        self._header, *rows = associations.splitlines()
        self._rows = [row.split("|") for row in rows]
        self._qos_header, *qos_rows = qos.splitlines()
        self._qos = {cells[0]: (read_tres(cells[1]), cells[2]) for cells in (row.split("|") for row in qos_rows)}
        self.asked: list[Sequence[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.before_modify: Callable[[int], None] = lambda _: None
        """Reported the number of each command that modifies, from 1, before it is looked at."""
        self.is_database_up = True
        self.is_privileged = True
        self.forgets_to_tell: set[str] = set()
        """Accounts of which slurmctld is never reported."""
        self.waiting_job: WaitingJob = lambda _: WAITING_JOBS[0]
        """What a held job looks like, by the words of its sbatch; None: it is refused."""
        self._jobs: dict[str, str] = {}
        self.cancelled: list[str] = []
        self._modify_count = 0

    @property
    def submitted(self) -> list[str]:
        return list(self._jobs)

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        self.asked.append(tuple(argv))
        self.environments.append(environment)
        match tuple(argv):
            case ("scontrol", "show", "config"):
                return _yes(self.config)
            case ("scontrol", "show", "partition", "-o"):
                return _yes(PARTITIONS)
            case ("scontrol", "-o", "show", "assoc_mgr", "flags=assoc", accounts):
                return _yes(self._followed(accounts.removeprefix("accounts=").split(",")))
            case ("scontrol", "-o", "show", "job", job):
                return _yes(self._jobs[job])
            case ("sbatch", *_):
                return self._submit(argv)
            case ("scancel", job):
                self.cancelled.append(job)
                return _yes("")
            case ("sacctmgr", "-i", "modify", entity, "where", name, *rest):
                return self._modify(entity, name.removeprefix("name=").split(","), rest)
            case ("sacctmgr", *_) if not self.is_database_up:
                return CommandAnswer(returncode=1, stdout="", stderr=CONNECTION_REFUSED)
            case ("sacctmgr", "-P", "show", "assoc", "cluster=drill", _):
                return _yes(self.associations)
            case ("sacctmgr", "-P", "show", "qos", _):
                return _yes(self.qos)
        raise AssertionError(f"nobody recorded what Slurm says to {argv}")

    @property
    def associations(self) -> str:
        return "\n".join([self._header, *("|".join(row) for row in self._rows), ""])

    @property
    def qos(self) -> str:
        rows = [f"{name}|{write_tres(tres)}|{per_account}" for name, (tres, per_account) in self._qos.items()]
        return "\n".join([self._qos_header, *rows, ""])

    def clear(self) -> None:
        """Take every limit away, and give every account a share of its own."""
        for row in self._rows:
            if len(row) == 6:
                row[4], row[5] = "1", ""

    def delete(self, account: str) -> None:
        self._rows = [row for row in self._rows if row[0] != account]

    def _modify(self, entity: str, names: list[str], rest: Sequence[str]) -> CommandAnswer:
        self._modify_count += 1
        self.before_modify(self._modify_count)
        if not self.is_database_up:
            return CommandAnswer(returncode=1, stdout="", stderr=CONNECTION_REFUSED)
        if not self.is_privileged:
            return CommandAnswer(returncode=1, stdout=" Error with request: Access/permission denied\n", stderr=DENIED)
        values = dict(word.split("=", 1) for word in rest[rest.index("set") + 1 :])
        told = self._modify_qos(names, values) if entity == "qos" else self._modify_accounts(names, values)
        if not told:
            return CommandAnswer(returncode=1, stdout=" Nothing modified\n", stderr="")
        return _yes(
            "\n".join([" Modified qos..." if entity == "qos" else " Modified account associations...", *told, ""])
        )

    def _modify_accounts(self, names: list[str], values: Mapping[str, str]) -> list[str]:
        told = []
        for row in self._rows:
            if row[0] in names and row[1] == "":
                row[4] = values.get("Fairshare", row[4])
                row[5] = changed(row[5], values.get("GrpTRES", ""))
                told.append(f"  C = drill      A = {row[0]:<10} of {row[3]}")
        return told

    def _modify_qos(self, names: list[str], values: Mapping[str, str]) -> list[str]:
        known = [name for name in names if name in self._qos]
        for name in known:
            tres, per_account = self._qos[name]
            self._qos[name] = read_tres(changed(write_tres(tres), values["GrpTRES"])), per_account
        return [f"  {name}" for name in known]

    def _submit(self, argv: Sequence[str]) -> CommandAnswer:
        looks = self.waiting_job(argv)
        if looks is None:
            said = "sbatch: error: Batch job submission failed: Unspecified error\n"
            return CommandAnswer(returncode=1, stdout="", stderr=said)
        number = str(len(self._jobs) + 1)
        self._jobs[number] = looks
        return _yes(f"{number}\n")

    def _followed(self, names: list[str]) -> str:
        lines = ["Current Association Manager state", "Association Records"]
        for row in self._rows:
            if row[0] in names and row[1] == "":
                tres = {} if row[0] in self.forgets_to_tell else read_tres(row[5])
                shown = ",".join(f"{name}={tres.get(name, 'N')}(0)" for name in ("cpu", "gres/gpu", "gres/gpu:h100"))
                lines.append(
                    f"ClusterName=drill Account={row[0]} UserName= Partition= Priority=0 ID=3 ParentAccount=root(1) "
                    f"GrpWall=N(0.00) GrpTRES={shown} GrpTRESMins=cpu=N(0) GrpTRESRunMins=cpu=N(0) MaxJobs="
                )
        return "\n".join([*lines, ""])


def changed(before: str, words: str) -> str:
    """Return a GrpTRES after what was set: what is not named stays, -1 takes away."""
    return write_tres({name: count for name, count in (read_tres(before) | read_tres(words)).items() if count >= 0})


def read_tres(text: str) -> Tres:
    return {name: int(count) for name, _, count in (part.rpartition("=") for part in text.split(",") if part)}


def write_tres(tres: Tres) -> str:
    """Return the words in the order in which Slurm prints them: cpu, then typed, then plain GPUs."""
    return ",".join(f"{name}={tres[name]}" for name in sorted(tres, key=lambda name: (name == "gres/gpu", name)))


def _yes(text: str) -> CommandAnswer:
    return CommandAnswer(returncode=0, stdout=text, stderr="")
