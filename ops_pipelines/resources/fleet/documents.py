"""What goes to a node and what comes back, as JSON: checks of a node, orders to install, reports, versions.

Written on the node and read where the cluster is run, or the other way round: so this stays light, and knows neither
how a document travels (`command_fleet`) nor what is done about it. Reading is strict: a document that makes no sense is
not believed.

A check extends what `inspect` prints (`command_fleet`): the same keys for the same things, and

    {"key": "…32 digits…", "suite": "memory", "started_at": "…Z", "finished_at": "…Z", "gpu_models": ["NVIDIA H200"],
     "tests": [{"test": "nccl_loopback", "result": "passed", "said": "…", "seconds": 31.2,
                "measurements": [{"name": "busbw", "value": 479.1, "unit": "GB/s", "gpu": null}]}],
     "serials": [{"part": "gpu 0000:1b:00", "serial": "…", "model": "…", "firmware": "…"}]}

Without `boot_id` and `gpus` NVML could not be read. An installation:

    order     base64url of {"node": "gpu003", "key": "…32 digits…", "direction": "forward", "changes": [{"component":
              "driver", "version": "580.126.20", "words": ["apt-get", "install", "cuda-drivers={version}"],
              "artifact": {"name": "…", "sha256": "…", "location": "…"} or null}]}
    report    {"node": …, "key": …, "state": "running", "said": "…", "progress_ratio": 0.5, "changed_at": "…Z"}
    versions  {"node": "gpu003", "driver": "580.126.20", "kernel": "6.8.0-1013-nvidia"}; `node` may be left out

A word of base64url is safe in any shell on its way.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from ops_pipelines.core.identity import ActionKey, GpuUuid, NodeName, parse_node_name, parse_pci_address
from ops_pipelines.core.node_tests import (
    Measurement,
    NodeCheck,
    Serial,
    TestResult,
    TestRun,
    parse_check_key,
    parse_test_name,
)
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.core.release import Artifact, Component
from ops_pipelines.core.rollout import Direction, InstallReport, InstallState
from ops_pipelines.resources.nvml import to_json

# -- a check --


_LONGEST_CHECK = 2**20
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


class _GpuDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    pci_address: _Name
    uuid: _Name
    recovery_action: int
    uncorrectable_ecc_count: _Count
    is_row_remap_pending: bool
    model: _Text = ""
    serial: _Text = ""


class _InspectionDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    node: _Name
    boot_id: _Name
    booted_at: AwareDatetime
    gpus: list[_GpuDocument] = Field(max_length=256)
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


def read_inspection(text: str, *, inspected_at: datetime) -> NodeInspection:
    """Return an inspection as it was printed; raise ValueError if it makes no sense."""
    document = _InspectionDocument.model_validate_json(_bounded(text, most=_LONGEST_CHECK))
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
    return NodeInspection(
        node=NodeName(document.node),
        inspected_at=inspected_at,
        boot_id=document.boot_id,
        booted_at=document.booted_at,
        gpus=gpus,
        failures=tuple(document.failures),
        chassis_serial=document.chassis_serial,
    )


def _bounded(text: str, *, most: int) -> str:
    """Return a document that is not too long to be read; raise ValueError for others."""
    if len(text) > most:
        raise ValueError(f"it has {len(text)} characters; expected at most {most}")
    return text


def check_from_json(text: str, *, node: NodeName, key: ActionKey) -> NodeCheck:
    """Return the check of `node` under `key`; raise ValueError if it is another's, or makes no sense."""
    try:
        document = _CheckDocument.model_validate_json(_bounded(text, most=_LONGEST_CHECK))
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
        inspection=None
        if document.boot_id is None
        else read_inspection(text, inspected_at=document.inspected_at or document.finished_at),
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


# -- an installation --


MOST_ORDER_CHARACTERS = 96 * 1024
"""Linux takes 128 KiB in one word of a command (MAX_ARG_STRLEN, linux/binfmts.h)."""
_LONGEST_DOCUMENT = 2**18
_LONGEST_SAID = 600
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]{0,63}")
"""As releases write versions: what else a node says is none."""
_ORDER = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainChange:
    """One component on its way to one version: the words of its direction, not filled in yet."""

    component: Component
    version: str
    words: tuple[str, ...]
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """An installation as it is reported to who carries it out."""

    node: NodeName
    key: ActionKey
    direction: Direction
    changes: tuple[PlainChange, ...]


class _ArtifactDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: Annotated[str, Field(max_length=200)]
    sha256: str
    location: Annotated[str, Field(max_length=4096)]


class _ChangeDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    component: str
    version: str
    words: Annotated[list[Annotated[str, Field(max_length=8192)]], Field(min_length=1, max_length=256)]
    artifact: _ArtifactDocument | None


class _OrderDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    node: str
    key: str
    direction: Literal["forward", "back"]
    changes: Annotated[list[_ChangeDocument], Field(min_length=1, max_length=64)]


