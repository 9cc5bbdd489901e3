"""What every quotas adapter must do: on the simulator, on a fake of recorded answers, and on a real Slurm.

`QuotasContract` reads and sets; `HeldJobsContract` looks at jobs, where there are any. A subclass provides the fixture
`world`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import ALL_TYPES, Change, FairshareChange, QuotaChange, Quotas, TypedLimits
from ops_pipelines.core.sources import SourceRefused

UNKNOWN_ACCOUNTS = ("no-such-account", "a,b", "x set GrpTRES=gres/gpu=1", "", "-1", "Ä|\n")
"""Not there, and what sacctmgr could take for more than a name."""
SOON_SECONDS = 60.0
"""Far above what a real Slurm needs to start a job (measured: 2 s); never asserted on."""


class QuotasWorld(Protocol):
    """A cluster on which limits hold, with one type of GPU or none distinguished, and no job_submit plugin.

    Each test finds every account without a limit and with a share of its own.
    """

    @property
    def quotas(self) -> Quotas: ...

    @property
    def accounts(self) -> tuple[TeamName, ...]:
        """At least three."""
        ...


class HeldJobsWorld(QuotasWorld, Protocol):
    """One with at least four idle nodes, and nobody's jobs."""

    gpus_per_node: int

    def submit_for(self, account: TeamName) -> JobId:
        """Submit a job that takes all GPUs of one node, and runs longer than any test."""
        ...

    def running(self) -> frozenset[JobId]: ...

    def waiting(self) -> frozenset[JobId]: ...

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None: ...


def limits(world: QuotasWorld) -> dict[TeamName, int | None]:
    return {name: count for name, (count, _) in standing(world).items()}


def standing(world: QuotasWorld) -> dict[TeamName, tuple[int | None, int | None]]:
    """Return account -> limit and share, from one reading: a real one takes half a second."""
    accounts = world.quotas.read().accounts
    return {name: (accounts[name].limit_of(ALL_TYPES), accounts[name].fairshare) for name in world.accounts}


def limit(account: str, before: int | None, after: int | None, gpu_type: str = "") -> QuotaChange:
    return QuotaChange(account=TeamName(account), gpu_type=GpuType(gpu_type), before=before, after=after)


def undone(changes: Sequence[Change]) -> list[Change]:
    return [change.undone for change in reversed(changes)]


