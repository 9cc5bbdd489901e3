"""What tests of firmware over Redfish share: settings, orders, and our side of it as a process begins it again."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import sushy  # noqa: F401  # half a second that is not to count against the limit of the first call

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.release import Activation, Artifact, Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport
from ops_pipelines.resources.config.redfish_settings import RedfishSettings
from ops_pipelines.resources.fleet.redfish_update import RedfishUpdates
from tests.resources.fake_bmc import PASSWORD
from tests.resources.patience import LIMIT_SECONDS
from tests.simulator.fake_clock import FakeClock

NODE = NodeName("gpu003")
KEY = ActionKey("0123456789abcdef0123456789abcdef")
OTHER_KEY = ActionKey("f" * 32)
NEW_BIOS, OLD_BIOS = "1.06.07", "1.05.03"
IMAGE = b"a signed image " * 1000
ADDRESS = "https://images.example/bios.fwpkg"


def settings_for(url: str, directory: Path, **more: object) -> RedfishSettings:
    password_file = directory / "bmc.password"
    password_file.write_text(PASSWORD + "\n", encoding="utf-8")
    return RedfishSettings(
        user="ops",
        password_file=password_file,
        addresses={NODE: url},
        is_certificate_checked=False,
        **more,  # type: ignore[arg-type]  # of the settings, as the test writes them
    )


def updates_for(
    url: str, directory: Path, *, clock: Clock | None = None, limit_seconds: float = LIMIT_SECONDS, **more: object
) -> RedfishUpdates:
    """Our side, as a process that begins finds it: nothing but the state directory is older."""
    return RedfishUpdates(
        settings_for(url, directory, **more),
        state_directory=directory / "updates",
        clock=clock or FakeClock(),
        limit_seconds=limit_seconds,
    )


def change(
    component: Component = Component.BIOS,
    version: str = NEW_BIOS,
    *,
    location: str = ADDRESS,
    image: bytes = IMAGE,
    targets: tuple[str, ...] = ("HostBIOS_0",),
    activation: Activation = Activation.POWER_CYCLE,
    rollback: Mapping[str, Artifact] | None = None,
) -> Change:
    return Change(
        component=component,
        version=version,
        means=Means.REDFISH,
        targets=targets,
        artifact=artifact(location, image),
        rollback_artifacts=rollback or {},
        activation=activation,
    )


def artifact(location: str, image: bytes = IMAGE) -> Artifact:
    return Artifact(name=location.rsplit("/", 1)[-1], sha256=hashlib.sha256(image).hexdigest(), location=location)


def order(*changes: Change, direction: Direction = Direction.FORWARD, **versions: str) -> InstallOrder:
    """`versions`: what each component is to run, where that is not the version of its change."""
    found = changes or (change(),)
    wanted = {each.component: versions.get(each.component.value, each.version) for each in found}
    return InstallOrder(changes=found, direction=direction, versions=wanted)


def told(updates: RedfishUpdates, key: ActionKey = KEY) -> InstallReport:
    report = updates.report(NODE, key=key)
    assert report is not None
    return report
