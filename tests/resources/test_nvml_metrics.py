"""NVML as an exporter: what a stand-in for pynvml shows, what becomes a series, and what a note."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pynvml
import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import BodyKind, Page, SourceUnavailable
from ops_pipelines.lake.metrics.exposition import decode_exposition
from ops_pipelines.lake.quantities import read_quantities
from ops_pipelines.resources.nvml import READERS, NvmlMetrics

AT = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
NODE = NodeName("gpu003")


class SmallNvmlError(Exception):
    def __init__(self, message: str, value: int = 999) -> None:
        super().__init__(message)
        self.value = value


class NotSupported(SmallNvmlError):
    pass


class GpuIsLost(SmallNvmlError):
    pass


@dataclass
class SmallMeter:
    """As much of pynvml as is measured. `trouble` names a call, and what it raises for which GPU."""

    gpu_count: int = 2
    trouble: dict[tuple[str, int], Exception] = field(default_factory=dict)
    init_trouble: Exception | None = None
    is_running: bool = False
    nvmlMemory_v2: int | None = 2  # noqa: N815
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: int | None = 230
    recovery_return: int = 0
    NVMLError: type[Exception] = SmallNvmlError
    NVMLError_NotSupported: type[Exception] = NotSupported
    NVMLError_GpuIsLost: type[Exception] = GpuIsLost

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_trouble is not None:
            raise self.init_trouble
        self.is_running = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_running = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.gpu_count

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.86.15"

    def __getattr__(self, name: str) -> object:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def call(handle: object, *arguments: object) -> object:
            assert isinstance(handle, int)
            if (name, handle) in self.trouble:
                raise self.trouble[name, handle]
            return self._value(name, handle, arguments)

        return call

    def _value(self, name: str, gpu: int, arguments: Sequence[object]) -> object:
        match name:
            case "nvmlDeviceGetHandleByIndex":
                return gpu
            case "nvmlDeviceGetUUID":
                return f"GPU-{gpu}"
            case "nvmlDeviceGetPciInfo":
                return SimpleNamespace(busId=f"00000000:{0x1B + gpu:02X}:00.0".encode())
            case "nvmlDeviceGetName":
                return 'NVIDIA "H100"'
            case "nvmlDeviceGetSerial":
                return f"165{gpu}"
            case "nvmlDeviceGetUtilizationRates":
                return SimpleNamespace(gpu=97, memory=41)
            case "nvmlDeviceGetMemoryInfo" if arguments == (2,):
                return SimpleNamespace(total=80, free=50, used=20, reserved=10)
            case "nvmlDeviceGetMemoryInfo":
                return SimpleNamespace(total=80, free=50, used=30)
            case "nvmlDeviceGetRemappedRows":
                return (1, 2, True, False)
            case "nvmlDeviceGetFieldValues":
                return [SimpleNamespace(nvmlReturn=self.recovery_return, value=SimpleNamespace(uiVal=4))]
            case "nvmlDeviceGetEncoderUtilization" | "nvmlDeviceGetDecoderUtilization":
                return [5, 100_000]
            case "nvmlDeviceGetTotalEccErrors" | "nvmlDeviceGetClockInfo" | "nvmlDeviceGetPcieThroughput":
                return 10 + sum(10**index * int(str(each)) for index, each in enumerate(arguments))
            case _:
                return 7


def read(nvml: SmallMeter) -> Page:
    (page,) = NvmlMetrics(node=NODE, nvml=nvml).read_range((), start=AT, end=AT, step_seconds=15)  # type: ignore[arg-type]  # its calls are made by name
    return page


def values(page: Page, gpu: str) -> dict[str, float]:
    block = decode_exposition(page.body, default_time=AT).block
    rows = zip(block.names, block.labels, block.values.tolist(), strict=True)
    return {name: value for name, labels, value in rows if labels["gpu"] == gpu}


def test_every_quantity_of_the_catalogue_has_its_reader() -> None:
    assert {quantity.nvml.name for quantity in read_quantities() if quantity.nvml is not None} == set(READERS)


def test_gpus_become_series_with_their_labels() -> None:
    nvml = SmallMeter()

    page = read(nvml)

    assert (page.kind, page.node, page.source, page.start, page.end, page.notes) == (
        BodyKind.EXPOSITION,
        NODE,
        "nvml gpu003",
        AT,
        AT,
        (),
    )
    exposition = decode_exposition(page.body, default_time=AT)
    assert exposition.refused == ()
    assert exposition.block.labels[0] == {
        "gpu": "0",
        "UUID": "GPU-0",
        "pci_bus_id": "00000000:1B:00.0",
        "modelName": 'NVIDIA "H100"',
        "Hostname": "gpu003",
        "DCGM_FI_DRIVER_VERSION": "570.86.15",
        "serial": "1650",
    }
    assert values(page, "0").keys() == values(page, "1").keys() == READERS.keys()
    found = values(page, "1")
    assert found["nvmlDeviceGetUtilizationRates_gpu"] == 97
    assert found["nvmlDeviceGetMemoryInfo_used"] == 20
    assert found["nvmlDeviceGetMemoryInfo_reserved"] == 10
    assert found["nvmlDeviceGetRemappedRows_pending"] == 1
    assert found["nvmlDeviceGetFieldValues_recovery_action"] == 4
    assert found["nvmlDeviceGetTotalEccErrors_uncorrected_aggregate"] == 21
    assert found["nvmlDeviceGetTotalEccErrors_corrected_volatile"] == 10
    assert (found["nvmlDeviceGetClockInfo_sm"], found["nvmlDeviceGetClockInfo_memory"]) == (11, 12)
    assert nvml.is_running is False


@pytest.mark.parametrize(
    ("call", "error", "note"),
    [
        ("nvmlDeviceGetHandleByIndex", SmallNvmlError("Unknown"), "GPU 1 cannot be read: Unknown"),
        ("nvmlDeviceGetUUID", SmallNvmlError("Unknown"), "GPU 1 cannot be read: Unknown"),
        ("nvmlDeviceGetUUID", GpuIsLost("lost"), "GPU 1 is lost"),
        ("nvmlDeviceGetSerial", GpuIsLost("lost"), "GPU 1 is lost"),
        ("nvmlDeviceGetMemoryInfo", GpuIsLost("lost"), "GPU 1 is lost"),
        ("nvmlDeviceGetFanSpeed", GpuIsLost("lost"), "GPU 1 is lost"),
    ],
)
def test_gpu_that_cannot_be_read_is_left_out_and_becomes_a_note(call: str, error: Exception, note: str) -> None:
    page = read(SmallMeter(trouble={(call, 1): error}))

    assert values(page, "0").keys() == READERS.keys()
    assert values(page, "1") == {}
    (told,) = page.notes
    assert note in told


@pytest.mark.parametrize(
    "error",
    [NotSupported("Not Supported", 3), SmallNvmlError("Invalid Argument", 2), SmallNvmlError("no function", 13)],
)
def test_what_a_gpu_does_not_have_is_absent_without_a_word(error: Exception) -> None:
    page = read(SmallMeter(trouble={("nvmlDeviceGetFanSpeed", 0): error, ("nvmlDeviceGetSerial", 0): error}))

    assert READERS.keys() - values(page, "0").keys() == {"nvmlDeviceGetFanSpeed"}
    assert page.notes == ()


def test_quantity_that_fails_is_absent_and_becomes_a_note() -> None:
    page = read(SmallMeter(trouble={("nvmlDeviceGetPowerUsage", 0): SmallNvmlError("No Permission", 4)}))

    assert READERS.keys() - values(page, "0").keys() == {"nvmlDeviceGetPowerUsage"}
    assert page.notes == ("GPU 0 does not tell nvmlDeviceGetPowerUsage: No Permission",)


def test_older_library_gives_what_it_has() -> None:
    page = read(SmallMeter(nvmlMemory_v2=None, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION=None))

    found = values(page, "0")
    assert READERS.keys() - found.keys() == {
        "nvmlDeviceGetMemoryInfo_reserved",
        "nvmlDeviceGetFieldValues_recovery_action",
    }
    assert found["nvmlDeviceGetMemoryInfo_used"] == 30


def test_driver_that_knows_no_recovery_action_gives_none() -> None:
    assert "nvmlDeviceGetFieldValues_recovery_action" not in values(read(SmallMeter(recovery_return=3)), "0")


def test_node_without_a_driver_is_unavailable_with_what_to_check() -> None:
    with pytest.raises(SourceUnavailable, match="check that the NVIDIA driver is loaded"):
        read(SmallMeter(init_trouble=SmallNvmlError("Driver Not Loaded")))


def test_node_without_gpus_is_an_empty_page() -> None:
    page = read(SmallMeter(gpu_count=0))

    assert (page.body, page.notes) == (b"", ())


def test_the_past_cannot_be_asked_for() -> None:
    source = NvmlMetrics(node=NODE)

    assert (source.source, source.has_history) == ("nvml", False)
    with pytest.raises(ValueError, match="only now"):
        source.read_range((), start=AT, end=AT + timedelta(seconds=15), step_seconds=15)


def test_constants_are_those_of_nvml() -> None:
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU) == (1, 2, 0)
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED) == (0, 1)
    assert (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC) == (0, 1)
    assert (pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == (0, 1)
    assert (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES) == (0, 1)
    assert (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED) == (2, 3)
    assert pynvml.NVML_ERROR_FUNCTION_NOT_FOUND == 13


@pytest.mark.live
def test_real_gpus_are_measured() -> None:
    try:
        pynvml.nvmlInit()
        gpu_count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pytest.skip("no NVIDIA driver on this machine")

    (page,) = NvmlMetrics(node=NODE).read_range((), start=AT, end=AT, step_seconds=15)

    for gpu in range(gpu_count):
        found = values(page, str(gpu))
        assert 0 < found["nvmlDeviceGetTemperature"] < 120
        assert 0 < found["nvmlDeviceGetPowerUsage"] < 2_000_000
        assert found["nvmlDeviceGetMemoryInfo_total"] > 2**30
    assert page.notes == ()
