"""NVML of the node that this process runs on: its inspection (`python -m ops_pipelines.resources.nvml`), and its
metrics as a page in the text format, one more exporter for nodes that have none.

Looks and reports; changes nothing. What an inspection proves is `remediate.verification`; who asks for it is the fleet.
The series are named as in the catalogue's column `nvml`, in NVML's own units. The NVML test of the node check, which
reads more and judges it, is `node.nvml`. It has more than 500 lines because pynvml has no types: what is used of it is
declared here.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, cast

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.identity import GpuUuid, NodeName, parse_node_name, parse_pci_address
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.core.sources import BodyKind, Page, Query, SourceNonsense, SourceUnavailable

_SUCCESS = 0
_RECOVERY_ACTIONS = {action.value: action for action in RecoveryAction}
"""Newer drivers know two more (6 bus reset, 7 system reboot; nvidia-ml-py 13): a GPU that asks for one is left out."""
Reading = TypeVar("Reading")


class NvmlPci(Protocol):
    """nvmlPciInfo_t."""

    @property
    def busId(self) -> str | bytes: ...  # noqa: N802 -- NVML's own name


class NvmlValue(Protocol):
    """nvmlValue_t."""

    @property
    def uiVal(self) -> int: ...  # noqa: N802 -- NVML's own name


class NvmlField(Protocol):
    """nvmlFieldValue_t."""

    @property
    def nvmlReturn(self) -> int: ...  # noqa: N802 -- NVML's own name
    @property
    def value(self) -> NvmlValue: ...


class Nvml(Protocol):
    """The part of pynvml (nvidia-ml-py) that is used. Handles are opaque."""

    NVMLError: type[Exception]
    NVMLError_NotSupported: type[Exception]
    NVMLError_GpuIsLost: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetPciInfo(self, handle: object) -> NvmlPci: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetSerial(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetFieldValues(self, handle: object, field_ids: list[int]) -> Sequence[NvmlField]: ...  # noqa: N802
    def nvmlDeviceGetTotalEccErrors(self, handle: object, error_type: int, counter_type: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetRemappedRows(self, handle: object) -> tuple[int, int, int, int]: ...  # noqa: N802


class NvmlInspector:
    """Inspects the node that this process runs on."""

    def __init__(
        self,
        *,
        node: NodeName,
        clock: Clock,
        nvml: Nvml | None = None,
        proc: Path = Path("/proc"),
        sys_tree: Path = Path("/sys"),
    ) -> None:
        """`nvml` None means pynvml, imported at the first inspection."""
        self._node = node
        self._clock = clock
        self._nvml = nvml
        self._proc = proc
        self._sys = sys_tree

    def inspect(self) -> NodeInspection:
        """Return what this node shows now.

        A GPU that cannot be read is left out and becomes a sentence in `failures`: half a reading would pass for a
        whole one. Raises SourceUnavailable if there is no NVML library, no driver, or no /proc.
        """
        nvml = self._nvml if self._nvml is not None else import_pynvml()
        boot_id, booted_at = self._read_boot()
        with _started(nvml, node=self._node):
            gpus, failures = _each_gpu(nvml, lambda _, handle: _inspect_gpu(nvml, handle))
        return NodeInspection(
            node=self._node,
            inspected_at=self._clock.now(),
            boot_id=boot_id,
            booted_at=booted_at,
            gpus=tuple(sorted(gpus, key=lambda each: each.gpu)),
            failures=tuple(failures),
            chassis_serial=self._read_chassis_serial(),
        )

    def _read_chassis_serial(self) -> str:
        """Return what is printed on the machine; empty if it does not tell, or only root may read it."""
        try:
            return (self._sys / "class/dmi/id/product_serial").read_text(errors="replace").strip()
        except OSError:
            return ""

    def _read_boot(self) -> tuple[str, datetime]:
        try:
            boot_id = (self._proc / "sys/kernel/random/boot_id").read_text().strip()
            stat_lines = (self._proc / "stat").read_text().splitlines()
        except OSError as exc:
            raise SourceUnavailable(f"{exc.filename} cannot be read ({exc.strerror}); is this Linux?") from exc
        seconds = next((line.split()[1] for line in stat_lines if line.startswith("btime ")), None)
        if not boot_id or seconds is None or not seconds.isdigit():
            raise SourceNonsense(f"{self._proc} has no boot id and boot time; expected boot_id and btime in stat")
        return boot_id, datetime.fromtimestamp(int(seconds), tz=UTC)


def to_json(inspection: NodeInspection) -> str:
    """Return the inspection as one JSON object on one line, as `resources.fleet.command_fleet` reads it."""
    return json.dumps(
        {
            "node": inspection.node,
            "inspected_at": inspection.inspected_at.isoformat(),
            "boot_id": inspection.boot_id,
            "chassis_serial": inspection.chassis_serial,
            "booted_at": inspection.booted_at.isoformat(),
            "gpus": [
                {
                    "pci_address": each.gpu,
                    "uuid": each.gpu_uuid,
                    "recovery_action": each.recovery_action.value,
                    "uncorrectable_ecc_count": each.uncorrectable_ecc_count,
                    "is_row_remap_pending": each.is_row_remap_pending,
                    "model": each.model,
                    "serial": each.serial,
                }
                for each in inspection.gpus
            ],
            "failures": list(inspection.failures),
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the inspection of this node on stdout; return 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m ops_pipelines.resources.nvml", description="Inspect this node.")
    parser.add_argument("--node", help="the node's name in the cluster (default: the host name up to its first dot)")
    given = parser.parse_args(arguments)
    try:
        node = parse_node_name(given.node or platform.node().split(".", 1)[0])
        inspection = NvmlInspector(node=node, clock=SystemClock()).inspect()
    except (SourceUnavailable, SourceNonsense, ValueError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{to_json(inspection)}\n")
    return 0


@contextmanager
def _started(nvml: Nvml, *, node: NodeName) -> Iterator[None]:
    """Hold NVML open. Raises SourceUnavailable where it cannot be started, or does not count the GPUs."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        raise SourceUnavailable(
            f"NVML on {node} cannot be started ({exc}); check that the NVIDIA driver is loaded (nvidia-smi)"
        ) from exc
    try:
        yield
    except nvml.NVMLError as exc:
        raise SourceUnavailable(f"NVML on {node} does not count the GPUs ({exc}); run nvidia-smi") from exc
    finally:
        nvml.nvmlShutdown()


