"""The quotas contract on a fake of recorded answers, and what is reported when Slurm stops in the middle of a batch."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import FairshareChange, QuotasHalfApplied, TypedLimits
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.quotas import SlurmQuotas
from tests.ports.quotas_contract import QuotasContract, QuotasWorld, limit, limits, undone
from tests.resources.fake_slurm_quotas import (
    ALL_QOS,
    ASSOCIATIONS,
    TYPED_CONFIG,
    UNTYPED_CONFIG,
    WAITING_JOBS,
    FakeSlurm,
    WaitingJob,
)
from tests.simulator.fake_clock import FakeClock

ACCOUNTS = (TeamName("platform"), TeamName("product"), TeamName("research"))


class FakeQuotasWorld:
    """Fits QuotasWorld."""

    def __init__(self, slurm: FakeSlurm | None = None, *, qos_of: dict[TeamName, str] | None = None) -> None:
        self.slurm = slurm or FakeSlurm()
        self.slurm.clear()
        self.quotas = SlurmQuotas(clock=FakeClock(), run=self.slurm, qos_of=qos_of)
        self.accounts = ACCOUNTS

    @property
    def modifying(self) -> list[str]:
        """Return what followed `modify` in each command."""
        return [" ".join(argv[3:]) for argv in self.slurm.asked if argv[:3] == ("sacctmgr", "-i", "modify")]


class TestSlurmQuotas(QuotasContract):
    @pytest.fixture
    def world(self) -> QuotasWorld:
        return FakeQuotasWorld()


def test_the_fake_prints_its_first_state_as_it_was_recorded() -> None:
    assert (FakeSlurm().associations, FakeSlurm().qos) == (ASSOCIATIONS, ALL_QOS)


# -- what is sent --


def test_accounts_with_equal_values_share_a_command_and_lowering_comes_first() -> None:
    world = FakeQuotasWorld()
    world.quotas.apply([limit("research", None, 32)])
    world.slurm.asked.clear()

    world.quotas.apply(
        [
            limit("research", 32, 40),
            limit("product", None, 16),
            FairshareChange(account=TeamName("vision"), before=1, after=7),
            limit("platform", None, 16),
        ]
    )

    assert world.modifying == [
        "account where name=product,platform cluster=drill set GrpTRES=gres/gpu=16",
        "account where name=research cluster=drill set GrpTRES=gres/gpu=40",
        "account where name=vision cluster=drill set Fairshare=7",
    ]


def test_what_is_as_it_shall_be_is_not_sent_again() -> None:
    world = FakeQuotasWorld()
    world.quotas.apply([limit("research", None, 32)])
    world.slurm.asked.clear()

    world.quotas.apply([limit("research", None, 32), limit("product", None, 4)])

    assert world.modifying == ["account where name=product cluster=drill set GrpTRES=gres/gpu=4"]


def test_other_limits_of_the_account_stay() -> None:
    slurm = FakeSlurm()
    quotas = SlurmQuotas(clock=FakeClock(), run=slurm)

    quotas.apply([limit("research", 16, 20)])

    assert "research|||root|10|cpu=100,gres/gpu:h100=8,gres/gpu=20" in slurm.associations.splitlines()


def test_nothing_steers_the_clients_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CLUSTERS", "SBATCH_ACCOUNT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    world = FakeQuotasWorld()

    world.quotas.read()

    assert not {"SLURM_CLUSTERS", "SBATCH_ACCOUNT"} & set(world.slurm.environments[0])
    assert world.slurm.environments[0]["LC_ALL"] == "C.UTF-8"


# -- what is read --


def test_an_account_of_which_slurmctld_was_not_told_is_named() -> None:
    world = FakeQuotasWorld()
    world.slurm.forgets_to_tell = {"product"}

    world.quotas.apply([limit("product", None, 16), limit("research", None, 16)])

    assert world.quotas.read().unheeded == {"product"}


def test_rows_that_cannot_be_believed_are_kept_with_their_reason() -> None:
    reading = SlurmQuotas(clock=FakeClock(), run=FakeSlurm()).read()

    assert sorted(reading.accounts) == ["platform", "product", "research", "root", "vision"]
    assert [(row.position, row.text.split("||")[0]) for row in reading.rejected] == [
        ("line 4", "odd name"),
        ("line 5", "odd|bar"),
    ]


def test_a_cluster_that_the_database_does_not_know_is_no_cluster_without_accounts() -> None:
    slurm = FakeSlurm(associations=ASSOCIATIONS.splitlines()[0])

    with pytest.raises(SourceNonsense, match="no account"):
        SlurmQuotas(clock=FakeClock(), run=slurm).read()


# -- accounts held by a QOS --


def test_an_account_held_by_a_qos_is_read_and_changed_there() -> None:
    world = FakeQuotasWorld(qos_of={TeamName("product"): "team-a"})

    assert limits(world)["product"] == 8
    world.quotas.apply([limit("product", 8, 12), limit("research", None, 12)])

    assert (limits(world)["product"], limits(world)["research"]) == (12, 12)
    assert "qos where name=team-a set GrpTRES=gres/gpu=12" in world.modifying
    assert "team-a|gres/gpu=12|gres/gpu:h100=4" in world.slurm.qos.splitlines()


def test_an_account_whose_qos_is_missing_is_rejected_and_cannot_be_changed() -> None:
    world = FakeQuotasWorld(qos_of={TeamName("product"): "nosuch"})

    reading = world.quotas.read()

    assert "product" not in reading.accounts
    assert "no QOS nosuch" in reading.rejected[-1].reason
    with pytest.raises(SourceRefused, match="no account 'product'"):
        world.quotas.apply([limit("product", None, 12)])


def test_one_qos_for_two_accounts_is_refused() -> None:
    with pytest.raises(ValueError, match="one QOS for several"):
        FakeQuotasWorld(qos_of={TeamName("product"): "team-a", TeamName("research"): "team-a"})


# -- in the middle of a batch --

BATCH = [limit("platform", None, 8), limit("product", None, 16), limit("research", None, 24)]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_database_that_stops_leaves_each_change_old_or_new_and_says_which(failing: int) -> None:
    world = FakeQuotasWorld()

    def stop(number: int) -> None:
        world.slurm.is_database_up = number != failing

    def come_back() -> None:
        world.slurm.is_database_up = True

    world.slurm.before_modify = stop
    world.quotas = SlurmQuotas(clock=CallingClock(come_back), run=world.slurm)

    with pytest.raises(QuotasHalfApplied, match="Apply them again") as stopped:
        world.quotas.apply(BATCH)

    halfway = limits(world)
    assert [change.account for change in stopped.value.are_in] == [name for name in ACCOUNTS if halfway[name]]
    assert [change.account for change in stopped.value.are_not_in] == [name for name in ACCOUNTS if not halfway[name]]
    assert len(stopped.value.are_in) == failing - 1

    world.quotas.apply(undone(stopped.value.are_in))
    assert limits(world) == dict.fromkeys(ACCOUNTS)
    world.slurm.before_modify = lambda _: None
    world.quotas.apply(BATCH)
    assert limits(world) == {"platform": 8, "product": 16, "research": 24}
    world.quotas.apply(undone(BATCH))
    assert limits(world) == dict.fromkeys(ACCOUNTS)


def test_nothing_is_claimed_while_the_database_stays_away() -> None:
    world = FakeQuotasWorld()

    def stop(number: int) -> None:
        world.slurm.is_database_up = number < 2

    world.slurm.before_modify = stop

    with pytest.raises(QuotasHalfApplied, match="unknown whether in") as stopped:
        world.quotas.apply(BATCH)

    assert (stopped.value.are_in, stopped.value.are_not_in) == ((), ())
    assert list(stopped.value.unknown) == BATCH
    with pytest.raises(SourceUnavailable, match="Connection refused"):
        world.quotas.read()


def test_a_command_whose_answer_was_lost_is_known_by_reading_back() -> None:
    world = FakeQuotasWorld()
    real = world.slurm

    def losing(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        answer = real(argv, environment=environment, timeout_seconds=timeout_seconds)
        if "name=product" in argv:
            raise SourceUnavailable("sacctmgr -i did not answer within 60.0 s; whether it took effect is unknown")
        return answer

    world.quotas = SlurmQuotas(clock=FakeClock(), run=losing)

    with pytest.raises(QuotasHalfApplied) as stopped:
        world.quotas.apply(BATCH)

    assert [change.account for change in stopped.value.are_in] == ["platform", "product"]
    assert [change.account for change in stopped.value.are_not_in] == ["research"]


def test_a_no_in_the_middle_says_what_is_in() -> None:
    world = FakeQuotasWorld()

    def lose_rights(number: int) -> None:
        world.slurm.is_privileged = number < 2

    world.slurm.before_modify = lose_rights

    with pytest.raises(SourceRefused, match=r"(?s)permission denied.*are in: platform .*; not in: product"):
        world.quotas.apply(BATCH)


def test_an_account_that_vanishes_among_others_is_noticed() -> None:
    world = FakeQuotasWorld()
    # sacctmgr passes over an unknown name, and approves.
    world.slurm.before_modify = lambda _: world.slurm.delete("product")

    with pytest.raises(QuotasHalfApplied, match="did not say that it modified product") as stopped:
        world.quotas.apply([limit("platform", None, 8), limit("product", None, 8)])

    assert [change.account for change in stopped.value.are_in] == ["platform"]
    assert [change.account for change in stopped.value.unknown] == ["product"]


class CallingClock(FakeClock):
    """Calls whenever somebody waits."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def wait(self, seconds: float) -> None:
        self._call()
        super().wait(seconds)


