"""cluster.yaml, policy.yaml and the catalogue: what they become, and how their faults are reported."""

from dataclasses import fields, replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from bench.latency import POLICY as LATENCY_POLICY
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.finding import RESPONSES, Response
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    Durations,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    PolicyError,
    RecoveryLimits,
    RolloutLimits,
    WeeklyWindow,
)
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.observe.detectors.node import DRIVER
from ops_pipelines.remediate.ladder import find_gaps
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.config import policy_file
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ClusterConfig,
    FleetKind,
    LakeConfig,
    LogsKind,
    NodeNameSource,
    NotifierKind,
    SchedulerKind,
    TelemetryKind,
    offered_means,
)
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.policy_file import find_cautions, read_policy
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.resources.fleet.command_fleet import CommandFleet
from ops_pipelines.wiring import assemble_observatory
from ops_pipelines_lab.drills.lab import POLICY as LAB_POLICY

ROOT = Path(__file__).parents[2]
TOPOLOGY = Topology(
    places={NodeName("gpu001"): Place(rack="r1", nvlink_domain="gpu001", leaf_switch="leaf1")}, gpus_per_node=8
)
PAIR = Topology(
    places={NodeName(name): Place(rack="r1", nvlink_domain=name, leaf_switch="leaf1") for name in ("gpu001", "gpu002")},
    gpus_per_node=8,
)
MINIMAL = """
name: test
state_directory: state
policy: policy.yaml
gpus_per_node: 8
racks: [{name: r1, nodes: "gpu[001-002]"}]
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file}
"""


