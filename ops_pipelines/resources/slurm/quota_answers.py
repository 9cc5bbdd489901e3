"""How limits are read from what sacctmgr and scontrol print: text in, values and rejected rows out. Pure.

Text, because 22.05 prints no JSON of these. Only administrators write what stands in it. Seen with 22.05.8: counts of
GPUs are printed whole (4096, not 4K), an unset one is absent, and a name may hold a space or a `|`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.quota_limits import AccountQuota
from ops_pipelines.core.sources import SourceNonsense
from ops_pipelines.resources.slurm.quota_commands import ASSOCIATION_FIELDS, QOS_FIELDS, checked_name

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
    """The least that a GPU weighs; 0 where nothing is said of GPUs."""


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
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting:
            # Sections of plugins follow: the first of a name is Slurm's own.
            settings.setdefault(name.strip(), value.strip())
    try:
        checked_name(settings.get("ClusterName", ""), what="cluster")
    except ValueError as exc:
        raise SourceNonsense(f"{source} printed a ClusterName that cannot be: {exc}") from exc
    return settings


def read_gpu_partitions(text: str, *, source: str) -> tuple[GpuPartition, ...]:
    """Return the partitions with GPUs of `scontrol show partition -o`."""
    found = []
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" not in words:
            raise SourceNonsense(f"{source} printed {line[:120]!r}; expected PartitionName=... Run it by hand")
        counted = _believed(words.get("TRES", ""), source=source)
        if counted:
            found.append(
                GpuPartition(
                    name=words["PartitionName"],
                    types=frozenset(gpu_type for gpu_type in counted if gpu_type),
                    billing_weight=_billing_weight(words.get("TRESBillingWeights", "")),
                )
            )
    return tuple(found)


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
