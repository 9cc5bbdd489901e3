"""The shape of projects.yaml: nothing but keys, types and bounds. What it becomes is `projects_file`'s."""

from typing import Annotated

from pydantic import Field

from ops_pipelines.resources.config.shapes import Account, Gpus, GpuTypeName, PlannedDay
from ops_pipelines.resources.config.strict_yaml import StrictModel

# Assumption: nobody ramps up for longer than ten years; more is a slip.
_MOST_DAYS = 3660
# Assumption: no site plans more at once; a forecast with this many takes seconds, and one with far more does not end.
MOST_PROJECTS = 1000


class PlannedProjectModel(StrictModel):
    """null for `ends`: no end is known."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
    team: Account
    gpu_type: GpuTypeName = ""
    gpus: Gpus
    starts: PlannedDay
    ramp_days: Annotated[int, Field(ge=0, le=_MOST_DAYS)] = 0
    ends: PlannedDay | None = None
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0


class ProjectsModel(StrictModel):
    """projects.yaml. The projects are checked one by one, so that a slip in one hides nothing in another."""

    projects: Annotated[list[object], Field(max_length=MOST_PROJECTS)]
