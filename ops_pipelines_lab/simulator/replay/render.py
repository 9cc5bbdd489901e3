"""From what happened to what the sensors showed: all matrices of a recorded day.

Looks come from `jobs`, single events from the canvas of `day`; here are noise, waves, heat, counters and their
restarts, and samples that are missing. Vectorised over whole days: a matrix of 2,048 GPUs is 47 MB, so temporaries are
reused, and columns that nobody touched share one matrix. All matrices are read-only. Long, because one layer feeds the
next: power heats, heat throttles, fans follow, and all of it hangs on who runs where.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ops_pipelines.core.observation import NO_NODE, Workload
from ops_pipelines.observe.panels.panel import Layer, Numbers, Panel, Part
from ops_pipelines_lab.simulator.replay.cluster import Cluster
from ops_pipelines_lab.simulator.replay.day import GPUS_PER_NODE, PORTS_PER_NODE, Brush, Canvas, Fleet
from ops_pipelines_lab.simulator.replay.job_columns import render_jobs
from ops_pipelines_lab.simulator.replay.jobs import Attempt, Look, paint_rest, table

Matrix = NDArray[np.float32]
_WIDTHS = {"gpus": GPUS_PER_NODE, "ports": PORTS_PER_NODE, "disks": 2, "nodes": 1}
_HEAT_SINK_SECONDS = 25.0
_CELSIUS_PER_WATT = 0.055
_SLOWDOWN_CELSIUS = 87.0
"""Where an H100 SXM begins to slow itself; DCGM's field 158 shows 87 to 90."""
_MISSED_SCRAPES = 2.5e-4
"""Share of scrapes of one exporter that time out: a few single samples per node and day."""
_LATCHED = frozenset({"xid", "recovery_action", "row_remap_pending", "row_remap_failed"})
"""What stays as the driver last reported it until the driver is loaded again."""


