"""Reads the section `fleet` of cluster.yaml: commands, and BMCs over Redfish. The other sections are `files`."""

from ops_pipelines.domain.identity import NodeName
from ops_pipelines.domain.topology import Topology
from ops_pipelines.resources.config.cluster_config import FleetConfig, FleetKind
from ops_pipelines.resources.config.models import FLEETS, CommandsModel, RedfishModel
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, Authentication, RedfishSettings, find_faults
from ops_pipelines.resources.config.strict_yaml import YamlFile

_REDFISH = ("fleet", "redfish")


def read_fleet(file: YamlFile, value: object, *, topology: Topology) -> FleetConfig | None:
    """Return how machines are reached, or None after keeping every fault of the section."""
    section = file.check_choice(value, FLEETS, at=("fleet",))
    if section is None:
        return None
    if not isinstance(section, CommandsModel):
        return FleetConfig(kind=FleetKind.SIMULATOR)
    acts = section.model_dump(exclude={"kind", "redfish"}, exclude_none=True)
    commands = {act: tuple(words) for act, words in acts.items()}
    if section.redfish is None:
        return FleetConfig(kind=FleetKind.COMMANDS, commands=commands)
    for act in POWER_ACTS:
        if act in commands:
            file.add_fault(("fleet", act), "redfish does this already; keep the command or redfish, not both")
    return FleetConfig(
        kind=FleetKind.COMMANDS,
        commands=commands,
        redfish=_read_redfish(file, section.redfish, topology=topology),
    )


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
        ca_file=file.find_file(section.ca_file, at=(*_REDFISH, "ca_file")),
        is_certificate_checked=section.verify,
        authentication=Authentication(section.authentication),
    )
    for key, sentence in find_faults(settings, nodes=topology.places.keys()):
        file.add_fault((*_REDFISH, key), sentence)
    return settings
