"""Tables of Slurm's clients that have a header: what a row tells of, its cells by name, and whether cells fit."""

from collections.abc import Mapping, Sequence

from ops_pipelines.frames.formats import slurm_layouts as layouts
from ops_pipelines.frames.formats import slurm_values as values

_ALIASES = {
    "NODE_LIST": "NODELIST",
    "ARRAYJOBID": "ARRAY_JOB_ID",
    "TIMELIMIT": "TIMELIMIT",
    "FEATURES": "AVAIL_FEATURES",
    "TRES_ALLOC": "TRES_ALLOC",
    "MIN_CPUS": "-",
}
_OF_JOBS = frozenset(("JOBID", "ARRAY_JOB_ID"))
_OF_NODES = frozenset(("NODELIST", "HOSTNAMES", "PARTITION"))
_BESIDE_NODES = frozenset(("STATE", "STATECOMPACT", "STATELONG", "NODES", "CPUS", "GRES", "AVAIL", "REASON"))
_NO_TABLE = tuple(
    frozenset(names.split())
    for names in (
        "Name Priority GraceTime",
        "User DefaultAccount",
        "User Def_Acct",
        "Cluster Account User",
        "Account User RawShares",
        "Cluster NodeName TimeStart",
        "JOBID PRIORITY FAIRSHARE",
        "JOBID PRIORITY AGE",
        "Account Descr Org",
        "Cluster ControlHost",
        "Type Name ID",
        "Name Server Type",
        "User Admin",
    )
)


def kind_of_header(names: Sequence[str]) -> layouts.Of | None:
    known = set(names)
    if any(wanted <= known for wanted in _NO_TABLE):
        return layouts.Of.NOTHING
    if known & _OF_JOBS and known & {"STATE", "ST"}:
        return layouts.Of.JOB
    if {"PARTITION", "USER"} <= known and known & {"STATE", "ST"} and "NODELIST" not in known:
        return layouts.Of.JOB
    if known & _OF_NODES and len(known & _BESIDE_NODES) >= 1 and len(known) > 1:
        return layouts.Of.NODE
    return None


def named(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return cells by name. A name that stands twice: JOBID is the longer one (30_7 and 34), else the longer text."""
    found: dict[str, str] = {}
    for name, cell in zip((_ALIASES.get(name, name) for name in names), (cell.strip() for cell in cells), strict=True):
        if name not in found:
            found[name] = cell
            continue
        if name == "JOBID":
            short, long = sorted((found[name], cell), key=lambda one: (not one.isdecimal(), len(one)))
            found["JOBID_RAW"], found[name] = short, long
        elif len(cell) > len(found[name]):
            found[name] = cell
    return found


def is_row(names: Sequence[str], cells: Sequence[str], of: layouts.Of) -> bool:
    """Return whether the cells that have a form have it; a state is of jobs or of nodes."""
    state = layouts.FORMS["JOB_STATE" if of is layouts.Of.JOB else "STATE"]
    forms = {**layouts.FORMS, "STATE": state}
    return all(
        values.is_nothing(cell) or forms[name](cell.strip())
        for name, cell in zip(names, cells, strict=True)
        if name in forms and name not in _LOOSE
    )


_LOOSE = frozenset(("ST", "PARTITION", "NODELIST", "ACCOUNT", "FEATURES", "GRES", "TRES_PER_NODE"))


def is_one_node(cells: Mapping[str, str]) -> bool:
    name = cells.get("NODELIST") or cells.get("HOSTNAMES") or ""
    return "[" not in name and "," not in name and bool(name) and not name.startswith("(")
