"""The port `SchedulerSettings` on the twin: what its scheduler does, in the words that Slurm has for it."""

from ops_pipelines.core.scheduler import SettingsRead
from ops_pipelines_lab.simulator.twin import Twin


class SimulatedSettings:
    """The port `SchedulerSettings` on the twin."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def read(self) -> SettingsRead:
        """Return settings of a scheduler that goes by priority, then by age, and never ends a job for another."""
        with self._twin.present() as world:
            now = world.now
        gpus = self._twin.scenario.gpus_per_node
        partition = {
            "DefaultTime": "NONE",
            "MaxTime": "UNLIMITED",
            "OverSubscribe": "NO",
            "PreemptMode": "OFF",
            "TRES": f"gres/gpu={gpus}",
            "TRESBillingWeights": "GRES/gpu=1.0",
        }
        return SettingsRead(
            cluster={
                "ClusterName": "simulated",
                "PriorityType": "priority/basic",
                "SchedulerType": "sched/backfill",
                "PreemptType": "preempt/none",
                "PreemptMode": "OFF",
                "TopologyPlugin": "topology/default",
            },
            partitions=dict.fromkeys(sorted(self._twin.scenario.partitions), partition),
            read_at=now,
        )