# -- where limits hold nobody --


def test_a_limit_that_holds_nobody_is_refused_by_its_setting() -> None:
    config = UNTYPED_CONFIG.replace("= associations,limits", "= associations")
    world = FakeQuotasWorld(FakeSlurm(config=config))

    with pytest.raises(SourceRefused, match="AccountingStorageEnforce = associations:"):
        world.quotas.apply([limit("research", None, 16)])

    assert world.modifying == []
    assert not world.quotas.probe().is_enforced


def test_what_was_set_can_be_undone_where_limits_hold_nobody_any_more() -> None:
    world = FakeQuotasWorld()
    change = limit("research", None, 16)
    world.quotas.apply([change])
    world.slurm.config = UNTYPED_CONFIG.replace("= associations,limits", "= associations")

    world.quotas.apply([change.undone])

    assert limits(world)["research"] is None


# -- types --


def typed(_: Sequence[str]) -> str:
    return WAITING_JOBS[0]


def by_gres_alone(argv: Sequence[str]) -> str:
    """Answer as recorded: the site's script minds `--gres`, not `--gpus`."""
    return WAITING_JOBS[0] if any(word.startswith("--gres=") for word in argv) else WAITING_JOBS[1]


def refusing(argv: Sequence[str]) -> str | None:
    """Refuse anyone who names no type."""
    return WAITING_JOBS[0] if any("h100" in word for word in argv) else None


