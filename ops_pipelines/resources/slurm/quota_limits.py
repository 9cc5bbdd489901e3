"""Limits of accounts in Slurm as text: the commands that set them, the answers that report them, and whether they hold
anybody at all. Pure.

Not here: sending any of it (`quotas`), and how far quotas should move (`ops_pipelines.quotas`).

Commands are fixed argument lists, as few as the values allow. Tried with 22.05.8: `modify ... where name=a,b` gives all
of them the same values in one transaction; what GrpTRES does not name stays as it is; -1 removes a limit; an unknown
name among known ones is passed over, and the command still succeeds. A limit of the job's QOS takes the place of the
account's, so a site may hold an account by a QOS of its own.

Answers are text, because 22.05 prints no JSON of these, and only administrators write what is in it. Seen with
22.05.8: counts of GPUs are printed whole (4096, not 4K), an unset one is absent, and a name may hold a space or a `|`.

Whether a typed limit holds: a limit on `gres/gpu:h100` counts only requests that name the type: "if a user requests a
generic gpu, the type's limit will not be enforced" (slurm.schedmd.com/resource_limits.html; seen with 22.05.8: the job
ran). Only a job_submit plugin that gives every request a type, or refuses it, closes that, and what the site's script
does is no setting, so it is tried with held jobs. A script that looks at `--gres` alone lets `--gpus` pass (seen): each
way to ask is tried. What users change later with `scontrol update` is not: that is for the script's slurm_job_modify.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import AccountQuota, Change, FairshareChange, QuotaChange, TypedLimits
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.slurm.answers import settings_in

# -- commands --


ASSOCIATION_FIELDS = ("Account", "User", "Partition", "ParentName", "Share", "GrpTRES")
QOS_FIELDS = ("Name", "GrpTRES", "MaxTRESPA")
MOST_NAMES = 200
"""In one command: it locks what it changes, and an argument has its longest."""
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.@-]{0,99}")
"""Slurm keeps names in lower case. A comma, a quote, a sign or a space would mean something else to sacctmgr."""
_GPU_TYPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,59}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCommand:
    """One command, what it changes, and whose names its answer must repeat."""

    argv: tuple[str, ...]
    entity: str
    """`account` or `qos`."""
    names: frozenset[str]
    changes: tuple[Change, ...]


def checked_name(name: str, *, what: str) -> str:
    """Return `name`; raise ValueError unless it is a word that means nothing else to sacctmgr."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no name of {what}; expected lower-case letters, digits, '_', '-', '.', '@'")
    return name


def checked_type(gpu_type: GpuType) -> GpuType:
    """Return the type; raise ValueError unless it is one, or none."""
    if gpu_type and not _GPU_TYPE.fullmatch(gpu_type):
        raise ValueError(f"{gpu_type[:80]!r} is no type of GPU; expected a word such as h100, in lower case")
    return gpu_type


def association_words(cluster: str) -> tuple[str, ...]:
    """Return the command that lists every association, as `read_associations` reads it."""
    return "sacctmgr", "-P", "show", "assoc", f"cluster={cluster}", f"format={','.join(ASSOCIATION_FIELDS)}"


def qos_words() -> tuple[str, ...]:
    """Return the command that lists every QOS."""
    return "sacctmgr", "-P", "show", "qos", f"format={','.join(QOS_FIELDS)}"


def followed_words(accounts: Collection[TeamName]) -> Iterable[tuple[str, ...]]:
    """Yield the commands that ask slurmctld what it follows for these accounts."""
    for names in _pieces(sorted(accounts)):
        yield "scontrol", "-o", "show", "assoc_mgr", "flags=assoc", f"accounts={','.join(names)}"


