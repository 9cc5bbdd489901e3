"""What NVML and the kernel say of this node: the node check, `python -m ops_pipelines.resources.nvml`.

Looks and reports; changes nothing. What an inspection proves is `remediate.verification`; who asks for it is the
fleet.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.identity import GpuUuid, NodeName, parse_node_name, parse_pci_address
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable

_UNCORRECTED, _VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC (nvml.h)."""
_SUCCESS = 0
_RECOVERY_ACTIONS = {action.value: action for action in RecoveryAction}
"""Newer drivers know two more (6 bus reset, 7 system reboot; nvidia-ml-py 13): a GPU that asks for one is left out."""


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
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as exc:
            raise SourceUnavailable(
                f"NVML on {self._node} cannot be started ({exc}); check that the NVIDIA driver is loaded (nvidia-smi)"
            ) from exc
        gpus: list[GpuInspection] = []
        failures: list[str] = []
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    gpus.append(_inspect_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
                except nvml.NVMLError_GpuIsLost:
                    failures.append(f"GPU {index} is lost: it fell off the bus or can no longer be reached")
                except (nvml.NVMLError, ValueError) as exc:
                    failures.append(f"GPU {index} cannot be read: {exc}")
        except nvml.NVMLError as exc:
            raise SourceUnavailable(f"NVML on {self._node} does not count the GPUs ({exc}); run nvidia-smi") from exc
        finally:
            nvml.nvmlShutdown()
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
            raise SourceNonsense(f"{self._proc} tells no boot id and boot time; expected boot_id and btime in stat")
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
    field_id = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field_id is None:
        return RecoveryAction.NONE
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [field_id])
    if answer.nvmlReturn != _SUCCESS:
        if answer.nvmlReturn in _NOT_OFFERED:
            return RecoveryAction.NONE
        raise ValueError(f"the recovery action is not told (NVML error {answer.nvmlReturn})")
    number = int(answer.value.uiVal)
    if number not in _RECOVERY_ACTIONS:
        raise ValueError(f"the driver asks for recovery action {number}, which is not known here")
    return _RECOVERY_ACTIONS[number]


_NOT_OFFERED = frozenset({2, 3})
"""NVML_ERROR_INVALID_ARGUMENT (the driver does not know the field) and NVML_ERROR_NOT_SUPPORTED."""


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
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    raise SystemExit(main())
