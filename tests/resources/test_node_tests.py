"""What each tool's answer means for the node: passed, failed, or not run; never passed by accident."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.node_tests import TESTS, TestResult, TestRun
from ops_pipelines.resources.commands import ToolAnswer
from ops_pipelines.resources.node.checks import NODE_TESTS
from ops_pipelines.resources.node.host import host, software
from ops_pipelines.resources.node.nvml import nvidia_smi
from ops_pipelines.resources.node.tool_tests import (
    Nic,
    NotDcgm,
    dcgm_level,
    dcgm_memtest,
    nccl_loopback,
    nic_pairwise,
    pair_up,
    read_dcgm,
)
from tests.resources.node_bench import ABSENT, HANGS, NO_NVML, Tools, bench, nvml_reading, says

DATA = Path(__file__).parents[1] / "data" / "dcgm"
DCGM3, DCGM4 = (DATA / "diag_r2_dcgm3_pass.json").read_text(), (DATA / "diag_r2_dcgm4_fail.json").read_text()
NCCL = """# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 8589934592 step: 1048576(bytes) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  8589934592    2147483648     float     sum      -1    31327  274.20  479.86      0    31340  274.09  479.65      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 479.755
#
"""


def outcome(run: TestRun) -> tuple[TestResult, str]:
    return run.result, run.said


def dcgm(status: str, *, category: str = "Hardware", name: str = "memory") -> str:
    test = {"name": name, "results": [{"status": status}]}
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": category, "tests": [test]}]}})


def test_every_named_test_can_be_run_and_no_other() -> None:
    assert list(NODE_TESTS) == list(TESTS)


# -- rules of all tools --


@pytest.mark.parametrize(
    ("answer", "result", "said"),
    [
        pytest.param(ABSENT, TestResult.NOT_RUN, "is not installed", id="absent"),
        pytest.param(HANGS, TestResult.NOT_RUN, "did not end within 9 s", id="hangs"),
        pytest.param(says(returncode=-11), TestResult.FAILED, "was ended by SIGSEGV", id="crashes"),
        pytest.param(says(returncode=-200), TestResult.FAILED, "signal 200", id="ended by an unknown signal"),
    ],
)
@pytest.mark.parametrize("test", ["nvidia_smi", "dcgm_diag_r1", "dcgm_memtest", "nccl_loopback"])
def test_a_tool_without_an_answer_never_passes(test: str, answer: ToolAnswer, result: TestResult, said: str) -> None:
    tools = dict.fromkeys(("nvidia-smi", "dcgmi", "all_reduce_perf"), answer)

    run = NODE_TESTS[test][0](bench(tools), 9.0)

    assert run.result is result
    assert said in run.said


# -- DCGM --


def test_dcgm_3_passes_with_the_lowest_bandwidth_of_its_gpus() -> None:
    tools = Tools({"dcgmi": says(f"WARNING: something\n{DCGM3}\n")})

    run = dcgm_level(2)(bench(tools), 1200.0)

    assert tools.ran == [("dcgmi", "diag", "-r", "2", "-j")]
    assert outcome(run) == (TestResult.PASSED, "Denylist, Persistence Mode, PCIe, GPU Memory; skipped Pulse Test")
    assert {each.name: (each.value, each.unit) for each in run.measurements} == {
        "gpu_to_host": (53.11, "GB/s"),
        "host_to_gpu": (55.10, "GB/s"),
    }


def test_dcgm_4_fails_with_the_part_and_the_warning() -> None:
    run = dcgm_level(2)(bench({"dcgmi": says(DCGM4, returncode=226)}), 1200.0)

    assert outcome(run) == (TestResult.FAILED, "DCGM fails memory: GPU 1's memory: 2 uncorrectable errors")
    assert {each.name: each.value for each in run.measurements} == {"gpu_to_host": 28.27, "host_to_gpu": 27.65}


@pytest.mark.parametrize(
    ("answer", "result", "said"),
    [
        (says(dcgm("Pass")), TestResult.PASSED, "memory"),
        (says(dcgm("pass")), TestResult.PASSED, "memory"),
        (says(dcgm("Warn")), TestResult.FAILED, "fails memory"),
        (says(dcgm("Skip")), TestResult.NOT_RUN, "skipped everything"),
        (says(dcgm("Splendid")), TestResult.NOT_RUN, "words that are not known"),
        (says(dcgm("Pass", category="Deployment", name="software")), TestResult.NOT_RUN, "skipped everything"),
        (says(dcgm("Pass"), returncode=1), TestResult.FAILED, "names no failure and ended with 1"),
        (says("Error: unable to establish a connection", returncode=1), TestResult.NOT_RUN, "no JSON"),
        (says("{}", returncode=0), TestResult.NOT_RUN, "has none of"),
        (says("{broken}"), TestResult.NOT_RUN, "cannot be read"),
        (says('{"DCGM Diagnostic": {"runtime_error": "no driver"}}'), TestResult.NOT_RUN, "DCGM says: no driver"),
        (says('{"DCGM Diagnostic": {"test_categories": []}}'), TestResult.NOT_RUN, "lists no tests"),
        (says('{"DCGM Diagnostic": {"test_categories": [null, {"tests": 7}]}}'), TestResult.NOT_RUN, "lists no tests"),
    ],
)
def test_only_hardware_that_dcgm_passes_is_passed(answer: ToolAnswer, result: TestResult, said: str) -> None:
    run = dcgm_level(2)(bench({"dcgmi": answer}), 1200.0)

    assert run.result is result
    assert said in run.said


def test_the_first_level_is_about_software() -> None:
    run = dcgm_level(1)(bench({"dcgmi": says(dcgm("Pass", category="Deployment", name="software"))}), 60.0)

    assert run.result is TestResult.PASSED


@pytest.mark.parametrize(("name", "result"), [("memtest", TestResult.PASSED), ("memory", TestResult.NOT_RUN)])
def test_the_memory_test_must_be_what_passed(name: str, result: TestResult) -> None:
    assert dcgm_memtest(bench({"dcgmi": says(dcgm("Pass", name=name))}), 60.0).result is result


@pytest.mark.parametrize(("level", "wanted", "other"), [(2, "memory", "pcie"), (3, "targeted_stress", "memory")])
def test_a_level_must_have_run_what_it_is_for(level: int, wanted: str, other: str) -> None:
    results = [dcgm_level(level)(bench({"dcgmi": says(dcgm("Pass", name=name))}), 60.0) for name in (wanted, other)]

    assert [each.result for each in results] == [TestResult.PASSED, TestResult.NOT_RUN]
    assert not results[1].is_absent


def test_gpus_that_dcgm_skipped_did_not_pass() -> None:
    test = {"name": "memory", "results": [{"status": "Pass"}, {"status": "Skip"}]}
    document = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]}}

    run = dcgm_level(2)(bench({"dcgmi": says(json.dumps(document))}), 60.0)

    assert outcome(run) == (TestResult.NOT_RUN, "DCGM skipped part of the GPUs in memory")


def test_json_without_a_bottom_is_no_diagnostic() -> None:
    with pytest.raises(NotDcgm):
        read_dcgm('{"a":' + "[" * 100_000 + "}")


def test_one_failing_gpu_fails_the_test_whatever_the_summary_says() -> None:
    results = [{"status": "Pass"}, {"status": "Fail"}]
    test = {"name": "memory", "results": results, "test_summary": {"status": "Pass"}}
    document = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]}}

    assert read_dcgm(json.dumps(document)).failed == ("memory",)


@given(
    root=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["test_categories", "category", "tests", "name", "results", "status", "info", "warnings"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_whatever_dcgm_prints_is_read_or_refused_and_passes_only_by_its_word(root: object) -> None:
    text = json.dumps({"DCGM Diagnostic": root})

    try:
        found = read_dcgm(text)
    except NotDcgm:
        return

    assert found.passed == () or "pass" in text.lower()


def test_text_without_an_object_is_no_diagnostic() -> None:
    with pytest.raises(NotDcgm):
        read_dcgm("} {")


# -- NVLink --


def test_an_all_reduce_over_all_gpus_tells_its_bandwidth() -> None:
    tools = Tools({"all_reduce_perf": says(NCCL)})

    run = nccl_loopback(bench(tools), 600.0)

    assert tools.ran == [("all_reduce_perf", "-b", "8G", "-e", "8G", "-g", "8")]
    assert run.result is TestResult.PASSED
    assert {each.name: each.value for each in run.measurements} == {"busbw": 479.755, "gpu_count": 8.0}


@pytest.mark.parametrize(
    ("answer", "result", "said"),
    [
        (says(NCCL.replace("0 OK", "3 FAILED"), returncode=1), TestResult.FAILED, "3 sums are wrong"),
        (says(NCCL.replace("0 OK", "3 FAILED")), TestResult.FAILED, "3 sums are wrong"),
        (says("# nThread 1\nTest CUDA failure", returncode=2), TestResult.FAILED, "ended with 2"),
        (says(stderr="error while loading shared libraries: libnccl", returncode=127), TestResult.NOT_RUN, "libnccl"),
        (says("usage", returncode=1), TestResult.NOT_RUN, "before it began"),
        (says("# nThread 1\n"), TestResult.NOT_RUN, "no bus bandwidth"),
        (says(NCCL.replace("# Out of bounds values : 0 OK\n", "")), TestResult.NOT_RUN, "did not check its sums"),
    ],
)
def test_wrong_sums_fail_and_what_did_not_begin_was_not_run(answer: ToolAnswer, result: TestResult, said: str) -> None:
    run = nccl_loopback(bench({"all_reduce_perf": answer}), 600.0)

    assert run.result is result
    assert said in run.said


@pytest.mark.parametrize(("count", "result"), [(1, TestResult.NOT_RUN), (2, TestResult.PASSED), (3, TestResult.PASSED)])
def test_an_all_reduce_needs_two_gpus(count: int, result: TestResult) -> None:
    run = nccl_loopback(bench({"all_reduce_perf": says(NCCL)}, nvml=nvml_reading(count)), 600.0)

    assert run.result is result


# -- NICs --

PERFTEST = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    20000            {peak}             {average}             0.046965
"""