def plan_commands(
    changes: Sequence[Change], *, cluster: str, qos_of: Mapping[TeamName, str]
) -> tuple[QuotaCommand, ...]:
    """Return the commands: all that lowers, then all that raises, each in the order asked for.

    Equal values share a command.
    """
    by_holder: dict[tuple[bool, str, str], list[Change]] = {}
    for change in changes:
        entity, name = _holder(change, qos_of)
        by_holder.setdefault((not _is_lower(change), entity, name), []).append(change)
    by_words: dict[tuple[bool, str, tuple[str, ...]], list[str]] = {}
    for (is_raise, entity, name), own in sorted(by_holder.items(), key=lambda item: item[0][0]):
        by_words.setdefault((is_raise, entity, _value_words(own)), []).append(name)
    commands = []
    for (is_raise, entity, values), names in by_words.items():
        where = (f"cluster={cluster}",) if entity == "account" else ()
        for piece in _pieces(names):
            argv = ("sacctmgr", "-i", "modify", entity, "where", f"name={','.join(piece)}", *where, "set", *values)
            held = tuple(change for name in piece for change in by_holder[is_raise, entity, name])
            commands.append(QuotaCommand(argv=argv, entity=entity, names=frozenset(piece), changes=held))
    return tuple(commands)


def _holder(change: Change, qos_of: Mapping[TeamName, str]) -> tuple[str, str]:
    """Return what holds the account: fair share is always the account's own."""
    if isinstance(change, QuotaChange) and change.account in qos_of:
        return "qos", checked_name(qos_of[change.account], what="QOS")
    return "account", checked_name(change.account, what="account")


def _is_lower(change: Change) -> bool:
    if isinstance(change, FairshareChange) or change.after is None:
        return False
    return change.before is None or change.after < change.before


def _value_words(changes: Sequence[Change]) -> tuple[str, ...]:
    limits = sorted(_limit_word(each) for each in changes if isinstance(each, QuotaChange))
    shares = [each.after for each in changes if isinstance(each, FairshareChange)]
    return (
        *((f"GrpTRES={','.join(limits)}",) if limits else ()),
        *(f"Fairshare={'parent' if share is None else share}" for share in shares),
    )


def _limit_word(change: QuotaChange) -> str:
    gpu_type = checked_type(change.gpu_type)
    name = f"gres/gpu:{gpu_type}" if gpu_type else "gres/gpu"
    return f"{name}={-1 if change.after is None else change.after}"


def _pieces(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for first in range(0, len(names), MOST_NAMES):
        yield names[first : first + MOST_NAMES]


# -- answers --


_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=]+))?=(?P<count>\d+)")
_FOLLOWED = re.compile(
    r"ClusterName=\S+ Account=(?P<account>.+?) UserName= Partition= .*? GrpTRES=(?P<tres>\S*) GrpTRESMins=.*"
)
_FOLLOWED_GPU = re.compile(r"gres/gpu(?::(?P<type>[^=]+))?=(?P<count>\d+)\(\d+\)")
_MODIFIED_ACCOUNT = re.compile(r"A = (\S+)")
_WEIGHT = re.compile(r"gres/gpu(?::[^=]+)?=([0-9.]+)[kmgtp]?", re.IGNORECASE)
_FAIRSHARE_OF_PARENT = "parent"

