"""Applying and undoing quotas: judged again, written before, read back, never sent twice; what runs is let be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.entries import AUTOPILOT, EntryKind, Pause
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proposal import GpuType, ProposalEvent, ProposalId, ProposalState, TeamName, Terms
from ops_pipelines.core.scheduler import (
    AccountQuota,
    Change,
    FairshareChange,
    QuotaChange,
    QuotaProbe,
    QuotasHalfApplied,
    QuotasInForce,
    TypedLimits,
)
from ops_pipelines.core.sources import SourceError, SourceRefused, SourceUnavailable
from ops_pipelines.quotas.apply import PAUSE_SECONDS, READ_COUNT, SETTLED_AFTER, apply, preview, settle, undo
from ops_pipelines.quotas.changes import ApplyRefused, changes_of, witness
from ops_pipelines.teams.contracts import Contract
from ops_pipelines.teams.desk import LimitsOn, QuotaFreeze
from tests.flow.quota_stage import (
    ALL_MAY_MOVE,
    FIRST_LIMITS,
    GUARANTEE,
    ME,
    PLATFORM,
    PRODUCT,
    PROPOSED,
    RESEARCH,
    TEAMS,
    PassingOn,
    QuotaStage,
    Typed,
    agreements,
    lines,
    morning,
)
from tests.ports.ledger_samples import NO_LIMIT
from tests.ports.quota_samples import line, move, proposal
from tests.simulator.fake_clock import BEGINNING

HOUR = timedelta(hours=1)
LOWER = QuotaChange(account=PRODUCT, before=16, after=8)
RAISE = QuotaChange(account=RESEARCH, before=8, after=16)


@pytest.fixture
def stage(tmp_path: Path) -> QuotaStage:
    stage = QuotaStage(tmp_path)
    stage.begin_with()
    return stage


def by_me(stage: QuotaStage, name: ProposalId, **options: LimitsOn) -> ProposalState:
    return apply(name, stage.desk, actor=ME, lease_token=None, **options).state


def quotas_lines(stage: QuotaStage) -> int:
    return sum(each.kind is EntryKind.QUOTAS for each in stage.ledger.entries(after=0, limit=NO_LIMIT))


# -- what is set --


def in_force(limits: dict[str, dict[str, int]]) -> QuotasInForce:
    accounts = {
        TeamName(team): AccountQuota(
            account=TeamName(team),
            parent=None,
            limits={GpuType(kind): value for kind, value in held.items()},
            fairshare=1,
        )
        for team, held in limits.items()
    }
    return QuotasInForce(accounts=accounts, read_at=BEGINNING)


@pytest.mark.parametrize(
    ("made", "standing", "expected"),
    [
        pytest.param([line("t", 8, 16)], {"": 8}, [("", 8, 16)], id="one type without a name"),
        pytest.param([line("t", 8, 8)], {"": 8}, [], id="as it is"),
        pytest.param([line("t", None, 8)], {}, [("", None, 8)], id="no limit before"),
        pytest.param(
            [line("t", 8, 16)], {"": 9}, [("", 8, 16)], id="somebody changed it: it counts from what was seen"
        ),
        pytest.param([line("t", 8, 16, gpu_type="h100")], {"": 8}, [("", 8, 16)], id="one type with a name"),
        pytest.param(
            [line("t", 8, 16, gpu_type="a100"), line("t", 4, 2, gpu_type="h100")],
            {"": 12},
            [("", 12, 18)],
            id="parts of a total",
        ),
        pytest.param(
            [line("t", None, 16, gpu_type="a100"), line("t", None, 2, gpu_type="h100")],
            {"": 40},
            [("", 40, 18)],
            id="parts of a total that could not be reported",
        ),
        pytest.param(
            [line("t", 8, 16, gpu_type="h100")], {"h100": 8}, [("", None, 16)], id="a limit on its type stays beside"
        ),
    ],
)
def test_limit_on_all_types_is_the_sum_of_a_teams_lines(
    made: list, standing: dict[str, int], expected: list[tuple[str, int | None, int]]
) -> None:
    changes = changes_of(proposal(*made), limits_on=LimitsOn.TOTAL, in_force=in_force({"t": standing}))

    assert changes == tuple(
        QuotaChange(account=TeamName("t"), gpu_type=GpuType(kind), before=before, after=after)
        for kind, before, after in expected
    )


@pytest.mark.parametrize(("standing", "before"), [({"h100": 8}, 8), ({}, 8), ({"": 8}, None), ({"": 40, "h100": 9}, 8)])
def test_limit_on_a_type_counts_from_what_was_seen_of_it(standing: dict[str, int], before: int | None) -> None:
    made = proposal(line("t", 8, 16, gpu_type="h100"))

    (change,) = changes_of(made, limits_on=LimitsOn.PER_TYPE, in_force=in_force({"t": standing}))

    assert change == QuotaChange(account=TeamName("t"), gpu_type=GpuType("h100"), before=before, after=16)


def test_shares_are_set_where_they_are_named_and_a_team_has_one() -> None:
    seen = in_force({"t": {"": 8}})
    one = [line("t", 4, 4, gpu_type=kind, fairshare=(1, 40)) for kind in ("a100", "h100")]
    two = [one[0], replace(one[1], fairshare_after=41)]

    assert changes_of(proposal(*one), limits_on=LimitsOn.TOTAL, in_force=seen) == (
        FairshareChange(account=TeamName("t"), before=1, after=40),
    )
    with pytest.raises(ApplyRefused, match="2 fair shares of t"):
        changes_of(proposal(*two), limits_on=LimitsOn.TOTAL, in_force=seen)


def test_witness_tells_in_not_in_changed_by_others_and_not_followed() -> None:
    changes = [LOWER, RAISE, QuotaChange(account=PLATFORM, before=8, after=4), LOWER.undone]
    seen = replace(
        in_force({"product": {"": 8}, "research": {"": 8}, "platform": {"": 7}}),
        unheeded=frozenset({PRODUCT, TeamName("others")}),
    )

    found = witness(changes[:3], seen)

    assert (found.are_in, found.are_not_in, [change for change, _ in found.others]) == (
        (LOWER,),
        (RAISE,),
        [changes[2]],
    )
    assert found.unheeded == (PRODUCT,)
    assert "platform all GPUs: 8 -> 4 is 7: somebody else changed it" in found.words
    assert not found.is_all_in
    assert witness([LOWER], seen).is_all_in
    assert not witness([LOWER], seen).is_done
    assert witness([RAISE], seen).is_nothing_in
    assert witness((), seen).is_done
    assert not witness((), seen).is_nothing_in


# -- applied and undone --


def test_applied_proposal_stands_in_the_scheduler_and_in_the_ledger(stage: QuotaStage) -> None:
    record = stage.keep()

    applied = apply(record.name, stage.desk, actor=ME, lease_token=None)

    assert stage.limits() == PROPOSED
    assert (applied.state, applied.actor) == (ProposalState.APPLIED, ME)
    assert [(each.account, each.before, each.after) for each in applied.sent] == [(PRODUCT, 16, 8), (RESEARCH, 8, 16)]
    assert stage.ledger.proposal(record.name) == applied
    assert stage.ledger.verify_chain().problem == ""


def test_applying_again_changes_nothing_and_says_so(stage: QuotaStage) -> None:
    record = stage.keep()
    by_me(stage, record.name)
    watched = PassingOn(stage.quotas)
    stage.use(quotas=watched)
    lines_before = quotas_lines(stage)

    again = apply(record.name, stage.desk, actor="eve", lease_token=None)

    assert again.state is ProposalState.APPLIED
    assert again.reason.startswith("nothing was changed: applied by ada")
    assert (watched.batches, quotas_lines(stage)) == ([], lines_before)


def test_undone_proposal_leaves_what_stood_there_before(stage: QuotaStage) -> None:
    record = stage.keep()
    by_me(stage, record.name)

    undone = undo(record.name, stage.desk, actor=ME, lease_token=None)
    again = undo(record.name, stage.desk, actor=ME, lease_token=None)

    assert stage.limits() == FIRST_LIMITS
    assert undone.state is again.state is ProposalState.UNDONE
    assert "nothing was changed" in again.reason


def test_first_limits_of_a_cluster_are_lifted_again(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path)
    record = stage.keep(morning(before=dict.fromkeys(TEAMS)))

    by_me(stage, record.name)
    set_now = stage.limits()
    undo(record.name, stage.desk, actor=ME, lease_token=None)

    assert set_now == PROPOSED
    assert stage.limits() == dict.fromkeys(TEAMS)


def test_proposal_that_changes_nothing_is_applied_without_a_command(stage: QuotaStage) -> None:
    record = stage.keep(morning(FIRST_LIMITS))

    applied = apply(record.name, stage.desk, actor=ME, lease_token=None)

    assert (applied.state, applied.sent) == (ProposalState.APPLIED, ())
    assert "nothing was to be set" in applied.reason


def test_only_the_newest_that_is_in_is_undone(stage: QuotaStage) -> None:
    first = stage.keep()
    by_me(stage, first.name)
    stage.clock.wait(timedelta(days=1).total_seconds())
    second = stage.keep(morning({**PROPOSED, PLATFORM: 6}, PROPOSED, days=1))
    by_me(stage, second.name)

    with pytest.raises(ApplyRefused, match=f"{second.name} was applied after {first.name}"):
        undo(first.name, stage.desk, actor=ME, lease_token=None)
    undo(second.name, stage.desk, actor=ME, lease_token=None)
    undo(first.name, stage.desk, actor=ME, lease_token=None)

    assert stage.limits() == FIRST_LIMITS


@pytest.mark.parametrize(
    "way",
    [(ProposalEvent.REFUSE,), (ProposalEvent.SUPERSEDE,), (ProposalEvent.BEGIN,)],
    ids=["refused", "superseded", "applying"],
)
@pytest.mark.parametrize("deed", [apply, undo])
def test_what_is_not_open_is_not_applied_and_not_undone(
    stage: QuotaStage, way: tuple[ProposalEvent, ...], deed: Callable[..., object]
) -> None:
    record = move(stage.ledger, stage.keep(), *way, at=stage.clock.now())

    with pytest.raises(ApplyRefused, match=f"is {record.state.value}"):
        deed(record.name, stage.desk, actor=ME, lease_token=None)

    assert stage.limits() == FIRST_LIMITS


def test_unknown_proposal_is_named(stage: QuotaStage) -> None:
    with pytest.raises(ApplyRefused, match="no proposal 'QUOTA-9'"):
        by_me(stage, ProposalId("QUOTA-9"))


# -- judged again --


def refuse(stage: QuotaStage, words: str, **options: LimitsOn) -> None:
    """Assert that the newest proposal is refused with these words, in the preview too, and that nothing was set."""
    name = stage.ledger.proposals(limit=1)[0].name
    before, lines_before = stage.limits(), quotas_lines(stage)

    with pytest.raises(ApplyRefused, match=words):
        by_me(stage, name, **options)

    assert any(words in found for found in preview(name, stage.desk, **options).hindrances)
    assert (stage.limits(), quotas_lines(stage)) == (before, lines_before)


@pytest.mark.parametrize(("hours", "may"), [(35, True), (37.9, True), (38, False), (40, False)])
def test_proposal_of_another_day_is_applied_until_it_is_thirty_six_hours_old(
    stage: QuotaStage, hours: float, may: bool
) -> None:
    stage.keep(replace(morning(), made_at=BEGINNING))
    stage.clock.wait((hours - 2) * 3600)

    if may:
        assert by_me(stage, stage.ledger.proposals(limit=1)[0].name) is ProposalState.APPLIED
    else:
        refuse(stage, "propose again")


def test_proposal_of_today_may_be_older(stage: QuotaStage) -> None:
    stage.keep(replace(morning(), made_at=BEGINNING - timedelta(hours=50), demand_until=BEGINNING - 50 * HOUR))

    assert by_me(stage, stage.ledger.proposals(limit=1)[0].name) is ProposalState.APPLIED


def test_limit_that_somebody_changed_in_between_is_named(stage: QuotaStage) -> None:
    stage.keep()
    stage.quotas.apply([QuotaChange(account=PRODUCT, before=16, after=12)])

    refuse(stage, "product all GPUs: 16 -> 8: it is 12; somebody changed it")


def test_limit_that_is_as_proposed_already_is_no_obstacle(stage: QuotaStage) -> None:
    record = stage.keep()
    stage.quotas.apply([LOWER])

    assert by_me(stage, record.name) is ProposalState.APPLIED
    assert stage.limits() == PROPOSED


def test_account_that_the_scheduler_does_not_know_is_named_and_the_others_are_set(stage: QuotaStage) -> None:
    strangers = line("strangers", None, 0)
    stage.use(agreements=agreements(*TEAMS, TeamName("strangers")))
    made = proposal(*morning().lines, strangers, day=BEGINNING.date(), made_at=BEGINNING)
    record = stage.keep(made)

    assert by_me(stage, record.name) is ProposalState.APPLIED
    kept = stage.ledger.proposal(record.name)
    assert kept is not None
    assert "nothing is set for strangers: the scheduler has no such account" in kept.reason
    assert stage.limits() == PROPOSED


def test_account_that_nobody_declared_keeps_what_it_has(stage: QuotaStage) -> None:
    stage.use(agreements=agreements(*TEAMS[:-1]))
    before = stage.limits()[TEAMS[-1]]
    record = stage.keep()

    assert by_me(stage, record.name) is ProposalState.APPLIED
    kept = stage.ledger.proposal(record.name)
    assert kept is not None
    assert f"{TEAMS[-1]} keeps what it has: teams.yaml does not name it" in kept.reason
    assert stage.limits()[TEAMS[-1]] == before


@pytest.mark.parametrize(("gpus", "may"), [((8,), True), ((8, 8), False), ((8, 1), False), ((4, 4), True), ((), True)])
def test_who_is_lowered_below_what_runs_now_is_warned_of(stage: QuotaStage, gpus: tuple[int, ...], may: bool) -> None:
    record = stage.keep()
    for each in gpus:
        stage.submit(PRODUCT, gpus=each)

    assert by_me(stage, record.name) is ProposalState.APPLIED
    kept = stage.ledger.proposal(record.name)
    said = "" if kept is None else kept.reason
    assert (f"{sum(gpus)} GPUs run there now; they run on" in said) is not may


def test_who_is_raised_may_run_more_than_its_limit(stage: QuotaStage) -> None:
    stage.quotas.apply([QuotaChange(account=RESEARCH, before=8, after=None)])
    for _ in range(3):
        stage.submit(RESEARCH)
    stage.quotas.apply([QuotaChange(account=RESEARCH, before=None, after=8)])

    assert by_me(stage, stage.keep().name) is ProposalState.APPLIED


def test_freeze_that_began_since_stops_it_and_one_that_was_known_does_not(stage: QuotaStage) -> None:
    freeze = QuotaFreeze(name="launch", begins_at=BEGINNING, ends_at=None)
    stage.desk = replace(stage.desk, policy=replace(ALL_MAY_MOVE, freezes=(freeze,)))
    stage.keep()
    refuse(stage, "quotas stand still by now: the freeze launch")

    knowing = stage.keep(replace(morning(FIRST_LIMITS), frozen_because="the freeze launch holds"))

    assert by_me(stage, knowing.name) is ProposalState.APPLIED


@pytest.mark.parametrize(("drained_count", "may"), [(0, True), (1, False)])
def test_nodes_that_were_lost_since_are_counted_out(stage: QuotaStage, drained_count: int, may: bool) -> None:
    stage.stand_in_the_register()
    stage.keep()
    for node in stage.nodes[:drained_count]:
        stage.desk.cluster.scheduler.drain([node], reason="somebody's")
    stage.clock.wait(60)

    if may:
        assert by_me(stage, stage.ledger.proposals(limit=1)[0].name) is ProposalState.APPLIED
    else:
        refuse(stage, "sum_within_supply")


def test_proofs_are_asked_again_with_what_is_agreed_by_then(stage: QuotaStage) -> None:
    stage.keep()
    lower = Contract(terms=Terms(team=RESEARCH, guarantee=GUARANTEE, cap=12), valid_from=date(2020, 1, 1))
    others = tuple(each for each in agreements().contracts if each.terms.team != RESEARCH)
    stage.use(agreements=replace(agreements(), contracts=(lower, *others)))

    refuse(stage, "caps_kept: research gets 16, and 12 at most was agreed")


@pytest.mark.parametrize(
    ("mode", "consent", "actor", "words"),
    [
        (Mode.OBSERVE, None, ME, "mode is observe"),
        (Mode.OBSERVE, None, AUTOPILOT, "mode is observe"),
        (Mode.APPROVE, None, ME, ""),
        (Mode.APPROVE, None, AUTOPILOT, "consents.quotas is approve"),
        (Mode.AUTO, None, AUTOPILOT, ""),
        (Mode.AUTO, Consent.APPROVE, AUTOPILOT, "consents.quotas is approve"),
        (Mode.AUTO, Consent.FORBID, AUTOPILOT, "consents.quotas is forbid"),
        (Mode.AUTO, Consent.FORBID, ME, ""),
        (Mode.APPROVE, Consent.AUTO, AUTOPILOT, ""),
    ],
)
@pytest.mark.parametrize("deed", [apply, undo])
def test_who_may_set_quotas(
    stage: QuotaStage, mode: Mode, consent: Consent | None, actor: str, words: str, deed: Callable[..., object]
) -> None:
    record = stage.keep()
    if deed is undo:
        by_me(stage, record.name)
    before = stage.limits()
    consents = {} if consent is None else {ActionClass.QUOTAS: consent}
    stage.use(policy=Policy(mode=mode, consents=consents))
    token = stage.ledger.take_lease(holder="run", ttl=HOUR, now=stage.clock.now()) if actor == AUTOPILOT else None

    if words:
        with pytest.raises(ApplyRefused, match=words):
            deed(record.name, stage.desk, actor=actor, lease_token=token)
    else:
        deed(record.name, stage.desk, actor=actor, lease_token=token)

    assert (stage.limits() == before) is bool(words)


def test_autopilot_without_its_lease_sets_nothing(stage: QuotaStage) -> None:
    stage.use(policy=Policy(mode=Mode.AUTO))
    record = stage.keep()

    for token, words in ((None, "shows no lease"), ("another", "right to act")):
        with pytest.raises(ApplyRefused, match=words):
            apply(record.name, stage.desk, actor=AUTOPILOT, lease_token=token)

    assert stage.limits() == FIRST_LIMITS


def test_paused_autopilot_sets_nothing_and_a_person_may(stage: QuotaStage) -> None:
    stage.use(policy=Policy(mode=Mode.AUTO))
    record = stage.keep()
    token = stage.ledger.take_lease(holder="run", ttl=HOUR, now=stage.clock.now())
    stage.ledger.pause(Pause(actor="eve", since=BEGINNING, reason="maintenance"))

    with pytest.raises(ApplyRefused, match="eve paused the autopilot"):
        apply(record.name, stage.desk, actor=AUTOPILOT, lease_token=token)
    untouched = stage.limits()

    assert by_me(stage, record.name) is ProposalState.APPLIED
    assert untouched == FIRST_LIMITS


# -- types, and what limits are worth --


def typed_stage(stage: QuotaStage, typed_limits: TypedLimits) -> Typed:
    port = Typed(stage.quotas, typed_limits=typed_limits)
    stage.use(quotas=port, limits_on=LimitsOn.PER_TYPE)
    made = lines(PROPOSED, dict.fromkeys(TEAMS), gpu_type="h100")
    stage.use(agreements=replace(agreements(), contracts=_typed_contracts()))
    stage.keep(proposal(*made, day=BEGINNING.date(), made_at=BEGINNING))
    return port


def _typed_contracts() -> tuple:
    return tuple(replace(each, gpu_type=GpuType("h100")) for each in agreements().contracts)


def test_limits_are_set_by_type_where_they_hold_jobs(stage: QuotaStage) -> None:
    port = typed_stage(stage, TypedLimits.HELD)

    by_me(stage, stage.ledger.proposals(limit=1)[0].name)

    assert port.kept == {(team, GpuType("h100")): PROPOSED[team] for team in (PRODUCT, RESEARCH, PLATFORM)}


@pytest.mark.parametrize("typed_limits", [TypedLimits.NOT_HELD, TypedLimits.UNKNOWN])
def test_limits_by_type_that_hold_nobody_are_refused_and_the_total_is_offered(
    stage: QuotaStage, typed_limits: TypedLimits
) -> None:
    port = typed_stage(stage, typed_limits)

    refuse(stage, ["JobSubmitPlugins is not set; set it. Limit all types together instead ", "`--total`"][0])

    assert port.kept == {}


def test_limits_that_hold_nobody_at_all_are_refused(stage: QuotaStage) -> None:
    class NotEnforced(PassingOn):
        def probe(self) -> QuotaProbe:
            return replace(
                super().probe(), is_enforced=False, enforced_because="AccountingStorageEnforce is none; set limits"
            )

    stage.use(quotas=NotEnforced(stage.quotas))
    stage.keep()

    refuse(stage, "AccountingStorageEnforce is none; set limits")


def test_what_weakens_limits_is_told_before_and_written_down_after(stage: QuotaStage) -> None:
    class Weak(PassingOn):
        def probe(self) -> QuotaProbe:
            return replace(
                super().probe(), gpu_billing={"batch": 1.0, "free": 0.0}, warnings=("QOS normal has GrpTRES",)
            )

    stage.use(quotas=Weak(stage.quotas))
    record = stage.keep()

    seen = preview(record.name, stage.desk)
    applied = apply(record.name, stage.desk, actor=ME, lease_token=None)

    assert "GPUs are free in free" in seen.warnings[0]
    assert all(warning in applied.reason for warning in (*seen.warnings, "QOS normal has GrpTRES"))


def test_preview_says_what_would_be_set_and_changes_nothing(stage: QuotaStage) -> None:
    record = stage.keep()
    watched = PassingOn(stage.quotas)
    stage.use(quotas=watched, policy=Policy(mode=Mode.OBSERVE))

    seen = preview(record.name, stage.desk)

    assert (seen.changes, dict(seen.standing)) == ((LOWER, RAISE), {LOWER: 16, RAISE: 8})
    assert (seen.record, seen.hindrances, seen.warnings) == (record, (), ())
    assert (watched.batches, stage.limits(), quotas_lines(stage)) == ([], FIRST_LIMITS, 1)


def test_preview_for_a_person_says_where_the_policy_lets_nobody_set_anything(stage: QuotaStage) -> None:
    record = stage.keep()
    assert preview(record.name, stage.desk, actor=ME).hindrances == ()

    stage.use(policy=Policy(mode=Mode.OBSERVE))

    assert "mode is observe" in preview(record.name, stage.desk, actor=ME).hindrances[0]


# -- what went wrong on the way --


class Breaking(PassingOn):
    """Sets the first few changes, then raises; may stop answering for some readings."""

    def __init__(self, stage: QuotaStage, *, sets: int, problem: SourceError | None, silent_reads: int = 0) -> None:
        super().__init__(stage.quotas)
        self._sets = sets
        self._problem = problem
        self._silent_reads = silent_reads
        self._is_silent = False

    def apply(self, changes: Sequence[Change]) -> None:
        self.inner.apply(changes[: self._sets])
        self._is_silent = True
        if self._problem is not None:
            raise self._problem

    def read(self) -> QuotasInForce:
        if self._is_silent and self._silent_reads > 0:
            self._silent_reads -= 1
            raise SourceUnavailable("slurmdbd does not answer")
        return super().read()


HALF = QuotasHalfApplied("slurmdbd is gone", are_in=[LOWER], are_not_in=[RAISE], unknown=[])
UNAVAILABLE = SourceUnavailable("no answer")
REFUSED = SourceRefused("permission denied")


@pytest.mark.parametrize(
    ("sets", "problem", "silent_reads", "state", "words"),
    [
        pytest.param(1, HALF, 0, ProposalState.HALF_APPLIED, "not in: research all GPUs: 8 -> 16", id="half"),
        pytest.param(1, HALF, 3, ProposalState.HALF_APPLIED, "in: product all GPUs: 16 -> 8", id="half, back later"),
        pytest.param(1, HALF, 99, ProposalState.HALF_APPLIED, "could not be read", id="half, and never back"),
        pytest.param(0, HALF, 0, ProposalState.PROPOSED, "not in: product", id="half it reported, and nothing is in"),
        pytest.param(2, UNAVAILABLE, 0, ProposalState.APPLIED, "read back", id="no answer, and all is in"),
        pytest.param(0, UNAVAILABLE, 0, ProposalState.PROPOSED, "no answer", id="no answer, nothing is in"),
        pytest.param(0, REFUSED, 0, ProposalState.PROPOSED, "permission denied", id="refused"),
        pytest.param(1, REFUSED, 0, ProposalState.HALF_APPLIED, "permission denied", id="refused in the middle"),
        pytest.param(0, REFUSED, 99, ProposalState.HALF_APPLIED, "could not be read", id="refused, not readable"),
        pytest.param(1, None, 0, ProposalState.HALF_APPLIED, "not in: research", id="accepted, and not all is there"),
        pytest.param(2, None, READ_COUNT - 1, ProposalState.APPLIED, "read back", id="seen at the last try"),
        pytest.param(2, None, READ_COUNT, ProposalState.HALF_APPLIED, "could not be read", id="one try too late"),
    ],
)
def test_what_became_of_it_is_told_by_what_is_in_force(
    stage: QuotaStage, sets: int, problem: SourceError | None, silent_reads: int, state: ProposalState, words: str
) -> None:
    record = stage.keep()
    stage.use(quotas=Breaking(stage, sets=sets, problem=problem, silent_reads=silent_reads))

    came_to = apply(record.name, stage.desk, actor=ME, lease_token=None)

    assert (came_to.state, words in came_to.reason) == (state, True), came_to.reason
    assert stage.ledger.proposal(record.name) == came_to


def test_half_applied_proposal_is_completed_or_undone(tmp_path: Path) -> None:
    for name, deed, limits, state in (
        ("completed", apply, PROPOSED, ProposalState.APPLIED),
        ("undone", undo, FIRST_LIMITS, ProposalState.UNDONE),
    ):
        stage = QuotaStage(tmp_path / name)
        stage.begin_with()
        record = stage.keep()
        stage.use(quotas=Breaking(stage, sets=1, problem=HALF))
        by_me(stage, record.name)
        stage.use(quotas=stage.quotas)

        ended = deed(record.name, stage.desk, actor=ME, lease_token=None)

        assert (ended.state, stage.limits()) == (state, limits)


@pytest.mark.parametrize(
    ("sets", "state"), [(0, ProposalState.APPLIED), (1, ProposalState.HALF_UNDONE), (2, ProposalState.UNDONE)]
)
def test_undoing_that_stops_half_way_says_so_and_is_completed(
    stage: QuotaStage, sets: int, state: ProposalState
) -> None:
    record = stage.keep()
    by_me(stage, record.name)
    stage.use(quotas=Breaking(stage, sets=sets, problem=HALF))

    stopped = undo(record.name, stage.desk, actor=ME, lease_token=None)
    stage.use(quotas=stage.quotas)
    ended = undo(record.name, stage.desk, actor=ME, lease_token=None)

    assert stopped.state is state
    assert (ended.state, stage.limits()) == (ProposalState.UNDONE, FIRST_LIMITS)


@pytest.mark.parametrize(("deaf_reads", "state"), [(3, ProposalState.APPLIED), (99, ProposalState.HALF_APPLIED)])
def test_limits_count_only_once_the_running_scheduler_follows_them(
    stage: QuotaStage, deaf_reads: int, state: ProposalState
) -> None:
    class Deaf(PassingOn):
        reads = 0

        def read(self) -> QuotasInForce:
            self.reads += bool(self.batches)
            deaf = frozenset({PRODUCT}) if 0 < self.reads <= deaf_reads else frozenset()
            return replace(super().read(), unheeded=deaf)

    record = stage.keep()
    stage.use(quotas=Deaf(stage.quotas))

    came_to = apply(record.name, stage.desk, actor=ME, lease_token=None)

    assert came_to.state is state
    assert ("follows other limits of product" in came_to.reason) is (state is ProposalState.HALF_APPLIED)


def test_waits_between_readings_are_the_callers(stage: QuotaStage) -> None:
    record = stage.keep()
    stage.use(quotas=Breaking(stage, sets=2, problem=None, silent_reads=2))
    waited: list[float] = []

    apply(record.name, stage.desk, actor=ME, lease_token=None, pause=waited.append)

    assert waited == [PAUSE_SECONDS] * 2


def test_job_that_starts_while_its_quota_is_lowered_runs_on(stage: QuotaStage) -> None:
    class Late(PassingOn):
        def apply(self, changes: Sequence[Change]) -> None:
            self.jobs = {stage.submit(PRODUCT), stage.submit(PRODUCT)}
            super().apply(changes)

    port = Late(stage.quotas)
    record = stage.keep()
    stage.use(quotas=port)

    assert by_me(stage, record.name) is ProposalState.APPLIED
    stage.clock.wait(60)
    third = stage.submit(PRODUCT)

    assert port.jobs <= stage.running()
    assert third not in stage.running()


def test_waiting_job_of_whoever_was_raised_starts(stage: QuotaStage) -> None:
    first, second = stage.submit(RESEARCH), stage.submit(RESEARCH)
    held = stage.running()

    by_me(stage, stage.keep().name)
    stage.clock.wait(60)

    assert (first in held, second in held) == (True, False)
    assert {first, second} <= stage.running()


# -- who died on the way --


@pytest.mark.parametrize(
    ("are_set", "state", "words"),
    [
        ((), ProposalState.PROPOSED, "not in: product"),
        ((LOWER,), ProposalState.HALF_APPLIED, "in: product all GPUs: 16 -> 8; not in: research"),
        ((LOWER, RAISE), ProposalState.APPLIED, "read back: 2 set"),
        (
            (QuotaChange(account=PRODUCT, before=16, after=9),),
            ProposalState.HALF_APPLIED,
            "is 9: somebody else changed it",
        ),
    ],
)
def test_what_nobody_ended_is_settled_by_what_is_in_force(
    stage: QuotaStage, are_set: tuple[Change, ...], state: ProposalState, words: str
) -> None:
    record = stage.keep()
    _die_before_sending(stage, record.name, apply)
    stage.quotas.apply(are_set)
    watched = PassingOn(stage.quotas)
    stage.use(quotas=watched)
    stage.clock.wait(SETTLED_AFTER.total_seconds())

    (settled,) = settle(stage.desk, actor=ME, lease_token=None)

    assert (settled.state, words in settled.reason) == (state, True), settled.reason
    assert watched.batches == []
    assert settle(stage.desk, actor=ME, lease_token=None) == ()


@pytest.mark.parametrize(
    ("are_set", "state"),
    [
        ((), ProposalState.APPLIED),
        ((RAISE.undone,), ProposalState.HALF_UNDONE),
        ((LOWER.undone, RAISE.undone), ProposalState.UNDONE),
    ],
)
def test_undoing_that_nobody_ended_is_settled_too(
    stage: QuotaStage, are_set: tuple[Change, ...], state: ProposalState
) -> None:
    record = stage.keep()
    by_me(stage, record.name)
    _die_before_sending(stage, record.name, undo)
    stage.quotas.apply(are_set)
    stage.clock.wait(SETTLED_AFTER.total_seconds())

    (settled,) = settle(stage.desk, actor=ME, lease_token=None)

    assert settled.state is state


@pytest.mark.parametrize(("seconds", "is_settled"), [(-1, False), (0, True), (1, True)])
def test_who_began_a_moment_ago_may_still_be_at_it(stage: QuotaStage, seconds: int, is_settled: bool) -> None:
    record = stage.keep()
    _die_before_sending(stage, record.name, apply)
    stage.clock.wait(SETTLED_AFTER.total_seconds() + seconds)

    assert bool(settle(stage.desk, actor=ME, lease_token=None)) is is_settled


@pytest.mark.parametrize("deed", [apply, undo])
def test_whoever_tries_again_after_a_while_settles_it_first(stage: QuotaStage, deed: Callable[..., object]) -> None:
    record = stage.keep()
    if deed is undo:
        by_me(stage, record.name)
    _die_before_sending(stage, record.name, deed)
    with pytest.raises(ApplyRefused, match="wait for its end"):
        deed(record.name, stage.desk, actor=ME, lease_token=None)
    stage.clock.wait(SETTLED_AFTER.total_seconds())

    deed(record.name, stage.desk, actor=ME, lease_token=None)

    assert stage.limits() == (PROPOSED if deed is apply else FIRST_LIMITS)


def test_nothing_is_settled_where_what_is_in_force_cannot_be_read(stage: QuotaStage) -> None:
    record = stage.keep()
    _die_before_sending(stage, record.name, apply)
    stage.clock.wait(SETTLED_AFTER.total_seconds())
    silent = Breaking(stage, sets=0, problem=None, silent_reads=9)
    silent.apply(())
    stage.use(quotas=silent)

    with pytest.raises(SourceUnavailable):
        settle(stage.desk, actor=ME, lease_token=None)

    now_it_is = stage.ledger.proposal(record.name)
    assert now_it_is is not None
    assert now_it_is.state is ProposalState.APPLYING


class _Died(BaseException):
    """The process is gone."""


def _die_before_sending(stage: QuotaStage, name: ProposalId, deed: Callable[..., object]) -> None:
    class Killer(PassingOn):
        def apply(self, changes: Sequence[Change]) -> None:
            raise _Died

    stage.use(quotas=Killer(stage.quotas))
    with pytest.raises(_Died):
        deed(name, stage.desk, actor=ME, lease_token=None)
    stage.use(quotas=stage.quotas)


def test_of_two_who_apply_at_once_one_wins(stage: QuotaStage) -> None:
    record = stage.keep()

    class Rival(PassingOn):
        """Somebody else applies the same proposal between our judgement and our before-entry."""

        is_first = True

        def probe(self) -> QuotaProbe:
            if self.is_first:
                self.is_first = False
                apply(record.name, replace(stage.desk, quotas=stage.quotas), actor="eve", lease_token=None)
            return super().probe()

    rival = Rival(stage.quotas)
    stage.use(quotas=rival)

    with pytest.raises(ApplyRefused, match="is applied by now"):
        by_me(stage, record.name)

    won = stage.ledger.proposal(record.name)
    assert won is not None
    assert (won.state, won.actor, rival.batches) == (ProposalState.APPLIED, "eve", [])