def add_nic(
    root: Path,
    name: str,
    *,
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    phys_state: str = "5: LinkUp",
    kind: str = "MT4129",
) -> None:
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text(f"{rate}\n")
    (port / "phys_state").write_text(f"{phys_state}\n")
    (port.parents[1] / "hca_type").write_text(f"{kind}\n")


def test_nics_are_measured_against_the_rate_of_their_port(tmp_path: Path) -> None:
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        add_nic(tmp_path, name)
    add_nic(tmp_path, "mlx5_3", rate="25 Gb/sec (1X EDR)", kind="MT4117")
    add_nic(tmp_path, "mlx5_4", state="1: DOWN", phys_state="3: Disabled")
    tools = Tools({"ib_write_bw": says(PERFTEST.format(peak="394.10", average="392.00"))})

    run = nic_pairwise(bench(tools, root=tmp_path), 600.0)

    assert [(argv[2], argv[4]) for argv in tools.ran] == [
        ("mlx5_0", "18515"),
        ("mlx5_1", "18515"),
        ("mlx5_2", "18516"),
        ("mlx5_0", "18516"),
    ]
    assert run.result is TestResult.PASSED
    assert [(each.name, each.value) for each in run.measurements] == [("rate_ratio", 0.98), ("nic_count", 3.0)]


