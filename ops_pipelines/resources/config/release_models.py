"""The shape of a file of `releases/`: one model a section, nothing but keys, types and bounds.

What it becomes is `release_file`'s; how faults are told is `strict_yaml`'s. Every key is told in docs/RELEASES.md.
"""

from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.resources.config.strict_yaml import StrictModel

Line = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""One line of text."""
Word = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Words = Annotated[list[Word], Field(max_length=100)]
Location = Annotated[
    str,
    Field(max_length=1000, pattern=r"^(/[A-Za-z0-9._+~%@=,:-]+)+$|^https://[A-Za-z0-9.:-]+(/[A-Za-z0-9._+~%=,:-]+)+$"),
]
"""A path from the root, or an https URL without user, query and fragment."""
# Assumption: no release has more parts than a machine has; more is a slip.
_MOST = 100


class ArtifactModel(StrictModel):
    name: Line
    sha256: str
    location: Location


class ChangeModel(StrictModel):
    component: str
    version: str
    means: Literal["command", "ansible", "redfish"] = "command"
    install: Words = Field(default_factory=list)
    rollback: Words = Field(default_factory=list)
    targets: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]], Field(max_length=_MOST)] = (
        Field(default_factory=list)
    )
    artifact: ArtifactModel | None = None
    rollback_artifacts: dict[str, ArtifactModel] = Field(default_factory=dict)
    activation: Literal["live", "driver_reload", "reboot", "power_cycle", "ac_cycle"]
    reversible: bool | Literal["with_conditions"]
    """YAML reads a bare `yes` and `no` as true and false."""
    conditions: Line | None = None
    starts_from: str | None = None
    bundle: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] | None = None


class ClaimsModel(StrictModel):
    event_rate_ratio: float | None = None
    slowdown_ratio: float | None = None
    slowest_failure_hours: float | None = None


class ReleaseModel(StrictModel):
    """One file of `releases/`."""

    name: str
    about: Line
    models: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]], Field(max_length=_MOST)]
    changes: Annotated[list[ChangeModel], Field(max_length=_MOST)]
    gate_suite: str = "release"
    canary_suite: str = "release_canary"
    claims: ClaimsModel = ClaimsModel()
    opted_out: Annotated[list[Line], Field(max_length=10_000)] = Field(default_factory=list)
    """Slurm host lists."""