def _each_gpu(nvml: Nvml, read: Callable[[int, object], Reading]) -> tuple[list[Reading], list[str]]:
    """Return what is read of each GPU, and a sentence for each that cannot be read."""
    found: list[Reading] = []
    failures: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(read(index, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError_GpuIsLost:
            failures.append(f"GPU {index} is lost: it fell off the bus or can no longer be reached")
        except (nvml.NVMLError, ValueError) as exc:
            failures.append(f"GPU {index} cannot be read: {exc}")
    return found, failures


def import_pynvml() -> Nvml:
    """Return pynvml; raise SourceUnavailable if it is not installed."""
    try:
        import pynvml
    except ImportError as exc:
        raise SourceUnavailable("the Python package nvidia-ml-py is not installed on this node") from exc
    return cast("Nvml", pynvml)


def _inspect_gpu(nvml: Nvml, handle: object) -> GpuInspection:
    """Return one GPU; raise NVMLError or ValueError if any part of it cannot be read."""
    return GpuInspection(
        gpu=parse_pci_address(text_of(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        gpu_uuid=GpuUuid(text_of(nvml.nvmlDeviceGetUUID(handle))),
        recovery_action=_read_recovery_action(nvml, handle),
        uncorrectable_ecc_count=_read_ecc(nvml, handle),
        is_row_remap_pending=_is_row_remap_pending(nvml, handle),
        model=_read_label(nvml, handle, nvml.nvmlDeviceGetName),
        serial=_read_label(nvml, handle, nvml.nvmlDeviceGetSerial),
    )


def _read_label(nvml: Nvml, handle: object, read: Callable[[object], str | bytes]) -> str:
    """Return what is printed on a GPU; empty if it does not tell, as those of workstations."""
    try:
        return text_of(read(handle)).strip()
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError:
        return ""


def _read_recovery_action(nvml: Nvml, handle: object) -> RecoveryAction:
    """Return what the driver asks for; NONE from a driver that cannot ask (before R565)."""
    answer = _ask_recovery_action(nvml, handle)
    if answer is None or answer.nvmlReturn in _NOT_OFFERED:
        return RecoveryAction.NONE
    if answer.nvmlReturn != _SUCCESS:
        raise ValueError(f"the recovery action is not reported (NVML error {answer.nvmlReturn})")
    number = int(answer.value.uiVal)
    if number not in _RECOVERY_ACTIONS:
        raise ValueError(f"the driver asks for recovery action {number}, which is not known here")
    return _RECOVERY_ACTIONS[number]


def _ask_recovery_action(nvml: Nvml, handle: object) -> NvmlField | None:
    field_id = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field_id is None:
        return None
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [field_id])
    return answer


def _read_ecc(nvml: Nvml, handle: object) -> int:
    """Return the volatile count of uncorrectable errors; 0 from a GPU that has no ECC or has it off."""
    try:
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE))
    except nvml.NVMLError_NotSupported:
        return 0


def _is_row_remap_pending(nvml: Nvml, handle: object) -> bool:
    """Return whether a bad row waits for a reset; False from a GPU that does not remap rows (before Ampere)."""
    try:
        _, _, pending, _ = nvml.nvmlDeviceGetRemappedRows(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(pending)


def text_of(value: str | bytes) -> str:
    """Return a text of NVML's, which older bindings give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_SM, _MEMORY = 1, 2
"""NVML_CLOCK_SM, NVML_CLOCK_MEM (nvml.h); so are the numbers below."""
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_SHUTDOWN, _SLOWDOWN = 0, 1
_TRANSMITTED, _RECEIVED = 0, 1
_GPU_SENSOR = 0

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
        with _started(nvml, node=self._node):
            driver = text_of(nvml.nvmlSystemGetDriverVersion())
            read, failures = _each_gpu(nvml, partial(_read_gpu, nvml, node=self._node, driver=driver))
        lines = [line for gpu_lines, _ in read for line in gpu_lines]
        notes = [*failures, *(note for _, gpu_notes in read for note in gpu_notes)]
        yield Page(
            kind=BodyKind.EXPOSITION,
            body="".join(f"{line}\n" for line in lines).encode(),
            source=f"nvml {self._node}",
            start=at,
            end=at,
            node=self._node,
            notes=tuple(notes),
        )


def _read_gpu(
    nvml: NvmlMeter, index: int, handle: object, *, node: NodeName, driver: str
) -> tuple[list[str], list[str]]:
    """Return the lines of one GPU, and what it did not tell. Raises NVMLError if it cannot be named, or is lost."""
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
    answer = _ask_recovery_action(nvml, handle)
    if answer is None or answer.nvmlReturn != _SUCCESS:
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


if __name__ == "__main__":
    raise SystemExit(main())