@pytest.mark.parametrize(
    ("broken", "result", "is_absent", "said"),
    [
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, TestResult.NOT_RUN, False, "not active: mlx5_2"),
        ({"state": "2: INIT"}, TestResult.NOT_RUN, False, "not active: mlx5_2"),
        ({"rate": "100 Gb/sec (1X NDR)"}, TestResult.FAILED, False, "mlx5_2 is at 100 Gb/s, its neighbours at 400"),
        ({"rate": "10 Gb/sec (4X SDR)"}, TestResult.FAILED, False, "mlx5_2 is at 10 Gb/s"),
    ],
)
def test_a_nic_that_is_broken_is_never_passed_over(
    tmp_path: Path, broken: dict[str, str], result: TestResult, is_absent: bool, said: str
) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        add_nic(tmp_path, name)
    add_nic(tmp_path, "mlx5_2", **broken)
    tools = Tools({"ib_write_bw": says(PERFTEST.format(peak="394.10", average="392.00"))})

    run = nic_pairwise(bench(tools, root=tmp_path), 600.0)

    assert (run.result, run.is_absent) == (result, is_absent)
    assert said in run.said


def test_a_lone_nic_is_not_measured_against_itself(tmp_path: Path) -> None:
    add_nic(tmp_path, "mlx5_0")
    tools = Tools({"ib_write_bw": says(PERFTEST.format(peak="394.10", average="392.00"))})

    run = nic_pairwise(bench(tools, root=tmp_path), 600.0)

    assert (run.result, run.is_absent, tools.ran) == (TestResult.NOT_RUN, True, [])
    assert [(each.name, each.value) for each in run.measurements] == [("nic_count", 1.0)]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (ABSENT, TestResult.NOT_RUN),
        (HANGS, TestResult.NOT_RUN),
        (says(stderr="Couldn't connect to 127.0.0.1:18515", returncode=1), TestResult.NOT_RUN),
        (says(" Completion with error at client", returncode=1), TestResult.FAILED),
        (says("nothing"), TestResult.NOT_RUN),
    ],
)
def test_nics_that_tell_no_bandwidth_never_pass(tmp_path: Path, answer: ToolAnswer, result: TestResult) -> None:
    add_nic(tmp_path, "mlx5_0")
    add_nic(tmp_path, "mlx5_1")

    assert nic_pairwise(bench({"ib_write_bw": answer}, root=tmp_path), 600.0).result is result


