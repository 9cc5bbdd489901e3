"""What others do with the same days: static alert rules, a fixed collective timeout, Mahalanobis distance as in Minder.

Each sees the same panel and lines, and each is written as its authors describe it, with their published limits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from bench.claims import Claim
from ops_pipelines.core.fault import Component, ComponentKind, node_component
from ops_pipelines.core.identity import NodeName
from ops_pipelines.observe.panels.panel import Flags, Numbers, Panel, counted, lasting, runs_of
from ops_pipelines_lab.simulator.replay.day import Day

_CRITICAL_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""The codes on which common node health checks fail a node (facts of Azure NHC, EKS node monitor, Imbue)."""
_XID = re.compile(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d+)")
_QUIET_AGAIN = timedelta(hours=1)
"""An alert that fires again within an hour is the same, as Alertmanager's repeat_interval would have it."""
_COLLECTIVE_TIMEOUT_SECONDS = 600
_MINUTE = 60
_CONSECUTIVE_MINUTES = 4
"""Minder (arXiv 2411.01791) asks for 4 minutes in a row."""
_MINDER_SIGMAS = 6.0
"""Assumption: the smallest that raised no alarm on the tuning days' healthy jobs at a rate above one a day."""


def static_thresholds(day: Day) -> list[Claim]:
    """Alert rules a site would write: one number each, no neighbours, no workload."""
    panel = day.panel
    found: list[tuple[int, NodeName, str]] = []
    gpu_rules: Mapping[str, Flags] = {
        "temperature above 85": panel.gpus.value("temperature_celsius") > 85,
        "uncorrectable ECC": panel.gpus.value("ecc_uncorrectable_volatile_count") > 0,
        "row remap failed": panel.gpus.value("row_remap_failed") > 0,
        "NVLink CRC": panel.gpus.rate("nvlink_crc_flit_error_count") > 100,
    }
    for rule, flags in gpu_rules.items():
        found += [(each.first, panel.gpus.parts[each.column].node, rule) for each in runs_of(flags)]
    rows = panel.rows_in(120)
    gone = lasting(~panel.nodes.present, rows)
    found += [(each.first, panel.nodes.parts[each.column].node, "node down") for each in runs_of(gone)]
    missing = _missing_gpus(panel, rows)
    found += [(each.first, panel.nodes.parts[each.column].node, "GPU missing") for each in runs_of(missing)]
    down = lasting(panel.ports.value("link_state") == 0, panel.rows_in(60))
    found += [(each.first, panel.ports.parts[each.column].node, "link down") for each in runs_of(down)]
    warned = panel.disks.value("critical_warning") > 0
    found += [(each.first, panel.disks.parts[each.column].node, "disk warning") for each in runs_of(warned)]
    start = int(panel.times[0])
    for line in day.lines:
        match = _XID.search(line.text)
        if (
            match is not None
            and int(match[1]) in _CRITICAL_XIDS
            and line.node is not None
            and line.written_at is not None
        ):
            row = int((line.written_at.timestamp() - start) // panel.step_seconds)
            if 0 <= row < len(panel.times) and line.node in day.topology.places:
                found.append((row, NodeName(line.node), "critical Xid"))
    return list(_once_an_hour(found, panel))


def _missing_gpus(panel: Panel, rows: int) -> Flags:
    seen = np.zeros((len(panel.times), len(panel.nodes.parts)), dtype=np.int16)
    order = {part.node: column for column, part in enumerate(panel.nodes.parts)}
    for column, part in enumerate(panel.gpus.parts):
        seen[:, order[part.node]] += panel.gpus.present[:, column]
    return lasting((seen > 0) & (seen < seen.max(axis=0)), rows)


def _once_an_hour(found: list[tuple[int, NodeName, str]], panel: Panel) -> Iterator[Claim]:
    last: dict[tuple[NodeName, str], int] = {}
    for row, node, rule in sorted(found):
        before = last.get((node, rule))
        last[node, rule] = row
        if before is None or (row - before) * panel.step_seconds > _QUIET_AGAIN.total_seconds():
            yield Claim(
                name=f"{rule} {node} {row}", opened_at=panel.time(row), culprits=(node_component(node),), says=rule
            )


def collective_timeout(day: Day) -> list[Claim]:
    """What NCCL's own watchdog would say: a job that makes no step for ten minutes hangs."""
    panel = day.panel
    steps = panel.jobs.value("step_count")
    held = np.zeros(steps.shape, dtype=bool)
    for column in range(len(panel.jobs.parts)):
        held[:, column] = (panel.held_by == column).any(axis=1)
    still = held & ~(panel.jobs.rate("step_count") > 0) & (steps > 0)
    rows = panel.rows_in(_COLLECTIVE_TIMEOUT_SECONDS)
    return [
        Claim(
            name=f"timeout {each.column} {each.first}",
            opened_at=panel.time(each.first),
            culprits=(Component(kind=ComponentKind.JOB, name=panel.jobs.parts[each.column].device),),
            says="collective timeout",
        )
        for each in runs_of(lasting(still, rows))
    ]


def mahalanobis(day: Day) -> list[Claim]:
    """The machine of a job that is apart from the others for four minutes in a row."""
    panel = day.panel
    per_minute = panel.rows_in(_MINUTE)
    minutes = len(panel.times) // per_minute
    features = _node_features(panel, per_minute, minutes)
    holders = panel.held_by[: minutes * per_minute : per_minute]
    apart = np.zeros((minutes, len(panel.nodes.parts)), dtype=bool)
    for column, part in enumerate(panel.jobs.parts):
        mine = holders == column
        nodes = np.flatnonzero(mine.any(axis=0))
        if len(nodes) < 4 or not part.device:
            continue
        rows = np.flatnonzero(mine[:, nodes].all(axis=1))
        if len(rows) < _CONSECUTIVE_MINUTES:
            continue
        apart[np.ix_(rows, nodes)] = _farthest(features[np.ix_(rows, nodes)])
    firm = counted(apart, _CONSECUTIVE_MINUTES) == _CONSECUTIVE_MINUTES
    found = [(each.first * per_minute, panel.nodes.parts[each.column].node, "Mahalanobis") for each in runs_of(firm)]
    return list(_once_an_hour(found, panel))


def _node_features(panel: Panel, per_minute: int, minutes: int) -> NDArray[np.float32]:
    """Return means a minute: (minutes, nodes, features)."""
    count = len(panel.nodes.parts)
    order = np.array([[part.node for part in panel.nodes.parts].index(part.node) for part in panel.gpus.parts])

    def of_gpus(matrix: Numbers) -> NDArray[np.float32]:
        summed = np.zeros((len(matrix), count), dtype=np.float32)
        np.add.at(summed.T, order, np.nan_to_num(matrix).T)
        return summed

    watched = ("utilisation_ratio", "tensor_active_ratio", "power_watts", "temperature_celsius", "sm_clock_hertz")
    matrices = [
        *(of_gpus(panel.gpus.value(name)) for name in watched),
        of_gpus(panel.gpus.rate("nvlink_bandwidth_bytes")),
        np.nan_to_num(panel.nodes.rate("cpu_busy_seconds")),
        np.nan_to_num(panel.nodes.rate("fabric_bytes")),
    ]
    return np.stack(
        [matrix[: minutes * per_minute].reshape(minutes, per_minute, count).mean(axis=1) for matrix in matrices], axis=2
    ).astype(np.float32)


def _farthest(features: NDArray[np.float32]) -> Flags:
    """Return, a row a minute, the one machine that is too far from all others."""
    centred = features - np.median(features, axis=1, keepdims=True)
    flat = centred.reshape(-1, centred.shape[2]).astype(np.float64)
    scale = flat.std(axis=0) + 1e-9
    flat = flat / scale
    covariance = flat.T @ flat / len(flat) + 1e-3 * np.eye(flat.shape[1])
    distance = np.sqrt(np.einsum("ij,jk,ik->i", flat, np.linalg.inv(covariance), flat)).reshape(centred.shape[:2])
    middle = np.median(distance, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(distance - middle), axis=1, keepdims=True) + 1e-6
    score = (distance - middle) / spread
    is_largest = score == score.max(axis=1, keepdims=True)
    return np.asarray(is_largest & (score > _MINDER_SIGMAS), dtype=np.bool_)


PEERS: Mapping[str, Callable[[Day], list[Claim]]] = {
    "static thresholds": static_thresholds,
    "600 s collective timeout": collective_timeout,
    "Mahalanobis (Minder)": mahalanobis,
}
