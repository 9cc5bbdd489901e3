"""NVML of this node as a page in the text format: one more exporter, for nodes that have none.

The series are named as in the catalogue's column `nvml`, in NVML's own units. Whether the node is healthy is the node
check's question (`resources.nvml`); nothing is changed here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol, cast

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import BodyKind, Page, Query, SourceUnavailable
from ops_pipelines.resources.nvml import Nvml, import_pynvml, text_of

_SM, _MEMORY = 1, 2
"""NVML_CLOCK_SM, NVML_CLOCK_MEM (nvml.h); so are the numbers below."""
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_SHUTDOWN, _SLOWDOWN = 0, 1
_TRANSMITTED, _RECEIVED = 0, 1
_GPU_SENSOR = 0
_SUCCESS = 0
_NOT_OFFERED = frozenset({2, 3, 13})
"""NVML_ERROR_INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND: this GPU or driver does not have it."""


class NvmlUtilisation(Protocol):
    """nvmlUtilization_t, in percent."""

    @property
    def gpu(self) -> int: ...
    @property
    def memory(self) -> int: ...


class NvmlMemory(Protocol):
    """nvmlMemory_v2_t, in bytes; the first version counts what is reserved as used, and names no `reserved`."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def used(self) -> int: ...


class NvmlMeter(Nvml, Protocol):
    """The part of pynvml (nvidia-ml-py) that measures. What a newer or older one lacks is not offered."""

    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetSerial(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: object) -> NvmlUtilisation: ...  # noqa: N802
    def nvmlDeviceGetEncoderUtilization(self, handle: object) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetDecoderUtilization(self, handle: object) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: object, version: int | None = None) -> NvmlMemory: ...  # noqa: N802
    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetTemperatureThreshold(self, handle: object, threshold: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetPowerUsage(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetPowerManagementLimit(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetClockInfo(self, handle: object, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetApplicationsClock(self, handle: object, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetPcieReplayCounter(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetPcieThroughput(self, handle: object, counter: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetFanSpeed(self, handle: object) -> int: ...  # noqa: N802


class _NotOffered(Exception):
    """This GPU or this library does not have the quantity."""


class NvmlMetrics:
    """Reads the GPUs of the node that this process runs on; see `core.sources.MetricSource`."""

    def __init__(self, *, node: NodeName, nvml: NvmlMeter | None = None) -> None:
        """`nvml` None means pynvml, imported at the first reading."""
        self._node = node
        self._nvml = nvml

    @property
    def source(self) -> str:
        return "nvml"

    @property
    def has_history(self) -> bool:
        return False

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield one page. A GPU that cannot be read is left out and becomes a note; so does a quantity that fails.

        What a GPU does not have is absent. Raises SourceUnavailable without an NVML library or driver.
        """
        if start < end:
            raise ValueError("NVML knows only now: start and end must be the same grid time")
        return self._read(start) if start == end else iter(())

    def _read(self, at: datetime) -> Iterator[Page]:
        nvml = self._nvml if self._nvml is not None else cast("NvmlMeter", import_pynvml())
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as exc:
            raise SourceUnavailable(
                f"NVML on {self._node} cannot be started ({exc}); check that the NVIDIA driver is loaded (nvidia-smi)"
            ) from exc
        lines: list[str] = []
        notes: list[str] = []
        try:
            driver = text_of(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    gpu_lines, gpu_notes = _read_gpu(nvml, index, node=self._node, driver=driver)
                except nvml.NVMLError_GpuIsLost:
                    notes.append(f"GPU {index} is lost: it fell off the bus or can no longer be reached")
                except (nvml.NVMLError, ValueError) as exc:
                    notes.append(f"GPU {index} cannot be read: {exc}")
                else:
                    lines += gpu_lines
                    notes += gpu_notes
        except nvml.NVMLError as exc:
            raise SourceUnavailable(f"NVML on {self._node} does not count the GPUs ({exc}); run nvidia-smi") from exc
        finally:
            nvml.nvmlShutdown()
        yield Page(
            kind=BodyKind.EXPOSITION,
            body="".join(f"{line}\n" for line in lines).encode(),
            source=f"nvml {self._node}",
            start=at,
            end=at,
            node=self._node,
            notes=tuple(notes),
        )


def _read_gpu(nvml: NvmlMeter, index: int, *, node: NodeName, driver: str) -> tuple[list[str], list[str]]:
    """Return the lines of one GPU, and what it did not tell. Raises NVMLError if it cannot be named, or is lost."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    labels = {
        "gpu": str(index),
        "UUID": text_of(nvml.nvmlDeviceGetUUID(handle)),
        "pci_bus_id": text_of(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "modelName": text_of(nvml.nvmlDeviceGetName(handle)),
        "Hostname": str(node),
        "DCGM_FI_DRIVER_VERSION": driver,
    }
    try:
        labels["serial"] = text_of(nvml.nvmlDeviceGetSerial(handle))
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError:  # GPUs of workstations have none
        pass
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    lines: list[str] = []
    notes: list[str] = []
    for name, read in READERS.items():
        try:
            lines.append(f"{name}{{{inside}}} {int(read(nvml, handle))}")
        except nvml.NVMLError_GpuIsLost:
            raise
        except (nvml.NVMLError_NotSupported, _NotOffered, AttributeError):  # the last: an older nvidia-ml-py
            continue
        except nvml.NVMLError as exc:
            if getattr(exc, "value", None) not in _NOT_OFFERED:
                notes.append(f"GPU {index} does not tell {name}: {exc}")
    return lines, notes


def _reserved(nvml: NvmlMeter, handle: object) -> int:
    memory = _memory(nvml, handle)
    if not hasattr(memory, "reserved"):
        raise _NotOffered
    return int(memory.reserved)


def _memory(nvml: NvmlMeter, handle: object) -> NvmlMemory:
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version)
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError:  # drivers before R510 know the first version only
            pass
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def _recovery_action(nvml: NvmlMeter, handle: object) -> int:
    field_id = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field_id is None:
        raise _NotOffered
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [field_id])
    if answer.nvmlReturn != _SUCCESS:
        raise _NotOffered
    return int(answer.value.uiVal)


def _clock_events(nvml: NvmlMeter, handle: object) -> int:
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    # The name of this before nvidia-ml-py 12.535.
    return int((read or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))  # type: ignore[attr-defined]


_Reader = Callable[[NvmlMeter, object], int]
READERS: Mapping[str, _Reader] = {
    "nvmlDeviceGetUtilizationRates_gpu": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "nvmlDeviceGetUtilizationRates_memory": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    "nvmlDeviceGetEncoderUtilization": lambda nvml, gpu: nvml.nvmlDeviceGetEncoderUtilization(gpu)[0],
    "nvmlDeviceGetDecoderUtilization": lambda nvml, gpu: nvml.nvmlDeviceGetDecoderUtilization(gpu)[0],
    "nvmlDeviceGetMemoryInfo_used": lambda nvml, gpu: _memory(nvml, gpu).used,
    "nvmlDeviceGetMemoryInfo_free": lambda nvml, gpu: _memory(nvml, gpu).free,
    "nvmlDeviceGetMemoryInfo_reserved": _reserved,
    "nvmlDeviceGetMemoryInfo_total": lambda nvml, gpu: _memory(nvml, gpu).total,
    "nvmlDeviceGetTemperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, _GPU_SENSOR),
    "nvmlDeviceGetTemperatureThreshold_slowdown": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(
        gpu, _SLOWDOWN
    ),
    "nvmlDeviceGetTemperatureThreshold_shutdown": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(
        gpu, _SHUTDOWN
    ),
    "nvmlDeviceGetPowerUsage": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu),
    "nvmlDeviceGetPowerManagementLimit": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu),
    "nvmlDeviceGetEnforcedPowerLimit": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
    "nvmlDeviceGetTotalEnergyConsumption": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
    "nvmlDeviceGetClockInfo_sm": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, _SM),
    "nvmlDeviceGetClockInfo_memory": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, _MEMORY),
    "nvmlDeviceGetApplicationsClock_sm": lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, _SM),
    "nvmlDeviceGetCurrentClocksEventReasons": _clock_events,
    "nvmlDeviceGetTotalEccErrors_corrected_volatile": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, _CORRECTED, _VOLATILE
    ),
    "nvmlDeviceGetTotalEccErrors_uncorrected_volatile": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, _UNCORRECTED, _VOLATILE
    ),
    "nvmlDeviceGetTotalEccErrors_corrected_aggregate": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, _CORRECTED, _AGGREGATE
    ),
    "nvmlDeviceGetTotalEccErrors_uncorrected_aggregate": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, _UNCORRECTED, _AGGREGATE
    ),
    "nvmlDeviceGetRemappedRows_correctable": lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu)[0],
    "nvmlDeviceGetRemappedRows_uncorrectable": lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu)[1],
    "nvmlDeviceGetRemappedRows_pending": lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu)[2],
    "nvmlDeviceGetRemappedRows_failed": lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu)[3],
    "nvmlDeviceGetPcieReplayCounter": lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
    "nvmlDeviceGetPcieThroughput_tx": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, _TRANSMITTED),
    "nvmlDeviceGetPcieThroughput_rx": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, _RECEIVED),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "nvmlDeviceGetFieldValues_recovery_action": _recovery_action,
    "nvmlDeviceGetFanSpeed": lambda nvml, gpu: nvml.nvmlDeviceGetFanSpeed(gpu),
}
"""Series -> how it is read, in NVML's unit. One for each `nvml` of the catalogue."""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
