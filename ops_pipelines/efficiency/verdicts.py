"""Utilisation read in context: what bounds each job on each node, by rules that are data, with the numbers they saw.

A job's GPUs on a node are put together, judged and described. Holders and sums of samples are `gpu_sums`', peers
`verdict_rules`', thresholds and their sources are in catalogue/efficiency_rules.csv.

A MIG slice counts as its share of a GPU; the GPU itself then does not. GPUs that do nothing beside others that work are
counted and named, and the rules look at those that work. Numbers in the columns are of all GPUs of the row.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.efficiency.gpu_sums import (
    NOBODY,
    FabricTraffic,
    GpuSums,
    Holds,
    read_fabric,
    read_holds,
    read_samples,
    share_out,
)
from ops_pipelines.efficiency.verdict_rules import (
    FEATURES,
    IDLE_BELOW_RATIO,
    Floats,
    Gpu,
    Row,
    Rule,
    Straggler,
    about_gaps,
    about_straggler,
    figures,
    find_stragglers,
    first_that_holds,
    notes,
    peer_features,
    read_rules,
    slice_share,
)
from ops_pipelines.lake.inventory import parent_of
from ops_pipelines.lake.rates import step_seconds
from ops_pipelines.lake.schema import TABLES

_TABLE = "gpu_efficiency"
_USED_MEMORY_ABOVE = 0.02
"""A driver at rest takes less of the memory."""
_COLUMNS = (
    "utilisation_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio",
    "memory_used_ratio", "power_watts", "pcie_bytes_per_second", "nvlink_bytes_per_second",
)  # fmt: skip


def read_efficiency(gpu: pa.Table, *, fabric: pa.Table, allocations: pa.Table, hour: datetime) -> pa.Table:
    """Return `gpu_efficiency` of the hour that begins at `hour`: one row for each node and job, sorted.

    `gpu`, `fabric`, `allocations`: rows of gpu_telemetry, fabric_telemetry and job_allocations; columns may be missing.
    Only samples within an attempt's [started_at, ended_at) count for its job; the others are of the job ``.
    """
    holds = read_holds(allocations, hour=hour)
    sums = read_samples(gpu, holds=holds, hour=hour)
    step = step_seconds(gpu["time"])
    rows = _put_together(sums, holds=holds)
    traffic = read_fabric(fabric, holds=holds, hour=hour)
    for row in rows:
        _measure(row, holds=holds, traffic=traffic, step=step)
    sizes: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        sizes[row.job] += sum(each.share for each in row.gpus)
    for row in rows:
        row.features["job_gpu_count"] = 1.0 if row.job == NOBODY else math.ceil(sizes[row.job] - 1e-9)
    stragglers = _stragglers(rows)
    _judge(rows, stragglers=stragglers, gpu=gpu, holds=holds)
    whole = pa.types.is_integer(TABLES[_TABLE].arrow().field("gpu_count").type)
    for row in rows:
        count = sum(each.share for each in row.gpus)
        row.values["gpu_count"] = math.ceil(count - 1e-9) if whole else round(count, 6)
    return TABLES[_TABLE].from_rows(
        {"node": row.node, "job": row.job, "time": hour, **row.values}
        for row in sorted(rows, key=lambda row: (row.node, row.job))
    )


def count_verdicts(hours: Sequence[pa.Table]) -> dict[str, float]:
    """Return the GPU-hours of each verdict in tables of `gpu_efficiency`, most first.

    Jobs that share GPUs which cannot be separated each count all of them, as their rows do.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for table in hours:
        names = ("verdict", "gpu_count", "held_seconds")
        for verdict, count, seconds in zip(*(table[name].to_pylist() for name in names), strict=True):
            found[verdict or "unknown"] += (count or 0) * (seconds or 0.0) / 3600
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _put_together(sums: GpuSums, *, holds: Holds) -> list[Row]:
    """Return rows with their GPUs: the intervals of each node shared out to its jobs and added up."""
    sliced = {
        (node, parent_of(device)) for node, device in zip(sums.node, sums.device, strict=True)
        if device != parent_of(device)
    }  # fmt: skip
    stretches: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for entry, (node, device) in enumerate(zip(sums.node, sums.device, strict=True)):
        if (node, device) not in sliced:
            stretches[node, int(sums.stretch[entry])].append(entry)
    names = tuple(sums.sums)
    values = {name: (sums.sums[name].tolist(), sums.counts[name].tolist()) for name in names}
    made: dict[tuple[str, str], dict[str, Gpu]] = {}
    for (node, stretch), entries in stretches.items():
        shares = share_out(
            node,
            () if stretch < 0 else holds.stretches[stretch].jobs,
            labels=[sums.label[entry] for entry in entries],
            is_used=[_is_used(values, entry) for entry in entries],
            holds=holds,
        )
        for share in shares:
            entry = entries[share.place]
            device = sums.device[entry]
            gpus = made.setdefault((node, share.job), {})
            found = gpus.get(device)
            if found is None:
                share_of_gpu = slice_share(sums.profile[entry], sums.model[entry]) if "/" in device else 1.0
                found = gpus[device] = Gpu(device, share_of_gpu, sums.model[entry])
            found.samples += float(sums.samples[entry])
            found.hows.add(share.how)
            for name in names:
                added, counted = values[name]
                found.sums[name] += added[entry]
                found.counts[name] += counted[entry]
    return [Row(node=node, job=job, gpus=list(gpus.values())) for (node, job), gpus in made.items()]


