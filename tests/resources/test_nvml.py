"""The node check: what a small stand-in for pynvml shows, and what becomes a failure."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import RecoveryAction
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.fleet.command_fleet import CommandFleet
from ops_pipelines.resources.nvml import NvmlInspector, main, to_json

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
NODE = NodeName("gpu003")
RECOVERY_FIELD = 230


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        return


class SmallNvmlError(Exception):
    pass


class NotSupported(SmallNvmlError):
    pass


class GpuIsLost(SmallNvmlError):
    pass


@dataclass(frozen=True)
class SmallGpu:
    busId: str | bytes = "00000000:1B:00.0"  # noqa: N815
    uuid: str | bytes = "GPU-a"
    uiVal: int = 0  # noqa: N815
    nvmlReturn: int = 0  # noqa: N815
    ecc: int | SmallNvmlError = 0
    rows: tuple[int, int, int, int] | SmallNvmlError = (0, 0, 0, 0)
    trouble: SmallNvmlError | None = None
    name: str | bytes | SmallNvmlError = "NVIDIA H100 80GB HBM3"
    serial: str | bytes | SmallNvmlError = "FICTION-1"

    @property
    def value(self) -> "SmallGpu":
        return self


@dataclass
class SmallNvml:
    """As much of pynvml as the inspector uses."""

    gpus: Sequence[SmallGpu] = ()
    init_trouble: SmallNvmlError | None = None
    is_running: bool = False
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: int = RECOVERY_FIELD
    NVMLError: type[Exception] = field(default=SmallNvmlError)
    NVMLError_NotSupported: type[Exception] = field(default=NotSupported)
    NVMLError_GpuIsLost: type[Exception] = field(default=GpuIsLost)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_trouble:
            raise self.init_trouble
        self.is_running = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_running = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: object) -> SmallGpu:  # noqa: N802
        gpu = self._gpu(handle)
        if gpu.trouble:
            raise gpu.trouble
        return gpu

    def nvmlDeviceGetUUID(self, handle: object) -> str | bytes:  # noqa: N802
        return self._gpu(handle).uuid

    def nvmlDeviceGetName(self, handle: object) -> str | bytes:  # noqa: N802
        return _told(self._gpu(handle).name)

    def nvmlDeviceGetSerial(self, handle: object) -> str | bytes:  # noqa: N802
        return _told(self._gpu(handle).serial)

    def nvmlDeviceGetFieldValues(self, handle: object, field_ids: list[int]) -> Sequence[SmallGpu]:  # noqa: N802
        assert field_ids == [RECOVERY_FIELD]
        return [self._gpu(handle)]

    def nvmlDeviceGetTotalEccErrors(self, handle: object, error_type: int, counter_type: int) -> int:  # noqa: N802
        assert (error_type, counter_type) == (
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        ecc = self._gpu(handle).ecc
        if isinstance(ecc, SmallNvmlError):
            raise ecc
        return ecc

    def nvmlDeviceGetRemappedRows(self, handle: object) -> tuple[int, int, int, int]:  # noqa: N802
        rows = self._gpu(handle).rows
        if isinstance(rows, SmallNvmlError):
            raise rows
        return rows

    def _gpu(self, handle: object) -> SmallGpu:
        assert isinstance(handle, int)
        return self.gpus[handle]


def _told(label: str | bytes | SmallNvmlError) -> str | bytes:
    if isinstance(label, SmallNvmlError):
        raise label
    return label


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("5d2c0f0e-1111-2222-3333-444455556666\n")
    (tmp_path / "stat").write_text("cpu  1 2 3\nintr 5\nbtime 1795240000\nprocesses 7\n")
    return tmp_path


def inspector(nvml: SmallNvml, proc: Path) -> NvmlInspector:
    return NvmlInspector(node=NODE, clock=StoppedClock(), nvml=nvml, proc=proc, sys_tree=proc / "sys")


def test_healthy_gpus_are_listed_by_their_address(proc: Path) -> None:
    nvml = SmallNvml(
        gpus=[
            SmallGpu(busId=b"00000000:2B:00.0", uuid=b"GPU-b", uiVal=4, ecc=2, rows=(0, 1, 1, 0)),
            SmallGpu(),
        ]
    )

    inspection = inspector(nvml, proc).inspect()

    assert (inspection.node, inspection.inspected_at, inspection.failures) == (NODE, NOW, ())
    assert inspection.boot_id == "5d2c0f0e-1111-2222-3333-444455556666"
    assert inspection.booted_at == datetime.fromtimestamp(1795240000, tz=UTC)
    first, second = inspection.gpus
    assert (first.gpu, first.gpu_uuid, first.recovery_action) == ("0000:1b:00", "GPU-a", RecoveryAction.NONE)
    assert (first.uncorrectable_ecc_count, first.is_row_remap_pending) == (0, False)
    assert (second.gpu, second.gpu_uuid) == ("0000:2b:00", "GPU-b")
    assert second.recovery_action is RecoveryAction.DRAIN_AND_RESET
    assert (second.uncorrectable_ecc_count, second.is_row_remap_pending) == (2, True)
    assert nvml.is_running is False


@pytest.mark.parametrize(
    ("gpu", "failure"),
    [
        pytest.param(SmallGpu(trouble=GpuIsLost("lost")), "GPU 1 is lost", id="off the bus"),
        pytest.param(SmallGpu(trouble=SmallNvmlError("Unknown Error")), "GPU 1 cannot be read: Unknown", id="error"),
        pytest.param(SmallGpu(busId="nowhere"), "not a PCI address", id="no address"),
        pytest.param(SmallGpu(uiVal=6), "recovery action 6, which is not known", id="an action of tomorrow"),
        pytest.param(SmallGpu(nvmlReturn=999), "is not reported (NVML error 999)", id="recovery action not reported"),
        pytest.param(SmallGpu(ecc=SmallNvmlError("Timeout")), "cannot be read: Timeout", id="count not reported"),
        pytest.param(SmallGpu(rows=GpuIsLost("lost")), "GPU 1 is lost", id="lost while it was read"),
        pytest.param(SmallGpu(serial=GpuIsLost("lost")), "GPU 1 is lost", id="lost at its last reading"),
    ],
)
def test_gpu_that_cannot_be_read_whole_is_left_out_and_becomes_a_failure(
    proc: Path, gpu: SmallGpu, failure: str
) -> None:
    inspection = inspector(SmallNvml(gpus=[SmallGpu(), replace(gpu, uuid="GPU-x")]), proc).inspect()

    assert [each.gpu_uuid for each in inspection.gpus] == ["GPU-a"]
    (told,) = inspection.failures
    assert failure in told


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(SmallGpu(nvmlReturn=3), id="no recovery action: not supported"),
        pytest.param(SmallGpu(nvmlReturn=2), id="no recovery action: the driver does not know the field"),
        pytest.param(SmallGpu(ecc=NotSupported("Not Supported")), id="no ECC"),
        pytest.param(SmallGpu(rows=NotSupported("Not Supported")), id="no row remapping"),
    ],
)
def test_what_a_gpu_does_not_have_is_no_failure(proc: Path, gpu: SmallGpu) -> None:
    inspection = inspector(SmallNvml(gpus=[gpu]), proc).inspect()

    (healthy,) = inspection.gpus
    assert inspection.failures == ()
    assert (healthy.recovery_action, healthy.uncorrectable_ecc_count) == (RecoveryAction.NONE, 0)
    assert healthy.is_row_remap_pending is False


def test_module_without_the_recovery_field_gives_none(proc: Path) -> None:
    class OldNvml(SmallNvml):
        def __getattribute__(self, name: str) -> object:
            if name == "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION":
                raise AttributeError(name)
            return super().__getattribute__(name)

    inspection = inspector(OldNvml(gpus=[SmallGpu(uiVal=2)]), proc).inspect()

    assert inspection.gpus[0].recovery_action is RecoveryAction.NONE


def test_node_without_a_driver_is_unavailable_with_what_to_check(proc: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"NVML on gpu003 cannot be started .*check that the NVIDIA driver"):
        inspector(SmallNvml(init_trouble=SmallNvmlError("Driver Not Loaded")), proc).inspect()


def test_proc_that_tells_no_boot_is_not_believed(proc: Path) -> None:
    (proc / "stat").write_text("cpu 1 2 3\n")

    with pytest.raises(SourceNonsense, match="boot time"):
        inspector(SmallNvml(), proc).inspect()


def test_proc_that_is_absent_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="boot_id cannot be read"):
        inspector(SmallNvml(), tmp_path / "absent").inspect()


def test_what_is_printed_on_the_parts_is_told_and_may_be_missing(proc: Path) -> None:
    (proc / "sys/class/dmi/id").mkdir(parents=True)
    (proc / "sys/class/dmi/id/product_serial").write_text("FICTION-CHASSIS-7\n")
    silent = SmallGpu(busId="0000:2b:00.0", name=NotSupported("none"), serial=NotSupported("none"))

    inspection = inspector(SmallNvml(gpus=[SmallGpu(name=b"NVIDIA H200"), silent]), proc).inspect()

    assert inspection.chassis_serial == "FICTION-CHASSIS-7"
    assert [(gpu.model, gpu.serial) for gpu in inspection.gpus] == [("NVIDIA H200", "FICTION-1"), ("", "")]
    assert inspection.failures == ()


def test_fleet_reads_exactly_what_the_node_check_prints(proc: Path) -> None:
    nvml = SmallNvml(gpus=[SmallGpu(uiVal=2, ecc=3, rows=(0, 0, 1, 0)), SmallGpu(trouble=GpuIsLost("lost"))])
    inspection = inspector(nvml, proc).inspect()

    def run(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        return CommandAnswer(returncode=0, stdout=to_json(inspection) + "\n", stderr="")

    fleet = CommandFleet({"inspect": ("check", "{node}")}, clock=StoppedClock(), run=run)

    assert fleet.inspect(NODE) == inspection


def test_constants_are_those_of_nvml() -> None:
    assert RECOVERY_FIELD == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    assert pynvml.NVML_ERROR_INVALID_ARGUMENT == 2
    assert pynvml.NVML_ERROR_NOT_SUPPORTED == 3
    for action in RecoveryAction:
        names = [name for name in dir(pynvml) if name.startswith("NVML_GPU_RECOVERY_ACTION_")]
        assert action.value in {getattr(pynvml, name) for name in names}


def test_node_check_without_a_driver_ends_with_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")

    returncode = main(["--node", "gpu003"])

    captured = capsys.readouterr()
    assert (returncode, captured.out) == (1, "")
    assert "NVML on gpu003 cannot be started" in captured.err


def test_node_check_refuses_a_hostile_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "a;reboot"]) == 1
    assert "is not a node name" in capsys.readouterr().err


@pytest.mark.live
def test_real_gpus_are_inspected_by_the_command() -> None:
    try:
        pynvml.nvmlInit()
        gpu_count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pytest.skip("no NVIDIA driver on this machine")

    answer = subprocess.run(
        [sys.executable, "-m", "ops_pipelines.resources.nvml"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    document = json.loads(answer.stdout)
    assert len(document["gpus"]) == gpu_count
    assert document["failures"] == []
    assert all(gpu["uuid"].startswith("GPU-") for gpu in document["gpus"])
