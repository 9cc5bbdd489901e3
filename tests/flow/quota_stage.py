"""A desk of teams on a small twin with a real ledger: three accounts, thirty-two GPUs, and proposals for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import JobId, NodeName, Place, Topology, digest_of
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposedQuota, QuotaProposal, TeamName, Terms
from ops_pipelines.core.scheduler import ALL_TYPES, Change, QuotaChange, QuotaProbe, Quotas, QuotasInForce, TypedLimits
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import QuotaPolicy, RebalanceSettings, TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines_lab.simulator.accounting import SimulatedQuotas
from ops_pipelines_lab.simulator.adapters import SimulatedFleet, SimulatedLogs, SimulatedScheduler, SimulatedTelemetry
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.ports import quota_samples
from tests.ports.quota_samples import kept, line
from tests.scenarios.small_autopilot import MessagesInMemory, SlowLoop
from tests.simulator.fake_clock import BEGINNING, FakeClock

PLATFORM, PRODUCT, RESEARCH = TeamName("platform"), TeamName("product"), TeamName("research")
TEAMS = (PLATFORM, PRODUCT, RESEARCH)
GUARANTEE = 4.0
FIRST_LIMITS = {PLATFORM: 8, PRODUCT: 16, RESEARCH: 8}
PROPOSED = {PLATFORM: 8, PRODUCT: 8, RESEARCH: 16}
ME = "ada"
ALL_MAY_MOVE = QuotaPolicy(rebalance=RebalanceSettings(step_cap_ratio=1.0))
"""Proposals of thirty-two GPUs that move eight of them."""


def lines(
    after: Mapping[TeamName, int], before: Mapping[TeamName, int | None], *, gpu_type: str = ""
) -> tuple[ProposedQuota, ...]:
    return tuple(line(team, before[team], after[team], gpu_type=gpu_type, guarantee=GUARANTEE) for team in TEAMS)


def morning(
    after: Mapping[TeamName, int] = PROPOSED,
    before: Mapping[TeamName, int | None] = FIRST_LIMITS,
    *,
    days: int = 0,
) -> QuotaProposal:
    """Return what was proposed at 05:00 of the first day, or some days later."""
    made_at = BEGINNING - timedelta(hours=2) + timedelta(days=days)
    return quota_samples.proposal(*lines(after, before), day=made_at.date(), made_at=made_at)


def agreements(*teams: TeamName) -> Agreements:
    declared = teams or TEAMS
    return Agreements(
        parents=dict.fromkeys(declared),
        contracts=tuple(
            Contract(terms=Terms(team=team, guarantee=GUARANTEE), valid_from=date(2020, 1, 1)) for team in declared
        ),
    )


class QuotaStage:
    """A twin, a ledger and a desk in one directory; anyone who attaches later is a new process."""

    def __init__(self, directory: Path, *, mode: Mode = Mode.APPROVE, gpus_per_node: int = 8) -> None:
        self.directory = directory
        self.clock = FakeClock()
        if (directory / "twin").exists():
            self.twin = Twin.attach(directory / "twin", self.clock)
        else:
            scenario = Scenario(
                nodes=cluster_nodes(4), gpus_per_node=gpus_per_node, durations=SHORT_DURATIONS, accounts=TEAMS
            )
            self.twin = Twin.create(directory / "twin", scenario, seed=7, clock=self.clock)
        self.ledger = SqlLedger(f"sqlite:///{directory / 'ledger.sqlite'}")
        self.quotas: Quotas = SimulatedQuotas(self.twin)
        self.desk = TeamsDesk(
            cluster=self._cluster(Policy(mode=mode)),
            observatory=cast("Any", None),
            agreements=agreements(),
            policy=ALL_MAY_MOVE,
            quotas=self.quotas,
        )

    def _cluster(self, policy: Policy) -> Cluster:
        scenario = self.twin.scenario
        topology = Topology(
            places={
                node.name: Place(rack=node.rack, nvlink_domain=node.name, leaf_switch=node.leaf_switch)
                for node in scenario.nodes
            },
            gpus_per_node=scenario.gpus_per_node,
        )
        return Cluster(
            name="small",
            scheduler=SimulatedScheduler(self.twin),
            fleet=SimulatedFleet(self.twin),
            telemetry=SimulatedTelemetry(self.twin),
            logs=(SimulatedLogs(self.twin),),
            ledger=self.ledger,
            notifier=MessagesInMemory(),
            clock=SlowLoop(self.clock),
            rules=Rules(policy=policy, topology=topology, catalogue=read_catalogue()),
            rules_digest=digest_of("rules of the test"),
        )

    def use(self, *, policy: Policy | None = None, quotas: Quotas | None = None, **changed: Any) -> None:
        """Continue with another policy, another port or another desk."""
        cluster = self.desk.cluster
        if policy is not None:
            cluster = replace(cluster, rules=replace(cluster.rules, policy=policy))
        self.desk = replace(self.desk, cluster=cluster, quotas=quotas or self.desk.quotas, **changed)

    def begin_with(self, limits: Mapping[TeamName, int] = FIRST_LIMITS) -> None:
        """Let limits stand in the scheduler, no matter who set them."""
        self.quotas.apply([QuotaChange(account=team, before=None, after=limit) for team, limit in limits.items()])

    def keep(self, made: QuotaProposal | None = None) -> ProposalRecord:
        return kept(self.ledger, made or morning())

    def limits(self) -> dict[TeamName, int | None]:
        return {team: quota.limit_of(ALL_TYPES) for team, quota in self.quotas.read().accounts.items()}

    def submit(self, team: TeamName, *, gpus: int = 8) -> JobId:
        return self.twin.submit(JobSpec(name="j", user="u", account=team, workload=Workload.BATCH, gpus_per_node=gpus))

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(node.name for node in self.twin.scenario.nodes)

    def stand_in_the_register(self) -> None:
        """Let all nodes have been bought."""
        self.use(
            installed=tuple(
                InstalledNode(
                    node=node,
                    asset="hgx",
                    gpu_type=GpuType(""),
                    gpu_count=self.twin.scenario.gpus_per_node,
                    since=BEGINNING - timedelta(days=300),
                    until=None,
                )
                for node in self.nodes
            )
        )

    def running(self) -> frozenset[JobId]:
        jobs = SimulatedScheduler(self.twin).read_jobs()
        return frozenset(job.job for job in jobs if job.state is JobState.RUNNING)


class PassingOn:
    """Fits Quotas: passes everything on. What differs overrides it."""

    def __init__(self, quotas: Quotas) -> None:
        self.inner = quotas
        self.batches: list[tuple[Change, ...]] = []

    def read(self) -> QuotasInForce:
        return self.inner.read()

    def probe(self) -> QuotaProbe:
        return self.inner.probe()

    def apply(self, changes: Sequence[Change]) -> None:
        self.batches.append(tuple(changes))
        self.inner.apply(changes)


class Typed(PassingOn):
    """Keeps limits by type itself, as a scheduler whose limits on types hold, or not."""

    def __init__(self, quotas: Quotas, *, typed_limits: TypedLimits) -> None:
        super().__init__(quotas)
        self.kept: dict[tuple[TeamName, GpuType], int | None] = {}
        self._typed_limits = typed_limits

    def read(self) -> QuotasInForce:
        read = self.inner.read()
        accounts = {
            team: replace(
                quota,
                limits={
                    **quota.limits,
                    **{kind: value for (of, kind), value in self.kept.items() if of == team and value is not None},
                },
            )
            for team, quota in read.accounts.items()
        }
        return replace(read, accounts=accounts)

    def probe(self) -> QuotaProbe:
        return replace(
            self.inner.probe(), typed_limits=self._typed_limits, typed_because="JobSubmitPlugins is not set; set it"
        )

    def apply(self, changes: Sequence[Change]) -> None:
        self.batches.append(tuple(changes))
        for change in changes:
            if isinstance(change, QuotaChange):
                self.kept[change.account, change.gpu_type] = change.after
