"""Trouble of one node: disks, host memory, clock, versions, waiting for shared storage.

A roll-out under way is no drift: without a declared release only few parts may stand apart from their model.

One node or hundreds: what they share is found by `diagnosis`. Waiting for the node's own disks is none of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
    Told,
    carried,
    ever,
    growth,
    growth_over_gaps,
    layer_of,
    newest,
    state_holds,
    told,
    told_counts,
)
from ops_pipelines.observe.panels.panel import (
    Detection,
    Flags,
    Layer,
    Numbers,
    Panel,
    Part,
    counted,
    held_lately,
    lasting,
    runs_of,
)

# -- disks and local file systems of a node --


WEAR_LIMIT_RATIO = 0.80
"""dcgm_fields, smartctl_device_percentage_used: 80 % and above warns, 100 % is the end of the rated endurance."""
SPARE_LIMIT_RATIO = 0.10
"""NVMe drives state their own threshold; 10 % is what most of them state. Used where the drive's is not measured."""
TEMPERATURE_WARNING = 2
"""Bit of the NVMe critical warning that says hot: no failing disk, and heat is a matter of its own."""
MEDIA_ERROR_COUNT, MEDIA_WINDOW_SECONDS = 2, 1_800
"""Assumption: one new media error is a reason to look (dcgm_fields), two within half an hour are a disk that fails."""
AVAILABLE_LIMIT_RATIO, FULL_ROWS = 0.05, 2
"""dcgm_fields, node_filesystem_avail_bytes: below 5 % jobs fail to write. Assumption: at two samples, as the end
of a job may free it at once."""
BUSY_LIMIT_RATIO, OPERATIONS_LIMIT_PER_SECOND, STUCK_SECONDS = 0.95, 5, 300
"""catalogue/metrics.csv, busy_seconds: near 1 with little throughput it is dying. Assumption: fewer than 5
operations a second for five minutes."""


def detect_disks(panel: Panel) -> Iterator[Detection]:
    """Yield DISK_WORN, DISK_FAILING and DISK_FULL. What a drive says of itself is stated at its first sample."""
    disks = panel.disks
    yield from _state(
        panel, disks, "wear_ratio", Signal.DISK_WORN, lambda wear: wear >= np.float32(WEAR_LIMIT_RATIO),
        "has used {0:.0%} of its rated endurance",
    )  # fmt: skip
    yield from _state(
        panel, disks, "critical_warning", Signal.DISK_FAILING, _is_critical, "raises NVMe critical warning {0:#x}"
    )
    yield from _state(
        panel, disks, "healthy", Signal.DISK_FAILING, lambda passes: passes == 0, "fails its SMART self-assessment"
    )
    yield from _detect_spare(panel)
    for column in ("media_error_count", "uncorrected_read_error_count", "uncorrected_write_error_count"):
        yield from _detect_media_errors(panel, column)
    yield from _detect_stuck(panel)
    yield from _detect_full(panel)


def _is_critical(warning: Numbers) -> Flags:
    bits = np.nan_to_num(warning).astype(np.int64)
    return np.asarray((bits & ~TEMPERATURE_WARNING) > 0)


def _state(
    panel: Panel, layer: Layer, column: str, signal: Signal, holds: Callable[[Numbers], Flags], words: str
) -> Iterator[Detection]:
    said, columns = state_holds(panel, layer, column, holds)

    def describe(row: int, place: int) -> Told:
        value = float(layer.values[column][row, columns[place]])
        return words.format(int(value) if "#x" in words else value), value

    yield from told(panel, layer, said, columns=columns, signal=signal, describe=describe)


def _detect_spare(panel: Panel) -> Iterator[Detection]:
    spare = panel.disks.values.get("spare_ratio")
    if spare is None:
        return
    threshold = panel.disks.value("spare_threshold_ratio")
    limit = np.where(np.isnan(threshold), np.float32(SPARE_LIMIT_RATIO), threshold)
    low = spare < limit
    columns = ever(low)
    said = carried(low[:, columns], ~np.isnan(spare[:, columns]), panel.rows_in(GAP_SECONDS))

    def describe(row: int, place: int) -> Told:
        value, least = float(spare[row, columns[place]]), float(limit[row, columns[place]])
        return f"has {value:.0%} of its spare blocks left; its threshold is {least:.0%}", value

    yield from told(panel, panel.disks, said, columns=columns, signal=Signal.DISK_FAILING, describe=describe)


