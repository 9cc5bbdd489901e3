"""The NVML test: what the driver says of each GPU, read in a process of its own: a call into a sick driver may hang.

`python -m ops_pipelines.resources.node.nvml --node NAME` prints one JSON object and ends with 0, whatever it found;
`read_nvml` starts it and judges what it says. A missing quantity is what that GPU or driver does not offer.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, cast

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import NodeName, PciAddress, parse_node_name, parse_pci_address
from ops_pipelines.core.node_tests import Measurement, Serial, TestRun
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.commands import RunTool
from ops_pipelines.resources.fleet.documents import read_inspection
from ops_pipelines.resources.node.tool_tests import (
    Bench,
    NvmlReading,
    failed,
    is_not_startable,
    last_words,
    not_run,
    passed,
    unanswered,
)
from ops_pipelines.resources.nvml import NvmlInspector, NvmlMeter, import_pynvml, text_of, to_json

_NVML, _SMI = "nvml", "nvidia_smi"
_MODULE = "ops_pipelines.resources.node.nvml"
_LIBRARY_NOT_FOUND = 12
_MOST_LINKS = 36
"""NVML_NVLINK_MAX_LINKS (nvml.h)."""
_SLOWED = {
    0x08: "slowed by the hardware",
    0x20: "slowed by heat (software)",
    0x40: "slowed by heat (hardware)",
    0x80: "slowed by the power brake",
}
"""nvmlClocksEventReason*: what an idle, healthy GPU is not held down by. A power cap under load is no fault."""
_UNITS = {
    "ecc_uncorrectable": "count",
    "ecc_corrected": "count",
    "rows_remapped": "count",
    "pcie_width": "lanes",
    "pcie_generation": "generation",
    "nvlinks_active": "links",
    "nvlinks_inactive": "links",
    "temperature": "celsius",
}


class NvmlDetails(NvmlMeter, Protocol):
    """The part of pynvml (nvidia-ml-py) that this test reads beyond the inspection and the metrics."""

    def nvmlSystemGetNVMLVersion(self) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetVbiosVersion(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetNvLinkState(self, handle: object, link: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetPersistenceMode(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: object) -> Sequence[object]: ...  # noqa: N802


# -- in the process of its own -------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what NVML says of this node as one JSON object."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description="Read NVML for the node check.")
    parser.add_argument("--node", required=True)
    node = parse_node_name(parser.parse_args(arguments).node)
    sys.stdout.write(f"{json.dumps(read_all(node))}\n")
    return 0


def read_all(node: NodeName, nvml: NvmlDetails | None = None) -> dict[str, object]:
    """Return what NVML says; under `trouble` why it says nothing, and under `is_absent` whether it is not there."""
    try:
        nvml = nvml if nvml is not None else cast("NvmlDetails", import_pynvml())
        inspection = NvmlInspector(node=node, clock=SystemClock(), nvml=nvml).inspect()
    except (SourceUnavailable, SourceNonsense) as problem:
        code = getattr(problem.__cause__, "value", None)
        is_absent = code == _LIBRARY_NOT_FOUND or isinstance(problem.__cause__, ImportError)
        return {"trouble": str(problem), "is_absent": is_absent}
    nvml.nvmlInit()
    try:
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_read_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
            except (nvml.NVMLError, ValueError):  # the inspection reports it
                continue
        return {
            "inspection": json.loads(to_json(inspection)),
            "driver_version": text_of(nvml.nvmlSystemGetDriverVersion()),
            "library_version": text_of(nvml.nvmlSystemGetNVMLVersion()),
            "gpus": gpus,
        }
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: NvmlDetails, handle: object) -> dict[str, object]:
    readers: Mapping[str, Callable[[], object]] = {
        "firmware": lambda: text_of(nvml.nvmlDeviceGetVbiosVersion(handle)),
        "rows": lambda: list(nvml.nvmlDeviceGetRemappedRows(handle)),
        "ecc_uncorrectable": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        "ecc_corrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "clock_event_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        "slowdown_temperature": lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, 1),
        "persistence_mode": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "compute_process_count": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
    }
    told: dict[str, object] = {"pci_address": parse_pci_address(text_of(nvml.nvmlDeviceGetPciInfo(handle).busId))}
    for name, read in readers.items():
        try:
            told[name] = read()
        except (nvml.NVMLError, AttributeError):  # not offered by this GPU, or by this nvidia-ml-py
            continue
    links = list(_read_links(nvml, handle))
    if links:
        told["nvlinks_active"], told["nvlinks_inactive"] = sum(links), len(links) - sum(links)
    return told


def _read_links(nvml: NvmlDetails, handle: object) -> list[bool]:
    links = []
    for link in range(_MOST_LINKS):
        try:
            links.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except (nvml.NVMLError, AttributeError):  # this GPU has no such link
            continue
    return links


# -- in the check --------------------------------------------------------------------------------------------


def read_nvml(node: NodeName, run: RunTool, *, limit_seconds: float) -> NvmlReading:
    """Return what NVML says of this node, and whether that is well."""
    argv = (sys.executable, "-P", "-m", _MODULE, "--node", node)
    answer = run(argv, limit_seconds=limit_seconds)
    without = unanswered(_NVML, "the reading of NVML", answer, limit_seconds=limit_seconds)
    if without is not None:
        return NvmlReading(run=without, inspection=None)
    try:
        document = json.loads(answer.stdout)
        if "trouble" in document:
            judge = not_run if document["is_absent"] else failed
            return NvmlReading(run=judge(_NVML, str(document["trouble"])), inspection=None)
        return _judge(document)
    except (ValueError, KeyError, TypeError) as problem:
        said = f"the reading of NVML ended with {answer.returncode} ({problem!r}): {last_words(answer)}"
        return NvmlReading(run=not_run(_NVML, said), inspection=None)


def _judge(document: Mapping[str, object]) -> NvmlReading:
    inspected = cast("Mapping[str, object]", document["inspection"])
    inspected_at = datetime.fromisoformat(str(inspected["inspected_at"]))
    inspection = read_inspection(json.dumps(inspected), inspected_at=inspected_at)
    details = cast("Sequence[Mapping[str, object]]", document["gpus"])
    faults = list(inspection.failures)
    measured: list[Measurement] = []
    most_links = max((_number(each, "nvlinks_active") or 0.0 for each in details), default=0.0)
    for gpu in inspection.gpus:
        told = next((each for each in details if each["pci_address"] == gpu.gpu), {})
        faults += [f"GPU {gpu.gpu} {fault}" for fault in _faults_of(gpu, told)]
        links = _number(told, "nvlinks_active")
        if links is not None and links < most_links:
            # How many are up by design differs by board: a card without a bridge has none. Neighbours have as many.
            faults.append(f"GPU {gpu.gpu} has {links:.0f} NVLinks up, its neighbours {most_links:.0f}")
        measured += _measure(gpu.gpu, told)
    if not inspection.gpus and not faults:
        faults.append("NVML counts no GPU")
    driver, library = str(document["driver_version"]), str(document["library_version"]).split(".", 1)[-1]
    said = f"{len(inspection.gpus)} GPUs, driver {driver}"
    return NvmlReading(
        run=failed(_NVML, "; ".join(faults), measured) if faults else passed(_NVML, said, measured),
        inspection=inspection,
        driver_version=driver,
        library_version=library,
        gpu_models=tuple(sorted({gpu.model for gpu in inspection.gpus if gpu.model})),
        vbios_versions=tuple(sorted({str(each["firmware"]) for each in details if each.get("firmware")})),
        serials=_serials(inspection, details),
        is_persistent=tuple(each["persistence_mode"] == 1 for each in details if "persistence_mode" in each),
        compute_process_count=int(sum(_number(each, "compute_process_count") or 0.0 for each in details)),
    )


def _faults_of(gpu: GpuInspection, told: Mapping[str, object]) -> list[str]:
    faults = []
    if gpu.recovery_action is not RecoveryAction.NONE:
        faults.append(f"asks for {gpu.recovery_action.name.lower()}")
    if gpu.uncorrectable_ecc_count:
        faults.append(f"has {gpu.uncorrectable_ecc_count} uncorrectable ECC errors")
    if gpu.is_row_remap_pending:
        faults.append("waits for a reset to remap a row")
    rows = told.get("rows")
    if isinstance(rows, list) and len(rows) == 4 and rows[3]:
        faults.append("could not remap a row")
    width, widest = _number(told, "pcie_width"), _number(told, "pcie_width_max")
    if width is not None and widest is not None and width < widest:
        faults.append(f"has {width:.0f} of {widest:.0f} PCIe lanes")
    reasons = _number(told, "clock_event_reasons")
    faults += [words for bit, words in _SLOWED.items() if reasons is not None and int(reasons) & bit]
    heat, limit = _number(told, "temperature"), _number(told, "slowdown_temperature")
    if heat is not None and limit is not None and heat >= limit:
        faults.append(f"is at {heat:.0f} °C, and slows down at {limit:.0f} °C")
    return faults


def _measure(gpu: PciAddress, told: Mapping[str, object]) -> list[Measurement]:
    rows = told.get("rows")
    numbers = dict(told)
    if isinstance(rows, list) and len(rows) == 4:
        numbers["rows_remapped"] = rows[0] + rows[1]
    return [
        Measurement(name=name, value=value, unit=unit, gpu=gpu)
        for name, unit in _UNITS.items()
        if (value := _number(numbers, name)) is not None
    ]


def _number(told: Mapping[str, object], name: str) -> float | None:
    value = told.get(name)
    return float(value) if isinstance(value, int | float) else None


def _serials(inspection: NodeInspection, details: Sequence[Mapping[str, object]]) -> tuple[Serial, ...]:
    firmware = {str(each["pci_address"]): str(each.get("firmware", "")) for each in details}
    chassis = [Serial(part="chassis", serial=inspection.chassis_serial)] if inspection.chassis_serial else []
    gpus = [
        Serial(part=f"gpu {gpu.gpu}", serial=gpu.serial, model=gpu.model, firmware=firmware.get(gpu.gpu, ""))
        for gpu in inspection.gpus
        if gpu.serial
    ]
    return (*chassis, *gpus)


def nvml_test(bench: Bench, limit_seconds: float) -> TestRun:
    """Return what came of reading NVML: it was read before the other tests began, which need it."""
    return bench.nvml.run


def nvidia_smi(bench: Bench, limit_seconds: float) -> TestRun:
    """Ask nvidia-smi for its GPUs and its driver, and compare both with NVML's."""
    argv = ("nvidia-smi", "--query-gpu=pci.bus_id,driver_version", "--format=csv,noheader")
    answer = bench.run(argv, limit_seconds=limit_seconds)
    without = unanswered(_SMI, argv[0], answer, limit_seconds=limit_seconds)
    if without is not None:
        return without
    if answer.returncode != 0:
        judge = not_run if is_not_startable(answer) else failed
        return judge(_SMI, f"nvidia-smi ended with {answer.returncode}: {last_words(answer)}")
    rows = [line.split(",") for line in answer.stdout.splitlines() if line.strip()]
    try:
        told = {parse_pci_address(row[0]): row[1].strip() for row in rows}
    except (ValueError, IndexError):
        return not_run(_SMI, f"nvidia-smi prints no list of GPUs: {last_words(answer)}")
    if bench.nvml.inspection is None:
        return not_run(_SMI, f"nvidia-smi reports {len(told)} GPUs, and NVML reports none to compare them with")
    faults = [f"driver {version}, NVML says {bench.nvml.driver_version}" for version in sorted(set(told.values()))
              if version != bench.nvml.driver_version]  # fmt: skip
    by_nvml = {gpu.gpu for gpu in bench.nvml.inspection.gpus}
    if by_nvml != set(told):
        odd = ", ".join(sorted(by_nvml ^ set(told)))
        faults.append(f"nvidia-smi and NVML do not report the same GPUs: only one of them has {odd}")
    if faults:
        return failed(_SMI, "; ".join(faults))
    return passed(_SMI, f"{len(told)} GPUs, driver {bench.nvml.driver_version}")


if __name__ == "__main__":
    raise SystemExit(main())