@dataclass(kw_only=True)
class Rendering:
    """One day on its way to the panel."""

    rng: Generator
    fleet: Fleet
    canvas: Canvas
    cluster: Cluster
    times: NDArray[np.int64]
    looks: NDArray[np.uint8] = field(init=False)
    pace: Matrix = field(init=False)
    """(times, nodes): how fast the work on a node goes, 1 for the typical job of its kind."""
    spreads: NDArray[np.bool_] = field(init=False)
    """(times, nodes): its job has more nodes than one."""
    reads: Matrix = field(init=False)
    """(times, nodes): how much of its input comes from shared storage."""
    held_by: NDArray[np.int32] = field(init=False)
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    _noise: NDArray[np.float32] = field(init=False)
    _constants: dict[tuple[str, float], Matrix] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, nodes = self.canvas.row_count, self.fleet.node_count
        self.looks = np.zeros((rows, nodes * GPUS_PER_NODE), dtype=np.uint8)
        self.pace = np.ones((rows, nodes), dtype=np.float32)
        self.spreads = np.zeros((rows, nodes), dtype=np.bool_)
        self.reads = np.ones((rows, nodes), dtype=np.float32)
        self.held_by = np.full((rows, nodes), -1, dtype=np.int32)
        # One pool of noise serves all columns, each from another beginning: they are as good as independent.
        self._noise = self.rng.standard_normal(rows * nodes * GPUS_PER_NODE + 9_973, dtype=np.float32)

    def panel(self) -> Panel:
        """Return the panel."""
        rng, fleet, canvas = self.rng, self.fleet, self.canvas
        columns: dict[str, int] = {}
        for attempt in self.cluster.attempts:
            columns.setdefault(attempt.job, len(columns))
            self._lay_out(attempt, columns[attempt.job])
            for rest in attempt.rests:
                if rest.began < attempt.end and rest.ended > 0:
                    rest.ended = min(rest.ended, attempt.end)
                    paint_rest(rng, canvas, fleet, attempt, rest)
        for layer, parts in (
            ("gpus", fleet.gpus),
            ("ports", fleet.ports),
            ("disks", fleet.disks),
            ("nodes", fleet.nodes),
        ):
            self.masks[layer] = self._mask(layer, len(parts))
        racks = self._racks()
        gpus = self._gpus(racks["inlet_temperature_celsius"])
        ports, port_bytes = self._ports()
        nodes = self._nodes(port_bytes, gpus["power_watts"])
        node_power = np.nan_to_num(nodes["node_power_watts"])
        starts = np.arange(0, fleet.node_count, 8)
        racks["rack_power_watts"] = np.add.reduceat(node_power, starts, axis=1).astype(np.float32)
        layers = {
            "gpus": self._layer(fleet.gpus, gpus),
            "nodes": self._layer(fleet.nodes, nodes),
            "ports": self._layer(fleet.ports, ports),
            "disks": self._layer(fleet.disks, self._disks()),
            "racks": self._layer(fleet.racks, racks),
            "jobs": self._layer(
                tuple(Part(node=NO_NODE, device=job) for job in columns),
                render_jobs(rng, canvas, self.cluster.attempts, columns, self.times),
            ),
        }
        self.held_by.flags.writeable = False
        return Panel(times=self.times, step_seconds=canvas.step_seconds, held_by=self.held_by, **layers)

    def _layer(self, parts: tuple[Part, ...], values: dict[str, Numbers]) -> Layer:
        for matrix in values.values():
            matrix.flags.writeable = False
        return Layer(parts=parts, values=values, step_seconds=self.canvas.step_seconds)

    # What runs where

    def _lay_out(self, attempt: Attempt, column: int) -> None:
        canvas, program, rng = self.canvas, attempt.program, self.rng
        first, end = canvas.row(attempt.started), canvas.row(attempt.end)
        if first >= end:
            return
        base = {"training": Look.TRAINING, "inference": Look.INFERENCE, "batch": Look.BATCH}.get(
            program.kind.value, Look.INTERACTIVE
        )
        rows = end - first
        looks = np.full(rows, base, dtype=np.uint8)
        style = program.style
        if attempt.is_training:
            looks[: max(0, canvas.row(attempt.first_step) - first)] = Look.STARTING
        for rest in attempt.rests:
            if rest.began >= attempt.first_step:
                looks[max(0, canvas.row(rest.began) - first) : max(0, canvas.row(rest.ended) - first)] = style.waiting
        if program.kind is Workload.INTERACTIVE:
            # Somebody opens a notebook and thinks first: held and unused, for less than half an hour.
            looks[: int(rng.integers(4, 28 * 60 // canvas.step_seconds + 5))] = Look.WAITING
        for freeze in attempt.freezes:
            looks[max(0, canvas.row(freeze.began) - first) : max(0, canvas.row(freeze.ended) - first)] = (
                Look.SPINNING if freeze.look is None else freeze.look
            )
        wander = 0.05 if style.is_uneven else 0.012
        walk = np.cumsum(rng.standard_normal(rows).astype(np.float32)) * 0.02
        walk -= np.linspace(walk[0], walk[-1], rows, dtype=np.float32)
        pace = style.intensity * (1 + wander * np.tanh(walk) + 0.01 * rng.standard_normal(rows).astype(np.float32))
        for began, ended, factor in attempt.slowdowns:
            pace[max(0, canvas.row(began) - first) : max(0, canvas.row(ended) - first)] *= factor
        for node in attempt.nodes:
            gpus = slice(node * GPUS_PER_NODE, node * GPUS_PER_NODE + program.gpus_per_node)
            self.looks[first:end, gpus] = looks[:, None]
            self.pace[first:end, node] = pace
            self.spreads[first:end, node] = len(attempt.nodes) > 1
            self.reads[first:end, node] = 1.0 if style.reads_shared else 0.0
            if program.gpus_per_node == GPUS_PER_NODE:
                self.held_by[first:end, node] = column
        for freeze in attempt.freezes:
            span = slice(canvas.row(freeze.began), min(canvas.row(freeze.ended), end))
            for gpu in freeze.idle_gpus:
                self.looks[span, gpu] = Look.WAITING

    # Drawing

    def _mask(self, layer: str, count: int) -> NDArray[np.bool_]:
        """Return where samples are missing: gaps of the canvas, and single scrapes that timed out."""
        width = _WIDTHS[layer]
        missed = self.rng.random((self.canvas.row_count, self.fleet.node_count), dtype=np.float32) < _MISSED_SCRAPES
        mask = np.repeat(missed, width, axis=1)
        for name, parts, first, end in self.canvas.gaps:
            if name == layer:
                mask[first:end, parts] = True
        return mask

    def _noise_like(self, shape: tuple[int, ...]) -> Matrix:
        begin = int(self.rng.integers(9_973))
        return self._noise[begin : begin + shape[0] * shape[1]].reshape(shape)

    def _strokes(self, key: str, matrix: NDArray[np.floating]) -> None:
        layer, column = key.split("/")
        is_latched = column in _LATCHED
        # What is set wins over what is added: a port that is down carries nothing, whatever a job wants to send.
        for stroke in sorted(self.canvas.strokes.get(key, ()), key=lambda each: each.brush is Brush.SET):
            end = stroke.end
            if is_latched and isinstance(stroke.parts, int):
                node = stroke.parts // _WIDTHS[layer]
                end = min([end, *(row for each, row, _ in self.canvas.reboots if each == node and row > stroke.first)])
            value = stroke.value
            if isinstance(value, np.ndarray):
                value = value[: end - stroke.first]
                if value.ndim == 1 and not isinstance(stroke.parts, int):
                    value = value[:, None]
            window = (slice(stroke.first, end), stroke.parts)
            if stroke.brush is Brush.SET:
                matrix[window] = value
            elif stroke.brush is Brush.ADD:
                matrix[window] += value
            else:
                matrix[window] *= value

    def _finish(self, key: str, matrix: NDArray[np.floating]) -> NDArray[np.floating]:
        self._strokes(key, matrix)
        matrix[self.masks[key.split("/")[0]]] = np.nan
        return matrix

    def _constant(self, key: str, value: float) -> Matrix:
        """Return a column that is constant, changed by its strokes; shared with others where it has none."""
        layer = key.split("/")[0]
        if key not in self.canvas.strokes and (layer, value) in self._constants:
            return self._constants[layer, value]
        matrix = np.full(self.masks[layer].shape, value, dtype=np.float32)
        if key in self.canvas.strokes:
            return self._finish(key, matrix)
        matrix[self.masks[layer]] = np.nan
        self._constants[layer, value] = matrix
        return matrix

    def _events(self, key: str, starts: NDArray[np.float32] | float, *, survives_reboot: bool = False) -> Matrix:
        """Return a counter that seldom grows: its starts, its growths of the canvas, and restarts with the node."""
        layer, column = key.split("/")
        growths = self.canvas.growths.get(key, ())
        rates = self.canvas.strokes.get(key, ())
        if not growths and not rates and isinstance(starts, float):
            return self._constant(key, starts)
        shape = self.masks[layer].shape
        matrix = np.empty(shape, dtype=np.float32)
        matrix[:] = starts
        for growth in growths:
            matrix[growth.row :, growth.part] += growth.amount
        if rates:
            step = self.canvas.step_seconds
            for stroke in rates:  # a rate in growth per second
                length = stroke.end - stroke.first
                grown = np.cumsum(np.broadcast_to(stroke.value, length) * step)
                if column.endswith("_count"):
                    grown = np.floor(grown)
                parts = [stroke.parts] if isinstance(stroke.parts, int) else stroke.parts
                matrix[stroke.first : stroke.end, parts] += grown[:, None]
                matrix[stroke.end :, parts] += grown[-1]
        self._begin_anew(key, matrix, survives_reboot=survives_reboot)
        matrix[self.masks[layer]] = np.nan
        return matrix

    def _begin_anew(self, key: str, matrix: NDArray[np.floating], *, survives_reboot: bool = False) -> None:
        layer, column = key.split("/")
        width = _WIDTHS[layer]
        restarts = [
            (slice(parts, parts + 1) if isinstance(parts, int) else parts, row)
            for name, which, parts, row in self.canvas.restarts
            if name == layer and which == column
        ]
        if not survives_reboot:
            restarts += [(slice(node * width, (node + 1) * width), row) for node, row, _ in self.canvas.reboots]
        for parts, row in sorted(restarts, key=lambda each: each[1]):
            if 0 < row < len(matrix):
                matrix[row:, parts] -= matrix[row - 1, parts].copy()

    def _counter(
        self, key: str, rate: NDArray[np.floating], starts: NDArray[np.float64] | float
    ) -> NDArray[np.float64]:
        """Return a counter of bytes or seconds from its rate a second; strokes change the rate."""
        self._strokes(key, rate)
        np.maximum(rate, 0, out=rate)
        total = np.cumsum(rate, axis=0, dtype=np.float64)
        total *= self.canvas.step_seconds
        total += starts
        self._begin_anew(key, total)
        total[self.masks[key.split("/")[0]]] = np.nan
        return total

    # Layers

    def _racks(self) -> dict[str, Numbers]:
        """Return the inlets: warmest in the afternoon, a slow wave of the chillers, each rack a little different."""
        rows, count = self.canvas.row_count, len(self.fleet.racks)
        hour = (self.times % 86_400) / 3600.0
        day = 2.2 * np.sin(2 * np.pi * (hour - 9) / 24)
        chillers = 0.5 * np.sin(2 * np.pi * self.times / 2700.0)
        base = 24.0 + self.rng.normal(0, 0.8, count)
        inlet = (base + (day + chillers)[:, None] + 0.15 * self.rng.standard_normal((rows, count))).astype(np.float32)
        self._strokes("racks/inlet_temperature_celsius", inlet)
        return {"inlet_temperature_celsius": np.round(inlet, 1)}

    def _gpus(self, inlet: Matrix) -> dict[str, Numbers]:
        rng, fleet, canvas, looks = self.rng, self.fleet, self.canvas, self.looks
        shape = looks.shape
        gpu_pace = np.repeat(self.pace, GPUS_PER_NODE, axis=1)
        seconds = (self.times - self.times[0]).astype(np.float32)
        periods = 40.0 + 35.0 * fleet.phase
        wave = np.sin(2 * np.pi * (seconds[:, None] / periods + fleet.phase)).astype(np.float32)
        waits = np.isin(np.arange(len(Look)), [Look.SPINNING, Look.WAITING, Look.STARTING, Look.IDLE])
        still = np.where(waits, 0.0, 1.0).astype(np.float32).take(looks)
        # `act` is how much of its typical work a GPU does: the job's pace, a slow wave, and noise; 1 while it waits.
        act = gpu_pace
        act += 0.04 * wave
        act += 0.025 * self._noise_like(shape)
        act -= 1
        act *= still
        act += 1
        np.maximum(act, 0.02, out=act)
        out: dict[str, Numbers] = {}

        def ratio(column: str, field_name: str, *, grip: float = 1.0) -> None:
            values = table(field_name).take(looks)
            values *= act if grip == 1.0 else 1 + grip * (act - 1)
            self._finish(f"gpus/{column}", values)
            np.clip(values, 0, 1, out=values)
            out[column] = np.round(values, 4, out=values)

        ratio("utilisation_ratio", "busy_ratio", grip=0.1)
        ratio("sm_active_ratio", "sm_active_ratio", grip=0.5)
        ratio("tensor_active_ratio", "tensor_ratio")
        ratio("dram_active_ratio", "dram_ratio")
        for column, field_name in (
            ("pcie_receive_bytes_per_second", "pcie_in_bytes_per_second"),
            ("pcie_transmit_bytes_per_second", "pcie_out_bytes_per_second"),
        ):
            values = table(field_name).take(looks)
            values *= act
            values += 2e4 * np.abs(self._noise_like(shape))
            out[column] = self._finish(f"gpus/{column}", values)
        values = table("nvlink_bytes_per_second").take(looks)
        values *= act
        out["nvlink_bandwidth_bytes"] = self._counter(
            "gpus/nvlink_bandwidth_bytes", values, rng.uniform(0, 5e15, shape[1])
        )
        del values
        watts = table("watts").take(looks)
        watts -= 70
        watts *= 0.45 + 0.55 * act
        watts += 70
        watts += table("swing_watts").take(looks) * wave
        watts *= fleet.leakage
        watts += 2.0 * self._noise_like(shape)
        np.clip(watts, 45, 700, out=watts)
        self._strokes("gpus/power_watts", watts)
        throttled = self._heat(watts, inlet, out)
        watts[self.masks["gpus"]] = np.nan
        out["power_watts"] = watts
        out["memory_temperature_celsius"] = np.round(out["temperature_celsius"] + 7 + 9 * out["dram_active_ratio"])
        np.round(out["temperature_celsius"], out=out["temperature_celsius"])
        clocks = table("sm_megahertz").take(looks)
        clocks += still * 14 * self._noise_like(shape)
        np.clip(clocks, 210, 1980, out=clocks)
        self._strokes("gpus/sm_clock_hertz", clocks)
        clocks *= 1 - 0.045 * throttled
        np.round(clocks / 15, out=clocks)
        clocks *= 15e6
        clocks[self.masks["gpus"]] = np.nan
        out["sm_clock_hertz"] = clocks
        capped = (looks == Look.TRAINING) & (self._noise_like(shape) > 0.5)
        reasons = np.where(looks == Look.IDLE, 1, 0).astype(np.float32)
        reasons[capped] = 4
        hot = throttled > 0
        reasons[hot] = np.where(throttled[hot] > 2, 0x48, 0x20)
        out["clock_event_reasons"] = self._finish("gpus/clock_event_reasons", reasons)
        seconds_hot = np.cumsum(np.minimum(throttled * 0.2, 1.0), axis=0, dtype=np.float32)
        seconds_hot *= canvas.step_seconds
        self._begin_anew("gpus/thermal_throttle_seconds", seconds_hot)
        out["thermal_throttle_seconds"] = self._finish("gpus/thermal_throttle_seconds", seconds_hot)
        del throttled
        seconds_capped = np.cumsum(capped, axis=0, dtype=np.float32)
        seconds_capped *= canvas.step_seconds
        self._begin_anew("gpus/power_throttle_seconds", seconds_capped)
        out["power_throttle_seconds"] = self._finish("gpus/power_throttle_seconds", seconds_capped)
        memory = table("memory_mebibytes").take(looks)
        shares = 0.72 + 0.28 * rng.random(shape[1], dtype=np.float32)
        memory *= np.where(memory > 1000, shares, 1.0)
        memory *= np.float32(2**20)
        out["memory_used_bytes"] = self._finish("gpus/memory_used_bytes", memory)
        out["power_limit_watts"] = self._constant("gpus/power_limit_watts", 700.0)
        generation = np.where(looks == Look.IDLE, np.float32(1), np.float32(5)).astype(np.float32)
        out["pcie_link_generation"] = self._finish("gpus/pcie_link_generation", generation)
        out["pcie_link_width"] = self._constant("gpus/pcie_link_width", 16.0)
        for column in ("xid", "recovery_action", "row_remap_pending", "row_remap_failed"):
            out[column] = self._constant(f"gpus/{column}", 0.0)
        few = np.where(rng.random(shape[1]) < 0.05, rng.integers(1, 9, shape[1]), 0).astype(np.float32)
        out["ecc_correctable_volatile_count"] = self._events("gpus/ecc_correctable_volatile_count", few)
        out["ecc_uncorrectable_volatile_count"] = self._events("gpus/ecc_uncorrectable_volatile_count", 0.0)
        old = np.where(rng.random(shape[1]) < 0.02, rng.integers(1, 4, shape[1]), 0).astype(np.float32)
        out["row_remap_uncorrectable_count"] = self._events(
            "gpus/row_remap_uncorrectable_count", old, survives_reboot=True
        )
        for column in (
            "nvlink_crc_flit_error_count",
            "nvlink_replay_error_count",
            "nvlink_recovery_error_count",
            "pcie_replay_count",
        ):
            out[column] = self._events(f"gpus/{column}", 0.0)
        return out

    def _heat(self, watts: Matrix, inlet: Matrix, out: dict[str, Numbers]) -> Matrix:
        """Let temperatures follow power and inlet with the heat sink's delay, and hot GPUs slow down.

        Changes `watts` in place; returns how many kelvin each is above the slowdown temperature.
        """
        fleet = self.fleet
        resistance = np.ones(watts.shape, dtype=np.float32)
        self._strokes("gpus/heat_resistance", resistance)
        resistance *= _CELSIUS_PER_WATT
        resistance *= watts
        resistance += np.repeat(inlet[:, fleet.rack_of], GPUS_PER_NODE, axis=1)
        resistance += fleet.heat
        settled = resistance
        share = np.float32(1 - np.exp(-self.canvas.step_seconds / _HEAT_SINK_SECONDS))
        now = settled[0].copy()
        for row in settled:
            # The slower it runs, the less it heats: a sixth of what is above the limit remains.
            np.minimum(row, _SLOWDOWN_CELSIUS + (row - _SLOWDOWN_CELSIUS) / 6, out=row)
            now += share * (row - now)
            row[:] = now
        throttled = settled - np.float32(_SLOWDOWN_CELSIUS - 0.5)
        np.maximum(throttled, 0, out=throttled)
        watts *= 1 - np.minimum(0.05 * throttled, 0.5)
        settled += 0.25 * self._noise_like(settled.shape)
        settled[self.masks["gpus"]] = np.nan
        out["temperature_celsius"] = settled
        return throttled

    def _ports(self) -> tuple[dict[str, Numbers], Matrix]:
        """Return the layer of ports, and the bytes a second of all ports of each node."""
        rng, fleet = self.rng, self.fleet
        shape = self.looks.shape
        rate = table("host.fabric_bytes_per_second").take(self.looks)
        rate *= np.repeat(self.pace * np.where(self.spreads, 1.0, 0.002), PORTS_PER_NODE, axis=1).astype(np.float32)
        rate *= 1 + 0.05 * self._noise_like(shape)
        rate += 150 + 40 * np.abs(self._noise_like(shape))  # subnet management
        self._strokes("ports/bytes", rate)
        np.maximum(rate, 0, out=rate)
        summed = rate.reshape(shape[0], fleet.node_count, PORTS_PER_NODE).sum(axis=2) * 2
        out: dict[str, Numbers] = {}
        for column in ("receive_bytes", "transmit_bytes"):
            starts = rng.uniform(0, 4e15, shape[1])
            out[column] = self._counter(f"ports/{column}", rate, starts)
            rate *= 1 + 0.01 * self._noise_like(shape)
        out["link_state"] = self._constant("ports/link_state", 4.0)
        out["physical_state"] = self._constant("ports/physical_state", 5.0)
        out["rate_bits_per_second"] = self._constant("ports/rate_bits_per_second", 4e11)
        once = np.where(rng.random(shape[1]) < 0.06, rng.integers(1, 4, shape[1]), 0).astype(np.float32)
        out["link_downed_count"] = self._events("ports/link_downed_count", once)
        some = np.where(rng.random(shape[1]) < 0.1, rng.integers(1, 40, shape[1]), 0).astype(np.float32)
        out["symbol_error_count"] = self._events("ports/symbol_error_count", some)
        for column in (
            "link_error_recovery_count",
            "receive_error_count",
            "transmit_discard_count",
            "local_integrity_error_count",
            "packet_sequence_error_count",
            "ack_timeout_count",
        ):
            out[column] = self._events(f"ports/{column}", 0.0)
        return out, summed

    def _nodes(self, fabric: Matrix, gpu_watts: Matrix) -> dict[str, Numbers]:
        rng, fleet, canvas = self.rng, self.fleet, self.canvas
        rows, count = canvas.row_count, fleet.node_count
        shape = (rows, count)

        def per_node(name: str) -> Matrix:
            sums: Matrix = np.sum(
                table(name).take(self.looks).reshape(rows, count, GPUS_PER_NODE), axis=2, dtype=np.float32
            )
            return sums

        busy_gpus = (self.looks.reshape(rows, count, GPUS_PER_NODE) != Look.IDLE).sum(axis=2)
        out: dict[str, Numbers] = {}
        booted = rng.uniform(0, 1, count)
        # While ranks wait, what their host does is flat; the system's own work is a third of a core.
        waits = np.isin(self.looks[:, ::GPUS_PER_NODE], [Look.SPINNING, Look.WAITING, Look.STARTING])
        cores = per_node("host.cpu_cores")
        cores *= np.where(waits, 1 + 0.008 * self._noise_like(shape), 1 + 0.05 * self._noise_like(shape))
        cores += 0.3 + 0.06 * np.abs(self._noise_like(shape))
        self._strokes("nodes/cpu_cores", cores)
        np.clip(cores, 0.05, 112, out=cores)
        load = cores + 2 + np.abs(self._noise_like(shape))
        out["cpu_busy_seconds"] = self._counter("nodes/cpu_busy_seconds", cores, 2e6 * booted)
        read = per_node("host.shared_read_bytes_per_second") * self.pace * self.reads
        read *= np.exp(0.5 * self._noise_like(shape))
        written = per_node("host.shared_write_bytes_per_second")
        written *= 0.02 * np.exp(0.8 * self._noise_like(shape))  # logs; checkpoints are written in pauses
        for column, rate in (("shared_read_bytes", read), ("shared_written_bytes", written)):
            # Metadata and logs of everybody: now and then some kilobytes.
            rate += 300 * np.abs(self._noise_like(shape))
            out[column] = self._counter(f"nodes/{column}", rate, 1e14 * booted)
        out["fabric_bytes"] = self._counter("nodes/fabric_bytes", fabric, 4e16 * booted)
        stalled = per_node("host.io_stalled_ratio") / 8
        stalled += 0.0004 * np.abs(self._noise_like(shape))
        self._strokes("nodes/io_stalled_ratio", stalled)
        np.clip(stalled, 0, 1, out=stalled)
        waiting = np.minimum(stalled * 1.3 + 0.0005, 1.0)
        out["cpu_iowait_seconds"] = self._counter("nodes/cpu_iowait_seconds", stalled * 9, 1e5 * booted)
        out["pressure_io_stalled_seconds"] = self._counter("nodes/pressure_io_stalled_seconds", stalled, 9e3 * booted)
        out["pressure_io_waiting_seconds"] = self._counter("nodes/pressure_io_waiting_seconds", waiting, 2e4 * booted)
        squeezed = 1e-5 * np.abs(self._noise_like(shape))
        out["pressure_memory_stalled_seconds"] = self._counter(
            "nodes/pressure_memory_stalled_seconds", squeezed, 50 * booted
        )
        self._strokes("nodes/processes_blocked_count", blocked := np.floor(np.abs(self._noise_like(shape))))
        blocked[self.masks["nodes"]] = np.nan
        out["processes_blocked_count"] = blocked
        out["load_1m"] = self._finish("nodes/load_1m", load)
        total = np.float32(2.0 * 2**40)
        available = total - per_node("host.memory_bytes") * rng.uniform(0.5, 1.0, count).astype(np.float32)
        available -= np.float32(40 * 2**30) + np.float32(2**30) * np.abs(self._noise_like(shape))
        np.maximum(available, np.float32(20 * 2**30), out=available)
        out["memory_available_bytes"] = self._finish("nodes/memory_available_bytes", available)
        out["memory_total_bytes"] = self._constant("nodes/memory_total_bytes", float(total))
        offset = np.empty(shape, dtype=np.float32)
        offset[:] = fleet.skew_seconds
        offset += 2e-4 * self._noise_like(shape)
        # A clock that follows a wrong reference does not know it: timex shows little, its lines come out of order.
        np.clip(offset, -0.04, 0.04, out=offset)
        out["clock_offset_seconds"] = self._finish("nodes/clock_offset_seconds", offset)
        out["clock_synchronised"] = self._constant("nodes/clock_synchronised", 1.0)
        boot = np.empty(shape, dtype=np.float64)
        boot[:] = np.round(self.times[0] - fleet.booted_before_seconds)
        for node, row, at in canvas.reboots:
            boot[row:, node] = round(self.times[0] + at - 45)
        boot[self.masks["nodes"]] = np.nan
        out["boot_time_seconds"] = boot
        few = np.where(rng.random(count) < 0.1, rng.integers(1, 6, count), 0).astype(np.float32)
        out["edac_correctable_count"] = self._events("nodes/edac_correctable_count", few)
        for column in ("edac_uncorrectable_count", "out_of_memory_kill_count", "cpu_package_throttle_count"):
            out[column] = self._events(f"nodes/{column}", 0.0)
        space = np.empty(shape, dtype=np.float32)
        space[:] = rng.uniform(0.25, 0.9, count)
        space += 0.02 * np.sin(
            np.arange(rows, dtype=np.float32)[:, None] / 700 + rng.uniform(0, 6, count).astype(np.float32)
        )
        out["filesystem_available_ratio"] = self._finish("nodes/filesystem_available_ratio", space)
        out["filesystem_read_only"] = self._constant("nodes/filesystem_read_only", 0.0)
        summed = np.nan_to_num(gpu_watts).reshape(rows, count, GPUS_PER_NODE).sum(axis=2)
        fans = 6200 + 0.9 * (summed - 560) * rng.uniform(0.9, 1.1, count).astype(np.float32)
        fans += 60 * self._noise_like(shape)
        out["fan_revolutions_per_minute"] = self._finish("nodes/fan_revolutions_per_minute", np.round(fans, -1))
        power = np.round(summed * 1.12 + 900 + 12 * self._noise_like(shape) + 20 * busy_gpus)
        self._strokes("nodes/node_power_watts", power)
        silent = self.masks["nodes"].copy()
        power[silent] = np.nan
        out["node_power_watts"] = power
        out["supply_health_state"] = self._constant("nodes/supply_health_state", 1.0)
        # The metric store itself says whether a scrape worked, so this one has no gaps.
        up = np.ones(shape, dtype=np.float32)
        up[silent] = 0
        up[self.masks["gpus"].reshape(rows, count, GPUS_PER_NODE).all(axis=2)] = 0
        out["target_up"] = up
        return out

    def _disks(self) -> dict[str, Numbers]:
        rng = self.rng
        shape = self.masks["disks"].shape
        out: dict[str, Numbers] = {}
        busy = np.repeat((self.looks[:, ::GPUS_PER_NODE] != Look.IDLE), 2, axis=1).astype(np.float32)
        for column, mean in (("read_bytes", 8e6), ("written_bytes", 3e6)):
            rate = busy * np.float32(mean)
            rate *= np.exp(0.6 * self._noise_like(shape))
            rate += 2e4 * np.abs(self._noise_like(shape))
            out[column] = self._counter(f"disks/{column}", rate, rng.uniform(0, 1e14, shape[1]))
        out["temperature_celsius"] = self._finish(
            "disks/temperature_celsius", np.round(38 + 6 * busy + 0.7 * self._noise_like(shape))
        )
        wear = np.empty(shape, dtype=np.float32)
        wear[:] = np.round(rng.uniform(0.01, 0.55, shape[1]), 2)
        out["wear_ratio"] = self._finish("disks/wear_ratio", wear)
        for column, value in (
            ("spare_ratio", 1.0),
            ("spare_threshold_ratio", 0.1),
            ("critical_warning", 0.0),
            ("healthy", 1.0),
        ):
            out[column] = self._constant(f"disks/{column}", value)
        old = np.where(rng.random(shape[1]) < 0.02, rng.integers(1, 9, shape[1]), 0).astype(np.float32)
        out["media_error_count"] = self._events("disks/media_error_count", old, survives_reboot=True)
        out["error_log_count"] = self._events("disks/error_log_count", old * 3, survives_reboot=True)
        return out