def write(directory: Path, text: str, *, name: str = "cluster.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_cluster_is_the_simulated_one_of_64_nodes_in_8_racks() -> None:
    config = read_cluster(ROOT / "cluster.yaml")

    assert config.name == "simulated"
    assert len(config.topology.places) == 64
    assert {place.rack for place in config.topology.places.values()} == {f"r{number}" for number in range(1, 9)}
    in_rack = {node for node, place in config.topology.places.items() if place.rack == "r2"}
    assert in_rack == {NodeName(f"gpu{number:03}") for number in range(9, 17)}
    assert config.topology.gpus_per_node == 8
    assert config.topology.places[NodeName("gpu064")].nvlink_domain == "gpu064"
    assert config.scheduler.kind is SchedulerKind.SIMULATOR
    assert config.telemetry.kind is TelemetryKind.SIMULATOR
    assert config.logs.kind is LogsKind.SIMULATOR
    assert config.fleet.kind is FleetKind.SIMULATOR
    assert config.notifier.kind is NotifierKind.FILE
    assert config.state_directory == ROOT / ".ops_pipelines"
    assert config.policy_path == ROOT / "policy.yaml"
    assert config.ledger.url == f"sqlite:///{ROOT}/.ops_pipelines/ledger.sqlite"


def test_shipped_policy_observes_and_states_the_defaults_of_the_domain() -> None:
    topology = read_cluster(ROOT / "cluster.yaml").topology

    policy = read_policy(ROOT / "policy.yaml", topology=topology)

    assert policy == Policy()
    assert policy.mode is Mode.OBSERVE


def test_the_real_cluster_sketched_in_the_shipped_file_can_be_read(tmp_path: Path) -> None:
    shipped = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    top, sketch = shipped.split("# --- A real Slurm cluster", 1)
    sketch = sketch.split("\n", 2)[2]
    sections = "\n".join(line.removeprefix("# ") for line in sketch.splitlines() if line != "#")
    kept = top.split("# The workload manager.")[0]
    secrets = ("prometheus.token", "ledger.url", "link.key", "webhook.token")
    for name in (*secrets, "ca.pem", "on-call.urls", "owner.urls", "team.urls", "slurm.conf"):
        write(tmp_path, "postgresql+psycopg2://ops@db.example/ops\n", name=name)

    config = read_cluster(write(tmp_path, kept + sections))

    assert config.scheduler.kind is SchedulerKind.SLURM
    assert config.scheduler.slurm_conf == tmp_path / "slurm.conf"
    assert config.scheduler.checkpoint_roots == (Path("/checkpoints"),)
    assert config.telemetry.url == "https://prometheus.example:9090"
    assert config.telemetry.labels == {"cluster": "a"}
    assert config.telemetry.step == timedelta(seconds=15)
    assert config.telemetry.bearer_token_file == tmp_path / "prometheus.token"
    assert config.logs.kind is LogsKind.FILES
    assert config.logs.paths == ("/var/log/nodes/*.log",)
    assert config.logs.node_name_source is NodeNameSource.LINE
    assert config.fleet.commands["inspect"][-3:] == ("python3", "-m", "ops_pipelines.resources.nvml")
    CommandFleet(config.fleet.commands, clock=SystemClock())
    assert find_gaps(offered_means(config.fleet), Policy(mode=Mode.AUTO)) == ()
    assert config.ledger.url == "postgresql+psycopg2://ops@db.example/ops"
    assert config.notifier.kind is NotifierKind.APPRISE
    assert config.accounting is AccountingKind.SLURM
    assert config.job_logs.paths == ("/home/*/slurm-%j.out",)
    assert config.release[DRIVER] == "580.95.05"
    assert config.lake == LakeConfig(
        url="/var/lib/ops_pipelines/lake", raw_days=30, five_minute_days=365, hourly_days=1825, record_days=365
    )


WITHOUT_TELEMETRY = """
name: a
state_directory: state
policy: policy.yaml
gpus_per_node: 8
racks: [{name: r1, nodes: "gpu[001-002]"}]
scheduler: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file}
"""


def read_with(directory: Path, text: str) -> ClusterConfig:
    return read_cluster(write(directory, WITHOUT_TELEMETRY + text))


def test_racks_of_one_power_feed_say_so_and_others_say_nothing(tmp_path: Path) -> None:
    racks = "[{name: r1, nodes: a, power_feed: A}, {name: r2, nodes: b, power_feed: A}, {name: r3, nodes: c}]"

    places = read_cluster(
        write(tmp_path, MINIMAL.replace('[{name: r1, nodes: "gpu[001-002]"}]', racks))
    ).topology.places

    assert {node: place.power_feed for node, place in places.items()} == {"a": "A", "b": "A", "c": ""}


def test_declared_versions_come_as_the_detector_takes_them(tmp_path: Path) -> None:
    text = 'release: {driver: "580.95.05", firmware: {NVIDIA H100 80GB HBM3: 96.00.A5.00.01}}'

    config = read_cluster(write(tmp_path, f"{MINIMAL}{text}\n"))

    assert config.release == {DRIVER: "580.95.05", "NVIDIA H100 80GB HBM3": "96.00.A5.00.01"}
    assert assemble_observatory(config, SystemClock()).release == config.release


@pytest.mark.parametrize("text", ["", "release: {}", "release: {firmware: {}}"])
def test_where_no_version_is_declared_none_is_made_up(tmp_path: Path, text: str) -> None:
    assert read_cluster(write(tmp_path, f"{MINIMAL}{text}\n")).release == {}


def test_exporters_are_named_by_node_or_alone(tmp_path: Path) -> None:
    config = read_with(
        tmp_path,
        """
telemetry:
  kind: exporters
  targets: [{url: "http://{node}:9400/metrics", nodes: "gpu[001-002]"}, {url: "http://racks.example:9100/metrics"}]
""",
    )

    assert config.telemetry.kind is TelemetryKind.EXPORTERS
    assert [(target.url, len(target.nodes)) for target in config.telemetry.targets] == [
        ("http://{node}:9400/metrics", 2),
        ("http://racks.example:9100/metrics", 0),
    ]


def test_nvml_names_the_node_that_it_runs_on(tmp_path: Path) -> None:
    assert read_with(tmp_path, "telemetry: {kind: nvml, node: gpu001}\n").telemetry.node == "gpu001"


@pytest.mark.parametrize("section", ["kind: nvml, node: gpu001", 'kind: exporters, targets: [{url: "http://a:1/m"}]'])
def test_samples_of_now_are_read_once_a_minute_at_least(tmp_path: Path, section: str) -> None:
    config = read_with(tmp_path, f"telemetry: {{{section}, step_seconds: 60}}\n")

    assert config.telemetry.step == timedelta(minutes=1)


def test_loki_is_asked_for_kernel_lines_and_for_those_of_jobs(tmp_path: Path) -> None:
    text = WITHOUT_TELEMETRY.replace(
        "logs: {kind: simulator}", "logs: {kind: loki, url: 'http://loki:3100/', query: '{job=\"kernel\"}'}"
    )
    jobs = (
        "telemetry: {kind: simulator}\n"
        "job_logs: {kind: loki, url: 'http://loki:3100', query: '{a=\"b\"}', job_label: id}\n"
    )

    config = read_cluster(write(tmp_path, text + jobs))

    assert config.logs.loki is not None
    assert (config.logs.loki.url, config.logs.loki.query) == ("http://loki:3100", '{job="kernel"}')
    assert config.job_logs.loki is not None
    assert config.job_logs.loki.job_label == "id"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('telemetry: {kind: exporters, targets: [{url: "http://{node}:1/m"}]}', "go together"),
        ('telemetry: {kind: exporters, targets: [{url: "http://a:1/m", nodes: "gpu001"}]}', "go together"),
        ('telemetry: {kind: exporters, targets: [{url: "http://u:p@a:1/m"}]}', "url"),
        ("telemetry: {kind: exporters, targets: []}", "targets"),
        ("telemetry: {kind: nvml}", "node"),
        ("telemetry: {kind: nvml, node: gpu001, step_seconds: 61}", "step_seconds"),
        ('telemetry: {kind: exporters, targets: [{url: "http://a:1/m"}], step_seconds: 61}', "step_seconds"),
        ("telemetry: {kind: simulator}\nlake: {step_seconds: 7}", "part an hour evenly"),
        ("telemetry: {kind: simulator}\nlake: {raw_days: 30, hourly_days: 29}", "order"),
        ("telemetry: {kind: simulator}\njob_logs: {kind: files, paths: [/logs/all.out]}", "%j"),
        ("telemetry: {kind: simulator}\naccounting: {kind: pbs}", "accounting"),
    ],
)
def test_a_wrong_section_of_the_lake_is_told_by_its_key(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read_with(tmp_path, f"{text}\n")


@pytest.mark.parametrize("text", [pytest.param("", id="empty"), pytest.param("# nothing\n", id="only a comment")])
def test_policy_without_a_mode_observes(tmp_path: Path, text: str) -> None:
    policy = read_policy(write(tmp_path, text, name="policy.yaml"), topology=TOPOLOGY)

    assert policy == Policy()


def test_policy_becomes_domain_values_with_durations(tmp_path: Path) -> None:
    text = """
mode: auto
drain_budget: {max_out_count: 1}
mass_event: {window_seconds: 30, brake_window_seconds: 40}
durations: {soak_seconds: 5, reboot_limit_seconds: 7.5, probation_seconds: 0}
ladder: {max_reboots_count: 2, cool_down_seconds: 9}
recovery: {max_requeues_count: 1, interactive_notice_seconds: 60, default_min_serving_ratio: 0.75}
blast_caps: {max_gpu_hours_per_plan: 5, max_out_per_leaf_count: null}
freeze_windows:
  - {name: board visit, begins_at: 2026-12-01T08:00:00+01:00, ends_at: 2026-12-01T18:00:00Z, allows_drains: true}
untouchable_nodes: ["gpu[001-001]"]
"""

    policy = read_policy(write(tmp_path, text), topology=PAIR)

    assert policy.mode is Mode.AUTO
    assert policy.drain_budget == DrainBudget(max_out_count=1)
    assert policy.mass_event == MassEvent(window=timedelta(seconds=30), brake_window=timedelta(seconds=40))
    assert policy.durations == Durations(
        soak=timedelta(seconds=5), reboot_limit=timedelta(seconds=7.5), probation=timedelta(0)
    )
    assert policy.ladder == LadderLimits(max_reboots_count=2, cool_down=timedelta(seconds=9))
    assert policy.recovery == RecoveryLimits(
        max_requeues_count=1, interactive_notice=timedelta(minutes=1), default_min_serving_ratio=0.75
    )
    assert policy.blast_caps == BlastCaps(max_gpu_hours_per_plan=5)
    assert policy.freeze_windows == (
        FreezeWindow(
            name="board visit",
            begins_at=datetime(2026, 12, 1, 7, tzinfo=UTC),
            ends_at=datetime(2026, 12, 1, 18, tzinfo=UTC),
            allows_drains=True,
        ),
    )
    assert policy.untouchable_nodes == frozenset({NodeName("gpu001")})


def test_rollouts_windows_and_calendars_become_domain_values(tmp_path: Path) -> None:
    (tmp_path / "freezes.ics").write_text("BEGIN:VCALENDAR\nEND:VCALENDAR\n", encoding="utf-8")
    text = """
mode: auto
consents: {update: approve}
rollouts: {max_out_count: 1, canary_counts: [1, 2], soak_seconds: 60, good_read_every_seconds: 5}
maintenance_windows:
  - {name: nights, days: [mon, sun], begins: "22:00", ends: "04:30", timezone: Europe/Berlin}
maintenance_calendars: [freezes.ics]
"""

    policy = read_policy(write(tmp_path, text), topology=PAIR)

    assert policy.consents == {ActionClass.UPDATE: Consent.APPROVE}
    assert policy.rollouts == RolloutLimits(
        max_out_count=1, canary_counts=(1, 2), soak=timedelta(minutes=1), good_read_every=timedelta(seconds=5)
    )
    assert policy.maintenance_windows == (
        WeeklyWindow(
            name="nights", days=frozenset({0, 6}), begins=time(22), ends=time(4, 30), timezone="Europe/Berlin"
        ),
    )
    assert policy.maintenance_calendars == (str(tmp_path / "freezes.ics"),)


@pytest.mark.parametrize(
    ("text", "windows"),
    [("{}", None), ("maintenance_windows: null", None), ("maintenance_windows: []", ())],
    ids=["absent", "null", "empty"],
)
def test_no_window_declared_and_none_at_all_are_two_things(
    tmp_path: Path, text: str, windows: tuple[WeeklyWindow, ...] | None
) -> None:
    assert read_policy(write(tmp_path, text), topology=TOPOLOGY).maintenance_windows == windows


def test_every_limit_of_the_domain_has_a_key_of_the_same_name() -> None:
    # What is decided about nodes alone is in `Policy`; the other sections have readers of their own.
    # What the site has no means for is in cluster.yaml.
    stated = {field.name for field in fields(Policy)} - {"lacking"}
    assert stated == set(policy_file.POLICY.keys) - {"quotas", "advice", "capacity"}
    for values, section in (
        (DrainBudget(), policy_file.DRAIN_BUDGET),
        (MassEvent(), policy_file.MASS_EVENT),
        (Durations(), policy_file.DURATIONS),
        (LadderLimits(), policy_file.LADDER),
        (RecoveryLimits(), policy_file.RECOVERY),
        (BlastCaps(), policy_file.BLAST_CAPS),
        (RolloutLimits(), policy_file.ROLLOUTS),
    ):
        names = {field.name: isinstance(getattr(values, field.name), timedelta) for field in fields(values)}
        assert {f"{name}_seconds" if is_time else name for name, is_time in names.items()} == set(section.keys)
    assert {field.name for field in fields(FreezeWindow)} == set(policy_file.FREEZE_WINDOW.keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("mode: auto\nmode: observe", r"line 2: mode: this key was given before, on line 1", id="twice"),
        pytest.param("drain_bugdet: {}", r"line 1: drain_bugdet: unknown key; did you mean drain_budget\?", id="typo"),
        pytest.param(
            "mode: auto\ndrain_budget:\n  max_out_cuont: 3",
            r"line 3: drain_budget.max_out_cuont: unknown key; did you mean max_out_count\?",
            id="typo in a section",
        ),
        pytest.param("zebra: 1", r"unknown key; expected one of mode, consents, drain_budget", id="nothing near"),
        pytest.param("mode: full", r"line 1: mode: found 'full'; input should be 'observe', 'approve'", id="no mode"),
        pytest.param("mode: off", r"line 1: mode: found False", id="YAML reads off as a truth value"),
        pytest.param("mode:", r"line 1: mode: found None", id="a mode left empty is not a missing mode"),
        pytest.param('drain_budget: {max_out_count: "4"}', r"found '4'; input should be a valid integer", id="text"),
        pytest.param("drain_budget: {max_out_count: true}", r"found True", id="truth value"),
        pytest.param("drain_budget: {max_out_count: -1}", r"line 1: drain_budget.max_out_count", id="negative"),
        pytest.param("drain_budget: {min_in_service_ratio: 80}", r"it must lie in 0..1", id="percent"),
        pytest.param("durations: {soak_seconds: .inf}", r"found inf", id="infinite"),
        pytest.param("durations: {soak_seconds: .nan}", r"found nan", id="not a number"),
        pytest.param("durations: {soak_seconds: 40000000}", r"less than or equal", id="more than a year"),
        pytest.param("durations: {soak: 3}", r"unknown key; did you mean soak_seconds\?", id="unit forgotten"),
        pytest.param("mass_event: {min_node_count: 1}", r"mass_event.min_node_count is 1", id="one node is no mass"),
        pytest.param("ladder: {max_reboots_count: -1}", r"line 1: ladder.max_reboots_count", id="fewer than none"),
        pytest.param("ladder: {memory_seconds: 86401}", r"a snapshot holds a day", id="longer than a snapshot"),
        pytest.param("recovery: {default_min_serving_ratio: 50}", r"recovery.default_min_serving_ratio", id="per cent"),
        pytest.param("blast_caps: {max_on_probation_count: 0}", r"no node ever returns", id="no probation place"),
        pytest.param(
            "freeze_windows:\n - {name: a, begins_at: 2026-12-01T00:00:00Z, ends_at: 2026-12-01T00:00:00Z}",
            r"line 2: freeze_windows\[0\]: freeze window 'a' ends before it begins",
            id="a window of no length",
        ),
        pytest.param(
            "freeze_windows:\n - {name: a, begins_at: 2026-12-01T00:00:00, ends_at: 2026-12-02T00:00:00Z}",
            r"a time without a zone; write 2026-12-24T00:00:00Z",
            id="a window without a zone",
        ),
        pytest.param(
            "freeze_windows:\n - {name: a, begins_at: tomorrow, ends_at: 2026-12-02T00:00:00Z}",
            r"freeze_windows\[0\].begins_at: found 'tomorrow'",
            id="a window that begins no day",
        ),
        pytest.param(
            "freeze_windows:\n - {name: a, begins_at: 0001-01-01T00:00:00+05:00, ends_at: 2026-12-02T00:00:00Z}",
            r"beyond the years|not YAML",
            id="a window that begins before all time",
        ),
        pytest.param(
            "freeze_windows:\n - {name: a, begins_at: 2026-12-01T00:00:00Z, ends_at: 9999-12-31T23:00:00-05:00}",
            r"beyond the years|not YAML",
            id="a window that ends after all time",
        ),
        pytest.param(
            "durations:\n  soak_seconds: 1:30",
            r"line 2: durations.soak_seconds: 1:30 is a number to the base of 60",
            id="minutes and seconds",
        ),
        pytest.param("ladder: {max_reboots_count: 1000000000000000000000000}", r"less than or equal", id="a slip"),
        pytest.param(
            "mode: auto\ndurations:\n  soak_seconds: 0", r"line 3: durations.soak_seconds: .*unwatched", id="no soak"
        ),
        pytest.param(
            "mode: approve\nladder: {max_gpu_resets_count: 0, max_reboots_count: 0, max_power_cycles_count: 0}",
            r"line 2: ladder.max_reboots_count: .*drain a node for hands",
            id="no repair is allowed",
        ),
        pytest.param("untouchable_nodes: [gpu002]", r"gpu002 is not a node of the cluster", id="unknown node"),
        pytest.param("untouchable_nodes: [001]", r"001 is a number to the base of 8", id="node read as number"),
        pytest.param("untouchable_nodes: ['gpu[3-1]']", r"runs backwards", id="backwards"),
        pytest.param("consents: {reboot: maybe}", r"line 1: consents.reboot: found .*maybe", id="no word of consent"),
        pytest.param("consents: {fence: auto}", r"consents.fence: unknown key; expected one of isolate", id="no class"),
        pytest.param("mode: auto\nconsents: {isolate: forbid}", r"line 2: consents.isolate.*begins", id="no isolation"),
        pytest.param("- mode", r"must be a mapping", id="a list"),
        pytest.param("mode: [", r"is not YAML", id="broken"),
        pytest.param("mode: 2026-13-45", r"line 1: mode: 2026-13-45 is no day of the calendar", id="impossible date"),
        pytest.param("mode: !!python/object/apply:os.getcwd []", r"is not YAML", id="a tag that would run code"),
        pytest.param("a: &a [*a]", r"unknown key", id="an alias that holds itself"),
        pytest.param("rollouts: {canary_counts: []}", r"line 1: rollouts.canary_counts", id="no canary"),
        pytest.param("rollouts: {soak_limit_seconds: 9}", r"line 1: rollouts.soak_limit_seconds", id="no time to soak"),
        pytest.param(
            'maintenance_windows:\n - {name: a, days: [tue], begins: "22:00", ends: "24:00"}',
            r"line 2: maintenance_windows\[0\].ends: found '24:00'",
            id="no such time",
        ),
        pytest.param(
            'maintenance_windows:\n - {name: a, days: [tue], begins: 22:00, ends: "04:00"}',
            r"22:00 is a number to the base of 60 in YAML; write seconds, or put it in quotes",
            id="a time without quotes",
        ),
        pytest.param(
            'maintenance_windows: [{name: a, days: [], begins: "22:00", ends: "04:00"}]', r"days", id="on no day"
        ),
        pytest.param(
            'maintenance_windows: [{name: a, days: [tues], begins: "22:00", ends: "04:00"}]',
            r"found 'tues'; input should be 'mon', 'tue'",
            id="no such day",
        ),
        pytest.param(
            'maintenance_windows: [{name: a, days: [tue], begins: "22:00", ends: "04:00", timezone: Europe/Bonn}]',
            r"found 'Europe/Bonn'; expected a zone of the IANA list",
            id="no such zone",
        ),
        pytest.param(
            "maintenance_calendars: [none.ics]", r"maintenance_calendars\[0\]: there is no file", id="no file"
        ),
    ],
)
def test_policy_faults_name_line_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_policy(write(tmp_path, text, name="policy.yaml"), topology=TOPOLOGY)