@pytest.mark.parametrize(
    ("becomes", "expected"),
    [
        pytest.param(typed, TypedLimits.HELD, id="each is given a type"),
        pytest.param(refusing, TypedLimits.HELD, id="each without a type is refused"),
        pytest.param(by_gres_alone, TypedLimits.NOT_HELD, id="one way passes"),
        pytest.param(lambda _: None, TypedLimits.UNKNOWN, id="we may not submit at all"),
    ],
)
def test_a_plugin_is_judged_by_what_it_makes_of_held_jobs(becomes: WaitingJob, expected: TypedLimits) -> None:
    world = FakeQuotasWorld(FakeSlurm(config=TYPED_CONFIG))
    world.slurm.waiting_job = becomes

    probe = world.quotas.probe()

    assert probe.typed_limits is expected
    assert "JobSubmitPlugins" in probe.typed_because
    assert all("--hold" in argv for argv in world.slurm.asked if argv[0] == "sbatch")
    assert world.slurm.cancelled == world.slurm.submitted


def test_a_typed_limit_is_set_where_it_holds_and_undone_to_none() -> None:
    world = FakeQuotasWorld(FakeSlurm(config=TYPED_CONFIG))
    changes = [limit("research", None, 8, "h100"), limit("research", None, 16)]

    world.quotas.apply(changes)
    assert world.quotas.read().accounts[TeamName("research")].limits == {"h100": 8, "": 16}
    world.quotas.apply(undone(changes))

    assert world.quotas.read().accounts[TeamName("research")].limits == {}
    assert world.modifying[0].endswith("set GrpTRES=gres/gpu:h100=8,gres/gpu=16")


def test_a_type_that_is_not_counted_is_refused_by_its_setting() -> None:
    world = FakeQuotasWorld(FakeSlurm(config=TYPED_CONFIG))

    with pytest.raises(SourceRefused, match="Not counted apart: a100"):
        world.quotas.apply([limit("research", None, 8, "a100")])

    assert world.modifying == []


def test_a_typed_limit_may_be_lifted_where_it_holds_nobody() -> None:
    slurm = FakeSlurm()
    quotas = SlurmQuotas(clock=FakeClock(), run=slurm)

    quotas.apply([limit("research", 8, None, "h100")])

    assert quotas.read().accounts[TeamName("research")].limits == {"": 16}


# -- what weakens limits --


def test_gpus_billed_at_zero_and_a_qos_that_takes_the_place_of_limits_are_warned_of() -> None:
    probe = FakeQuotasWorld().quotas.probe()

    assert probe.gpu_billing == {"batch": 0.0, "billed": 2.0, "typed": 1.5}
    assert [warning.split(":")[0] for warning in probe.warnings] == [
        "TRESBillingWeights of partition batch",
        "QOS team-a has GrpTRES of GPUs",
        "QOS team-a has MaxTRESPA of GPUs",
    ]


def test_a_qos_that_holds_an_account_of_ours_is_none_of_somebody_else() -> None:
    probe = FakeQuotasWorld(qos_of={TeamName("product"): "team-a"}).quotas.probe()

    assert not any("GrpTRES" in warning for warning in probe.warnings)
