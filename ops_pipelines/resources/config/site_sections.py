"""How the sections of cluster.yaml about the site itself become values: machines, people and money.

Racks, the fleet, messages, the web process, silences, promises to teams, their limits, prices: the keys of each, their
bounds, and what goes together. Whom else the program asks is `system_sections`, what sections say together is
`cluster_file`'s.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.money import Amount
from ops_pipelines.core.notes import TellRules
from ops_pipelines.core.objectives import Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Kinds,
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
    AlertmanagerSettings,
    AnsibleSettings,
    Bought,
    FleetConfig,
    FleetKind,
    LimitSettings,
    NotifierConfig,
    NotifierKind,
    RebootBy,
    ServeSettings,
    WebhookSettings,
)
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, RedfishSettings
from ops_pipelines.resources.config.system_sections import SETTINGS, one_secret
from ops_pipelines.resources.config.yaml_file import (
    CLOCK,
    Account,
    AnyPath,
    ClockTime,
    Day,
    ExactAmount,
    ExactCents,
    GpuTypeName,
    HostList,
    HttpUrl,
    Name,
    Share,
    Text,
    WholeCents,
    Zone,
)
from ops_pipelines.teams.desk import LimitsOn
from ops_pipelines.teams.price import AssetPrice, PriceModel

_BareUrl = Annotated[HttpUrl, AfterValidator(lambda url: url.rstrip("/"))]


# -- racks --


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """One entry of `racks`."""

    name: str
    nodes: tuple[NodeName, ...]
    leaf_switch: str | None = None
    nvlink_domain: str = "node"
    power_feed: str | None = None
    model: str | None = None
    gpu_type: GpuType = GpuType("")
    installed_since: date | None = None

    def place_of(self, node: NodeName) -> Place:
        """Return where one of its nodes is."""
        return Place(
            rack=self.name,
            nvlink_domain=node if self.nvlink_domain == "node" else self.name,
            leaf_switch=self.leaf_switch or f"leaf of {self.name}",
            power_feed=self.power_feed or "",
            model=self.model or "",
        )

    @property
    def bought(self) -> Bought:
        """What was bought with each of its nodes."""
        return Bought(gpu_type=self.gpu_type, installed_since=self.installed_since)


RACK = section_of(
    Rack,
    shapes={
        "name": Name,
        "nodes": HostList,
        "leaf_switch": Name,
        "nvlink_domain": Literal["node", "rack"],
        "power_feed": Name,
        "model": Name,
        "gpu_type": GpuTypeName,
        "installed_since": Day,
    },
)

# -- fleet --


def _commands_fleet(
    *,
    kind: str,
    reboot_by: RebootBy = RebootBy.COMMAND,
    redfish: RedfishSettings | None = None,
    ansible: AnsibleSettings | None = None,
    **named: list[str] | None,
) -> FleetConfig:
    commands = {act: tuple(words) for act, words in named.items() if words is not None}
    return FleetConfig(kind=FleetKind(kind), commands=commands, reboot_by=reboot_by, redfish=redfish, ansible=ansible)


def _one_means_each(stated: Mapping[str, object]) -> Iterator[Fault]:
    """Yield commands that are of no use alone, or of no use beside another means."""
    acts = {act for act in _ACTS if stated.get(act) is not None}
    for act, other in _PAIRS:
        if act in acts and other not in acts:
            yield (act,), f"is of no use without {other}; name both commands, or neither"
    if stated.get("reboot_by") == RebootBy.SLURM.value and "reboot" in acts:
        yield ("reboot",), "reboot_by: slurm does this already; keep one of them"
    for act in POWER_ACTS:
        if stated.get("redfish") is not None and act in acts:
            yield (act,), "redfish does this already; keep the command or redfish, not both"


def _playbooks(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no directory {path}; give the one that holds playbooks")
    return path


_ACTS = (
    "inspect", "reset_gpu", "reboot", "reimage", "start_check", "read_check", "start_install", "read_install",
    "read_versions", "reload_driver", "power_off", "power_on", "power_state",
)  # fmt: skip
_TOGETHER = (("start_install", "read_install"), ("start_check", "read_check"))
_PAIRS = (*_TOGETHER, *((second, first) for first, second in _TOGETHER))
"""Commands that are of no use without the other."""
_PathPart = Annotated[str, Field(pattern=r"^[^/\s]+$")]
REDFISH = section_of(
    RedfishSettings,
    names={"is_certificate_checked": "verify"},
    shapes={
        "user": Text,
        # Addresses may hold a password by mistake: their form is checked where they are not shown (`find_faults`).
        "address": Annotated[Text, AfterValidator(lambda address: address.rstrip("/"))],
        "addresses": dict_of(Name, Annotated[Text, AfterValidator(lambda address: address.rstrip("/"))]),
        "system_id": _PathPart,
        "manager_id": _PathPart,
    },
    by_type=SETTINGS,
)
ANSIBLE = section_of(
    AnsibleSettings,
    shapes={"playbooks": Annotated[AnyPath, AfterValidator(_playbooks)]},
    by_type=SETTINGS,
)
FLEETS = Kinds(
    {
        "simulator": section_of(FleetConfig, only=("kind",), shapes={"kind": Literal["simulator"]}),
        "commands": Section(
            _commands_fleet,
            {
                **needed(kind=Literal["commands"]),
                **nullable(**dict.fromkeys(_ACTS, list_of(Text, least=1))),
                **keys_of(
                    FleetConfig,
                    only=("reboot_by", "redfish", "ansible"),
                    shapes={"redfish": REDFISH, "ansible": ANSIBLE},
                ),
            },
            rule=_one_means_each,
        ),
    }
)

# -- messages --


def _notifier(
    *,
    kind: str,
    quiet_hours: tuple[time | None, time] = (TellRules().quiet_from, TellRules().quiet_until),
    owner_urls_file: Path | None = None,
    team_urls_file: Path | None = None,
    on_call_urls_file: Path | None = None,
    **stated: object,
) -> NotifierConfig:
    rules = {"zone": ZoneInfo("UTC"), "quiet_from": quiet_hours[0], "quiet_until": quiet_hours[1], **stated}
    return NotifierConfig(
        kind=NotifierKind(kind),
        owner_urls_file=owner_urls_file,
        team_urls_file=team_urls_file,
        on_call_urls_file=on_call_urls_file,
        tell_rules=TellRules(**rules),  # type: ignore[arg-type]  # each was read as its field
    )


def _reaches_somebody(stated: Mapping[str, object]) -> Iterator[Fault]:
    if stated.get("on_call_urls_file") is None:
        yield (), "on_call_urls_file is missing; without it a page would reach nobody"


def _quiet_hours(text: str) -> tuple[time | None, time]:
    """Return when the night begins and ends; `none`: there is none."""
    begins, _, ends = text.partition("-")
    return (None, time(0)) if text == "none" else (time.fromisoformat(begins), time.fromisoformat(ends))


_TELL = {
    **keys_of(
        TellRules,
        names={
            "group_window": "group_seconds",
            "refill": "refill_minutes",
            "zone": "timezone",
            "give_up_after": "give_up_hours",
            "kept_for": "kept_days",
        },
        shapes={
            "group_window": Annotated[float, Field(ge=0, le=3600)],
            "burst_count": Annotated[int, Field(ge=1, le=1000)],
            "refill": Annotated[float, Field(gt=0, le=1440)],
            "digest_at": ClockTime,
            "zone": Zone,
            "give_up_after": Annotated[float, Field(gt=0, le=720)],
            "kept_for": Annotated[int, Field(ge=1, le=3660)],
        },
        without=("quiet_from", "quiet_until"),
    ),
    **optional(quiet_hours=Annotated[str, Field(pattern=rf"^(none|{CLOCK}-{CLOCK})$"), AfterValidator(_quiet_hours)]),
}
_URL_FILES = ("owner_urls_file", "team_urls_file", "on_call_urls_file")
NOTIFIERS = Kinds(
    {
        "file": Section(_notifier, needed(kind=Literal["file"]) | _TELL),
        "apprise": Section(
            _notifier,
            {
                **needed(kind=Literal["apprise"]),
                **_TELL,
                **keys_of(NotifierConfig, only=_URL_FILES, by_type=SETTINGS),
            },
            rule=_reaches_somebody,
        ),
    }
)

# -- the web process, Alertmanager --

WEBHOOK = section_of(
    WebhookSettings,
    shapes={
        "max_body_bytes": Annotated[int, Field(ge=1024, le=64 * 1_048_576)],
        "max_requests_per_minute_count": Annotated[int, Field(ge=1, le=100_000)],
    },
    by_type=SETTINGS,
)
SERVE = section_of(ServeSettings, shapes={"base_url": _BareUrl, "webhook": WEBHOOK}, by_type=SETTINGS)
ALERTMANAGER = Section(
    AlertmanagerSettings,
    keys_of(
        AlertmanagerSettings,
        shapes={
            "url": _BareUrl,
            "node_label": Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
            "labels": dict_of(Text, Text),
            "basic_auth_user": Text,
        },
        by_type=SETTINGS,
    ),
    rule=one_secret,
)

# -- promises to teams --


def _promises(
    *,
    team: str,
    workload: str,
    uptime_ratio: float | None = None,
    queue_wait: tuple[timedelta, float] | None = None,
    inference_p99: tuple[timedelta, float] | None = None,
) -> tuple[Objective, ...]:
    """Return each promise of one entry as an objective of its own."""
    made = partial(Objective, team=team, workload=WorkloadClass(workload))
    found = [] if uptime_ratio is None else [made(kind=ObjectiveKind.UPTIME, target_ratio=uptime_ratio)]
    for kind, promise in ((ObjectiveKind.QUEUE_WAIT, queue_wait), (ObjectiveKind.INFERENCE_P99, inference_p99)):
        if promise is not None:
            found.append(made(kind=kind, target_ratio=promise[1], limit=promise[0]))
    if not found:
        raise ValueError("promises nothing; expected uptime_ratio, queue_wait or inference_p99")
    if inference_p99 is not None and workload not in ("inference", "any"):
        raise FaultsFound((("inference_p99",), f"found workload {workload}; expected inference or any"))
    return tuple(found)


def _queue_wait(*, minutes: float, ratio: float) -> tuple[timedelta, float]:
    return timedelta(minutes=minutes), ratio


def _inference_p99(*, milliseconds: float, ratio: float) -> tuple[timedelta, float]:
    return timedelta(milliseconds=milliseconds), ratio


QUEUE_WAIT = Section(_queue_wait, needed(minutes=Annotated[float, Field(gt=0.0, le=100_000.0)], ratio=Share))
INFERENCE_P99 = Section(
    _inference_p99, needed(milliseconds=Annotated[float, Field(gt=0.0, le=10_000_000.0)], ratio=Share)
)
OBJECTIVE = Section(
    _promises,
    needed(
        team=Annotated[str, Field(min_length=1, max_length=128)],
        workload=Literal["training", "inference", "interactive", "any"],
    )
    | nullable(uptime_ratio=Share, queue_wait=QUEUE_WAIT, inference_p99=INFERENCE_P99),
)

# -- limits of teams, prices --


def _limits(*, limits_on: LimitsOn = LimitsOn.TOTAL, qos_of: Mapping[TeamName, str] | None = None) -> LimitSettings:
    """Return how limits are set; a QOS for two teams is a fault: they would share one limit."""
    stated = qos_of or {}
    teams_of = Counter(stated.values())
    faults = [
        (("qos_of", team), f"QOS {qos} is given to several teams; give each one of its own")
        for team, qos in stated.items()
        if teams_of[qos] > 1
    ]
    if faults:
        raise FaultsFound(*faults)
    return LimitSettings(limits_on=limits_on, qos_of=stated)


def _pue(pue: Fraction) -> Fraction:
    if pue < 1:
        raise PydanticCustomError("pue", "expected 1 or more: facility over machines")
    return pue


def _month(text: str) -> tuple[int, int]:
    year, _, month = text.partition("-")
    return int(year), int(month)


def _prices(*, assets: tuple[AssetPrice, ...], **stated: object) -> PriceModel:
    known: set[str] = set()
    faults = []
    for index, each in enumerate(assets):
        if each.asset in known:
            faults.append((("assets", index, "asset"), f"{each.asset} has a price above; keep one of them"))
        known.add(each.asset)
    if faults:
        raise FaultsFound(*faults)
    return PriceModel(assets=assets, **stated)  # type: ignore[arg-type]  # each was read as its field


_QosName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""It is in commands to the scheduler; a name that begins with a dash would be read as an option."""
LIMITS = Section(
    _limits, keys_of(LimitSettings, names={"limits_on": "limits"}, shapes={"qos_of": dict_of(Account, _QosName)})
)
ASSET = section_of(
    AssetPrice,
    names={"capex_cents": "capex", "support_cents_per_month": "support_per_month"},
    shapes={
        "asset": Name,
        "capex_cents": WholeCents,
        "amortized_months": Annotated[int, Field(ge=1, le=600)],
        "paid_since": Annotated[str, Field(pattern=r"^(19|20)[0-9]{2}-(0[1-9]|1[0-2])$"), AfterValidator(_month)],
    },
    by_type={Amount: ExactCents},
)
PRICES = Section(
    _prices,
    keys_of(
        PriceModel,
        names={
            "cents_per_kwh": "per_kwh",
            "cents_per_tib_month": "per_tib_month",
            "space_cents_per_month": "space_per_month",
            "support_cents_per_month": "support_per_month",
            "network_cents_per_month": "network_per_month",
        },
        shapes={
            "currency": Annotated[str, Field(pattern=r"^[A-Z]{3}$")],
            "assets": list_of(ASSET, least=1),
            "pue": Annotated[ExactAmount, AfterValidator(_pue)],
            "unmeasured_watts_per_gpu": ExactAmount,
        },
        by_type={Amount: ExactCents},
    ),
)
"""Who states prices states what energy costs: there is no default for it."""
