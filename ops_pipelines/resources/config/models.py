"""The shape of cluster.yaml and policy.yaml: one model a section, nothing but keys, types and bounds.

What a section becomes is `files`; how faults are told is `strict_yaml`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.core.notes import TellRules
from ops_pipelines.core.policy import (
    BlastCaps,
    DrainBudget,
    Durations,
    LadderLimits,
    MassEvent,
    RecoveryLimits,
    RolloutLimits,
)
from ops_pipelines.resources.config.advice_section import AdviceModel
from ops_pipelines.resources.config.capacity_section import CapacityPolicyModel
from ops_pipelines.resources.config.install_settings import DEFAULT_ANSIBLE_LIMIT
from ops_pipelines.resources.config.price_models import PricesModel
from ops_pipelines.resources.config.quota_models import LimitsModel, QuotasModel
from ops_pipelines.resources.config.strict_yaml import StrictModel
from ops_pipelines.resources.config.team_models import Day, GpuTypeName

# Assumption: no limit of this program is meant to be longer than a year; more is a slip of units.
Seconds = Annotated[float, Field(ge=0, le=366 * 86_400)]
PositiveSeconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
# Assumption: no count of nodes, jobs or tries is meant to be higher; more is a slip.
Count = Annotated[int, Field(le=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Field(min_length=1)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
"""Without user, query and fragment: secrets stand in files of their own."""
Command = Annotated[list[Text], Field(min_length=1)]
SampledStep = Annotated[int, Field(ge=1, le=60)]
"""Samples carry the grid time, up to a step before they were taken; policy calls them stale after 120 s by default."""

_BUDGET = DrainBudget()
_EVENT = MassEvent()
_DURATIONS = Durations()
_LADDER = LadderLimits()
_RECOVERY = RecoveryLimits()
_CAPS = BlastCaps()
_ROLLOUTS = RolloutLimits()
_TELL = TellRules()
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"


class DrainBudgetModel(StrictModel):
    max_out_count: Count = _BUDGET.max_out_count
    max_out_per_rack_count: Count = _BUDGET.max_out_per_rack_count
    max_new_per_hour_count: Count = _BUDGET.max_new_per_hour_count
    min_in_service_ratio: float = _BUDGET.min_in_service_ratio


class MassEventModel(StrictModel):
    min_node_count: Count = _EVENT.min_node_count
    window_seconds: PositiveSeconds = _EVENT.window.total_seconds()
    brake_window_seconds: Seconds = _EVENT.brake_window.total_seconds()


class DurationsModel(StrictModel):
    confirm_unreachable_after_seconds: Seconds = _DURATIONS.confirm_unreachable_after.total_seconds()
    confirm_gpu_missing_after_seconds: Seconds = _DURATIONS.confirm_gpu_missing_after.total_seconds()
    telemetry_stale_after_seconds: Seconds = _DURATIONS.telemetry_stale_after.total_seconds()
    look_every_seconds: PositiveSeconds = _DURATIONS.look_every.total_seconds()
    retry_after_seconds: PositiveSeconds = _DURATIONS.retry_after.total_seconds()
    run_patience_seconds: Seconds = _DURATIONS.run_patience.total_seconds()
    soak_seconds: Seconds = _DURATIONS.soak.total_seconds()
    command_limit_seconds: Seconds = _DURATIONS.command_limit.total_seconds()
    fence_limit_seconds: Seconds = _DURATIONS.fence_limit.total_seconds()
    reset_limit_seconds: Seconds = _DURATIONS.reset_limit.total_seconds()
    reboot_limit_seconds: Seconds = _DURATIONS.reboot_limit.total_seconds()
    reimage_limit_seconds: Seconds = _DURATIONS.reimage_limit.total_seconds()
    check_limit_seconds: Seconds = _DURATIONS.check_limit.total_seconds()
    probation_seconds: Seconds = _DURATIONS.probation.total_seconds()
    progress_limit_seconds: Seconds = _DURATIONS.progress_limit.total_seconds()
    job_end_limit_seconds: Seconds = _DURATIONS.job_end_limit.total_seconds()
    waiting_limit_seconds: Seconds = _DURATIONS.waiting_limit.total_seconds()


class LadderModel(StrictModel):
    max_gpu_resets_count: Count = _LADDER.max_gpu_resets_count
    max_reboots_count: Count = _LADDER.max_reboots_count
    max_power_cycles_count: Count = _LADDER.max_power_cycles_count
    max_reimages_count: Count = _LADDER.max_reimages_count
    memory_seconds: Seconds = _LADDER.memory.total_seconds()
    cool_down_seconds: Seconds = _LADDER.cool_down.total_seconds()


class RecoveryModel(StrictModel):
    max_requeues_count: Count = _RECOVERY.max_requeues_count
    requeue_window_seconds: Seconds = _RECOVERY.requeue_window.total_seconds()
    interactive_notice_seconds: Seconds = _RECOVERY.interactive_notice.total_seconds()
    checkpoint_wait_seconds: Seconds = _RECOVERY.checkpoint_wait.total_seconds()
    default_min_serving_ratio: float = _RECOVERY.default_min_serving_ratio


class BlastCapsModel(StrictModel):
    max_out_per_partition_ratio: float = _CAPS.max_out_per_partition_ratio
    max_out_per_leaf_count: Count | None = _CAPS.max_out_per_leaf_count
    max_out_per_nvlink_domain_count: Count | None = _CAPS.max_out_per_nvlink_domain_count
    max_jobs_per_plan_count: Count = _CAPS.max_jobs_per_plan_count
    max_gpu_hours_per_plan: float = _CAPS.max_gpu_hours_per_plan
    max_gpu_hours_per_hour: float = _CAPS.max_gpu_hours_per_hour
    max_on_probation_count: Count = _CAPS.max_on_probation_count


class RolloutsModel(StrictModel):
    max_out_count: Count = _ROLLOUTS.max_out_count
    canary_counts: list[Count] = Field(default_factory=lambda: list(_ROLLOUTS.canary_counts))
    growth_ratio: float = _ROLLOUTS.growth_ratio
    soak_seconds: Seconds = _ROLLOUTS.soak.total_seconds()
    soak_limit_seconds: Seconds = _ROLLOUTS.soak_limit.total_seconds()
    gang_cap_node_count: Count = _ROLLOUTS.gang_cap_node_count
    max_pulled_count: Count = _ROLLOUTS.max_pulled_count
    job_end_limit_seconds: Seconds = _ROLLOUTS.job_end_limit.total_seconds()
    install_limit_seconds: Seconds = _ROLLOUTS.install_limit.total_seconds()
    verify_limit_seconds: Seconds = _ROLLOUTS.verify_limit.total_seconds()
    good_read_count: Count = _ROLLOUTS.good_read_count
    good_read_every_seconds: Seconds = _ROLLOUTS.good_read_every.total_seconds()
    answer_limit_seconds: Seconds = _ROLLOUTS.answer_limit.total_seconds()


DayName = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
"""In their order: Monday is 0."""
ClockTime = Annotated[str, Field(pattern=rf"^{_CLOCK}$")]


class WeeklyWindowModel(StrictModel):
    """Times of the clock in quotes: "22:00"; an end at or before the beginning is on the next day."""

    name: Text
    days: Annotated[list[DayName], Field(min_length=1)]
    begins: ClockTime
    ends: ClockTime
    timezone: Text = "UTC"


class FreezeWindowModel(StrictModel):
    """Times with a zone, and without quotes: 2026-12-24T00:00:00Z."""

    name: Text
    begins_at: datetime
    ends_at: datetime
    allows_drains: bool = False


ConsentWord = Literal["auto", "approve", "forbid"]


class ConsentsModel(StrictModel):
    """What one class of acts needs; absent: what `mode` says. The keys are those of `core.policy.ActionClass`."""

    isolate: ConsentWord | None = None
    move_jobs: ConsentWord | None = None
    reset_gpu: ConsentWord | None = None
    reboot: ConsentWord | None = None
    power: ConsentWord | None = None
    reimage: ConsentWord | None = None
    check: ConsentWord | None = None
    return_node: ConsentWord | None = None
    update: ConsentWord | None = None
    quotas: ConsentWord | None = None


class RackModel(StrictModel):
    name: Name
    nodes: Text
    leaf_switch: Name | None = None
    nvlink_domain: Literal["node", "rack"] = "node"
    power_feed: Name | None = None
    model: Name | None = None
    gpu_type: GpuTypeName = ""
    installed_since: Day | None = None


class SimulatorModel(StrictModel):
    kind: Literal["simulator"]


class SlurmModel(StrictModel):
    kind: Literal["slurm"]
    slurm_conf: Text | None = None
    checkpoint_roots: list[Text] = Field(default_factory=list)
    guard_status: list[Text] = Field(default_factory=list)


class PrometheusModel(StrictModel):
    kind: Literal["prometheus"]
    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]
    step_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    look_back_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    timeout_seconds: PositiveSeconds = 10.0
    labels: dict[str, str] = Field(default_factory=dict)
    bearer_token_file: Text | None = None
    basic_auth_user: Text | None = None
    basic_auth_password_file: Text | None = None
    ca_file: Text | None = None
    tenant: Name | None = None


class ExporterTargetsModel(StrictModel):
    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]
    nodes: Text | None = None


class ExportersModel(StrictModel):
    kind: Literal["exporters"]
    targets: Annotated[list[ExporterTargetsModel], Field(min_length=1)]
    step_seconds: SampledStep = 15
    timeout_seconds: PositiveSeconds = 5.0
    worker_count: Annotated[int, Field(ge=1, le=256)] = 32
    bearer_token_file: Text | None = None
    ca_file: Text | None = None


class NvmlModel(StrictModel):
    kind: Literal["nvml"]
    node: Name
    step_seconds: SampledStep = 15


class LogFilesModel(StrictModel):
    kind: Literal["files"]
    paths: Annotated[list[Text], Field(min_length=1)]
    node_name_source: Literal["line", "file_stem"] = "line"
    timezone: Text = "UTC"


class JournaldModel(StrictModel):
    kind: Literal["journald"]
    journal_directory: Text | None = None


class LokiModel(StrictModel):
    kind: Literal["loki"]
    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]
    query: Text
    node_labels: list[Text] | None = None
    job_label: Text | None = None
    tenant: Name | None = None
    bearer_token_file: Text | None = None
    basic_auth_user: str | None = None
    basic_auth_password_file: Text | None = None
    ca_file: Text | None = None
    timeout_seconds: PositiveSeconds = 30.0
    look_back_hours: Annotated[int, Field(ge=1, le=8784)] = 168
    window_hours: Annotated[int, Field(ge=1, le=720)] = 6
    settle_seconds: Seconds = 10.0
    max_page_lines: Annotated[int, Field(ge=1, le=100_000)] = 5000


class NoneModel(StrictModel):
    kind: Literal["none"]


class SlurmAccountingModel(StrictModel):
    kind: Literal["slurm"]


class JobLogFilesModel(StrictModel):
    kind: Literal["files"]
    paths: Annotated[list[Text], Field(min_length=1)]


Days = Annotated[int, Field(ge=1, le=36_600)]


class LakeModel(StrictModel):
    url: Text | None = None
    step_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    raw_days: Days | None = None
    five_minute_days: Days | None = None
    hourly_days: Days | None = None
    record_days: Days | None = None


class ReleaseModel(StrictModel):
    driver: Text | None = None
    firmware: dict[Text, Text] = Field(default_factory=dict)


class RedfishModel(StrictModel):
    """An address may hold a password by mistake, so its form is checked where it is not shown: `redfish_settings`."""

    address: Text | None = None
    addresses: dict[Name, Text] = Field(default_factory=dict)
    user: Text
    password_file: Text
    ca_file: Text | None = None
    verify: bool = True
    system_id: Annotated[str, Field(pattern=r"^[^/\s]+$")] | None = None
    manager_id: Annotated[str, Field(pattern=r"^[^/\s]+$")] | None = None
    authentication: Literal["basic", "session"] = "basic"


class AnsibleModel(StrictModel):
    playbooks: Text
    limit_seconds: PositiveSeconds = DEFAULT_ANSIBLE_LIMIT.total_seconds()


class CommandsModel(StrictModel):
    kind: Literal["commands"]
    inspect: Command | None = None
    reset_gpu: Command | None = None
    reboot: Command | None = None
    reboot_by: Literal["command", "slurm"] = "command"
    reimage: Command | None = None
    start_check: Command | None = None
    read_check: Command | None = None
    start_install: Command | None = None
    read_install: Command | None = None
    read_versions: Command | None = None
    reload_driver: Command | None = None
    power_off: Command | None = None
    power_on: Command | None = None
    power_state: Command | None = None
    redfish: RedfishModel | None = None
    ansible: AnsibleModel | None = None


class LedgerModel(StrictModel):
    url: Text | None = None
    url_file: Text | None = None


class TellModel(StrictModel):
    """What both kinds of notifier have: how quiet the autopilot is."""

    group_seconds: Annotated[float, Field(ge=0, le=3600)] = _TELL.group_window.total_seconds()
    burst_count: Annotated[int, Field(ge=1, le=1000)] = _TELL.burst_count
    refill_minutes: Annotated[float, Field(gt=0, le=1440)] = _TELL.refill.total_seconds() / 60
    quiet_hours: Annotated[str, Field(pattern=rf"^(none|{_CLOCK}-{_CLOCK})$")] = "22:00-07:00"
    digest_at: Annotated[str, Field(pattern=rf"^{_CLOCK}$")] = "07:00"
    timezone: Text = "UTC"
    give_up_hours: Annotated[float, Field(gt=0, le=720)] = _TELL.give_up_after.total_seconds() / 3600
    kept_days: Annotated[int, Field(ge=1, le=3660)] = _TELL.kept_for.days


class FileNotifierModel(TellModel):
    kind: Literal["file"]


class AppriseModel(TellModel):
    kind: Literal["apprise"]
    owner_urls_file: Text | None = None
    team_urls_file: Text | None = None
    on_call_urls_file: Text | None = None


class WebhookModel(StrictModel):
    bearer_token_file: Text | None = None
    hmac_key_file: Text | None = None
    max_body_bytes: Annotated[int, Field(ge=1024, le=64 * 1_048_576)] = 1_048_576
    max_requests_per_minute_count: Annotated[int, Field(ge=1, le=100_000)] = 120


class ServeModel(StrictModel):
    base_url: HttpUrl | None = None
    link_key_file: Text | None = None
    link_life_seconds: PositiveSeconds = 14_400.0
    webhook: WebhookModel = WebhookModel()


class AlertmanagerModel(StrictModel):
    url: HttpUrl
    node_label: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "node"
    labels: dict[Text, Text] = Field(default_factory=dict)
    bearer_token_file: Text | None = None
    basic_auth_user: Text | None = None
    basic_auth_password_file: Text | None = None
    ca_file: Text | None = None
    timeout_seconds: PositiveSeconds = 10.0


Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class QueueWaitModel(StrictModel):
    minutes: Annotated[float, Field(gt=0.0, le=100_000.0)]
    ratio: Share


class InferenceP99Model(StrictModel):
    milliseconds: Annotated[float, Field(gt=0.0, le=10_000_000.0)]
    ratio: Share


class ObjectiveModel(StrictModel):
    team: Annotated[str, Field(min_length=1, max_length=128)]
    workload: Literal["training", "inference", "interactive", "any"]
    uptime_ratio: Share | None = None
    queue_wait: QueueWaitModel | None = None
    inference_p99: InferenceP99Model | None = None


class AcceptedRisksModel(StrictModel):
    """Risks that the operator takes; each says who and why."""

    no_start_guard: Text | None = None
    no_inspection: Text | None = None
    no_node_tests: Text | None = None
    no_power_switch: Text | None = None


class PolicyModel(StrictModel):
    """policy.yaml. Every key may be absent: the defaults are the domain's, and observe."""

    mode: Literal["observe", "approve", "auto"] = "observe"
    consents: ConsentsModel = ConsentsModel()
    drain_budget: DrainBudgetModel = DrainBudgetModel()
    mass_event: MassEventModel = MassEventModel()
    durations: DurationsModel = DurationsModel()
    ladder: LadderModel = LadderModel()
    recovery: RecoveryModel = RecoveryModel()
    blast_caps: BlastCapsModel = BlastCapsModel()
    rollouts: RolloutsModel = RolloutsModel()
    quotas: QuotasModel = QuotasModel()
    advice: AdviceModel = AdviceModel()
    capacity: CapacityPolicyModel = CapacityPolicyModel()
    maintenance_windows: list[WeeklyWindowModel] | None = None
    maintenance_calendars: list[Text] = Field(default_factory=list)
    freeze_windows: list[FreezeWindowModel] = Field(default_factory=list)
    accepted_risks: AcceptedRisksModel = AcceptedRisksModel()
    untouchable_nodes: list[Text] = Field(default_factory=list)


