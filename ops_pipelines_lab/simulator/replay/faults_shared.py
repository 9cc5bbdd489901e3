"""Faults of what nodes share: leaf switches, power feeds, cooling, storage. One cause, many nodes that show it.

Llama 3 counts switches and cables as 8 % of interruptions; RSC and Alibaba tell of racks that fall silent together.
Durations are assumptions. An injector returns False where another fault is too near; `make` tries again.
"""

import numpy as np
from numpy.random import Generator

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.observation import JobState
from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.day import NODES_PER_LEAF, NODES_PER_RACK, RACKS_PER_FEED, Brush, FaultClass
from ops_pipelines_lab.simulator.replay.injection import Injector, Window
from ops_pipelines_lab.simulator.replay.jobs import Attempt, Freeze, Look

LONGEST_SECONDS = 4200.0
"""No wide fault lasts longer, with the return of its nodes."""


def area_of(rng: Generator, fault: FaultClass, node_count: int) -> tuple[int, frozenset[int]]:
    """Return which switch, feed or rack breaks, and the nodes on it; all nodes for storage."""
    size = {
        FaultClass.LEAF_SWITCH: NODES_PER_LEAF,
        FaultClass.POWER_FEED: NODES_PER_RACK * RACKS_PER_FEED,
        FaultClass.COOLING: NODES_PER_RACK,
        FaultClass.SHARED_STORAGE: node_count,
    }[fault]
    index = int(rng.integers((node_count + size - 1) // size))
    return index, frozenset(range(index * size, min((index + 1) * size, node_count)))


def _jobs_over(injector: Injector, nodes: frozenset[int]) -> list[Attempt]:
    return [attempt for attempt in injector.cluster.running.values() if nodes & set(attempt.nodes)]


def _is_clear(injector: Injector, window: Window, attempts: list[Attempt]) -> bool:
    touched = window.nodes.union(*(attempt.nodes for attempt in attempts))
    jobs = [attempt.job for attempt in attempts]
    return injector.is_clear(touched, jobs, until=injector.now + LONGEST_SECONDS, own=window)


def _tell(
    injector: Injector,
    fault: FaultClass,
    kind: ComponentKind,
    name: str,
    window: Window,
    attempts: list[Attempt],
    end: float,
) -> None:
    injector.tell(
        fault,
        onset=injector.now,
        end=end,
        culprit=Component(kind=kind, name=name),
        affected=window.nodes.union(*(attempt.nodes for attempt in attempts)),
        jobs=[attempt.job for attempt in attempts],
    )


def leaf_switch(injector: Injector, window: Window) -> bool:
    """All ports on one leaf go down within seconds; jobs over it hang. The nodes themselves stay reachable."""
    attempts = _jobs_over(injector, window.nodes)
    if not _is_clear(injector, window, attempts):
        return False
    rng, scribe, canvas, fleet, now = injector.rng, injector.scribe, injector.canvas, injector.fleet, injector.now
    end = now + float(rng.uniform(480, 2700))
    logs = float(rng.uniform(0.5, 1.0))
    for node in sorted(window.nodes):
        if not injector.cluster.lives[node].is_responding:
            continue
        for port in range(8):
            index = fleet.port_slice(node).start + port
            down, up = now + float(rng.uniform(0, 8)), end + float(rng.uniform(0, 40))
            canvas.paint("ports/link_state", index, (down, up), Brush.SET, 1.0)
            canvas.paint("ports/physical_state", index, (down, up), Brush.SET, 2.0)
            canvas.paint("ports/bytes", index, (down, up), Brush.SET, 0.0)
            canvas.grow("ports/link_downed_count", index, down)
            if rng.random() < logs:
                scribe.kernel(node, down + float(rng.exponential(1)), texts.link_change(rng, port, is_up=False))
            if rng.random() < logs:
                scribe.kernel(node, up + float(rng.exponential(1)), texts.link_change(rng, port, is_up=True))
    for attempt in attempts:
        if len(attempt.nodes) > 1:
            inside = [node for node in attempt.nodes if node in window.nodes]
            for _ in range(int(rng.integers(0, 20))):
                node = int(rng.choice(inside))
                slot = int(rng.integers(8))
                rank = attempt.nodes.index(node) * 8 + slot
                scribe.job(
                    attempt,
                    now + float(rng.exponential(4)),
                    texts.port_error(rng, fleet.names[node], slot, slot),
                    rank=rank,
                )
            injector.break_job(attempt, inside[0], waits=bool(rng.random() < 0.6), blames_peer_ports=True, idle_gpus=())
    for node in window.nodes:
        injector.cluster.lives[node].keep_free = True
    injector.cluster.at(end + 60, lambda: _free_again(injector, window))
    _tell(
        injector,
        FaultClass.LEAF_SWITCH,
        ComponentKind.LEAF_SWITCH,
        fleet.place(min(window.nodes)).leaf_switch,
        window,
        attempts,
        end,
    )
    return True


def _free_again(injector: Injector, window: Window) -> None:
    for node in window.nodes:
        life = injector.cluster.lives[node]
        if not (life.is_drained or life.is_down):
            life.keep_free = False


def power_feed(injector: Injector, window: Window) -> bool:
    """A feed trips: its racks go dark at once. Everything of their nodes ends, and comes back with a new boot."""
    attempts = _jobs_over(injector, window.nodes)
    if not _is_clear(injector, window, attempts):
        return False
    rng, cluster, now = injector.rng, injector.cluster, injector.now
    restored = now + float(rng.uniform(600, 2400))
    end = now
    for attempt in attempts:
        dead = [node for node in attempt.nodes if node in window.nodes]
        if len(dead) < len(attempt.nodes):
            injector.break_job(
                attempt,
                dead[0],
                waits=bool(rng.random() < 0.5),
                state=JobState.NODE_FAIL,
                blames_peer_ports=True,
                idle_gpus=(),
            )
        else:
            over = now + float(rng.uniform(300, 420))
            cluster.prolong(attempt, over + 60)
            attempt.freeze(Freeze(began=now, ended=over))
            cluster.at(over, lambda attempt=attempt: cluster.end(attempt, JobState.NODE_FAIL))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    racks = sorted({int(injector.fleet.rack_of[node]) for node in window.nodes})
    for rack in racks:
        injector.canvas.paint("racks/inlet_temperature_celsius", rack, (now, restored), Brush.ADD, -1.5)
    for node in sorted(window.nodes):
        if not cluster.lives[node].is_responding:
            continue
        back = restored + float(rng.uniform(150, 700))
        returned = back + float(rng.uniform(30, 400))
        cluster.lives[node].keep_free = True
        cluster.go_silent(node, now + float(rng.uniform(0, 0.5)), back)
        cluster.at(now + float(rng.uniform(2, 100)), lambda node=node: cluster.lose(node))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        cluster.at(returned, lambda node=node: cluster.back(node))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        end = max(end, returned)
    name = injector.fleet.place(min(window.nodes)).power_feed
    _tell(injector, FaultClass.POWER_FEED, ComponentKind.POWER_FEED, name, window, attempts, end)
    return True


def cooling(injector: Injector, window: Window) -> bool:
    """A rack's cooling fails: its inlet climbs by 10 to 20 kelvin, all its nodes heat up, some GPUs slow themselves."""
    attempts = _jobs_over(injector, window.nodes)
    if not _is_clear(injector, window, attempts):
        return False
    rng, canvas, fleet, scribe, now = injector.rng, injector.canvas, injector.fleet, injector.scribe, injector.now
    rack = int(fleet.rack_of[min(window.nodes)])
    lasts = float(rng.uniform(1200, 3300))
    end = now + lasts
    rise, most = float(rng.uniform(150, 600)), float(rng.uniform(12, 30))
    rows, cooled = canvas.row_count_of((now, end)), canvas.row_count_of((end, end + 1200))
    climb = most * (1 - np.exp(-np.arange(rows) * canvas.step_seconds / rise))
    peak = float(climb[-1]) if rows else 0.0
    canvas.paint("racks/inlet_temperature_celsius", rack, (now, end), Brush.ADD, climb)
    canvas.paint(
        "racks/inlet_temperature_celsius", rack, (end, end + 1200), Brush.ADD,
        peak * np.exp(-np.arange(cooled) * canvas.step_seconds / 240.0),
    )  # fmt: skip
    for node in sorted(window.nodes):
        canvas.paint(
            "nodes/fan_revolutions_per_minute", node, (now + 60, end + 300), Brush.SCALE, float(rng.uniform(1.15, 1.45))
        )
        if peak > 14 and rng.random() < 0.5:
            for _ in range(int(rng.integers(1, 5))):
                scribe.kernel(node, now + rise + float(rng.uniform(0, lasts)), texts.cpu_throttled(rng))
                canvas.grow("nodes/cpu_package_throttle_count", node, now + rise, float(rng.integers(1, 20)))
    if peak > 23:
        for attempt in attempts:
            injector.slow(attempt, now + rise, end, float(rng.uniform(0.8, 0.97)))
    _tell(injector, FaultClass.COOLING, ComponentKind.RACK, fleet.racks[rack].device, window, attempts, end)
    return True


def shared_storage(injector: Injector, window: Window) -> bool:
    """The shared file system stops answering: who reads it or saves to it waits, everywhere, and continues after."""
    attempts = _jobs_over(injector, window.nodes)
    if not _is_clear(injector, window, attempts):
        return False
    rng, canvas, scribe, fleet, now = injector.rng, injector.canvas, injector.scribe, injector.fleet, injector.now
    end = now + float(rng.uniform(240, 1500))
    is_lustre = rng.random() < 0.6
    logs = float(rng.uniform(0.1, 0.9))
    target = int(rng.integers(64))
    stuck: list[Attempt] = []
    injector.cluster.starts_again_at = end + 30
    for attempt in attempts:
        # Nobody saves or loads anything meanwhile.
        attempt.rests = [rest for rest in attempt.rests if rest.ended <= now or rest.began >= end]
        style = attempt.program.style
        uses = style.reads_shared or rng.random() < 0.3
        if attempt.program.kind.value == "inference" or not uses:
            continue
        stuck.append(attempt)
        # Prefetched batches last seconds to a minute and a half; GPUs wait for the loader, or spin in a collective.
        stalls_at = now + float(rng.uniform(2, 90))
        if attempt.is_training and attempt.first_step < now:
            look = Look.SPINNING if rng.random() < 0.5 else Look.WAITING
            injector.hold(attempt, stalls_at, end + float(rng.uniform(1, 30)), look=look)
        else:
            injector.hold(attempt, stalls_at, end + float(rng.uniform(1, 30)), look=Look.WAITING)
        for node in attempt.nodes:
            rows = canvas.row_count_of((stalls_at, end))
            if rows == 0:
                continue
            full = float(rng.uniform(0.55, 0.99))
            canvas.paint(
                "nodes/io_stalled_ratio",
                node,
                (stalls_at, end),
                Brush.SET,
                np.clip(full + 0.05 * rng.standard_normal(rows), 0.3, 1),
            )
            canvas.paint(
                "nodes/processes_blocked_count", node, (stalls_at, end), Brush.ADD, float(rng.integers(8, 120))
            )
    for node in range(fleet.node_count):
        canvas.paint("nodes/shared_read_bytes", node, (now + 2, end), Brush.SET, 0.0)
        canvas.paint("nodes/shared_written_bytes", node, (now + 2, end), Brush.SET, 0.0)
        if rng.random() < logs:
            at = now + float(rng.uniform(5, min(240, end - now)))
            scribe.kernel(node, at, _storage_text(rng, is_lustre=is_lustre, target=target))
            if rng.random() < 0.4:
                scribe.kernel(
                    node,
                    at + float(rng.uniform(20, 200)),
                    f"INFO: task python3:{rng.integers(9999, 999999)} blocked for more than 120 seconds.",
                )
            text = (
                f"Lustre: lfs01-OST{target:04x}-osc-ffff9a3c: Connection restored to 10.20.0.{target}@o2ib"
                if is_lustre
                else "nfs: server storage-1 OK"
            )
            scribe.kernel(node, end + float(rng.exponential(5)), text)
    _tell_storage(injector, window, stuck, end)
    return True


def _tell_storage(injector: Injector, window: Window, attempts: list[Attempt], end: float) -> None:
    injector.tell(
        FaultClass.SHARED_STORAGE,
        onset=injector.now,
        end=end,
        culprit=Component(kind=ComponentKind.STORAGE, name="shared"),
        affected=frozenset(node for attempt in attempts for node in attempt.nodes),
        jobs=[attempt.job for attempt in attempts],
    )
    injector.claim(window.nodes, (), until=end)


def _storage_text(rng: Generator, *, is_lustre: bool, target: int) -> str:
    if not is_lustre:
        return "nfs: server storage-1 not responding, still trying"
    if rng.random() < 0.5:
        return (
            f"LustreError: 11-0: lfs01-OST{target:04x}-osc-ffff9a3c: operation ost_read to node 10.20.0.{target}@o2ib "
            "failed: rc = -107"
        )
    sent = int(rng.integers(1_700_000_000, 1_790_000_000))
    return (
        f"Lustre: {rng.integers(1000, 9999)}:0:(client.c:2310:ptlrpc_expire_one_request()) @@@ Request sent has "
        f"timed out for slow reply: [sent {sent}/real {sent}] req@ffff9a3c lfs01-OST{target:04x}-osc-ffff9a3c@10.20.0."
        f"{target}@o2ib"
    )