def _detect_media_errors(panel: Panel, column: str) -> Iterator[Detection]:
    grown = growth(panel, panel.disks, column, least=MEDIA_ERROR_COUNT)
    rows = panel.rows_in(MEDIA_WINDOW_SECONDS)
    within = grown.within(rows)
    what = column.removesuffix("_count").replace("_", " ")
    yield from told_counts(
        panel,
        panel.disks,
        grown,
        said=within >= MEDIA_ERROR_COUNT,
        values=within,
        signal=Signal.DISK_FAILING,
        words=f"counts {{0:.0f}} new {what}s within half an hour",
        sign_rows=rows,
    )


def _detect_stuck(panel: Panel) -> Iterator[Detection]:
    disks = panel.disks
    if "busy_seconds" not in disks or not ("read_count" in disks and "write_count" in disks):
        return
    busy = disks.rate("busy_seconds")
    columns = ever(busy >= BUSY_LIMIT_RATIO)
    done = disks.rate("read_count")[:, columns] + disks.rate("write_count")[:, columns]
    stuck = (busy[:, columns] >= BUSY_LIMIT_RATIO) & (done < OPERATIONS_LIMIT_PER_SECOND)
    stuck = carried(stuck, ~np.isnan(done), panel.rows_in(GAP_SECONDS))
    rows = panel.rows_in(STUCK_SECONDS)
    yield from told(
        panel,
        disks,
        lasting(stuck, rows),
        columns=columns,
        signal=Signal.DISK_FAILING,
        describe=lambda *_: ("has been busy all the time for five minutes and done next to nothing", None),
        signs=stuck,
        sign_rows=rows,
    )


def _detect_full(panel: Panel) -> Iterator[Detection]:
    column = "filesystem_available_ratio"
    full, columns = state_holds(panel, panel.nodes, column, lambda left: left < np.float32(AVAILABLE_LIMIT_RATIO))

    def describe(row: int, place: int) -> Told:
        value = newest(
            panel.nodes.values[column], column=int(columns[place]), row=row, rows=panel.rows_in(GAP_SECONDS) + 1
        )
        return f"has {value:.1%} left on its fullest local file system", value

    yield from told(
        panel,
        panel.nodes,
        lasting(full, FULL_ROWS),
        columns=columns,
        signal=Signal.DISK_FULL,
        describe=describe,
        signs=full,
        sign_rows=FULL_ROWS,
    )


# -- memory of the host --


UNCORRECTED_HOLD_SECONDS = 1_800
"""dcgm_fields, node_edac_uncorrectable_errors_total: any increase drains. Assumption: it is notified for half an
hour."""
CORRECTED_PER_MINUTE_LIMIT, CORRECTED_WINDOW_SECONDS, CORRECTED_SAMPLES = 10, 600, 5
"""dcgm_fields: more than 10 an hour is a DIMM for the next maintenance, and never kills a job. Assumption: ten a minute
for ten minutes, at five samples or more, is a DIMM that cannot wait."""


def detect_host(panel: Panel) -> Iterator[Detection]:
    """Yield HOST_MEMORY; an uncorrected error at its first sample."""
    for column in ("edac_uncorrectable_count", "edac_dimm_uncorrectable_count"):
        yield from _detect_uncorrected(panel, column)
    for column in ("edac_correctable_count", "edac_dimm_correctable_count"):
        yield from _detect_corrected(panel, column)


def _detect_uncorrected(panel: Panel, column: str) -> Iterator[Detection]:
    grown = growth(panel, panel.nodes, column)
    rows = panel.rows_in(UNCORRECTED_HOLD_SECONDS)
    yield from told_counts(
        panel,
        panel.nodes,
        grown,
        said=held_lately(grown.grew, rows),
        values=grown.within(rows),
        signal=Signal.HOST_MEMORY,
        words="counts {0:.0f} uncorrected error(s) of host memory",
        sign_rows=rows,
    )


def _detect_corrected(panel: Panel, column: str) -> Iterator[Detection]:
    limit = CORRECTED_PER_MINUTE_LIMIT * CORRECTED_WINDOW_SECONDS / 60
    grown = growth(panel, panel.nodes, column, least=limit)
    rows = panel.rows_in(CORRECTED_WINDOW_SECONDS)
    within = grown.within(rows)
    yield from told_counts(
        panel,
        panel.nodes,
        grown,
        said=(within >= limit) & (counted(grown.grew, rows) >= CORRECTED_SAMPLES),
        values=within,
        signal=Signal.HOST_MEMORY,
        words="corrected {0:.0f} errors of host memory within ten minutes",
        sign_rows=rows,
    )


# -- the clock of a node against its reference --


OFFSET_LIMIT_SECONDS = 0.05
"""dcgm_fields, node_timex_offset_seconds: more breaks the order of events. An offset of exactly this much is well."""
OFFSET_ROWS = 4
"""Assumption: a minute; a reference that steps is followed within seconds."""
UNSYNCHRONISED_SECONDS = 1_800
"""Assumption: half an hour without a reference; most nodes must have theirs (who keeps time by other means than NTP
reads 0 for ever)."""


