"""The ports of a simulated cluster, as `ops_pipelines.wiring` asks for them by name: all that the product knows of us.

What the twin is, `simulator` says; a real cluster needs none of this.
"""

from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.scheduler import Quotas, Scheduler, SchedulerSettings
from ops_pipelines.core.sources import Accounting, Logs, MetricSource, Telemetry
from ops_pipelines_lab.simulator.scenario import demo_scenario
from ops_pipelines_lab.simulator.twin import Twin

_SEED = 1


class SimulatedSite:
    """One twin behind every port."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Attach to the twin in `directory`, or begin one there. Raises TwinError for one that cannot be read."""
        self._twin = Twin.join(directory, demo_scenario(), seed=_SEED, clock=clock)

    def scheduler(self) -> Scheduler:
        from ops_pipelines_lab.simulator.adapters import SimulatedScheduler

        return SimulatedScheduler(self._twin)

    def fleet(self) -> Fleet:
        from ops_pipelines_lab.simulator.adapters import SimulatedFleet

        return SimulatedFleet(self._twin)

    def telemetry(self) -> Telemetry:
        from ops_pipelines_lab.simulator.adapters import SimulatedTelemetry

        return SimulatedTelemetry(self._twin)

    def logs(self) -> Logs:
        from ops_pipelines_lab.simulator.adapters import SimulatedLogs

        return SimulatedLogs(self._twin)

    def metrics(self) -> MetricSource:
        from ops_pipelines_lab.simulator.exporter import SimulatedMetrics

        return SimulatedMetrics(self._twin)

    def accounting(self) -> Accounting:
        from ops_pipelines_lab.simulator.accounting import SimulatedAccounting

        return SimulatedAccounting(self._twin)

    def quotas(self) -> Quotas:
        from ops_pipelines_lab.simulator.accounting import SimulatedQuotas

        return SimulatedQuotas(self._twin)

    def settings(self) -> SchedulerSettings:
        from ops_pipelines_lab.simulator.twin import SimulatedSettings

        return SimulatedSettings(self._twin)
