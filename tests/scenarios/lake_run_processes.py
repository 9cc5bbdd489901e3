"""Runs of the lake's assets in processes of their own, one of them killed at a chosen step of its writing."""

import os
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar, cast

import pyarrow.parquet as pq

from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.scheduler import Scheduler
from tests.flow.fake_store import FakeStore, NoScheduler, Point, observatory_on, topology_of
from tests.shell.lake_runs import fill
from tests.simulator.fake_clock import BEGINNING, FakeClock

HOUR = datetime(2026, 1, 2, 6, tzinfo=UTC)
NOW = HOUR + timedelta(hours=2)
STEP = timedelta(minutes=1)
ASSETS = ["gpu_telemetry", "node_telemetry"]
KILLED_ASSET = "node_telemetry"
STEPS = ((os, "fsync"), (os, "replace"), (pq.ParquetWriter, "write_table"), (pq.ParquetWriter, "close"))
"""Where a run may be killed: before each call of these."""
T = TypeVar("T")


def clock_now() -> FakeClock:
    clock = FakeClock()
    clock.set_back((BEGINNING - NOW).total_seconds())
    return clock


def store_of_an_hour(clock: FakeClock) -> FakeStore:
    """Return a store of two nodes over an hour."""
    store = FakeStore(clock=clock)
    times = [HOUR + number * STEP for number in range(60)]
    for node in ("gpu001", "gpu002"):
        labels = {"Hostname": node, "UUID": f"GPU-{node}", "gpu": "0"}
        points = [Point(at=at, value=40.0 + at.minute / 8, known_at=at) for at in times]
        store.add("DCGM_FI_DEV_GPU_TEMP", labels, points)
        store.add("node_load1", {"instance": f"{node}:9100"}, points)
    return store


def observatory_of(root: Path, store: FakeStore) -> Observatory:
    scheduler = cast("Scheduler", NoScheduler())
    topology = topology_of("gpu001", "gpu002")
    return observatory_on(root, store, clock=store.clock, scheduler=scheduler, step_seconds=60, topology=topology)


def fill_hour(root: Path, assets: Sequence[str] = ASSETS) -> None:
    """Fill the hour; exit with 0 if the run succeeds."""
    clock = clock_now()
    run = fill(observatory_of(root, store_of_an_hour(clock)), HOUR, clock=clock, assets=assets)
    os._exit(0 if run.is_success else 1)


def fill_hour_until_killed(root: Path, step: int) -> None:
    """Fill the hour, and be killed at the `step`th step of writing; exit with 0 if there are fewer."""
    left = step

    def counted(call: Callable[..., T]) -> Callable[..., T]:
        def run(*args: object, **kwargs: object) -> T:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return run

    for holder, name in STEPS:
        setattr(holder, name, counted(getattr(holder, name)))
    fill_hour(root, [KILLED_ASSET])
