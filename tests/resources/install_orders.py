"""Orders of installations for tests: one change or several, by whichever means."""

import hashlib
from collections.abc import Mapping, Sequence

from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.release import Artifact, Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder

NODE, OTHER_NODE = NodeName("gpu003"), NodeName("gpu004")
KEY, OTHER_KEY = ActionKey("0123456789abcdef" * 2), ActionKey("f" * 32)
IMAGE = b"an image"
SHA256 = hashlib.sha256(IMAGE).hexdigest()


def change(
    *words: str,
    component: Component = Component.DRIVER,
    means: Means = Means.COMMAND,
    artifact: Artifact | None = None,
    rollback: Sequence[str] = ("true",),
    rollback_artifacts: Mapping[str, Artifact] | None = None,
) -> Change:
    return Change(
        component=component,
        version="580.126.20",
        means=means,
        install=words or ("true",),
        rollback=tuple(rollback),
        artifact=artifact,
        rollback_artifacts=rollback_artifacts or {},
    )


def order(*changes: Change, direction: Direction = Direction.FORWARD, version: str = "580.126.20") -> InstallOrder:
    return InstallOrder(
        changes=changes, direction=direction, versions={each.component: version for each in changes}
    )  # fmt: skip


def image(location: str, *, sha256: str = SHA256) -> Artifact:
    return Artifact(name="image", sha256=sha256, location=location)
