"""Mornings of quotas on a small twin: six nodes, three teams with agreements, limits in the twin, two weeks of demand.

Nothing of the demand ran anywhere: it is written into the lake as `gpu_demand` would have computed it.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ops_pipelines.core.cluster import Observatory
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import QuotaPolicy, TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines.teams.projects import Project
from ops_pipelines_lab.simulator.accounting import SimulatedQuotas
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, SimulatedNode, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.flow.fake_store import observatory_on
from tests.scenarios.small_autopilot import POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.fake_clock import BEGINNING, FakeClock

RESEARCH, SCIENCE, PRODUCT = TeamName("research"), TeamName("science"), TeamName("product")
TEAMS = (RESEARCH, SCIENCE, PRODUCT)
GUARANTEES = {RESEARCH: 16.0, SCIENCE: 8.0, PRODUCT: 8.0}
LIMITS = {RESEARCH: 24, SCIENCE: 8, PRODUCT: 16}
NO_TYPE = GpuType("")
HOUR = timedelta(hours=1)
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
MORNING = BEGINNING.replace(hour=5)
"""05:00 of the twin's first day; the clock begins two hours later."""
TODAY = BEGINNING.date()
ON_YES = replace(POLICY, consents={ActionClass.QUOTAS: Consent.APPROVE})
BY_ITSELF = replace(POLICY, consents={ActionClass.QUOTAS: Consent.AUTO})
Hours = Mapping[TeamName, float]


def agreements(
    guarantees: Mapping[TeamName, float] = GUARANTEES, *, projects: Sequence[Project] = (), timezone: str = "UTC"
) -> Agreements:
    """Return contracts that always hold."""
    return Agreements(
        parents=dict.fromkeys(guarantees),
        contracts=tuple(
            Contract(terms=Terms(team=team, guarantee=gpus), valid_from=date(2025, 1, 1))
            for team, gpus in guarantees.items()
        ),
        projects=tuple(projects),
        timezone=timezone,
    )


@dataclass(frozen=True, kw_only=True)
class Past:
    """What each team wants in every hour of a past, and how long that is."""

    wanted: Hours = field(default_factory=lambda: {RESEARCH: 10.0, SCIENCE: 20.0, PRODUCT: 6.0})
    limits: Mapping[TeamName, int] = field(default_factory=lambda: dict(LIMITS))
    days: int = 4
    until: datetime = BEGINNING

    def rows(self) -> list[dict[str, object]]:
        count = self.days * 24
        return [
            row_of(team, self.until - (count - number) * HOUR, wanted, limit=self.limits.get(team, 0))
            for number in range(count)
            for team, wanted in self.wanted.items()
        ]


def row_of(team: str, hour: datetime, wanted: float, *, limit: float, gpu_type: str = "") -> dict[str, object]:
    ran = min(wanted, limit)
    return {
        "team": team,
        "gpu_type": gpu_type,
        "time": hour,
        "gpus_running_avg": ran,
        "gpus_pending_avg": wanted - ran,
        "gpus_pending_max": wanted - ran,
        "gpus_demand_avg": wanted,
        "gpus_wasted_avg": 0.0,
        "jobs_running_avg": ran / 4,
        "gpus_ran_last": float(int(ran)),
    }


class QuotaStage:
    """A twin with limits, a ledger, a lake with a past, and the desk on all of them."""

    def __init__(
        self,
        directory: Path,
        *jobs: JobSpec,
        past: Past | None = None,
        agreed: Agreements | None = None,
        policy: Policy = ON_YES,
        quotas: QuotaPolicy | None = None,
        node_count: int = 6,
        nodes_per_rack: int = 8,
        accounts: Sequence[TeamName] = TEAMS,
    ) -> None:
        nodes = cluster_nodes(node_count, nodes_per_rack=nodes_per_rack)
        self.autopilot = _AutopilotWithAccounts(directory, *jobs, policy=policy, nodes=nodes, accounts=accounts)
        self.clock: FakeClock = self.autopilot.clock
        self.port = SimulatedQuotas(self.autopilot.twin)
        self.port.apply([QuotaChange(account=team, before=None, after=limit) for team, limit in LIMITS.items()])
        topology = self.autopilot.cluster.rules.topology
        self.observatory: Observatory = observatory_on(
            directory / "lake",
            clock=self.clock,
            scheduler=self.autopilot.cluster.scheduler,
            topology=topology,
        )
        self.desk = TeamsDesk(
            cluster=replace(self.autopilot.cluster, outbox=self.autopilot.cluster.ledger),  # type: ignore[arg-type]  # SqlLedger is both
            observatory=self.observatory,
            agreements=agreed or agreements(),
            policy=quotas or QuotaPolicy(),
            quotas=self.port,
            installed=tuple(installed(node) for node in topology.places),
        )
        if past is None:
            shutil.copytree(_usual_lake(), directory / "lake", copy_function=os.link, dirs_exist_ok=True)
        elif past.days:
            self.add(past.rows())

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write hours of demand into the lake."""
        self.observatory.lake.add("gpu_demand", TABLES["gpu_demand"].from_rows(rows))

    def drop(self, start: datetime, end: datetime) -> None:
        """Lose hours of demand."""
        hour = start
        while hour < end:
            self.observatory.lake.replace_hour("gpu_demand", hour, None)
            hour += HOUR

    def change(self, **changes: Any) -> None:
        """Continue with another desk, as after an edit and a restart."""
        self.desk = replace(self.desk, **changes)

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def limits(self) -> dict[str, int | None]:
        """Return what the scheduler holds each team to."""
        return {str(team): each.limit_of(NO_TYPE) for team, each in self.port.read().accounts.items()}


@cache
def _usual_lake() -> Path:
    """Return a lake with the usual past, written once: most mornings begin with it. Files are replaced, not changed.

    The directory lasts as long as the process.
    """
    _KEPT.append(kept := TemporaryDirectory(prefix="quota-past-"))
    ParquetLake(kept.name).add("gpu_demand", TABLES["gpu_demand"].from_rows(Past().rows()))
    return Path(kept.name)


_KEPT: list[TemporaryDirectory[str]] = []


class _AutopilotWithAccounts(SmallAutopilot):
    """The small autopilot on a twin that knows the teams before they have run anything."""

    def __init__(
        self,
        directory: Path,
        *jobs: JobSpec,
        policy: Policy,
        nodes: tuple[SimulatedNode, ...],
        accounts: Sequence[TeamName],
    ) -> None:

        self.clock = FakeClock()
        self.ledger_url = None
        self.messages = MessagesInMemory()
        self.failures = []
        scenario = Scenario(
            nodes=nodes,
            durations=SHORT_DURATIONS,
            initial_jobs=jobs,
            accounts=tuple(str(team) for team in accounts),
        )
        self._begin_on(directory, Twin.create(directory / "twin", scenario, seed=7, clock=self.clock), policy)


def installed(node: NodeName, *, gpu_type: str = "", gpu_count: int = 8) -> InstalledNode:
    return InstalledNode(
        node=node, asset="hgx", gpu_type=GpuType(gpu_type), gpu_count=gpu_count, since=LONG_AGO, until=None
    )
