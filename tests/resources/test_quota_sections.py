"""Both sections `quotas`: what they become, that the shipped files state the defaults, and how faults are reported."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.resources.config.cluster_config import ClusterConfig, LimitSettings
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.policy_file import QUOTA_FREEZE, QUOTAS, read_policy, read_quota_policy
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.teams.desk import LimitsOn, QuotaFreeze, QuotaPolicy, RebalanceSettings

ROOT = Path(__file__).parents[2]
TOPOLOGY = Topology(
    places={NodeName("gpu001"): Place(rack="r1", nvlink_domain="gpu001", leaf_switch="leaf1")}, gpus_per_node=8
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
FREEZE = "name: a, begins_at: 2026-12-21T00:00:00Z"


def policy_with(directory: Path, text: str) -> Path:
    path = directory / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def cluster_with(directory: Path, text: str) -> ClusterConfig:
    path = directory / "cluster.yaml"
    path.write_text(f"{MINIMAL}{text}\n", encoding="utf-8")
    return read_cluster(path)


# --- policy.yaml --------------------------------------------------------------------------------------------------


def test_every_key_becomes_what_it_says(tmp_path: Path) -> None:
    text = """
quotas:
  half_life_hours: 12
  window_days: 10
  spread_ratio: 0.2
  least_gain_ratio: 0.1
  step_cap_ratio: 0.25
  agreeing_days: 3
  looked_at_days: 4
  slack_max_ratio: 0.02
  waste_bound_ratio: 0.1
  demand_max_age_hours: 1.5
  known_hour_min_ratio: 0.8
  sets_fairshare: true
  freezes:
    - {name: end of year, begins_at: 2026-12-21T00:00:00+01:00, ends_at: 2027-01-02T00:00:00Z}
    - {name: until we say so, begins_at: 2027-02-01T00:00:00Z, ends_at: null}
