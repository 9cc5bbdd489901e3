"""Four weeks of mornings on a simulated cluster: demand by the hour, broken racks, a freeze, contracts, strangers.

Only plays; what must hold of it is `test_quota_mornings`. Six racks of four nodes, 192 GPUs, one rack is kept back.
Days are counted from 1; clocks are changed on day 13. Demand follows what was in force in its hour, and is seeded.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import ProposalRecord, QuotaProposal, TeamName, Terms
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.daily_work import carry_out_proposal, make_proposal
from ops_pipelines.quotas.morning import NoProposal
from ops_pipelines.quotas.propose import propose
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import QuotaFreeze, QuotaPolicy
from ops_pipelines.teams.projects import Project
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.flow.quota_mornings import BY_ITSELF, HOUR, NO_TYPE, Past, QuotaStage, row_of

BERLIN = ZoneInfo("Europe/Berlin")
FIRST = date(2027, 3, 16)
DAYS = 28
CLOCK_CHANGES = 13
RACK_BREAKS, RACKS_BREAK, RACKS_BACK = 9, 12, 14
FREEZE, THAW = 15, 19
NEW_CONTRACT, LAUNCH, STRANGER, DEAF = 20, 22, 24, 26
RESEARCH, SCIENCE, PRODUCT, PLATFORM = (TeamName(each) for each in ("research", "science", "product", "platform"))
LABS, BIOLOGY, CHEMISTRY = (TeamName(each) for each in ("labs", "biology", "chemistry"))
VISITORS = TeamName("visitors")
ASKERS = (RESEARCH, SCIENCE, PRODUCT, PLATFORM, BIOLOGY, CHEMISTRY)
RACK_GPUS = 32
INSTALLED = 6 * RACK_GPUS
BEGUN_WITH = {RESEARCH: 72, SCIENCE: 24, PRODUCT: 24, PLATFORM: 16, BIOLOGY: 16, CHEMISTRY: 8}
_WANTED = {RESEARCH: 30.0, SCIENCE: 70.0, PRODUCT: 26.0, PLATFORM: 6.0, BIOLOGY: 24.0, CHEMISTRY: 4.0}
"""GPUs on an ordinary working day at noon: research hoards, science starves."""


def day(number: int) -> date:
    """Return the date of a numbered day."""
    return FIRST + timedelta(days=number - 1)


def terms_on(number: int) -> tuple[Terms, ...]:
    """Return what was agreed for a day; science has more from the new contract on."""
    science = 40 if number >= NEW_CONTRACT else 24
    return (
        Terms(team=RESEARCH, guarantee=32, priority=2),
        Terms(team=SCIENCE, guarantee=science, weight=2, priority=1),
        Terms(team=PRODUCT, guarantee=16, cap=56),
        Terms(team=PLATFORM, guarantee=8),
        Terms(team=LABS, guarantee=24, cap=40),
        Terms(team=BIOLOGY, guarantee=8),
        Terms(team=CHEMISTRY, guarantee=4, unit=4),
    )


def agreements() -> Agreements:
    old, new = terms_on(1), terms_on(NEW_CONTRACT)
    contracts = []
    for before, after in zip(old, new, strict=True):
        changes = before != after
        contracts.append(
            Contract(terms=before, valid_from=date(2026, 1, 1), valid_until=day(NEW_CONTRACT) if changes else None)
        )
        if changes:
            contracts.append(Contract(terms=after, valid_from=day(NEW_CONTRACT)))
    parents = {**dict.fromkeys((*ASKERS, LABS)), BIOLOGY: LABS, CHEMISTRY: LABS}
    launch = Project(name="vision", team=PRODUCT, gpus=20, begins_on=day(LAUNCH))
    return Agreements(parents=parents, contracts=tuple(contracts), projects=(launch,), timezone="Europe/Berlin")


class LakeInMemory:
    """Fits what quotas read and write of a lake: weeks of hours without a file each."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Table]] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        self._parts.setdefault(table, []).append(rows)

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> pa.Table:
        whole = pa.concat_tables([TABLES[table].from_rows(()), *self._parts.get(table, ())])
        found = whole.filter(pc.and_(pc.greater_equal(whole["time"], start), pc.less(whole["time"], end)))
        return found if columns is None else found.select(list(columns))

    def read_hour(self, table: str, hour: datetime) -> pa.Table:
        return self.read(table, start=hour, end=hour + HOUR)

    def replace_hour(self, table: str, hour: datetime, rows: pa.Table | None) -> None:
        whole = pa.concat_tables([TABLES[table].from_rows(()), *self._parts.get(table, ())])
        others = whole.filter(pc.or_(pc.less(whole["time"], hour), pc.greater_equal(whole["time"], hour + HOUR)))
        self._parts[table] = [others] if rows is None else [others, rows]


