"""Reads the section `quotas` of cluster.yaml: how limits are set."""

from collections import Counter

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.resources.config.quota_models import LimitsModel
from ops_pipelines.resources.config.strict_yaml import YamlFile
from ops_pipelines.resources.config.team_settings import LimitSettings
from ops_pipelines.teams.settings import LimitsOn

_AT = "quotas"


def read_limit_settings(file: YamlFile, section: LimitsModel) -> LimitSettings:
    """Return how limits are set; a QOS for two teams is kept as a fault: they would share one limit."""
    teams_of = Counter(section.qos_of.values())
    for team, qos in section.qos_of.items():
        if teams_of[qos] > 1:
            file.add_fault((_AT, "qos_of", team), f"QOS {qos} is given to several teams; give each one of its own")
    return LimitSettings(
        limits_on=LimitsOn(section.limits),
        qos_of={TeamName(team): qos for team, qos in section.qos_of.items()},
    )
