"""Reads the section `fleet` of cluster.yaml: commands, BMCs, playbooks. The other sections are `files`."""

from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.machines import SiteMeans
from ops_pipelines.resources.config.cluster_config import (
    FleetConfig,
    FleetKind,
    RebootBy,
    SchedulerConfig,
    SchedulerKind,
)
from ops_pipelines.resources.config.install_settings import PAIRS, AnsibleSettings
from ops_pipelines.resources.config.models import FLEETS, AnsibleModel, CommandsModel, RedfishModel
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, Authentication, RedfishSettings, find_faults
from ops_pipelines.resources.config.strict_yaml import YamlFile, expand_home

_REDFISH = ("fleet", "redfish")
_ANSIBLE = ("fleet", "ansible")


_ACTS = {
    SiteMeans.INSPECT: ("inspect",),
    SiteMeans.CHECK: ("start_check", "read_check"),
    SiteMeans.POWER: POWER_ACTS,
    SiteMeans.RESET_GPU: ("reset_gpu",),
    SiteMeans.REBOOT: ("reboot",),
    SiteMeans.REIMAGE: ("reimage",),
}
"""The commands without which each means is not there."""


def offered_means(fleet: FleetConfig) -> frozenset[SiteMeans]:
    """Return what the site offers to do to its machines, as cluster.yaml names it; of pretended ones everything."""
    if fleet.kind is FleetKind.SIMULATOR:
        return frozenset(SiteMeans)
    by_command = {means for means, acts in _ACTS.items() if fleet.commands.keys() >= set(acts)}
    by_power = {SiteMeans.POWER} if fleet.redfish is not None else set()
    by_scheduler = {SiteMeans.REBOOT} if fleet.reboot_by is RebootBy.SLURM else set()
    return frozenset(by_command | by_power | by_scheduler)


def read_fleet(
    file: YamlFile, value: object, *, topology: Topology, scheduler: SchedulerConfig | None, here: Path
) -> FleetConfig | None:
    """Return how machines are reached, or None after keeping every fault of the section.

    `scheduler`: as it could be read. `here`: from where relative paths count.
    """
    section = file.check_choice(value, FLEETS, at=("fleet",))
    if section is None:
        return None
    if not isinstance(section, CommandsModel):
        return FleetConfig(kind=FleetKind.SIMULATOR)
    acts = section.model_dump(exclude={"kind", "reboot_by", "redfish", "ansible"}, exclude_none=True)
    commands = {act: tuple(words) for act, words in acts.items()}
    for act, other in PAIRS:
        if act in commands and other not in commands:
            file.add_fault(("fleet", act), f"is of no use without {other}; name both commands, or neither")
    reboot_by = RebootBy(section.reboot_by)
    if reboot_by is RebootBy.SLURM and "reboot" in commands:
        file.add_fault(("fleet", "reboot"), "reboot_by: slurm does this already; keep one of them")
    if reboot_by is RebootBy.SLURM and scheduler is not None and scheduler.kind is not SchedulerKind.SLURM:
        file.add_fault(("fleet", "reboot_by"), f"is slurm, and the scheduler is {scheduler.kind.value}; leave it out")
    for act in POWER_ACTS:
        if section.redfish is not None and act in commands:
            file.add_fault(("fleet", act), "redfish does this already; keep the command or redfish, not both")
    return FleetConfig(
        kind=FleetKind.COMMANDS,
        commands=commands,
        reboot_by=reboot_by,
        redfish=None if section.redfish is None else _read_redfish(file, section.redfish, topology=topology),
        ansible=None if section.ansible is None else _read_ansible(file, section.ansible, here=here),
    )


def _read_ansible(file: YamlFile, section: AnsibleModel, *, here: Path) -> AnsibleSettings:
    playbooks = here / expand_home(section.playbooks)
    if not playbooks.is_dir():
        file.add_fault(
            (*_ANSIBLE, "playbooks"), f"there is no directory {playbooks}; give the one that holds playbooks"
        )
    return AnsibleSettings(playbooks=playbooks, limit=timedelta(seconds=section.limit_seconds))


def _read_redfish(file: YamlFile, section: RedfishModel, *, topology: Topology) -> RedfishSettings | None:
    for name in section.addresses:
        if not topology.knows(NodeName(name)):
            file.add_fault((*_REDFISH, "addresses", name), "is not a node of the cluster; check the name against racks")
    password_file = file.find_file(section.password_file, at=(*_REDFISH, "password_file"))
    assert password_file is not None, "config_models asks for the file"
    settings = RedfishSettings(
        user=section.user,
        password_file=password_file,
        address=None if section.address is None else section.address.rstrip("/"),
        addresses={NodeName(name): address.rstrip("/") for name, address in section.addresses.items()},
        system_id=section.system_id,
        manager_id=section.manager_id,
        ca_file=file.find_file(section.ca_file, at=(*_REDFISH, "ca_file")),
        is_certificate_checked=section.verify,
        authentication=Authentication(section.authentication),
    )
    for key, sentence in find_faults(settings, nodes=topology.places.keys()):
        file.add_fault((*_REDFISH, key), sentence)
    return settings