class QuotasContract:
    @pytest.fixture
    def world(self) -> QuotasWorld:
        raise NotImplementedError("a subclass of QuotasContract provides the fixture `world`")

    def test_an_account_that_nobody_limited_has_no_limit(self, world: QuotasWorld) -> None:
        assert limits(world) == dict.fromkeys(world.accounts)

    def test_what_was_set_is_read_and_the_others_stay_as_they_were(self, world: QuotasWorld) -> None:
        first, second, *others = world.accounts

        world.quotas.apply([limit(first, None, 16), limit(second, None, 16)])

        assert limits(world) == {first: 16, second: 16, **dict.fromkeys(others)}

    def test_applied_twice_is_applied_once(self, world: QuotasWorld) -> None:
        changes = [limit(world.accounts[0], None, 16), limit(world.accounts[1], None, 16)]

        world.quotas.apply(changes)
        once = limits(world)
        world.quotas.apply(changes)

        assert limits(world) == once

    def test_undoing_restores_numbers_shares_and_the_absence_of_a_limit(self, world: QuotasWorld) -> None:
        first, second, third = world.accounts[:3]
        world.quotas.apply([limit(first, None, 16)])
        before = standing(world)
        changes = [
            limit(first, 16, 24),
            limit(second, None, 0),
            FairshareChange(account=third, before=before[third][1], after=77),
            FairshareChange(account=second, before=before[second][1], after=None),
        ]

        world.quotas.apply(changes)
        assert standing(world) == {
            **before,
            first: (24, before[first][1]),
            second: (0, None),
            third: (None, 77),
        }
        world.quotas.apply(undone(changes))

        assert standing(world) == before

    def test_a_limit_is_read_as_the_number_that_was_set(self, world: QuotasWorld) -> None:
        counts = dict(zip(world.accounts, (0, 1, 4096), strict=False))

        world.quotas.apply([limit(name, None, count) for name, count in counts.items()])

        assert limits(world) == {**dict.fromkeys(world.accounts), **counts}

    def test_no_change_is_fine_and_changes_nothing(self, world: QuotasWorld) -> None:
        before = standing(world)

        world.quotas.apply([])

        assert standing(world) == before

    def test_a_batch_with_an_unknown_account_changes_nothing(self, world: QuotasWorld) -> None:
        for name in UNKNOWN_ACCOUNTS:
            with pytest.raises(SourceRefused, match="no account"):
                world.quotas.apply([limit(world.accounts[0], None, 16), limit(name, None, 16)])

        assert limits(world) == dict.fromkeys(world.accounts)

    def test_what_somebody_changed_meanwhile_is_not_overwritten_and_all_of_it_is_named(
        self, world: QuotasWorld
    ) -> None:
        first, second, third = world.accounts[:3]
        world.quotas.apply([limit(first, None, 16), limit(second, None, 16)])

        with pytest.raises(SourceRefused, match=r"(?s)somebody changed.*somebody changed") as refused:
            world.quotas.apply([limit(first, 15, 20), limit(second, None, 20), limit(third, None, 4)])

        assert first in str(refused.value)
        assert second in str(refused.value)
        assert limits(world) == {**dict.fromkeys(world.accounts), first: 16, second: 16}

    def test_two_changes_of_one_limit_are_nonsense(self, world: QuotasWorld) -> None:
        with pytest.raises(ValueError, match="second change"):
            world.quotas.apply([limit(world.accounts[0], None, 16), limit(world.accounts[0], None, 8)])

        assert limits(world) == dict.fromkeys(world.accounts)

    def test_a_limit_on_a_type_is_refused_where_it_holds_nobody_who_names_none(self, world: QuotasWorld) -> None:
        probe = world.quotas.probe()

        with pytest.raises(SourceRefused, match="all types together"):
            world.quotas.apply([limit(world.accounts[0], None, 16), limit(world.accounts[1], None, 8, "h100")])

        assert probe.typed_limits is TypedLimits.NOT_HELD
        assert probe.typed_because
        assert limits(world) == dict.fromkeys(world.accounts)

    def test_the_probe_says_that_limits_hold_and_by_what(self, world: QuotasWorld) -> None:
        probe = world.quotas.probe()

        assert probe.is_enforced
        assert probe.enforced_because
        assert probe.gpu_billing


class HeldJobsContract:
    @pytest.fixture
    def world(self) -> HeldJobsWorld:
        raise NotImplementedError("a subclass of HeldJobsContract provides the fixture `world`")

    def test_a_job_beyond_the_limit_waits_and_starts_when_it_is_raised(self, world: HeldJobsWorld) -> None:
        team, other = world.accounts[:2]
        world.quotas.apply([limit(team, None, world.gpus_per_node)])
        first, held = world.submit_for(team), world.submit_for(team)
        beside = world.submit_for(other)
        world.wait_until(lambda: {first, beside} <= world.running(), SOON_SECONDS)
        assert held in world.waiting()

        world.quotas.apply([limit(team, world.gpus_per_node, 2 * world.gpus_per_node)])

        world.wait_until(lambda: {first, held, beside} <= world.running(), SOON_SECONDS)

    def test_a_limit_below_what_runs_ends_nothing_and_lets_nothing_start(self, world: HeldJobsWorld) -> None:
        team = world.accounts[0]
        running = {world.submit_for(team), world.submit_for(team)}
        world.wait_until(lambda: running <= world.running(), SOON_SECONDS)

        world.quotas.apply([limit(team, None, 2 * world.gpus_per_node - 1)])
        held = world.submit_for(team)
        beside = world.submit_for(world.accounts[1])
        # Slurm has looked at the queue since: the other account's job was behind this one.
        world.wait_until(lambda: beside in world.running(), SOON_SECONDS)

        assert world.running() == running | {beside}
        assert world.waiting() == {held}

    def test_a_limit_that_is_lifted_lets_everything_start(self, world: HeldJobsWorld) -> None:
        team = world.accounts[0]
        world.quotas.apply([limit(team, None, 0)])
        held = world.submit_for(team)
        beside = world.submit_for(world.accounts[1])
        world.wait_until(lambda: beside in world.running(), SOON_SECONDS)
        assert held in world.waiting()

        world.quotas.apply([limit(team, 0, None)])

        world.wait_until(lambda: held in world.running(), SOON_SECONDS)