Limits = Mapping[GpuType, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationsAnswer:
    """The accounts, and the rows that could not be believed."""

    accounts: Mapping[TeamName, AccountQuota]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QosLimits:
    """What GPUs of the jobs of one QOS may sum up to."""

    together: Limits
    per_account: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPartition:
    """One partition with GPUs."""

    name: str
    types: frozenset[GpuType]
    """The types that are counted there."""
    billing_weight: float
    """The least that a GPU weighs; 0 where nothing is stated of GPUs."""


def read_associations(text: str, *, source: str) -> AssociationsAnswer:
    """Return what holds for accounts; rows of users are passed over. Raises SourceNonsense without its header."""
    accounts: dict[TeamName, AccountQuota] = {}
    rejected: list[Rejected] = []
    for position, line, cells in _rows(text, fields=ASSOCIATION_FIELDS, source=source):
        try:
            quota = _read_association(cells)
        except ValueError as exc:
            rejected.append(Rejected(source=source, position=position, reason=str(exc), text=line[:500]))
        else:
            if quota is not None:
                accounts[quota.account] = quota
    return AssociationsAnswer(accounts=accounts, rejected=tuple(rejected))


def read_qos_limits(text: str, *, source: str) -> Mapping[str, QosLimits]:
    """Return QOS -> its limits. Raises SourceNonsense on a row that it cannot read."""
    found: dict[str, QosLimits] = {}
    for position, line, cells in _rows(text, fields=QOS_FIELDS, source=source):
        if len(cells) != len(QOS_FIELDS):
            raise SourceNonsense(
                f"{source}, {position}: {line[:120]!r} has {len(cells)} fields; expected {len(QOS_FIELDS)}"
            )
        together, per_account = (_believed(cell, source=source) for cell in cells[1:])
        found[cells[0]] = QosLimits(together=together, per_account=per_account)
    return found


def gpu_limits(tres: str) -> Limits:
    """Return the GPUs of `cpu=100,gres/gpu=16,gres/gpu:h100=8`; raise ValueError on a count that is none."""
    found: dict[GpuType, int] = {}
    for part in tres.split(","):
        if part == "gres/gpu" or part.startswith(("gres/gpu=", "gres/gpu:")):
            match = _GPU.fullmatch(part)
            if match is None:
                raise ValueError(f"{part!r} is no count of GPUs; expected gres/gpu=16 or gres/gpu:h100=8")
            found[GpuType((match["type"] or "").lower())] = int(match["count"])
    return found


def read_followed_limits(text: str) -> Mapping[TeamName, Limits]:
    """Return account -> limits that slurmctld follows, from `scontrol show assoc_mgr`; `N` is no limit."""
    found: dict[TeamName, Limits] = {}
    for line in text.splitlines():
        match = _FOLLOWED.fullmatch(line.strip())
        if match is not None:
            counts = (_FOLLOWED_GPU.fullmatch(part) for part in match["tres"].split(","))
            found[TeamName(match["account"])] = {
                GpuType((each["type"] or "").lower()): int(each["count"]) for each in counts if each is not None
            }
    return found


def read_settings(text: str, *, source: str) -> Mapping[str, str]:
    """Return the settings of `scontrol show config`; raise SourceNonsense unless the cluster has a name in it."""
    settings = settings_in(text)
    try:
        checked_name(settings.get("ClusterName", ""), what="cluster")
    except ValueError as exc:
        raise SourceNonsense(f"{source} printed a ClusterName that cannot be: {exc}") from exc
    return settings


def read_partitions(text: str, *, source: str) -> Mapping[str, Mapping[str, str]]:
    """Return partition -> its settings, from `scontrol show partition -o`. Raises SourceNonsense without a name."""
    found: dict[str, Mapping[str, str]] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("No partitions"):
            continue
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" not in words:
            raise SourceNonsense(f"{source} printed {line[:120]!r}; expected PartitionName=... Run it by hand")
        found[words.pop("PartitionName")] = words
    return found


def read_gpu_partitions(text: str, *, source: str) -> tuple[GpuPartition, ...]:
    """Return the partitions with GPUs of `scontrol show partition -o`."""
    return tuple(
        GpuPartition(
            name=name,
            types=frozenset(gpu_type for gpu_type in counted if gpu_type),
            billing_weight=_billing_weight(words.get("TRESBillingWeights", "")),
        )
        for name, words in read_partitions(text, source=source).items()
        if (counted := _believed(words.get("TRES", ""), source=source))
    )


def read_modified(text: str, *, entity: str) -> frozenset[str]:
    """Return the accounts or QOS that sacctmgr says it modified. Unknown ones it passes over without a word."""
    lines = text.splitlines()[1:]
    if entity == "qos":
        return frozenset(line.strip() for line in lines)
    return frozenset(found[1] for line in lines if (found := _MODIFIED_ACCOUNT.search(line)))


def requested_gpus(text: str) -> Limits:
    """Return what a job that waits asks for, as it is counted, from `scontrol -o show job` of a job that we named."""
    # Behind what no user writes; from 23.02 on it is called ReqTRES.
    found = re.search(r" ReqB:S:C:T=\S+ (?:Req)?TRES=(\S+) ", text)
    if found is None:
        raise SourceNonsense(f"scontrol show job printed {text[:200]!r}; expected ReqB:S:C:T=... TRES=... of a job")
    return _believed(found[1], source="scontrol show job")


def _believed(tres: str, *, source: str) -> Limits:
    try:
        return gpu_limits(tres)
    except ValueError as exc:
        raise SourceNonsense(f"{source}: {exc}. Run it by hand") from exc


def _rows(text: str, *, fields: tuple[str, ...], source: str) -> Iterator[tuple[str, str, list[str]]]:
    lines = text.splitlines()
    if not lines or [cell.lower() for cell in lines[0].split("|")] != [field.lower() for field in fields]:
        shown = lines[0][:120] if lines else "nothing"
        raise SourceNonsense(f"{source} printed {shown!r}; expected the header {'|'.join(fields)}. Run it by hand")
    for number, line in enumerate(lines[1:], start=2):
        yield f"line {number}", line, line.split("|")


def _read_association(cells: list[str]) -> AccountQuota | None:
    if len(cells) != len(ASSOCIATION_FIELDS):
        raise ValueError(f"it has {len(cells)} fields; expected {len(ASSOCIATION_FIELDS)}: a name with a '|' in it?")
    account, user, _, parent, share, tres = cells
    if user:
        return None
    if share != _FAIRSHARE_OF_PARENT and not share.isdecimal():
        raise ValueError(f"its fair share is {share!r}; expected a whole number or 'parent'")
    return AccountQuota(
        account=TeamName(checked_name(account, what="account")),
        parent=TeamName(parent) if parent else None,
        limits=gpu_limits(tres),
        fairshare=None if share == _FAIRSHARE_OF_PARENT else int(share),
    )


def _billing_weight(weights: str) -> float:
    found = [float(match[1]) for part in weights.split(",") if (match := _WEIGHT.fullmatch(part))]
    return min(found, default=0.0)


# -- whether limits hold --


_HOLDING = frozenset({"limits", "safe", "all"})
"""`safe` and `all` mean `limits`, and all three mean `associations`."""
_WAYS_TO_ASK = (("--gres=gpu:1",), ("--gpus=1",), ("--gpus-per-node=1",), ("--gpus-per-task=1", "--ntasks=1"))
JOB_NAME = "quota-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of typed limits, and by what."""

    typed: TypedLimits
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request to submit, held from the beginning."""

    argv: tuple[str, ...]
    request: str
    """As a user would write it."""
    is_control: bool
    """It names its type: it must be taken, else the refusal of the others proves nothing."""


def judge_enforcement(settings: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether limits hold anybody, and by which setting."""
    enforced = settings.get("AccountingStorageEnforce", "")
    if not _HOLDING & set(_words(enforced)):
        return False, (
            f"AccountingStorageEnforce = {enforced or '(not shown)'}: no limit holds anybody; set "
            "AccountingStorageEnforce=associations,limits in slurm.conf and restart slurmctld"
        )
    counted = settings.get("AccountingStorageTRES", "")
    if "gres/gpu" not in _words(counted):
        return False, (
            f"AccountingStorageTRES = {counted or '(not shown)'}: GPUs are not counted; add gres/gpu to it in "
            "slurm.conf and restart slurmctld"
        )
    return True, f"AccountingStorageEnforce = {enforced}, AccountingStorageTRES = {counted}"


def counted_types(settings: Mapping[str, str]) -> frozenset[GpuType]:
    """Return the types of GPU that are counted apart."""
    prefix = "gres/gpu:"
    words = _words(settings.get("AccountingStorageTRES", ""))
    return frozenset(GpuType(word.removeprefix(prefix)) for word in words if word.startswith(prefix))


def judge_by_settings(settings: Mapping[str, str]) -> Judged:
    """Return what the settings alone tell of typed limits; UNKNOWN where a plugin may give requests their type."""
    if not counted_types(settings):
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"AccountingStorageTRES = {settings.get('AccountingStorageTRES', '(not shown)')}: no type of GPU is "
                "counted apart; add gres/gpu:<type> for each type, and have job_submit give requests their type"
            ),
        )
    plugins = settings.get("JobSubmitPlugins", "(null)")
    if plugins in ("", "(null)", "none"):
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"JobSubmitPlugins = {plugins}: a request that names no type is counted under gres/gpu alone; set "
                "JobSubmitPlugins=lua with a job_submit.lua that gives every request a type or refuses it"
            ),
        )
    return Judged(typed=TypedLimits.UNKNOWN, because=f"JobSubmitPlugins = {plugins}: what it does is no setting")