class _ReportDocument(BaseModel):
    model_config = ConfigDict(strict=True)

    node: str
    key: str
    state: Literal["running", "installed", "failed"]
    said: Annotated[str, Field(max_length=4000)]
    progress_ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    changed_at: AwareDatetime | None = None


def order_to_word(order: PlainOrder) -> str:
    """Return the order as one word of a command; raise ValueError if it is too long for one."""
    text = json.dumps(order_to_dict(order), separators=(",", ":"))
    word = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    if len(word) > MOST_ORDER_CHARACTERS:
        raise ValueError(f"it has {len(word)} characters as a word of a command, at most {MOST_ORDER_CHARACTERS} fit")
    return word


def order_to_dict(order: PlainOrder) -> dict[str, object]:
    return {
        "node": order.node,
        "key": order.key,
        "direction": order.direction.value,
        "changes": [
            {
                "component": change.component.value,
                "version": change.version,
                "words": list(change.words),
                "artifact": None
                if change.artifact is None
                else {
                    "name": change.artifact.name,
                    "sha256": change.artifact.sha256,
                    "location": change.artifact.location,
                },
            }
            for change in order.changes
        ],
    }


def order_from_word(word: str) -> PlainOrder:
    """Return the order of a word; raise ValueError if it is none."""
    if len(word) > MOST_ORDER_CHARACTERS or not _ORDER.fullmatch(word):
        raise ValueError(f"{word[:80]!r} is no order; expected base64url")
    try:
        text = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    except binascii.Error as problem:
        raise ValueError(f"{word[:80]!r} is no order: {problem}") from problem
    return order_from_json(text)


def order_from_json(text: str | bytes) -> PlainOrder:
    """Return the order that a document says; raise ValueError if it makes no sense (PolicyError of a bad hash too)."""
    try:
        document = _OrderDocument.model_validate_json(text)
    except ValidationError as problem:
        raise ValueError(f"it is no order: {_first(problem)}") from problem
    return PlainOrder(
        node=parse_node_name(document.node),
        key=parse_check_key(document.key),
        direction=Direction(document.direction),
        changes=tuple(
            PlainChange(
                component=Component(each.component),
                version=parse_version(each.version),
                words=tuple(each.words),
                artifact=None
                if each.artifact is None
                else Artifact(name=each.artifact.name, sha256=each.artifact.sha256, location=each.artifact.location),
            )
            for each in document.changes
        ),
    )


def report_to_json(report: InstallReport) -> str:
    """Return a report as one JSON object on one line."""
    return json.dumps(
        {
            "node": report.node,
            "key": report.key,
            "state": report.state.value,
            "said": report.said[:_LONGEST_SAID],
            "progress_ratio": report.progress_ratio,
            "changed_at": None if report.changed_at is None else report.changed_at.isoformat(),
        }
    )


def report_from_json(text: str, *, node: NodeName, key: ActionKey) -> InstallReport:
    """Return the report of `node` under `key`; raise ValueError if it is another's, or makes no sense."""
    try:
        document = _ReportDocument.model_validate_json(_bounded(text, most=_LONGEST_DOCUMENT))
    except ValidationError as problem:
        raise ValueError(f"it is no report: {_first(problem)}") from problem
    if (document.node, document.key) != (node, key):
        raise ValueError(f"it is of {document.node[:80]!r} under {document.key[:80]!r}; check where the command goes")
    return InstallReport(
        key=key,
        node=node,
        state=InstallState(document.state),
        said=document.said[:_LONGEST_SAID],
        progress_ratio=document.progress_ratio,
        changed_at=document.changed_at,
    )


def versions_to_json(versions: Mapping[Component, str], *, node: NodeName) -> str:
    return json.dumps({"node": node, **{component.value: version for component, version in versions.items()}})


def versions_from_json(text: str, *, node: NodeName) -> Mapping[Component, str]:
    """Return the versions that a node reported; raise ValueError if the document makes no sense, or is another node's.

    Keys that are no component are passed over: a site may tell more. A version that is none spoils the whole.
    """
    told = json.loads(_bounded(text, most=_LONGEST_DOCUMENT), object_pairs_hook=_once)
    if not isinstance(told, dict):
        raise ValueError("it is no JSON object")
    if told.get("node", node) != node:
        raise ValueError(f"it is of {str(told['node'])[:80]!r}; check where the command goes")
    known = {component.value: component for component in Component}
    return {known[name]: parse_version(version) for name, version in told.items() if name in known}


def parse_version(text: object) -> str:
    """Return `text` as a version; raise ValueError on all else."""
    if not isinstance(text, str) or not _VERSION.fullmatch(text):
        raise ValueError(f"{str(text)[:80]!r} is no version; expected at most 64 letters, digits and . + : ~ _ -")
    return text


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    told = dict(pairs)
    if len(told) != len(pairs):
        raise ValueError("it names a component twice")
    return told


def _first(problem: ValidationError) -> str:
    first = problem.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the whole'}: {first['msg']}"