def test_who_only_observes_is_warned_of_what_would_be_refused(tmp_path: Path) -> None:
    policy = read_policy(write(tmp_path, "durations: {soak_seconds: 0}"), topology=TOPOLOGY)

    (caution,) = find_cautions(policy, TOPOLOGY)
    assert caution.startswith("mode: auto would be refused: durations.soak_seconds is 0")
    assert find_cautions(Policy(), TOPOLOGY) == ()


@pytest.mark.parametrize(("text", "node_count"), [(LAB_POLICY, 16), (LATENCY_POLICY, 32)], ids=["lab", "bench"])
def test_the_policies_of_the_lab_and_its_bench_are_no_accident(tmp_path: Path, text: str, node_count: int) -> None:
    nodes = replace(
        TOPOLOGY,
        places={
            NodeName(f"gpu{number:03d}"): Place(rack=f"r{number // 9}", nvlink_domain=str(number), leaf_switch="leaf1")
            for number in range(1, node_count + 1)
        },
    )

    assert read_policy(write(tmp_path, text), topology=nodes).mode is Mode.AUTO


def test_all_faults_come_in_one_error_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = "mode: full\nsoak: 3\ndurations:\n  fence_limit_seconds: x\n"

    with pytest.raises(PolicyError) as caught:
        read_policy(write(tmp_path, text, name="policy.yaml"), topology=TOPOLOGY)

    lines = str(caught.value).splitlines()
    assert "3 faults" in lines[0]
    assert [line.strip().split(":")[0] for line in lines[1:]] == ["line 1", "line 2", "line 4"]