def trials(partitions: Iterable[GpuPartition]) -> tuple[Trial, ...]:
    """Return the requests that show whether one without a type is given one: in each partition, in each way."""
    found = []
    for partition in partitions:
        for gpu_type in sorted(partition.types)[:1]:
            control = (f"--gres=gpu:{gpu_type}:1",)
            found.append(_trial(partition, control, is_control=True))
        found += [_trial(partition, words, is_control=False) for words in _WAYS_TO_ASK]
    return tuple(found)


def judge_by_trials(settled: Mapping[Trial, bool | None]) -> Judged:
    """Return what the requests showed: trial -> whether what became of it names a type; None: it was refused."""
    plugin = "JobSubmitPlugins"
    if not settled or any(trial.is_control and result is not True for trial, result in settled.items()):
        refused = ", ".join(trial.request for trial, result in settled.items() if trial.is_control and not result)
        return Judged(
            typed=TypedLimits.UNKNOWN,
            because=(
                f"{plugin}: a held job that names its type could not be submitted ({refused or 'no GPUs anywhere'}); "
                "give the autopilot's user an account that may submit, or set limits on all types together"
            ),
        )
    passing = [trial.request for trial, result in settled.items() if result is False]
    if passing:
        return Judged(
            typed=TypedLimits.NOT_HELD,
            because=(
                f"{plugin}: {', '.join(passing)} stays without a type; have job_submit mind tres_per_node, "
                "tres_per_job and tres_per_task, and give each a type or refuse it"
            ),
        )
    return Judged(typed=TypedLimits.HELD, because=f"{plugin}: no request of {len(settled)} stayed without a type")


