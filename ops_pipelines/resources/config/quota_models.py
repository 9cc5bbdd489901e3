"""The shape of both sections `quotas`: of policy.yaml, how quotas move; of cluster.yaml, how limits are set.

Nothing but keys, types and bounds. What they become is `quota_section`'s.
"""

from typing import Annotated, Literal

from pydantic import Field

from ops_pipelines.resources.config.shapes import Account
from ops_pipelines.resources.config.strict_yaml import StrictModel

QosName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$")]
"""It stands in commands to the scheduler; a name that begins with a dash would be read as an option."""


class LimitsModel(StrictModel):
    """The section `quotas` of cluster.yaml."""

    limits: Literal["total", "per_type"] = "total"
    qos_of: dict[Account, QosName] = Field(default_factory=dict)