def test_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read \(No such file"):
        read_cluster(tmp_path / "absent.yaml")


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"name: \xff\xfe")

    with pytest.raises(ConfigError, match="not UTF-8"):
        read_cluster(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("kind: file}", "kind: fiel}", r"notifier.kind: found kind 'fiel'; expected one", id="kind"),
        pytest.param("{kind: file}", "{}", r"notifier.kind: found no kind", id="no kind"),
        pytest.param("{kind: file}", "file", r"notifier: found 'file'; expected a section", id="no section"),
        pytest.param("{kind: file}", "{kind: apprise}", r"a page would reach nobody", id="apprise without on-call"),
        pytest.param("name: test", "", r"name: this key is missing", id="missing key"),
        pytest.param("name: test", "name: a b", r"line 2: name: found 'a b'", id="name with a space"),
        pytest.param('"gpu[001-002]"', '"gpu[001-002"', r"racks\[0\].nodes: .* is not a host list", id="bracket"),
        pytest.param('"gpu[001-002]"', '"gpu;reboot"', r"is not a node name", id="hostile name"),
        pytest.param('"gpu[001-002]"', '"gpu1,gpu1"', r"gpu1 is already in r1", id="node twice"),
        pytest.param('"gpu[001-002]"}', '"a"}, {name: r1, nodes: b}', r"rack r1 is listed twice", id="rack twice"),
        pytest.param('nodes: "gpu[001-002]"', 'node: "x"', r"racks\[0\].node: unknown key", id="rack key"),
        pytest.param("racks: [{", "racks: [] #", r"racks: found \[\]", id="no rack: empty never means all"),
        pytest.param("gpus_per_node: 8", "gpus_per_node: 0", r"gpus_per_node: found 0", id="no GPU"),
        pytest.param(
            "telemetry: {kind: simulator}",
            "telemetry: {kind: prometheus, url: 'https://u:secret@p'}",
            r"telemetry.url: found a URL with credentials",
            id="password in the URL",
        ),
        pytest.param(
            "telemetry: {kind: simulator}",
            "telemetry: {kind: prometheus, url: 'http://p', bearer_token_file: none}",
            r"there is no file .*none",
            id="token file absent",
        ),
        pytest.param(
            "telemetry: {kind: simulator}",
            "telemetry: {kind: prometheus, url: 'http://p', basic_auth_user: u}",
            r"basic_auth_user and basic_auth_password_file go together",
            id="half a basic auth",
        ),
        pytest.param(
            "logs: {kind: simulator}",
            "logs: {kind: files, paths: [a], timezone: Mars/Olympus}",
            r"logs.timezone: found 'Mars/Olympus'",
            id="zone",
        ),
        pytest.param(
            "scheduler: {kind: simulator}", "scheduler: {kind: slurm, slurm_conf: none}", r"there is no file", id="conf"
        ),
        pytest.param("logs: {kind: simulator}", "logs: {kind: files, paths: []}", r"logs.paths", id="no log file"),
        pytest.param("fleet: {kind: simulator}", "fleet: {kind: commands, reboot: []}", r"fleet.reboot", id="no words"),
        pytest.param(
            "fleet: {kind: simulator}", "fleet: {kind: commands, reboot: ssh n reboot}", r"a valid list", id="a line"
        ),
        pytest.param("notifier:", "ledger: {url: a, url_file: b}\nnotifier:", r"url or url_file, not", id="two URLs"),
        pytest.param(
            "notifier:", "ledger: {url: 'postgresql://o@db/o?password=secret'}\nnotifier:",
            r"ledger.url: the URL has a password in its query, .* write it as user:password@host", id="password",
        ),
        pytest.param('"gpu[001-002]"', '"a", power_feed: 7', r"racks\[0\].power_feed: found 7", id="feed by number"),
        pytest.param('"gpu[001-002]"', '"a", powerfeed: A', r"did you mean power_feed", id="feed misspelt"),
        pytest.param("notifier:", "release: {driver: 580.95}\nnotifier:", r"release.driver: found 580.95", id="float"),
        pytest.param("notifier:", "release: {drivers: a}\nnotifier:", r"did you mean driver", id="release misspelt"),
        pytest.param("notifier:", "release: {firmware: a}\nnotifier:", r"release.firmware: found 'a'", id="no models"),
        pytest.param(
            "notifier:", "release: {firmware: {H100: 96.0}}\nnotifier:", r"firmware.H100: found 96.0", id="firmware"
        ),
        pytest.param(
            "notifier:", "release: {firmware: {driver: a}}\nnotifier:", r"as release.driver", id="driver as firmware"
        ),
    ],
)  # fmt: skip
def test_cluster_faults_name_key_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINIMAL

    with pytest.raises(ConfigError, match=message) as caught:
        read_cluster(write(tmp_path, MINIMAL.replace(old, new)))

    assert "secret" not in str(caught.value).replace("secrets", "")


