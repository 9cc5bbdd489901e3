"""Which commands set limits in Slurm: fixed argument lists, as few as the values allow. Pure.

Tried with 22.05.8: `modify ... where name=a,b` gives all of them the same values in one transaction; what GrpTRES does
not name stays as it is; -1 takes a limit away; an unknown name among known ones is passed over, and the answer is a
yes. A limit of the job's QOS takes the place of the account's, so a site may hold an account by a QOS of its own.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.quota_limits import Change, FairshareChange, QuotaChange

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