def test_a_node_without_fast_nics_was_not_tested(tmp_path: Path) -> None:
    assert nic_pairwise(bench({}, root=tmp_path), 600.0).result is TestResult.NOT_RUN


@pytest.mark.parametrize(
    ("rates", "pairs"),
    [((400,), []), ((400, 400), [(0, 1)]), ((400, 400, 400), [(0, 1), (2, 0)]), ((200, 400), [])],
)
def test_nics_are_paired_by_their_rate_and_none_with_itself(
    rates: tuple[int, ...], pairs: list[tuple[int, int]]
) -> None:
    nics = tuple(Nic(device=f"mlx5_{number}", gbit_per_second=float(rate)) for number, rate in enumerate(rates))

    assert list(pair_up(nics)) == [(nics[first], nics[second]) for first, second in pairs]


# -- nvidia-smi --


def smi_rows(count: int = 8, driver: str = "570.172.08") -> str:
    return "".join(f"00000000:{0x10 + number:02X}:00.0, {driver}\n" for number in range(count))


@pytest.mark.parametrize(
    ("answer", "result", "said"),
    [
        (says(smi_rows()), TestResult.PASSED, "8 GPUs"),
        (says(smi_rows(7)), TestResult.FAILED, "0000:17:00"),
        (says(smi_rows(driver="550.54.15")), TestResult.FAILED, "driver 550.54.15, NVML says 570.172.08"),
        (says("couldn't communicate", returncode=9), TestResult.FAILED, "ended with 9"),
        (says(stderr="error while loading shared libraries", returncode=127), TestResult.NOT_RUN, "127"),
        (says("what?"), TestResult.NOT_RUN, "no list of GPUs"),
    ],
)
def test_nvidia_smi_must_tell_what_nvml_tells(answer: ToolAnswer, result: TestResult, said: str) -> None:
    run = nvidia_smi(bench({"nvidia-smi": answer}), 60.0)

    assert run.result is result
    assert said in run.said


def test_nvidia_smi_alone_is_compared_with_nothing() -> None:
    assert nvidia_smi(bench({"nvidia-smi": says(smi_rows())}, nvml=NO_NVML), 60.0).result is TestResult.NOT_RUN


# -- the machine --