def test_password_in_the_query_of_a_url_file_is_refused_too(tmp_path: Path) -> None:
    write(tmp_path, "postgresql://ops@db/ops?connect_timeout=3&Password=hunter2\n", name="ledger.url")

    with pytest.raises(ConfigError, match=r"ledger.url_file: .*passfile") as caught:
        read_cluster(write(tmp_path, MINIMAL + "ledger: {url_file: ledger.url}\n"))

    assert "hunter2" not in str(caught.value)


def test_ledger_url_is_not_shown_in_a_repr(tmp_path: Path) -> None:
    config = read_cluster(write(tmp_path, MINIMAL + "ledger: {url: 'postgresql://ops:hunter2@db/ops'}\n"))

    assert config.ledger.url == "postgresql://ops:hunter2@db/ops"
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param("gpu001", ("gpu001",), id="one"),
        pytest.param("gpu[001-003]", ("gpu001", "gpu002", "gpu003"), id="range keeps zeros"),
        pytest.param("gpu[9-11]", ("gpu9", "gpu10", "gpu11"), id="range grows"),
        pytest.param("gpu[1,3],login", ("gpu1", "gpu3", "login"), id="list"),
        pytest.param("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2"), id="two brackets"),
        pytest.param("a, b", ("a", "b"), id="space after the comma"),
    ],
)
def test_host_list_is_expanded_as_slurm_does(text: str, nodes: tuple[str, ...]) -> None:
    assert expand_host_list(text) == nodes


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,,b", "a,", "gpu[]", "gpu[1-]", "gpu[1-2", "gpu]1[", "a b", "$(reboot)", "-w", "gpu[a-b]"),
        *("[[1]]", "gpu[1-99999999]", "g[0-9999]n[0-9999]"),
    ],
)
def test_host_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        expand_host_list(text)


@pytest.mark.parametrize(
    ("code", "response"),
    [
        pytest.param(13, Response.NOTIFY_OWNER, id="illegal access is the job's"),
        pytest.param(43, Response.NOTIFY_OWNER, id="43 notifies the owner and touches no node"),
        pytest.param(45, Response.MONITOR, id="45 alone never acts"),
        pytest.param(48, Response.RESET_GPU, id="double-bit error"),
        pytest.param(63, Response.RESET_GPU, id="a remap recorded waits for the end of the job"),
        pytest.param(64, Response.RESET_GPU, id="a remap failed"),
        pytest.param(79, Response.REBOOT_NODE, id="a reset cannot reach a GPU off the bus"),
        pytest.param(95, Response.RESET_GPU, id="uncontained"),
        pytest.param(119, Response.RESET_GPU, id="GSP timeout"),
        pytest.param(154, Response.MONITOR, id="154 is read as a recovery action"),
    ],
)
def test_catalogue_answers_the_codes_that_matter(code: int, response: Response) -> None:
    assert RESPONSES[read_catalogue().xids[code].first_action] is response


def test_a_long_list_of_nodes_is_split_in_one_pass() -> None:
    assert len(expand_host_list("a," * 60_000 + "gpu[1,3]")) == 60_002
