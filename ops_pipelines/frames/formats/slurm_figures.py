"""Rows of sinfo and squeue that name no node and no job -> how many there are, in `platform_telemetry`."""

from collections.abc import Mapping, Sequence

from ops_pipelines.frames.formats import slurm_states as states
from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Unbelievable
from ops_pipelines.frames.formats.slurm_nodes import Site, device_of, read_four

_OF_CLUSTER = {
    "PENDING": "jobs_pending_count",
    "RUNNING": "jobs_running_count",
    "COMPLETING": "jobs_completing_count",
    "FAILED": "jobs_failed_count",
    "NODE_FAIL": "jobs_node_fail_count",
    "TIMEOUT": "jobs_timeout_count",
}
_OF_PARTITIONS = frozenset(("PENDING", "RUNNING"))
"""These count by partition too."""


def add_queue(site: Site, cells: Mapping[str, str]) -> bool:
    """Count one job without id; return False for a state that is not counted. Raises Unbelievable."""
    state, _ = states.read_state(cells.get("STATE") or cells.get("ST") or "")
    if state not in _OF_CLUSTER:
        return False
    site.count("", _OF_CLUSTER[state], 1)
    for partition in cells.get("PARTITION", "").split(",") if state in _OF_PARTITIONS else ():
        device = device_of(partition)
        if device:
            site.count(device, _OF_CLUSTER[state], 1)
    return True


def add_figures(site: Site, cells: Mapping[str, str], *, beside: Sequence[Mapping[str, str]]) -> bool:
    """Add one row of counts; return False if it says nothing that has a column. `beside` are all rows of the table.

    Raises Unbelievable.
    """
    device = device_of(cells.get("PARTITION", ""))
    both = cells.get("NODES(A/I/O/T)/CPUS(A/I/O/T)")
    if both is not None:
        parts = both.split("/")
        allocated, idle, _, total = read_four("/".join(parts[:4]))
        for column, amount in (
            ("nodes_alloc_count", allocated),
            ("nodes_idle_count", idle),
            ("nodes_total_count", total),
        ):
            site.count(device, column, amount)
        _add_cpus(site, device, "/".join(parts[4:]))
        return True
    count = values.read_count(cells.get("NODES", ""))
    is_counted = False
    if "CPUS(A/I/O/T)" in cells and "GRES" not in cells:
        _add_cpus(site, device, cells["CPUS(A/I/O/T)"])
        is_counted = True
    if count is not None and "STATE" in cells:
        site.count_nodes(device, cells["STATE"], count)
        is_counted = True
    if count is not None and "GRES" in cells:
        is_counted |= _add_gpus(site, device, cells, count=count, beside=beside)
    if not is_counted and count is None and "STATE" not in cells:
        raise Unbelievable("no_figures", "the row names no node and counts none")
    return is_counted


def _add_cpus(site: Site, device: str, text: str) -> None:
    allocated, idle, _, total = read_four(text)
    for column, amount in (("cpus_alloc_count", allocated), ("cpus_idle_count", idle), ("cpus_total_count", total)):
        site.count(device, column, amount)


def _add_gpus(
    site: Site, device: str, cells: Mapping[str, str], *, count: int, beside: Sequence[Mapping[str, str]]
) -> bool:
    built_in, used = values.gpus_of_gres(cells["GRES"]), cells.get("GRES_USED")
    if used is None and "STATE" not in cells and "PARTITION" not in cells:
        # Two columns alone: GresUsed shows indices, Gres shows sockets or (null). Neither: it cannot be known.
        column = _which_gres([row.get("GRES", "") for row in beside])
        if column is None:
            return False
        site.count(device, column, (built_in or 0) * count)
        return True
    site.count(device, "gpus_total_count", (built_in or 0) * count)
    if used is not None:
        site.count(device, "gpus_alloc_count", (values.gpus_of_gres(used) or 0) * count)
    return True


def _which_gres(cells: Sequence[str]) -> str | None:
    if any("(IDX" in cell for cell in cells):
        return "gpus_alloc_count"
    if any("(S:" in cell or cell == "(null)" for cell in cells):
        return "gpus_total_count"
    return None