@dataclass(frozen=True, kw_only=True)
class Played:
    """One morning: what was proposed, what the scheduler held before and after, or why nothing was proposed."""

    number: int
    before: Mapping[TeamName, int]
    after: Mapping[TeamName, int]
    said: str
    proposal: QuotaProposal | None = None
    contradictions: tuple[str, ...] = ()
    record: ProposalRecord | None = None


@dataclass(kw_only=True)
class QuotaStory:
    """The cluster, and the days that were played."""

    directory: Path
    seed: int = 7
    days: dict[int, Played] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        thaw = QuotaFreeze(name="audit", begins_at=self.morning(FREEZE) - HOUR, ends_at=self.morning(THAW) - HOUR)
        self.stage = QuotaStage(
            self.directory,
            policy=BY_ITSELF,
            agreed=agreements(),
            quotas=QuotaPolicy(slack_max_ratio=1 / 6, freezes=(thaw,)),
            node_count=24,
            nodes_per_rack=4,
            accounts=ASKERS,
            past=Past(days=0),
        )
        self.stage.change(observatory=replace(self.stage.observatory, lake=LakeInMemory()))
        self._until = self.morning(1) - timedelta(days=15)
        now = self.limits()
        self.stage.port.apply(
            [QuotaChange(account=team, before=now.get(team), after=limit) for team, limit in BEGUN_WITH.items()]
        )

    def morning(self, number: int) -> datetime:
        """Return 05:00 of a day by the clock of the cluster, in UTC."""
        return datetime.combine(day(number), time(5), BERLIN).astimezone(self.utc)

    @property
    def utc(self) -> ZoneInfo:
        return ZoneInfo("UTC")

    def play(self, last: int = DAYS) -> "QuotaStory":
        for number in range(len(self.days) + 1, last + 1):
            self.days[number] = self._play(number)
        return self

    def limits(self) -> dict[TeamName, int]:
        """Return what the scheduler holds each account to."""
        accounts = self.stage.port.read().accounts
        return {team: limit for team, each in accounts.items() if (limit := each.limit_of(NO_TYPE)) is not None}

    # -- one day --

    def _play(self, number: int) -> Played:
        stage, at = self.stage, self.morning(number)
        stage.clock.wait((at - stage.now).total_seconds())
        self._write_demand(number, until=at)
        self._break_and_mend(number)
        before = self.limits()
        try:
            again = propose(day(number), stage.desk, now=stage.now).proposal
            made = make_proposal(day(number), stage.desk, now=stage.now)
        except NoProposal as refused:
            return Played(number=number, before=before, after=self.limits(), said=str(refused))
        assert again == made.proposed.proposal, "the same inputs, and another proposal"
        done = carry_out_proposal(day(number), stage.desk, lease=Lease(holder="test", given=None))
        return Played(
            number=number,
            before=before,
            after=self.limits(),
            said=done.said,
            proposal=made.proposed.proposal,
            contradictions=made.contradictions,
            record=done.record,
        )

    def _write_demand(self, number: int, *, until: datetime) -> None:
        limits = self.limits()
        rows = []
        while self._until < until:
            wanted = self._wanted(number, self._until)
            if number != DEAF:
                rows += [row_of(team, self._until, gpus, limit=limits.get(team, 0)) for team, gpus in wanted.items()]
            self._until += HOUR
        if rows:
            self.stage.desk.lake.add("gpu_demand", TABLES["gpu_demand"].from_rows(rows))

    def _wanted(self, number: int, hour: datetime) -> Mapping[TeamName, float]:
        local = hour.astimezone(BERLIN)
        shape = (0.6 if local.weekday() > 4 else 1.0) * (1.0 if 8 <= local.hour < 20 else 0.7)
        teams = dict(_WANTED)
        if number > LAUNCH:
            teams[PRODUCT] += 20
        if number >= STRANGER:
            teams[VISITORS] = 12.0
        return {team: round(mean * shape * self._chance.uniform(0.85, 1.15), 2) for team, mean in teams.items()}

    def _break_and_mend(self, number: int) -> None:
        scheduler = self.stage.desk.cluster.scheduler
        if number == RACK_BREAKS:
            scheduler.drain(self.rack(1), reason="a person: rack 1 has no water")
        if number == RACKS_BREAK:
            scheduler.drain((*self.rack(2), *self.rack(3)), reason="a person: racks 2 and 3 have no water")
        if number == RACKS_BACK:
            for node in (*self.rack(1), *self.rack(2), *self.rack(3)):
                scheduler.resume(node)
        if number == STRANGER:
            job = JobSpec(name="train", user="guest", account=VISITORS, workload=Workload.BATCH, gpus_per_node=8)
            self.stage.autopilot.twin.submit(job)
            self.stage.clock.wait(5)

    def rack(self, number: int) -> tuple[NodeName, ...]:
        return tuple(NodeName(f"gpu{(number - 1) * 4 + place:03d}") for place in range(1, 5))