TOOLS = {"timedatectl": says("yes\n"), "systemctl": says(), "dmesg": says("[   12.500000] usb 1-1: new device\n")}
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build\nGCC version: 12\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with everything in order."""
    for path, text in {
        "proc/driver/nvidia/version": VERSION,
        "proc/modules": "nvidia 1 2 - Live\nnvidia_uvm 1 2 - Live\n",
        "proc/self/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\n/dev/sr0 /media iso9660 ro 0 0\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ce_count": "4\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_a_machine_in_order_passes(root: Path) -> None:
    assert software(bench(TOOLS, root=root), 30.0).result is TestResult.PASSED
    assert host(bench(TOOLS, root=root), 30.0).result is TestResult.PASSED


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("proc/driver/nvidia/version", VERSION.replace("570.172.08", "570.158.01"), "kernel module is 570.158.01"),
        ("proc/modules", "nvidia 1\n", "nvidia_uvm is not loaded"),
        ("proc/self/mounts", "/dev/sda1 / ext4 ro,relatime 0 0\n", "/ can only be read"),
        ("proc/driver/nvidia-nvswitch/devices/0000:07:00.0", "", "NVSwitches and no fabric manager"),
    ],
)
def test_software_that_does_not_match_fails(root: Path, path: str, text: str, said: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)

    run = software(bench(TOOLS, root=root), 30.0)

    assert run.result is TestResult.FAILED
    assert said in run.said


@pytest.mark.parametrize(
    ("told", "result"),
    [
        ("Fabric Manager version is : 570.172.08", TestResult.PASSED),
        ("Fabric Manager version is : 570.158.01", TestResult.FAILED),
        ("", TestResult.NOT_RUN),
    ],
)
def test_the_fabric_manager_is_of_the_drivers_version(root: Path, told: str, result: TestResult) -> None:
    (root / "proc/driver/nvidia-nvswitch/devices/0000:07:00.0").mkdir(parents=True)

    run = software(bench({**TOOLS, "nv-fabricmanager": says(told)}, root=root), 30.0)

    assert run.result is result


@pytest.mark.parametrize(
    ("answer", "result"),
    [(says("yes\n"), TestResult.PASSED), (says("no\n"), TestResult.FAILED), (ABSENT, TestResult.NOT_RUN)],
)
def test_the_clock_must_be_known_to_be_right(root: Path, answer: ToolAnswer, result: TestResult) -> None:
    assert software(bench({**TOOLS, "timedatectl": answer}, root=root), 30.0).result is result


@pytest.mark.parametrize(
    ("tools", "result", "said"),
    [
        ({"systemctl": says("slurmd.service loaded failed failed x\n")}, TestResult.FAILED, "slurmd.service failed"),
        ({"systemctl": says("apt-daily.service loaded failed failed x\n")}, TestResult.PASSED, "apt-daily.service"),
        ({"systemctl": ABSENT}, TestResult.NOT_RUN, "systemctl is not installed"),
        ({"dmesg": says("NVRM: Xid (PCI:0000:1b:00): 79\n")}, TestResult.NOT_RUN, "has no times"),
        ({"dmesg": says(returncode=1)}, TestResult.NOT_RUN, "kernel log cannot be read"),
        ({"dmesg": HANGS}, TestResult.NOT_RUN, "kernel log cannot be read"),
    ],
)
def test_units_and_kernel_log_are_looked_at(
    root: Path, tools: dict[str, ToolAnswer], result: TestResult, said: str
) -> None:
    run = host(bench({**TOOLS, **tools}, root=root), 30.0)

    assert run.result is result
    assert said in run.said


@pytest.mark.parametrize(
    ("at", "result"),
    [("  999.999999", TestResult.PASSED), (" 1000.000000", TestResult.FAILED), (" 1000.000001", TestResult.FAILED)],
)
def test_an_xid_counts_if_it_came_during_the_tests(root: Path, at: str, result: TestResult) -> None:
    line = f"[{at}] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"

    run = host(bench({**TOOLS, "dmesg": says(line)}, root=root), 30.0)

    assert run.result is result
    assert "79" in run.said


@pytest.mark.parametrize(("count", "result"), [("0", TestResult.PASSED), ("1", TestResult.FAILED)])
def test_an_uncorrectable_error_of_host_memory_fails(root: Path, count: str, result: TestResult) -> None:
    (root / "sys/devices/system/edac/mc/mc0/ue_count").write_text(count)

    run = host(bench(TOOLS, root=root), 30.0)

    assert run.result is result
    assert [(each.name, each.value) for each in run.measurements] == [("host_memory_corrected", 4.0)]