"""

    assert read_quota_policy(policy_with(tmp_path, text)) == QuotaPolicy(
        rebalance=RebalanceSettings(
            half_life_hours=12.0,
            window_days=10,
            spread_ratio=0.2,
            least_gain_ratio=0.1,
            step_cap_ratio=0.25,
            agreeing_days=3,
            looked_at_days=4,
        ),
        slack_max_ratio=0.02,
        waste_bound_ratio=0.1,
        demand_max_age=timedelta(minutes=90),
        known_hour_min_ratio=0.8,
        sets_fairshare=True,
        freezes=(
            QuotaFreeze(
                name="end of year",
                begins_at=datetime(2026, 12, 20, 23, tzinfo=UTC),
                ends_at=datetime(2027, 1, 2, tzinfo=UTC),
            ),
            QuotaFreeze(name="until we say so", begins_at=datetime(2027, 2, 1, tzinfo=UTC), ends_at=None),
        ),
    )


@pytest.mark.parametrize("text", ["", "mode: auto", "quotas: {}"])
def test_what_is_left_out_has_the_defaults(tmp_path: Path, text: str) -> None:
    assert read_quota_policy(policy_with(tmp_path, text)) == QuotaPolicy()


def test_the_shipped_policy_states_the_defaults_and_every_key() -> None:
    text = (ROOT / "policy.yaml").read_text(encoding="utf-8")

    assert read_quota_policy(ROOT / "policy.yaml") == QuotaPolicy()
    for name in (*QUOTAS.keys, *QUOTA_FREEZE.keys):
        assert f"{name}: " in text, name


def test_every_limit_of_the_domain_has_a_key_of_the_same_name() -> None:
    names = {each.name for values in (QuotaPolicy, RebalanceSettings) for each in fields(values)} - {"rebalance"}

    assert {"demand_max_age_hours" if each == "demand_max_age" else each for each in names} == set(QUOTAS.keys)


def test_quotas_change_nothing_of_what_is_decided_about_nodes(tmp_path: Path) -> None:
    plain = read_policy(policy_with(tmp_path, "mode: auto"), topology=TOPOLOGY)

    assert read_policy(policy_with(tmp_path, "mode: auto\nquotas: {window_days: 7}"), topology=TOPOLOGY) == plain


def test_quotas_have_a_word_of_consent_of_their_own(tmp_path: Path) -> None:
    policy = read_policy(policy_with(tmp_path, "mode: auto\nconsents: {quotas: approve}"), topology=TOPOLOGY)

    assert policy.consent_to(ActionClass.QUOTAS) is Consent.APPROVE
    assert policy.consent_to(ActionClass.REBOOT) is Consent.AUTO


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("half_life: 9", r"line 2: quotas.half_life: unknown key; did you mean half_life_hours\?"),
        ("half_life_hours: 0", r"line 2: quotas.half_life_hours: found 0"),
        ("half_life_hours: 8785", r"half_life_hours: found 8785"),
        ("window_days: 2", r"line 1: quotas.agreeing_days: agreeing_days 2, looked_at_days 3, window_days 2"),
        ("window_days: 1.5", r"quotas.window_days: found 1.5"),
        ("step_cap_ratio: 0", r"line 2: quotas.step_cap_ratio: step_cap_ratio is 0"),
        ("step_cap_ratio: 10", r"step_cap_ratio is 10.*at most 1"),
        ("spread_ratio: 1", r"quotas.spread_ratio: spread_ratio is 1"),
        ("slack_max_ratio: 1.01", r"line 2: quotas.slack_max_ratio: quotas.slack_max_ratio is 1.01"),
        ("waste_bound_ratio: -0.1", r"quotas.waste_bound_ratio is -0.1"),
        ("known_hour_min_ratio: .nan", r"known_hour_min_ratio: found nan"),
        ("demand_max_age_hours: 0", r"quotas.demand_max_age_hours: found 0"),
        ("demand_max_age_hours: -1", r"quotas.demand_max_age_hours: found -1"),
        ("sets_fairshare: 1", r"quotas.sets_fairshare: found 1"),
        ("freezes: [{name: a, begins_at: 2026-12-21T00:00:00Z}]", r"freezes\[0\].ends_at: this key is missing"),
        (f"freezes: [{{{FREEZE}, ends_at: 2026-12-21T00:00:00Z}}]", r"line 2: quotas.freezes\[0\]: a ends at"),
        (f"freezes: [{{{FREEZE}, ends_at: 2026-12-22T00:00:00}}]", r"freezes\[0\]: a has .* a time without a zone"),
        ('freezes: [{name: a, begins_at: "soon", ends_at: null}]', r"freezes\[0\].begins_at: found 'soon'"),
        (f"freezes: [{{{FREEZE}, ends_at: 9999-12-31T23:00:00-05:00}}]", r"beyond the years|not YAML"),
        ('freezes: [{name: "", begins_at: 2026-12-21T00:00:00Z, ends_at: null}]', r"freezes\[0\].name: found ''"),
    ],
)
def test_a_fault_names_line_and_key_to_both_readers(tmp_path: Path, section: str, fault: str) -> None:
    path = policy_with(tmp_path, f"quotas:\n  {section}\n")

    with pytest.raises(ConfigError, match=fault):
        read_policy(path, topology=TOPOLOGY)
    with pytest.raises(ConfigError, match=fault):
        read_quota_policy(path)


@pytest.mark.parametrize(
    "section",
    ["half_life_hours: 8784", "step_cap_ratio: 1", "spread_ratio: 0", "slack_max_ratio: 1", "window_days: 3"],
)
def test_what_is_just_within_its_bounds_is_taken(tmp_path: Path, section: str) -> None:
    assert read_quota_policy(policy_with(tmp_path, f"quotas: {{{section}}}")) != QuotaPolicy()


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10_000),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(section=st.dictionaries(st.sampled_from([*QUOTAS.keys, "rebalance"]), _VALUES, max_size=4))
def test_whatever_the_section_says_both_readers_take_it_or_refuse_it_as_a_file(
    tmp_path: Path, section: dict[str, object]
) -> None:
    path = policy_with(tmp_path, yaml.safe_dump({"quotas": section}))

    answers = []
    for read in (read_quota_policy, partial(read_policy, topology=TOPOLOGY)):
        try:
            read(path)
        except ConfigError as refused:
            answers.append(str(refused))
        else:
            answers.append("")

    assert answers[0] == answers[1]


@pytest.mark.parametrize("section", ["[]", "9", "null"])
def test_a_section_that_is_none_is_refused(tmp_path: Path, section: str) -> None:
    with pytest.raises(ConfigError, match="line 1: quotas: found"):
        read_quota_policy(policy_with(tmp_path, f"quotas: {section}"))


# --- cluster.yaml -------------------------------------------------------------------------------------------------


def test_limits_are_set_on_all_types_together_where_nothing_is_said(tmp_path: Path) -> None:
    assert cluster_with(tmp_path, "").limits == LimitSettings(limits_on=LimitsOn.TOTAL, qos_of={})
    assert cluster_with(tmp_path, "quotas: {}").limits == LimitSettings()


def test_limits_by_type_and_by_qos_are_said_in_cluster_yaml(tmp_path: Path) -> None:
    config = cluster_with(tmp_path, "quotas: {limits: per_type, qos_of: {research: research-gpus, science: sci}}")

    assert config.limits == LimitSettings(
        limits_on=LimitsOn.PER_TYPE,
        qos_of={TeamName("research"): "research-gpus", TeamName("science"): "sci"},
    )


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ("{limits: by_type}", r"quotas.limits: found 'by_type'"),
        ("{limit: total}", r"quotas.limit: unknown key; did you mean limits\?"),
        ("{qos_of: {a: q, b: q}}", r"quotas.qos_of.b: QOS q is given to several teams"),
        ("{qos_of: {a: --immediate}}", r"quotas.qos_of.a: found '--immediate'"),
        ('{qos_of: {a: "q where 1"}}', r"quotas.qos_of.a"),
        ('{qos_of: {"a b": q}}', r"quotas.qos_of"),
    ],
)
def test_a_fault_of_limits_names_its_key(tmp_path: Path, section: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        cluster_with(tmp_path, f"quotas: {section}")


def test_the_comments_of_the_shipped_cluster_tell_every_key_of_limits() -> None:
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")

    assert read_cluster(ROOT / "cluster.yaml").limits == LimitSettings()
    assert read_cluster(ROOT / "cluster.yaml").teams_path == ROOT / "teams.yaml"
    for name in ("limits", "qos_of"):
        assert f"{name}: " in text, name


@pytest.mark.parametrize("section", ["logs: {kind: files, paths: [a], timezone: Europe}"])
def test_a_directory_of_zones_is_no_zone(tmp_path: Path, section: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(MINIMAL.replace("logs: {kind: simulator}", section), encoding="utf-8")

    with pytest.raises(ConfigError, match=r"logs.timezone: found 'Europe'; expected a zone of the IANA list"):
        read_cluster(path)