def _is_used(values: Mapping[str, tuple[list[float], list[float]]], entry: int) -> bool:
    memory, memory_count = (part[entry] for part in values["memory_used_ratio"])
    busy, busy_count = (part[entry] for part in values["busy_ratio"])
    return memory > _USED_MEMORY_ABOVE * memory_count or busy > IDLE_BELOW_RATIO * busy_count


def _measure(row: Row, *, holds: Holds, traffic: FabricTraffic, step: float | None) -> None:
    """Fill the numbers of a row and the features that rules look at."""
    hold = holds.by_key.get((row.node, row.job))
    seen = sum(gpu.samples for gpu in row.gpus)
    held = hold.held_seconds if hold else None if step is None else min(3600.0, step * seen / len(row.gpus))
    activity = [gpu.mean("sm_active_ratio") for gpu in row.gpus]
    if all(map(math.isnan, activity)):
        activity = [gpu.mean("busy_ratio") for gpu in row.gpus]
    known = [value for value in activity if not math.isnan(value)]
    fabric = traffic.of(row.node, row.job)
    row.values = {name: _stored(row.mean(name)) for name in _COLUMNS}
    row.values |= {
        "user": hold.user if hold else None,
        "account": hold.account if hold else None,
        "sample_count": round(seen),
        "held_seconds": _stored(held),
        "fabric_bytes_per_second": _stored(fabric.bytes_per_second),
        "spread_ratio": round(max(known) - min(known), 9) if len(known) > 1 else None,
        "straggler": None,
    }
    working = row.working
    row.features = {name: row.mean(name, among=working) for name in FEATURES if name in working[0].sums}
    row.features |= {
        "fabric_used_ratio": fabric.used_ratio,
        "idle_gpu_ratio": sum(gpu.is_idle for gpu in row.gpus) / len(row.gpus) if len(row.gpus) > 1 else 0.0,
        "samples_per_gpu": seen / len(row.gpus),
    }