def find_weaknesses(
    partitions: Iterable[GpuPartition], limits_by_qos: Mapping[str, QosLimits], *, known_qos: Iterable[str]
) -> tuple[str, ...]:
    """Return what takes a limit's or a fair share's force, each with what to do; `known_qos` hold limits of ours."""
    found = [
        f"TRESBillingWeights of partition {each.name}: a GPU is billed at 0, so that fair share does not see it; set "
        f'TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=..." there'
        for each in partitions
        if each.billing_weight == 0
    ]
    ours = set(known_qos)
    for name, limits in sorted(limits_by_qos.items()):
        if limits.together and name not in ours:
            found.append(
                f"QOS {name} has GrpTRES of GPUs: for its jobs that takes the place of their account's limit; take it "
                "away, or say that this QOS holds the account"
            )
        if limits.per_account:
            found.append(f"QOS {name} has MaxTRESPA of GPUs: no account gets more in it, whatever its own limit")
    return tuple(found)


def _trial(partition: GpuPartition, words: tuple[str, ...], *, is_control: bool) -> Trial:
    argv = (
        "sbatch",
        "--parsable",
        "--hold",
        f"--partition={partition.name}",
        f"--job-name={JOB_NAME}",
        "--time=1",
        "--chdir=/",
        "--output=/dev/null",
        *words,
        "--wrap=exit",
    )
    return Trial(argv=argv, request=f"{' '.join(words)} in {partition.name}", is_control=is_control)


def _words(setting: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in setting.split(","))