def detect_clocks(panel: Panel) -> Iterator[Detection]:
    """Yield CLOCK_SKEW."""
    yield from _detect_offset(panel)
    yield from _detect_unsynchronised(panel)


def _detect_offset(panel: Panel) -> Iterator[Detection]:
    column = "clock_offset_seconds"
    off, columns = state_holds(
        panel, panel.nodes, column, lambda offset: np.greater(np.abs(offset), np.float32(OFFSET_LIMIT_SECONDS))
    )

    def describe(row: int, place: int) -> Told:
        rows = panel.rows_in(GAP_SECONDS) + 1
        value = newest(panel.nodes.values[column], column=int(columns[place]), row=row, rows=rows)
        return f"has a clock {abs(value):.3g} s {'ahead of' if value < 0 else 'behind'} its reference", value

    yield from told(
        panel,
        panel.nodes,
        lasting(off, OFFSET_ROWS),
        columns=columns,
        signal=Signal.CLOCK_SKEW,
        describe=describe,
        signs=off,
        sign_rows=OFFSET_ROWS,
    )


def _detect_unsynchronised(panel: Panel) -> Iterator[Detection]:
    column = "clock_synchronised"
    lost, columns = state_holds(panel, panel.nodes, column, lambda held: np.equal(held, 0))
    if not len(columns):
        return
    held = panel.nodes.values[column]
    most_held = 2 * (held == 1).sum(axis=1) > (~np.isnan(held)).sum(axis=1)
    rows = panel.rows_in(UNSYNCHRONISED_SECONDS)
    yield from told(
        panel,
        panel.nodes,
        lasting(lost, rows) & most_held[:, None],
        columns=columns,
        signal=Signal.CLOCK_SKEW,
        describe=lambda *_: ("has had no reference for its clock for half an hour", None),
        signs=lost,
        sign_rows=rows,
    )


# -- versions of drivers and firmware against the declared release --


_Key = TypeVar("_Key")
DRIVER = "driver"
"""Key of the release under which the driver's version is; firmware is under the name of its model."""
LEAST_PEERS = 4
"""Assumption: of fewer nodes (or parts) nobody knows what is usual."""
FEW_RATIO = 0.1
"""Assumption: who is apart is one alone, or a tenth of its model at most; more are a roll-out."""


def detect_versions(panel: Panel, *, release: Mapping[str, str]) -> Iterator[Detection]:
    """Yield VERSION_DRIFT: for the driver of a node, for the firmware of a GPU or port, while it reports.

    `release` says what is declared: the driver under DRIVER, firmware under the part's model. Firmware of disks is
    compared with the release only: one model is sold with many.
    """
    yield from _detect_drivers(panel, release)
    for layer in (panel.gpus, panel.ports):
        yield from _detect_firmware(panel, layer, release, by_majority=True)
    yield from _detect_firmware(panel, panel.disks, release, by_majority=False)


def _detect_drivers(panel: Panel, release: Mapping[str, str]) -> Iterator[Detection]:
    gpus = panel.gpus
    if not gpus.parts or not gpus.values:
        return
    by_node: dict[str, list[int]] = {}
    for column, part in enumerate(gpus.parts):
        if part.driver:
            by_node.setdefault(part.node, []).append(column)
    first = {node: gpus.parts[columns[0]] for node, columns in by_node.items()}
    wanted = _wanted({node: (part.model, part.driver) for node, part in first.items()}, release.get(DRIVER))
    apart = [node for node, part in first.items() if wanted[node] not in (None, part.driver)]
    if not apart:
        return
    present = np.stack([gpus.present[:, by_node[node]].any(axis=1) for node in apart], axis=1)
    yield from told(
        panel,
        layer_of(panel, (Part(node=first[node].node) for node in apart)),
        carried(present, present, panel.rows_in(GAP_SECONDS)),
        columns=np.arange(len(apart)),
        signal=Signal.VERSION_DRIFT,
        describe=lambda _, place: (
            f"runs driver {first[apart[place]].driver}; {_where(release, DRIVER)} {wanted[apart[place]]}",
            None,
        ),
    )