class ClusterModel(StrictModel):
    """cluster.yaml. The sections with a `kind` are checked one by one, each as the model that its kind names."""

    name: Name
    state_directory: Text
    policy: Text
    gpus_per_node: Annotated[int, Field(ge=1, le=128)]
    racks: Annotated[list[RackModel], Field(min_length=1)]
    scheduler: object
    telemetry: object
    logs: object
    accounting: object = None
    job_logs: object = None
    lake: LakeModel = LakeModel()
    release: ReleaseModel = ReleaseModel()
    releases: Text = "releases"
    expectations: Text = "expectations"
    fleet: object
    ledger: LedgerModel = LedgerModel()
    notifier: object
    serve: ServeModel = ServeModel()
    alertmanager: AlertmanagerModel | None = None
    objectives: list[ObjectiveModel] = Field(default_factory=list)
    teams: Text | None = None
    capacity: Text | None = None
    projects: Text | None = None
    quotas: LimitsModel = LimitsModel()
    prices: PricesModel | None = None


SCHEDULERS: Mapping[str, type[StrictModel]] = {"simulator": SimulatorModel, "slurm": SlurmModel}
TELEMETRY: Mapping[str, type[StrictModel]] = {
    "simulator": SimulatorModel,
    "prometheus": PrometheusModel,
    "exporters": ExportersModel,
    "nvml": NvmlModel,
}
LOGS: Mapping[str, type[StrictModel]] = {
    "simulator": SimulatorModel,
    "files": LogFilesModel,
    "journald": JournaldModel,
    "loki": LokiModel,
}
FLEETS: Mapping[str, type[StrictModel]] = {"simulator": SimulatorModel, "commands": CommandsModel}
NOTIFIERS: Mapping[str, type[StrictModel]] = {"file": FileNotifierModel, "apprise": AppriseModel}
ACCOUNTING: Mapping[str, type[StrictModel]] = {
    "simulator": SimulatorModel,
    "slurm": SlurmAccountingModel,
    "none": NoneModel,
}
JOB_LOGS: Mapping[str, type[StrictModel]] = {"files": JobLogFilesModel, "loki": LokiModel, "none": NoneModel}
