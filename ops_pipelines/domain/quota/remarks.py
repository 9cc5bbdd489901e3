"""What is said of agreements that a cluster cannot keep, or that somebody should have meant: values and words.

The rules are `quota_lint`'s. A remark says what was found, what was expected and what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.proposal import GpuType, TeamName

_NAMED = 3
"""So many are named; of the rest their number is told."""


class RemarkKind(Enum):
    """What a remark is about."""

    BEYOND_INSTALLED = "beyond_installed"
    """More is guaranteed than there is, with every GPU healthy."""
    BEYOND_HEALTHY = "beyond_healthy"
    """More is guaranteed than is healthy now."""
    BEYOND_PARENT = "beyond_parent"
    """The teams of an organisation are guaranteed more than it may ever have."""
    BEYOND_AGREED = "beyond_agreed"
    """They are guaranteed more than was agreed with the organisation, and not more than it may have."""
    NO_WEIGHT = "no_weight"
    """Nobody of those who may borrow has a weight: what is left lies idle while they queue."""
    UNKNOWN_GPU_TYPE = "unknown_gpu_type"
    """A contract is for GPUs that the cluster does not have."""
    ENDS_SOON = "ends_soon"
    """A guarantee runs out, and nothing follows."""
    UNDECLARED = "undeclared"
    """A team in demand stands in no file."""
    ORGANISATION_IN_DEMAND = "organisation_in_demand"
    """Jobs are charged to an organisation, and not to one of its teams."""
    PROJECT_OF_ORGANISATION = "project_of_organisation"
    """A project is written down for an organisation, and not for one of its teams."""
    PROJECT_WITHOUT_GPUS = "project_without_gpus"
    """A project wants GPUs that neither the cluster nor a contract has."""
    PROJECT_BEYOND_TERMS = "project_beyond_terms"
    """A project wants more than its team may ever have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing that was found."""

    kind: RemarkKind
    text: str
    team: TeamName | None = None
    """Whose it is; None: it is about all."""
    gpu_type: GpuType | None = None
    """None: it is about every type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """What was found, apart: errors are what quotas must not be made from; warnings are only said."""

    errors: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()


def joined(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{rest}"


def type_prefix(gpu_type: GpuType) -> str:
    """Return what a sentence opens with that is about one type of GPU; nothing where none is told."""
    return f"{gpu_type}: " if gpu_type else ""