def _detect_firmware(
    panel: Panel, layer: Layer, release: Mapping[str, str], *, by_majority: bool
) -> Iterator[Detection]:
    if not layer.values:
        return
    versions = {column: (part.model, part.firmware) for column, part in enumerate(layer.parts) if part.firmware}
    usual = _wanted(versions, None) if by_majority else {}
    wanted = {column: release.get(model, usual.get(column)) for column, (model, _) in versions.items()}
    columns = np.array(
        [column for column, (_, version) in versions.items() if wanted[column] not in (None, version)], dtype=np.intp
    )
    if not len(columns):
        return
    present = layer.present[:, columns]

    def describe(_: int, place: int) -> tuple[str, None]:
        model, version = versions[int(columns[place])]
        return f"has firmware {version}; {_where(release, model)} {wanted[int(columns[place])]}", None

    yield from told(
        panel,
        layer,
        carried(present, present, panel.rows_in(GAP_SECONDS)),
        columns=columns,
        signal=Signal.VERSION_DRIFT,
        describe=describe,
    )


def _where(release: Mapping[str, str], key: str) -> str:
    return "the release has" if key in release else "nearly all of its model have"


def _wanted(versions: Mapping[_Key, tuple[str, str]], declared: str | None) -> dict[_Key, str | None]:
    """Return what each (model, version) should be; None where nobody knows."""
    if declared is not None:
        return dict.fromkeys(versions, declared)
    by_model: dict[str, Counter[str]] = {}
    for model, version in versions.values():
        by_model.setdefault(model, Counter())[version] += 1
    usual: dict[str, str | None] = {}
    for model, counts in by_model.items():
        version, most = counts.most_common(1)[0]
        apart = counts.total() - most
        few = apart <= max(1, FEW_RATIO * counts.total())
        usual[model] = version if counts.total() >= LEAST_PEERS and few else None
    return {key: usual[model] for key, (model, _) in versions.items()}


# -- nodes that wait for shared storage and get nothing --


STALLED_ABOVE_RATIO = 0.3
"""Share of time in which all tasks that could run waited for I/O (PSI `full`); a healthy loader stays below 0.05."""
STALLED_SECONDS = 60
NOTHING_BELOW_BYTES_PER_SECOND = 1e6
USES_ABOVE_BYTES_PER_SECOND = 5e6
"""A node that never moved so much over shared storage lately has no reason to wait for it."""
USED_SECONDS = 1_800
LOCAL_ABOVE_BYTES_PER_SECOND = 2e7
"""Then it is the node's own disks that it waits for."""


def detect_storage_stalls(panel: Panel) -> Iterator[Detection]:
    """Yield STORAGE_STALL for each node and interval."""
    if not panel.nodes.values:
        return
    stalled = _growth(panel.nodes, "pressure_io_stalled_seconds")
    shared = _sum_known(_growth(panel.nodes, "shared_read_bytes"), _growth(panel.nodes, "shared_written_bytes"))
    rows, used_rows = panel.rows_in(STALLED_SECONDS), panel.rows_in(USED_SECONDS)
    waits = (stalled >= STALLED_ABOVE_RATIO) & (shared < NOTHING_BELOW_BYTES_PER_SECOND)
    waits &= ~(_local_bytes(panel) >= LOCAL_ABOVE_BYTES_PER_SECOND)
    uses_it = counted(shared >= USES_ABOVE_BYTES_PER_SECOND, used_rows) > 0
    for interval in runs_of(lasting(waits, rows) & uses_it):
        node = panel.nodes.parts[interval.column].node
        began_at = panel.time(max(0, interval.first - rows + 1))
        ratio = float(stalled[interval.first, interval.column])
        yield Detection(
            signal=Signal.STORAGE_STALL,
            node=node,
            began_at=began_at,
            first_seen_at=panel.time(interval.first),
            last_seen_at=panel.time(interval.last),
            value=ratio,
            text=f"every task of {node} waits for I/O {ratio:.0%} of the time, and shared storage has delivered nothing"
            f" since {began_at:%H:%M:%S}",
        )


def _growth(layer: Layer, column: str) -> Numbers:
    if column not in layer:
        return np.full((layer.time_count, len(layer.parts)), np.nan)
    return growth_over_gaps(layer.value(column), step_seconds=layer.step_seconds)


def _sum_known(*values: Numbers) -> Numbers:
    """Return the sum of what is known; NaN where nothing is."""
    unknown: Flags = np.logical_and.reduce([np.isnan(each) for each in values])
    total = np.sum([np.nan_to_num(each) for each in values], axis=0)
    return np.where(unknown, np.nan, total)


def _local_bytes(panel: Panel) -> Numbers:
    """Return what the disks of each node move, per second: (times, nodes); 0 where it has none that is measured."""
    total = np.zeros((len(panel.times), len(panel.nodes.parts)))
    if not panel.disks.values:
        return total
    moved = _sum_known(_growth(panel.disks, "read_bytes"), _growth(panel.disks, "written_bytes"))
    order = {part.node: column for column, part in enumerate(panel.nodes.parts)}
    for column, part in enumerate(panel.disks.parts):
        if part.node in order:
            total[:, order[part.node]] += np.nan_to_num(moved[:, column])
    return total