def _stragglers(rows: Sequence[Row]) -> dict[tuple[str, str], tuple[Gpu, Straggler, Mapping[str, float]]]:
    """Return the worst straggler of each row that has one: (node, job) -> GPU, what was found, its features."""
    listed = [
        (row, gpu) for row in rows if row.job != NOBODY for gpu in row.gpus
        if gpu.share == 1.0 and "/" not in gpu.device and "shared" not in gpu.hows and gpu.samples >= 4
    ]  # fmt: skip
    if not listed:
        return {}
    codes: dict[tuple[str, str], int] = {}
    groups = np.array([codes.setdefault((row.job, gpu.model), len(codes)) for row, gpu in listed], np.int64)
    sm = _column(listed, "sm_active_ratio")
    features = peer_features(
        clock_hertz=_column(listed, "sm_clock_hertz"),
        activity=np.where(np.isnan(sm), _column(listed, "busy_ratio"), sm),
        tensor=_column(listed, "tensor_active_ratio"),
        traffic=np.fmax(
            _column(listed, "nvlink_bytes_per_second"),
            np.array([_or_nan(row.values["fabric_bytes_per_second"]) / len(row.gpus) for row, _ in listed]),
        ),
        groups=groups,
    )
    found: dict[tuple[str, str], tuple[Gpu, Straggler, Mapping[str, float]]] = {}
    for straggler in find_stragglers([rule for rule in read_rules() if rule.is_about_peers], features, groups=groups):
        row, gpu = listed[straggler.place]
        worst = found.get((row.node, row.job))
        if worst is None or worst[1].strength < straggler.strength:
            own = {name: float(column[straggler.place]) for name, column in features.items()}
            found[row.node, row.job] = (gpu, straggler, own)
    return found


def _column(listed: Sequence[tuple[Row, Gpu]], name: str) -> Floats:
    return np.array([gpu.mean(name) for _, gpu in listed], np.float64)


def _judge(
    rows: Sequence[Row],
    *,
    stragglers: Mapping[tuple[str, str], tuple[Gpu, Straggler, Mapping[str, float]]],
    gpu: pa.Table,
    holds: Holds,
) -> None:
    if not rows:
        return
    rules = [rule for rule in read_rules() if not rule.is_about_peers]
    suspects = pa.array(sorted({found[0].device for found in stragglers.values()}), pa.string())
    gpu = gpu.filter(pc.is_in(gpu["device"].cast(pa.string()), suspects))
    features = {name: np.array([row.features.get(name, math.nan) for row in rows], np.float64) for name in FEATURES}
    for row, place in zip(rows, first_that_holds(rules, features).tolist(), strict=True):
        rule: Rule | None = None if place < 0 else rules[place]
        straggler = stragglers.get((row.node, row.job))
        if straggler is not None and (rule is None or rule.order > straggler[1].rule.order):
            one, found, own = straggler
            row.values |= {
                "verdict": found.rule.verdict,
                "rule": found.rule.rule,
                "straggler": one.device,
                "evidence": about_straggler(row, one, found.rule, own, gpu=gpu) + notes(row, holds=holds),
            }
        elif (differing := _differing(row, rules)) is not None:
            row.values |= {
                "verdict": "unknown",
                "rule": "shared_gpus_differ",
                "evidence": differing + notes(row, holds=holds),
            }
        elif rule is None:
            row.values |= {"verdict": "unknown", "rule": "no_rule_holds", "evidence": about_gaps(row)}
        else:
            row.values |= {
                "verdict": rule.verdict,
                "rule": rule.rule,
                "evidence": f"{rule.says}: {figures(row, rule)}" + notes(row, holds=holds),
            }


def _differing(row: Row, rules: Sequence[Rule]) -> str | None:
    """Return how the GPUs of a row of shared ones differ in their verdicts; None if they agree, or are the job's own.

    A mean over GPUs of several jobs speaks for none of them, unless all work alike.
    """
    if len(row.gpus) < 2 or not any("shared" in gpu.hows for gpu in row.gpus):
        return None
    features = {
        name: np.array([gpu.mean(name) if name in gpu.sums else row.features[name] for gpu in row.gpus], np.float64)
        for name in FEATURES
    }
    features["idle_gpu_ratio"] = np.zeros(len(row.gpus))
    places = first_that_holds(rules, features).tolist()
    counts = Counter("unknown" if place < 0 else rules[place].verdict for place in places)
    if len(counts) < 2:
        return None
    return "the GPUs differ: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))


def _stored(value: float | None) -> float | None:
    """Return the value as it is stored: rounded, so that the order of additions leaves no trace; null for unknown."""
    return None if value is None or math.isnan(value) else float(f"{value:.9g}")


def _or_nan(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
