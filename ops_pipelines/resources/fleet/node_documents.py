"""A check of a node as one JSON object: written on the node, read where the cluster is run.

It extends what `inspect` prints (`node_commands`): the same keys for the same things, and

    {"key": "…32 digits…", "suite": "memory", "started_at": "…Z", "finished_at": "…Z", "gpu_models": ["NVIDIA H200"],
     "tests": [{"test": "nccl_loopback", "result": "passed", "said": "…", "seconds": 31.2,
                "measurements": [{"name": "busbw", "value": 479.1, "unit": "GB/s", "gpu": null}]}],
     "serials": [{"part": "gpu 0000:1b:00", "serial": "…", "model": "…", "firmware": "…"}]}

Without `boot_id` and `gpus` NVML could not be read. Reading is strict: a document that makes no sense is not believed.
"""

import json
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from ops_pipelines.core.identity import ActionKey, GpuUuid, NodeName, parse_pci_address
from ops_pipelines.core.node_tests import Measurement, NodeCheck, Serial, TestResult, TestRun, parse_test_name
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.resources.nvml import to_json

_LONGEST_DOCUMENT = 2**20
"""Characters: a node of 16 GPUs fills a fiftieth of it."""
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Text = Annotated[str, Field(max_length=4000)]
_Count = Annotated[NonNegativeInt, Field(lt=2**63)]


def check_to_json(check: NodeCheck) -> str:
    """Return the check as one JSON object on one line."""
    inspected = json.loads(to_json(check.inspection)) if check.inspection is not None else {}
    return json.dumps(
        {
            **inspected,
            "node": check.node,
            "key": check.key,
            "suite": check.suite,
            "started_at": check.started_at.isoformat(),
            "finished_at": check.finished_at.isoformat(),
            "gpu_models": list(check.gpu_models),
            "tests": [_test_to_dict(run) for run in check.tests],
            "serials": [
                {"part": each.part, "serial": each.serial, "model": each.model, "firmware": each.firmware}
                for each in check.serials
            ],
        }
    )


def _test_to_dict(run: TestRun) -> dict[str, object]:
    return {
        "test": run.test,
        "result": run.result.value,
        "said": run.said,
        "seconds": run.seconds,
        "is_absent": run.is_absent,
        "measurements": [
            {"name": each.name, "value": each.value, "unit": each.unit, "gpu": each.gpu} for each in run.measurements
        ],
    }


class GpuDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    pci_address: _Name
    uuid: _Name
    recovery_action: int
    uncorrectable_ecc_count: _Count
    is_row_remap_pending: bool
    model: _Text = ""
    serial: _Text = ""


class NodeDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    node: _Name
    boot_id: _Name
    booted_at: AwareDatetime
    gpus: list[GpuDocument] = Field(max_length=256)
    failures: list[_Text] = Field(max_length=256)
    chassis_serial: _Text = ""


class _MeasurementDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    name: _Name
    value: FiniteFloat
    unit: _Name
    gpu: _Name | None = None


class _TestDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    test: _Name
    result: _Name
    said: _Text
    seconds: FiniteFloat = Field(default=0.0, ge=0.0)
    measurements: list[_MeasurementDocument] = Field(default_factory=list, max_length=4096)
    is_absent: bool = False


class _SerialDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    part: _Name
    serial: _Text
    model: _Text = ""
    firmware: _Text = ""


class _CheckDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    node: _Text
    key: _Text
    suite: _Text
    started_at: AwareDatetime
    finished_at: AwareDatetime
    tests: list[_TestDocument] = Field(max_length=64)
    gpu_models: list[_Text] = Field(default_factory=list, max_length=256)
    serials: list[_SerialDocument] = Field(default_factory=list, max_length=512)
    boot_id: _Name | None = None
    inspected_at: AwareDatetime | None = None


def parse_inspection(text: str) -> NodeDocument:
    """Return an inspection as it was printed; raise ValueError if it makes no sense."""
    return NodeDocument.model_validate_json(_bounded(text))


def _bounded(text: str) -> str:
    """Return a document that is not too long to be read; raise ValueError for others."""
    if len(text) > _LONGEST_DOCUMENT:
        raise ValueError(f"it has {len(text)} characters; expected at most {_LONGEST_DOCUMENT}")
    return text


def gpus_of(document: NodeDocument) -> tuple[GpuInspection, ...]:
    """Return the GPUs of an inspection; raise ValueError for an address or an action that is not known."""
    gpus = tuple(
        GpuInspection(
            gpu=parse_pci_address(each.pci_address),
            gpu_uuid=GpuUuid(each.uuid),
            recovery_action=RecoveryAction(each.recovery_action),
            uncorrectable_ecc_count=each.uncorrectable_ecc_count,
            is_row_remap_pending=each.is_row_remap_pending,
            model=each.model,
            serial=each.serial,
        )
        for each in document.gpus
    )
    if len({gpu.gpu for gpu in gpus}) != len(gpus):
        raise ValueError("it lists a GPU twice")
    return gpus


def check_from_json(text: str, *, node: NodeName, key: ActionKey) -> NodeCheck:
    """Return the check of `node` under `key`; raise ValueError if it is another's, or makes no sense."""
    try:
        document = _CheckDocument.model_validate_json(_bounded(text))
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(f"it is no check: {where}: {first['msg']}") from problem
    if (document.node, document.key) != (node, key):
        raise ValueError(f"it is of {document.node[:80]!r} under {document.key[:80]!r}; check where the command goes")
    if document.finished_at < document.started_at:
        raise ValueError("it ended before it began")
    tests = tuple(_test_of(each) for each in document.tests)
    if len({run.test for run in tests}) != len(tests):
        raise ValueError("it lists a test twice")
    return NodeCheck(
        key=key,
        node=node,
        suite=document.suite,
        started_at=document.started_at,
        finished_at=document.finished_at,
        tests=tests,
        gpu_models=tuple(document.gpu_models),
        serials=tuple(
            Serial(part=each.part, serial=each.serial, model=each.model, firmware=each.firmware)
            for each in document.serials
        ),
        inspection=_inspection_of(text, document, node) if document.boot_id is not None else None,
    )


def _test_of(document: _TestDocument) -> TestRun:
    return TestRun(
        test=parse_test_name(document.test),
        result=TestResult(document.result),
        said=document.said,
        seconds=document.seconds,
        is_absent=document.is_absent,
        measurements=tuple(
            Measurement(
                name=each.name,
                value=each.value,
                unit=each.unit,
                gpu=None if each.gpu is None else parse_pci_address(each.gpu),
            )
            for each in document.measurements
        ),
    )


def _inspection_of(text: str, document: _CheckDocument, node: NodeName) -> NodeInspection:
    told = parse_inspection(text)
    return NodeInspection(
        node=node,
        inspected_at=document.inspected_at or document.finished_at,
        boot_id=told.boot_id,
        booted_at=told.booted_at,
        gpus=gpus_of(told),
        failures=tuple(told.failures),
        chassis_serial=told.chassis_serial,
    )
