"""A line whose signature means something is evidence, with the part and the job that it names; a flood is bounded."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.core.observation import NO_NODE, Observation, Signal
from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.logs.matching import Origin, read_rules
from ops_pipelines.observe.logs.observations import MOST_ALIKE, observations_of
from ops_pipelines.observe.logs.tables import Writer, tabulate_lines

START = datetime(2026, 11, 21, 7, tzinfo=UTC)
NODE = NodeName("gpu001")


def event(number: int, signature: str | None, **cells: object) -> Mapping[str, object]:
    return {
        "source": "kernel_log", "position": f"p{number:04d}", "time": START + timedelta(seconds=number),
        "node": NODE, "signature": signature, "text": "a line", **cells,
    }  # fmt: skip


def kernel(*rows: Mapping[str, object], **options: object) -> tuple[Observation, ...]:
    return observations_of(TABLES["kernel_events"].from_rows(rows), table="kernel_events", **options)  # type: ignore[arg-type]  # as given by the test


def job_log(*rows: Mapping[str, object]) -> tuple[Observation, ...]:
    return observations_of(TABLES["job_logs"].from_rows(rows), table="job_logs")


def read(table: str, *texts: str, node: str | None = "gpu001", job: str | None = None) -> tuple[Observation, ...]:
    """Return what the lines are as evidence, on their whole way from the source."""
    lines = [
        LogLine(node=node, written_at=START, position=str(number), text=text, job=job)
        for number, text in enumerate(texts)
    ]
    writer = Writer.KERNEL if table == "kernel_events" else Writer.JOB
    parsed = tabulate_lines(lines, source="s", at=START, writer=writer)
    return observations_of(parsed.tables[table], table=table)


def test_a_kernel_line_is_evidence_with_its_node_part_and_place() -> None:
    (found,) = kernel(event(3, "ext4_error", device="nvme0n1", text="EXT4-fs error (device nvme0n1)"))

    assert found == Observation(
        signal=Signal.LOG_SIGNATURE,
        node=NODE,
        observed_at=START + timedelta(seconds=3),
        source="kernel_log",
        position="p0003",
        text="EXT4-fs error (device nvme0n1)",
        component=Component(kind=ComponentKind.DISK, name="nvme0n1", node=NODE),
        signature="ext4_error",
        value=1.0,
    )


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("mlx5_0", ComponentKind.LINK), ("ib0", ComponentKind.LINK), ("eth1", ComponentKind.LINK),
        ("enp5s0", ComponentKind.LINK), ("bond0", ComponentKind.LINK), ("nvme3n1", ComponentKind.DISK),
        ("sda1", ComponentKind.DISK), ("md0", ComponentKind.DISK), ("dm-3", ComponentKind.DISK),
        ("ata1.00", ComponentKind.DISK), ("GPU 3", None), ("link 5", None), ("CPU 3", None), ("MC0", None),
        (None, None),
    ],
)  # fmt: skip
def test_ports_and_disks_are_parts(device: str | None, kind: ComponentKind | None) -> None:
    (found,) = kernel(event(1, "ext4_error", device=device))

    assert (None if found.component is None else found.component.kind) is kind


def test_a_port_of_nobody_knows_which_node_belongs_to_none() -> None:
    (found,) = kernel(event(1, "mlx5_link_down", device="mlx5_0", node=None))

    assert found.node == NO_NODE
    assert found.component == Component(kind=ComponentKind.LINK, name="mlx5_0", node=None)


@pytest.mark.parametrize(
    ("signature", "gpus", "is_gpu"),
    [
        pytest.param("pcie_aer_fatal", {NODE: frozenset({PciAddress("0000:1b:00")})}, True, id="one of its GPUs"),
        pytest.param("pcie_aer_fatal", {NODE: frozenset({PciAddress("0000:2a:00")})}, False, id="none of its GPUs"),
        pytest.param("pcie_aer_fatal", {}, False, id="nobody knows, and the line is about PCIe"),
        pytest.param("nvrm_gpu_lost", None, True, id="nobody knows, and the line is about a GPU"),
        pytest.param("nvrm_gpu_lost", {NODE: frozenset()}, True, id="a node of which no GPU was seen"),
    ],
)
def test_an_address_is_a_gpu_where_it_is_one(
    signature: str, gpus: Mapping[NodeName, frozenset[PciAddress]] | None, is_gpu: bool
) -> None:
    about_gpu = next(rule.id for rule in read_rules() if rule.component == "gpu" and rule.level == "error")
    about_pcie = next(rule.id for rule in read_rules() if rule.component == "pcie" and rule.level == "error")
    row = event(1, about_gpu if signature == "nvrm_gpu_lost" else about_pcie, pci_address="0000:1b:00")

    (found,) = kernel(row, gpus=gpus)

    assert found.gpu == ("0000:1b:00" if is_gpu else None)


def test_lines_that_the_fault_sensor_takes_in_are_not_taken_twice() -> None:
    assert (
        read(
            "kernel_events",
            "kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
            "kernel: NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 32 ingress invalid command",
        )
        == ()
    )


def test_lines_that_only_inform_are_no_evidence() -> None:
    informative = [
        rule.id
        for rule in read_rules()
        if rule.level in ("info", "notice")
        or rule.category in ("training_progress", "recovery_notice", "host_boot")
        or rule.category.startswith("benign")
    ]

    found = kernel(*(event(number, signature) for number, signature in enumerate([*informative, None])))

    assert len(informative) > 10
    assert found == ()


def test_all_other_signatures_are_evidence_and_one_that_is_not_known_too() -> None:
    rules = [
        rule
        for rule in read_rules()
        if rule.level in ("warning", "error", "critical")
        and rule.category not in ("training_progress", "recovery_notice", "host_boot")
        and not rule.category.startswith("benign")
    ]
    of_kernel = kernel(*(event(number, rule.id) for number, rule in enumerate(rules)))
    of_jobs = job_log(*(event(number, rule.id) for number, rule in enumerate(rules)))

    assert [each.signature for each in of_kernel] == [rule.id for rule in rules]
    # What a job prints in the words of a kernel is a program's.
    assert [each.signature for each in of_jobs] == [rule.id for rule in rules if rule.origin == Origin.PROGRAM]
    assert [each.signature for each in kernel(event(1, "of_a_newer_version"))] == ["of_a_newer_version"]


def test_a_line_of_a_job_is_evidence_of_the_job() -> None:
    (found,) = read("job_logs", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", job="123_4")

    assert (found.job, found.node, found.source, found.position) == ("123_4", "gpu001", "s", "0")


@pytest.mark.parametrize(("node", "seen"), [("gpu001", "gpu001"), ("", ""), (None, ""), ("; rm -rf /", "")])
def test_a_name_that_could_be_no_node_is_none(node: str | None, seen: str) -> None:
    (found,) = kernel(event(1, "ext4_error", node=node))

    assert found.node == seen


def test_a_name_that_could_be_no_job_is_none() -> None:
    (found,) = job_log(event(1, next(r.id for r in read_rules() if r.category == "cuda_oom"), job="../../etc"))

    assert found.job is None


@pytest.mark.parametrize("count", [1, MOST_ALIKE - 1, MOST_ALIKE, MOST_ALIKE + 1, 3_000])
def test_a_flood_is_its_first_lines_and_the_last_with_how_many_there_were(count: int) -> None:
    times = [START + timedelta(milliseconds=number) for number in range(count)]
    found = kernel(*(event(number, "ext4_error", device="nvme0n1", time=at) for number, at in enumerate(times)))

    assert len(found) == min(count, MOST_ALIKE)
    assert found[0].position == "p0000"
    assert found[-1].position == f"p{count - 1:04d}"
    assert [each.value for each in found[:-1]] == [1.0] * (len(found) - 1)
    assert found[-1].value == (count if count > MOST_ALIKE else 1.0)


ROWS = st.lists(
    st.builds(
        lambda seconds, node, device, signature: (seconds, node, device, signature),
        st.integers(0, 30),
        st.sampled_from(["gpu001", "gpu002", None]),
        st.sampled_from(["mlx5_0", "mlx5_1", None]),
        st.sampled_from(["ext4_error", "mlx5_link_down", "of_a_newer_version"]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(drawn=ROWS, most_alike=st.integers(2, 4))
def test_of_each_kind_a_bounded_number_is_kept_and_none_is_uncounted(
    drawn: list[tuple[int, str | None, str | None, str]], most_alike: int
) -> None:
    rows = [
        event(number, signature, node=node, device=device, time=START + timedelta(seconds=seconds))
        for number, (seconds, node, device, signature) in enumerate(drawn)
    ]

    found = kernel(*rows, most_alike=most_alike)

    assert [each.observed_at for each in found] == sorted(each.observed_at for each in found)
    assert len({each.position for each in found}) == len(found)
    for kind in {row[1:] for row in drawn}:
        positions = {f"p{number:04d}" for number, row in enumerate(drawn) if row[1:] == kind}
        kept = [each for each in found if each.position in positions]
        assert len(kept) == min(len(positions), most_alike)
        assert max(each.value or 0 for each in kept) == (len(positions) if len(positions) > most_alike else 1)


@pytest.mark.parametrize(("seconds", "counts"), [(59, [1.0, 4.0]), (60, [1.0, 3.0, 1.0])])
def test_a_flood_is_counted_by_the_minute(seconds: int, counts: list[float]) -> None:
    times = [START + timedelta(seconds=each) for each in (0, 1, 2, seconds)]

    found = kernel(*(event(number, "ext4_error", time=at) for number, at in enumerate(times)), most_alike=2)

    assert [each.value for each in found] == counts


def test_no_rows_are_no_evidence() -> None:
    assert kernel() == job_log() == ()
