"""How the sections of cluster.yaml that name systems become values of `cluster_config`: whom to ask, where to keep.

Scheduler, telemetry, logs, accounting, the lake, the ledger, the versions that ought to run: the keys of each, their
bounds, and what goes together. Durations are numbers in the file, with the unit in the key, and `timedelta` from here
on; relative paths count from the directory of the file. The other sections are `site_sections`, what sections say
together is `cluster_file`'s.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field
from pydantic import ValidationInfo as Reading
from pydantic_core import PydanticCustomError

from ops_pipelines.core.identity import NodeName
from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Kinds,
    Seconds,
    Section,
    dict_of,
    keys_of,
    list_of,
    needed,
    nullable,
    optional,
    section_of,
)
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ExporterTargets,
    JobLogsConfig,
    JobLogsKind,
    LakeConfig,
    LedgerConfig,
    LogsConfig,
    LogsKind,
    LokiSettings,
    SchedulerConfig,
    TelemetryConfig,
)
from ops_pipelines.resources.config.yaml_file import (
    AnyPath,
    ExistingFile,
    HostList,
    Name,
    PositiveSeconds,
    Text,
    Zone,
    path_of,
)

_DRIVER = "driver"
"""`observe.detectors.node.DRIVER`, which is not imported here: it brings numpy to every start."""
_Url = Annotated[str, Field(pattern=r"^https?://[^@\s]+$"), AfterValidator(lambda url: url.rstrip("/"))]
_PathText = Annotated[AnyPath, AfterValidator(str)]
_Step = Annotated[int, Field(ge=1, le=3600)]
_SampledStep = Annotated[int, Field(ge=1, le=60)]
"""Samples carry the grid time, up to a step before they were taken; policy calls them stale after 120 s by default."""
SETTINGS: Mapping[object, object] = {Path: ExistingFile, timedelta: PositiveSeconds}
"""What is read as these types unless it is stated otherwise: files with secrets and certificates, limits."""


def one_secret(stated: Mapping[str, object]) -> Iterator[Fault]:
    if stated.get("basic_auth_user") is not None and stated.get("bearer_token_file") is not None:
        yield ("bearer_token_file",), "give a bearer token or basic auth, not both"


def _one_login(stated: Mapping[str, object]) -> Iterator[Fault]:
    if (stated.get("basic_auth_user") is None) is not (stated.get("basic_auth_password_file") is None):
        yield ("basic_auth_user",), "basic_auth_user and basic_auth_password_file go together"
    yield from one_secret(stated)


# -- scheduler --

SCHEDULERS = Kinds(
    {
        "simulator": section_of(SchedulerConfig, only=("kind",), shapes={"kind": Literal["simulator"]}),
        "slurm": section_of(
            SchedulerConfig,
            shapes={
                "kind": Literal["slurm"],
                "slurm_conf": ExistingFile,
                "guard_status": list_of(Text),
                "checkpoint_roots": list_of(AnyPath),
            },
        ),
    }
)

# -- telemetry --


def _exporter_targets(*, url: str, nodes: tuple[NodeName, ...] | None = None) -> ExporterTargets:
    if ("{node}" in url) is not (nodes is not None):
        raise ValueError("{node} in the url and a list of nodes go together")
    return ExporterTargets(url=url, nodes=nodes or ())


_TARGETS = Section(
    _exporter_targets,
    needed(url=Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]) | nullable(nodes=HostList),
)
TELEMETRY = Kinds(
    {
        "simulator": section_of(TelemetryConfig, only=("kind",), shapes={"kind": Literal["simulator"]}),
        "prometheus": Section(
            TelemetryConfig,
            keys_of(
                TelemetryConfig,
                shapes={
                    "kind": Literal["prometheus"],
                    "url": _Url,
                    "step": _Step,
                    "look_back": _Step,
                    "basic_auth_user": Text,
                    "tenant": Name,
                },
                by_type=SETTINGS,
                without=("targets", "worker_count", "node"),
                required=("url",),
            ),
            rule=_one_login,
        ),
        "exporters": section_of(
            partial(TelemetryConfig, timeout=timedelta(seconds=5)),
            only=("kind", "targets", "step", "timeout", "worker_count", "bearer_token_file", "ca_file"),
            shapes={
                "kind": Literal["exporters"],
                "targets": list_of(_TARGETS, least=1),
                "step": _SampledStep,
                "worker_count": Annotated[int, Field(ge=1, le=256)],
            },
            by_type=SETTINGS,
            required=("targets",),
        ),
        "nvml": section_of(
            TelemetryConfig,
            only=("kind", "node", "step"),
            shapes={"kind": Literal["nvml"], "node": Name, "step": _SampledStep},
            required=("node",),
        ),
    }
)

# -- logs of kernels and of jobs --


def _loki_logs(*, kind: str, **stated: object) -> LogsConfig:
    return LogsConfig(kind=LogsKind(kind), loki=_loki(**stated))


def _loki_job_logs(*, kind: str, **stated: object) -> JobLogsConfig:
    return JobLogsConfig(kind=JobLogsKind(kind), loki=_loki(**stated))


def _loki(**stated: object) -> LokiSettings:
    """Return how one Loki is asked; of what is null, as usual."""
    given = {name: value for name, value in stated.items() if value is not None}
    return LokiSettings(**given)  # type: ignore[arg-type]  # each was read as its field


def _names_job(path: str) -> str:
    if "%j" not in path:
        raise ValueError(f"{path!r} says nowhere which job wrote it; put %j for its id")
    return path


_LOKI = {
    **needed(kind=Literal["loki"]),
    **keys_of(
        LokiSettings,
        names={"look_back": "look_back_hours", "window": "window_hours"},
        shapes={
            "url": _Url,
            "query": Text,
            "node_labels": list[Text] | None,
            "job_label": Text,
            "tenant": Name,
            "look_back": Annotated[int, Field(ge=1, le=8784)],
            "window": Annotated[int, Field(ge=1, le=720)],
            "settle": Seconds,
            "max_page_lines": Annotated[int, Field(ge=1, le=100_000)],
        },
        by_type=SETTINGS,
    ),
}
LOGS = Kinds(
    {
        "simulator": section_of(LogsConfig, only=("kind",), shapes={"kind": Literal["simulator"]}),
        "files": section_of(
            partial(LogsConfig, timezone=ZoneInfo("UTC")),
            only=("kind", "paths", "node_name_source", "timezone"),
            shapes={"kind": Literal["files"], "paths": list_of(_PathText, least=1), "timezone": Zone},
            required=("paths",),
        ),
        "journald": section_of(
            LogsConfig,
            only=("kind", "journal_directory"),
            shapes={"kind": Literal["journald"], "journal_directory": AnyPath},
        ),
        "loki": Section(_loki_logs, _LOKI, rule=_one_login),
    }
)
_JobPath = Annotated[Text, AfterValidator(_names_job), AfterValidator(path_of), AfterValidator(str)]
JOB_LOGS = Kinds(
    {
        "files": section_of(
            JobLogsConfig,
            only=("kind", "paths"),
            shapes={
                "kind": Literal["files"],
                "paths": list_of(_JobPath, least=1),
            },
            required=("kind", "paths"),
        ),
        "loki": Section(_loki_job_logs, _LOKI, rule=_one_login),
        "none": section_of(JobLogsConfig, only=("kind",), shapes={"kind": Literal["none"]}, required=("kind",)),
    }
)


def _accounting(*, kind: str) -> AccountingKind:
    return AccountingKind(kind)


ACCOUNTING = Kinds({each.value: Section(_accounting, needed(kind=Literal[each.value])) for each in AccountingKind})

# -- the lake, the ledger, the versions that ought to run --


def _lake_url(url: str, reading: Reading) -> str:
    return url if "://" in url else str(path_of(url, reading))


def _parts_an_hour(step_seconds: int) -> int:
    if 3600 % step_seconds:
        raise PydanticCustomError("step", "it must part an hour evenly, as 15 does")
    return step_seconds


def _lake(*, url: str | None = None, **stated: object) -> LakeConfig:
    """Return where the lake is, "" where that is not stated; a coarser copy deleted before the finer one is a fault."""
    lake = LakeConfig(url=url or "", **stated)  # type: ignore[arg-type]  # each was read as its field
    known = [days for days in (lake.raw_days, lake.five_minute_days, lake.hourly_days) if days is not None]
    if known != sorted(known):
        raise ValueError("raw_days, five_minute_days and hourly_days must not fall in this order")
    return lake


def _ledger(*, url: str | None = None, url_file: Path | None = None) -> LedgerConfig | None:
    """Return where the ledger is kept; None: nothing is stated of it."""
    key, text = "url", url
    if url_file is not None:
        key = "url_file"
        try:
            text = url_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            sentence = f"cannot be read ({type(problem).__name__}); check its permissions"
            raise FaultsFound(((key,), sentence)) from problem
    if text is None:
        return None
    if "?" in text:
        from ops_pipelines.resources.ledger.database import has_secret_in_query

        if has_secret_in_query(text):
            remedy = "write it as user:password@host, or leave it to passfile or PGPASSWORD"
            sentence = f"the URL has a password in its query, where errors would show it; {remedy}"
            raise FaultsFound(((key,), sentence))
    return LedgerConfig(url=text)


def _one_url(stated: Mapping[str, object]) -> Iterator[Fault]:
    if stated.get("url") is not None and stated.get("url_file") is not None:
        yield ("url_file",), "give url or url_file, not both"


def _declared(*, driver: str | None = None, firmware: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the declared versions: the driver's under `driver`, of firmware under the model of the part."""
    if _DRIVER in (firmware or {}):
        raise FaultsFound((("firmware", _DRIVER), "the driver belongs beside firmware, as release.driver"))
    return dict(firmware or {}) | ({} if driver is None else {_DRIVER: driver})


_Days = Annotated[int, Field(ge=1, le=36_600)]
LAKE = Section(
    _lake,
    keys_of(
        partial(LakeConfig, url=""),
        shapes={
            "url": Annotated[Text, AfterValidator(_lake_url)] | None,
            "step": Annotated[_Step, AfterValidator(_parts_an_hour)],
        },
        by_type={int: _Days},
    ),
)
LEDGER = Section(
    _ledger,
    nullable(url=Text, url_file=ExistingFile),
    rule=_one_url,
)
DECLARED = Section(
    _declared,
    nullable(driver=Text) | optional(firmware=dict_of(Text, Text)),
)
"""The section `release`."""
