"""What each road makes of the same lines and samples, byte for byte, as it was recorded before they were joined.

The digests lie in tests/data/roads. Anyone who changes what a line or a sample means records them again
(`OPS_PIPELINES_RECORD_ROADS=1 pytest tests/scenarios/test_one_road.py`) and says in the commit which changed, and why.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from bench.replayed_days import retrace_day
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.entries import Evidence
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import BodyKind, LogLine, Page, Rows, Sample
from ops_pipelines.lake.hours import split_by_hour
from ops_pipelines.lake.metrics.pages import read_block, watched_samples
from ops_pipelines.lake.telemetry import observe_gpus
from ops_pipelines.observe.hours import fill_kernel_events
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.observe.live_cycle import run_cycle
from ops_pipelines.remediate.reflex import react
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.replay.make import make_day, make_quiet_day
from tests.flow.fake_store import FakeLogs, FakeStore, observatory_on, topology_of
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import TRAINING

DATA = Path(__file__).parents[1] / "data"
ROADS = DATA / "roads"
SHARED = Path(__file__).parents[3] / "shared"
STEP = timedelta(seconds=15)
HOSTS = ("gpu001", "gpu001.site.example", "GPU001", "gpu003", "stranger", None)
NODES = topology_of("gpu001", "gpu002", "gpu003.site.example")
CYCLE_COUNT = 4
_MUCH = 1_000_000


def expect(name: str, found: dict[str, str]) -> None:
    """Compare digests with those that were recorded under `name`; record them where that is asked for."""
    file = ROADS / f"{name}.json"
    if os.environ.get("OPS_PIPELINES_RECORD_ROADS") == "1":
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = json.loads(file.read_text(encoding="utf-8"))

    changed = sorted(key for key in {*found, *recorded} if found.get(key) != recorded.get(key))

    assert changed == []


def digest(value: object) -> str:
    """Return the digest of a value or of bytes, in so many letters that two which differ are distinguished."""
    body = value if isinstance(value, bytes) else encode(value).encode()
    return sha256(body).hexdigest()[:16]


def findings(evidence: Sequence[Evidence]) -> str:
    return f"{len(evidence)} {digest(tuple(each.observation for each in evidence))}"


# -- lines --


def of_the_same_kinds() -> list[str]:
    rows = (DATA / "lines_of_the_same_kinds.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [row.split("\t")[-1] for row in rows]


def of_facts() -> list[str]:
    files = [SHARED / "facts" / name for name in ("labelled_log_lines.tsv", "labelled_log_lines_2.tsv")]
    rows = [row for file in files for row in file.read_text(encoding="utf-8").splitlines()]
    return [row.split("\t")[4] for row in rows if row and not row.startswith("#")]


def of_files() -> list[str]:
    kernel = sorted((SHARED / "data" / "kernel_logs" / "gpud").glob("*.log"))
    sampled = sorted((SHARED / "samples" / "observability").glob("*.jsonl"))
    return [line for file in (*kernel, *sampled) for line in file.read_text(errors="replace").splitlines()]


CORPORA: dict[str, tuple[Callable[[], list[str]], Path]] = {
    "same_kinds": (of_the_same_kinds, DATA / "lines_of_the_same_kinds.tsv"),
    "facts": (of_facts, SHARED / "facts" / "labelled_log_lines_2.tsv"),
    "files": (of_files, SHARED / "samples" / "observability" / "journal.jsonl"),
}


@pytest.mark.parametrize("corpus", CORPORA)
def test_each_road_makes_of_lines_what_it_made(tmp_path: Path, corpus: str) -> None:
    read, place = CORPORA[corpus]
    if not place.is_file():
        pytest.skip(f"the public lines ({place.relative_to(place.parents[2])}) are not here")
    texts = read()
    found: dict[str, str] = {}
    for host in HOSTS:
        times = (BEGINNING + timedelta(seconds=number / 10) for number in range(len(texts)))
        lines = [
            LogLine(node=host, written_at=at, position=f"line-{number}", text=text)
            for number, (at, text) in enumerate(zip(times, texts, strict=False))
        ]
        roads = roads_of(lines, tmp_path / str(host), topology=NODES)
        found |= {f"{host}: {road}": made for road, made in roads.items()}

    expect(f"lines_{corpus}", found)


def roads_of(
    lines: Sequence[LogLine], directory: Path, *, topology: Topology, source: str = "kernel_log"
) -> dict[str, str]:
    """Return what the sensor's road, the lake's and the one that fills an hour in again make of kernel lines."""
    start = hour_of(min(line.written_at for line in lines if line.written_at is not None))
    found: dict[str, str] = {}

    (directory / "sensor").mkdir(parents=True)
    sensor = autopilot_with(directory / "sensor", topology, FakeLogs(source=source, lines=list(lines)))
    while take_in_logs(sensor.cluster).is_more_waiting:
        pass
    found["sensor"] = findings(sensor.cluster.ledger.evidence_after(0, limit=_MUCH))
    found["sensor, rejected"] = digest(sensor.cluster.ledger.rejected(limit=_MUCH))

    (directory / "lake").mkdir(parents=True)
    log = FakeLogs(source=source)
    live = autopilot_with(directory / "lake", topology)
    store = FakeStore(clock=live.clock)
    observatory = observatory_on(
        directory / "rows",
        store,
        clock=live.clock,
        scheduler=live.cluster.scheduler,
        kernel_logs=(log,),
        topology=topology,
    )
    size = -(-len(lines) // CYCLE_COUNT)
    for number in range(CYCLE_COUNT):
        log.lines += lines[number * size : (number + 1) * size]
        live.let_pass(STEP.total_seconds())
        run_cycle(observatory, live.cluster, at=start + number * STEP)
    told = live.cluster.ledger.evidence_after(0, limit=_MUCH)
    told = tuple(each for each in told if each.observation.source == source)  # The twin's own conditions apart.
    found["lake"] = findings(told)

    lake, other = cast("ParquetLake", observatory.lake), ParquetLake(directory / "filled")
    written = {hour_of(line.written_at) for line in lines if line.written_at is not None}
    own: dict[datetime, Rows] = {}
    for hour in sorted(written):
        filled = fill_kernel_events(observatory, start=hour, end=hour + HOUR)
        for of, rows in split_by_hour(filled.tables["kernel_events"]).items():
            if of == hour:
                own[hour] = rows
            else:  # A line of a journal says its own time.
                other.add("kernel_events", rows)
    hours = {*written, *(hour_of(each.observation.observed_at) for each in told)}
    for hour in sorted(hours):
        lake.close_hour("kernel_events", hour)
        other.close_hour("kernel_events", hour, filled=own.get(hour))
    found["lake, bytes"] = bytes_of(lake, hours)
    found["fill, bytes"] = bytes_of(other, hours)
    return found


def bytes_of(lake: ParquetLake, hours: Iterable[datetime]) -> str:
    files = [lake.path_of_hour("kernel_events", hour) for hour in sorted(hours)]
    return digest(b"".join(file.read_bytes() for file in files if file.exists()))


def autopilot_with(directory: Path, topology: Topology, *logs: FakeLogs) -> SmallAutopilot:
    autopilot = SmallAutopilot(directory, node_count=1)
    rules = replace(autopilot.cluster.rules, topology=topology)
    autopilot.cluster = replace(autopilot.cluster, rules=rules, logs=logs)
    return autopilot


# -- days --


@pytest.mark.parametrize("seed", [900, 901, 902, None])
def test_each_road_makes_of_a_day_what_it_made(tmp_path: Path, seed: int | None) -> None:
    day = (
        make_quiet_day(900, node_count=64, hours=6)
        if seed is None
        else make_day(seed, node_count=64, hours=6, fault_count=6)
    )
    kernel = [line for line in day.lines if line.job is None]
    retrace = retrace_day(day, read_catalogue())

    found = roads_of(kernel, tmp_path, topology=day.topology)
    found["incidents"] = f"{len(retrace.incidents)} {digest(tuple(retrace.incidents))}"

    expect(f"day_{'quiet' if seed is None else seed}", found)


# -- metrics --

NODE_LABELS = (
    "Hostname", "hostname", "node", "instance", "kubernetes_node", "nodename", "node_name", "exported_node",
    "exported_instance", "host",
)  # fmt: skip
NODE_VALUES = ("gpu001", "GPU001", "gpu001.site.example", "gpu001:9400", "gpu001.other", "gpu003", "stranger")


def test_samples_mean_what_they_meant(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    text = (DATA / "dcgm-exporter-one-t4.prom").read_bytes()
    page = Page(kind=BodyKind.EXPOSITION, body=text, source="exporter", start=BEGINNING, end=BEGINNING, node="gpu001")
    exported = watched_samples(page, read_block(page))
    found["one T4"] = seen(exported, at=BEGINNING)
    for fault in FaultKind:
        (tmp_path / fault.value).mkdir()
        autopilot = SmallAutopilot(tmp_path / fault.value, TRAINING, node_count=3)
        autopilot.let_pass(15)
        is_wide = fault in (FaultKind.LEAF_SWITCH_DOWN, FaultKind.NETWORK_PARTITION)
        nodes, seconds = (("gpu001", "gpu002"), 30.0) if is_wide else (("gpu001",), None)
        autopilot.twin.inject(fault, *nodes, gpu=3, seconds=seconds)
        autopilot.let_pass(15)
        samples = autopilot.cluster.telemetry.read_samples(autopilot.clock.now())
        found[fault.value] = seen(samples, at=autopilot.clock.now(), topology=autopilot.cluster.rules.topology)

    expect("samples", found)


def test_labels_mean_the_nodes_that_they_meant() -> None:
    found = {
        f"{label}={value}": seen([sample_of({label: value})], at=BEGINNING)
        for label in NODE_LABELS
        for value in NODE_VALUES
    }
    found["none"] = seen([sample_of({})], at=BEGINNING)
    found["two nodes"] = seen([sample_of({"Hostname": "gpu001", "node": "gpu002"})], at=BEGINNING)
    found["a pod's address"] = seen([sample_of({"Hostname": "dcgm-xyz", "instance": "gpu001:9400"})], at=BEGINNING)

    expect("labels", found)


def test_a_node_is_the_same_however_it_is_named() -> None:
    """Recorded again when names got one resolver: capitals, short names, ports, and the labels after `instance`."""
    labels = json.loads((ROADS / "labels.json").read_text(encoding="utf-8"))
    lines = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(ROADS.glob("lines_*.json"))]

    of_one_node = {labels[f"{label}={value}"] for label in NODE_LABELS for value in NODE_VALUES[:5]}
    assert len(of_one_node) == 1
    for road in ("sensor", "sensor, rejected", "lake", "lake, bytes", "fill, bytes"):
        assert all(len({each[f"{host}: {road}"] for host in HOSTS[:3]}) == 1 for each in lines)


def sample_of(labels: dict[str, str]) -> Sample:
    where = {"pci_bus_id": "00000000:18:00.0", "UUID": "GPU-a", "gpu": "0"}
    return Sample(metric="DCGM_FI_DEV_GPU_TEMP", labels={**where, **labels}, value=40.0, sampled_at=BEGINNING)


def seen(samples: Sequence[Sample], *, at: datetime, topology: Topology = NODES) -> str:
    telemetry = observe_gpus(samples, at=at, topology=topology, stale_after=timedelta(seconds=60))
    return f"{len(telemetry.readings)} {digest(telemetry)}"


# -- acts --


@pytest.mark.parametrize(
    "fault",
    [
        FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC, FaultKind.APPLICATION_XID31,
        FaultKind.NODE_UNREACHABLE, FaultKind.ROW_REMAP_WAITS,
    ],
    ids=lambda fault: fault.value,
)  # fmt: skip
def test_the_ledger_says_of_acts_what_it_said(tmp_path: Path, fault: FaultKind) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    autopilot.twin.inject(fault, "gpu001", gpu=3)
    tick(autopilot)
    autopilot.run_for(60)

    entries = autopilot.cluster.ledger.entries(after=0, limit=_MUCH)

    expect(
        f"acts_{fault.value}",
        {"entries": str(len(entries)), "bodies": digest("\n".join(each.body for each in entries).encode())},
    )


def tick(autopilot: SmallAutopilot) -> None:
    take_in_logs(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)


# -- how often what is asked --


class Counting:
    """A port that counts what it is asked."""

    def __init__(self, port: object) -> None:
        self._port = port
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.counts[name] += 1
        return getattr(self._port, name)


def test_from_a_line_to_a_drain_each_source_is_read_so_often(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=3)
    scheduler, ledger = Counting(autopilot.cluster.scheduler), Counting(autopilot.cluster.ledger)
    autopilot.cluster = replace(
        autopilot.cluster, scheduler=cast("Scheduler", scheduler), ledger=cast("Ledger", ledger)
    )

    tick(autopilot)

    assert autopilot.node("gpu001").is_drained
    assert {name: scheduler.counts[name] for name in ("read_nodes", "read_jobs", "drain")} == {
        "read_nodes": 3,
        "read_jobs": 2,
        "drain": 1,
    }
    counted = ("read_state", "undecided", "evidence_after", "proof", "content_of", "begin_all", "finish_all")
    assert {name: ledger.counts[name] for name in counted} == {
        "read_state": 2,
        "undecided": 1,
        "evidence_after": 0,
        "proof": 3,
        "content_of": 3,
        "begin_all": 1,
        "finish_all": 1,
    }


def test_a_log_that_has_nothing_new_costs_the_ledger_two_readings(tmp_path: Path) -> None:
    log = FakeLogs(
        source="kernel_log", lines=[LogLine(node="gpu001", written_at=BEGINNING, position="1", text="hello")]
    )
    autopilot = autopilot_with(tmp_path, NODES, log)
    take_in_logs(autopilot.cluster)
    ledger = Counting(autopilot.cluster.ledger)
    autopilot.cluster = replace(autopilot.cluster, ledger=cast("Ledger", ledger))

    take_in_logs(autopilot.cluster)

    assert ledger.counts == {"cursor": 2}
