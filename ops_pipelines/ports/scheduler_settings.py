"""How the scheduler is set up: settings as it shows them itself. Reads only; what they mean is judged elsewhere."""

from typing import Protocol

from ops_pipelines.domain.placement.scheduler_policy import SettingsRead


class SchedulerSettings(Protocol):
    """Reads settings of the cluster, of its partitions and of its QOS, in the scheduler's own words."""

    def read(self) -> SettingsRead:
        """Return what holds now. What could not be read beside the cluster's own settings stands in `unread`.

        Raises SourceUnavailable or SourceNonsense where not even these can be read.
        """
        ...
