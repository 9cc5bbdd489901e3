"""What a cluster cannot keep of what was agreed: today an error, later a warning with its day."""

import math
from collections.abc import Collection, Mapping
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.allocation import allocate
from ops_pipelines.quotas.lint import find_missing_accounts, lint_quotas
from ops_pipelines.quotas.today import Capacity
from ops_pipelines.teams.contracts import Agreements, Contract, Remark, RemarkKind, Remarks
from ops_pipelines.teams.projects import Project

TODAY = date(2026, 6, 1)
H100 = GpuType("h100")
ONE_TYPE = GpuType("")


def contract(
    team: str,
    guarantee: float,
    *,
    since: date = date(2026, 1, 1),
    until: date | None = None,
    gpu_type: GpuType = ONE_TYPE,
    **more: float,
) -> Contract:
    terms = Terms(team=TeamName(team), guarantee=guarantee, **more)  # type: ignore[arg-type]  # the fields of Terms
    return Contract(terms=terms, valid_from=since, valid_until=until, gpu_type=gpu_type)


def agreements(*contracts: Contract, projects: Collection[Project] = (), **parents: str) -> Agreements:
    known: dict[str, str | None] = {each.team: None for each in contracts}
    known |= dict.fromkeys(parents.values()) | parents
    return Agreements(
        parents={TeamName(team): None if above is None else TeamName(above) for team, above in known.items()},
        contracts=contracts,
        projects=tuple(projects),
    )


def project(**changes: object) -> Project:
    usual: dict[str, object] = {"name": "llm", "team": TeamName("a"), "gpus": 8.0, "begins_on": TODAY}
    return Project(**(usual | changes))  # type: ignore[arg-type]  # the fields of Project


def lint(
    agreed: Agreements,
    *,
    installed: float = 64.0,
    healthy: float | None = None,
    capacity: Mapping[GpuType, Capacity] | None = None,
) -> Remarks:
    one = {ONE_TYPE: Capacity(installed=installed, healthy=installed if healthy is None else healthy)}
    return lint_quotas(
        agreed,
        day=TODAY,
        capacity=one if capacity is None else capacity,
    )


def kinds(remarks: Collection[Remark]) -> list[RemarkKind]:
    return [each.kind for each in remarks]


def the_one(remarks: Collection[Remark]) -> Remark:
    (remark,) = remarks
    return remark


def test_agreements_that_can_be_kept_leave_nothing_to_say() -> None:
    found = lint(agreements(contract("a", 32.0), contract("b", 32.0)))

    assert found == Remarks()


# --- the cluster --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guarantee", "is_error"), [(31.0, False), (32.0, False), (32.5, True)])
def test_guarantees_beyond_what_is_installed_are_an_error(guarantee: float, is_error: bool) -> None:
    found = lint(agreements(contract("a", 32.0), contract("b", guarantee)))

    assert kinds(found.errors) == ([RemarkKind.BEYOND_INSTALLED] if is_error else [])
    assert found.warnings == ()


@pytest.mark.parametrize(("healthy", "is_warning"), [(56.0, False), (55.5, True), (0.0, True)])
def test_guarantees_beyond_what_is_healthy_are_a_warning(healthy: float, is_warning: bool) -> None:
    found = lint(agreements(contract("a", 32.0), contract("b", 24.0)), healthy=healthy)

    assert found.errors == ()
    assert kinds(found.warnings) == ([RemarkKind.BEYOND_HEALTHY] if is_warning else [])


def test_a_remark_says_what_was_found_and_what_to_do() -> None:
    capacity = {H100: Capacity(installed=64.0, healthy=64.0)}
    contracts = [contract(name, 20.0 + ord(name) - ord("a"), gpu_type=H100) for name in "abcde"]

    remark = the_one(lint(agreements(*contracts), capacity=capacity).errors)

    assert remark == Remark(
        kind=RemarkKind.BEYOND_INSTALLED,
        gpu_type=H100,
        text="h100: 110 GPUs are guaranteed (e 24, d 23, c 22 and 2 more) and 64 are installed; lower a guarantee, or "
        "end a contract",
    )


def test_sums_that_differ_by_rounding_alone_are_equal() -> None:
    found = lint(agreements(*(contract(name, 0.1) for name in "abcdefghij")), installed=math.nextafter(1.0, 0.0))

    assert found == Remarks()


@pytest.mark.parametrize(("in_days", "is_told"), [(1, True), (90, True), (91, False)])
def test_what_will_be_false_within_a_quarter_is_a_warning_with_its_day(in_days: int, is_told: bool) -> None:
    begins = TODAY + timedelta(days=in_days)

    found = lint(agreements(contract("a", 32.0), contract("b", 33.0, since=begins)))

    assert found.errors == ()
    assert [each.text.split(":")[0] for each in found.warnings] == ([f"from {begins} on"] if is_told else [])


def test_what_is_false_today_is_not_told_again_of_later_days() -> None:
    found = lint(agreements(contract("a", 65.0), contract("b", 33.0, since=TODAY + timedelta(days=3))))

    assert kinds(found.errors) == [RemarkKind.BEYOND_INSTALLED]
    assert found.warnings == ()


def test_a_contract_that_is_over_harms_nobody() -> None:
    assert lint(agreements(contract("a", 65.0, until=TODAY), contract("b", 64.0))) == Remarks()


@pytest.mark.parametrize(("installed", "healthy"), [(8.0, 9.0), (8.0, -1.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_a_capacity_that_cannot_be_is_refused(installed: float, healthy: float) -> None:
    with pytest.raises(ValueError, match="GPUs are healthy; expected"):
        Capacity(installed=installed, healthy=healthy)


# --- types --------------------------------------------------------------------------------------------------------


def test_a_contract_for_gpus_that_the_cluster_lacks_is_an_error_today_and_a_warning_before_it_begins() -> None:
    capacity = {H100: Capacity(installed=64.0, healthy=64.0)}
    coming = contract("b", 8.0, since=TODAY + timedelta(days=30), gpu_type=GpuType("b200"))

    found = lint(agreements(contract("a", 8.0), coming), capacity=capacity)

    assert the_one(found.errors).text == (
        "the contract of a from 2026-01-01 on is for GPUs without a type; the cluster has h100; correct gpu_type, or "
        "end the contract"
    )
    warning = the_one(found.warnings)
    assert (warning.kind, warning.team) == (RemarkKind.UNKNOWN_GPU_TYPE, "b")


def test_a_cluster_without_gpus_keeps_no_contract() -> None:
    found = lint(agreements(contract("a", 8.0)), capacity={})

    assert "the cluster has no GPUs" in the_one(found.errors).text


# --- organisations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guarantee", "is_error"), [(8.0, False), (16.0, False), (16.5, True)])
def test_guarantees_of_teams_beyond_the_cap_of_their_organisation_are_an_error(
    guarantee: float, is_error: bool
) -> None:
    agreed = agreements(contract("org", 24.0, cap=24.0), contract("a", 8.0), contract("b", guarantee), a="org", b="org")

    found = lint(agreed)

    assert kinds(found.errors) == ([RemarkKind.BEYOND_PARENT] if is_error else [])
    assert found.warnings == ()


def test_what_an_organisation_may_have_ends_with_its_borrow_limit_too() -> None:
    agreed = agreements(contract("org", 8.0, borrow_limit=4.0), contract("a", 13.0), a="org")

    remark = the_one(lint(agreed).errors)

    assert remark.team == "org"
    assert remark.text == (
        "the teams of org are guaranteed 13 GPUs together (a 13), and org never gets more than 12 (guarantee and "
        "borrow_limit together); lower a guarantee, or raise what org may have"
    )


def test_teams_guaranteed_more_than_was_agreed_with_their_organisation_are_a_warning() -> None:
    agreed = agreements(contract("org", 8.0), contract("a", 8.5), a="org")

    found = lint(agreed)

    assert found.errors == ()
    assert kinds(found.warnings) == [RemarkKind.BEYOND_AGREED]


def test_an_organisation_without_a_contract_is_the_sum_of_its_teams() -> None:
    agreed = agreements(contract("a", 32.0), contract("b", 33.0), a="org", b="org")

    assert lint(agreed, installed=65.0) == Remarks()
    assert kinds(lint(agreed).errors) == [RemarkKind.BEYOND_INSTALLED]


def test_an_organisation_counts_once_and_not_again_by_its_teams() -> None:
    agreed = agreements(contract("org", 64.0), contract("a", 32.0), contract("b", 32.0), a="org", b="org")

    assert lint(agreed) == Remarks()


# --- weights ------------------------------------------------------------------------------------------------------


def test_where_all_who_may_borrow_have_weight_0_what_is_left_would_lie_idle() -> None:
    agreed = agreements(contract("a", 8.0, weight=0.0), contract("b", 8.0, weight=0.0), contract("c", 8.0, cap=8.0))

    remark = the_one(lint(agreed).errors)

    assert (remark.kind, remark.team) == (RemarkKind.NO_WEIGHT, None)
    assert remark.text.startswith("every team of the cluster that may borrow has weight 0 (a, b)")


def test_weights_of_0_are_fine_beside_one_that_is_not_and_where_nobody_may_borrow() -> None:
    assert lint(agreements(contract("a", 8.0, weight=0.0), contract("b", 8.0))) == Remarks()
    assert lint(agreements(contract("a", 8.0, weight=0.0, borrow_limit=0.0))) == Remarks()


def test_weights_are_looked_at_within_each_organisation() -> None:
    agreed = agreements(contract("a", 8.0, weight=0.0), contract("b", 8.0), a="org")

    assert the_one(lint(agreed).errors).team == "org"


# --- ends and projects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_days", "is_told"), [(1, True), (30, True), (31, False)])
def test_a_guarantee_that_runs_out_within_a_month_is_a_warning(in_days: int, is_told: bool) -> None:
    found = lint(agreements(contract("a", 8.0, until=TODAY + timedelta(days=in_days))))

    assert kinds(found.warnings) == ([RemarkKind.ENDS_SOON] if is_told else [])


def test_a_guarantee_that_another_follows_and_one_of_nothing_run_out_in_silence() -> None:
    ends = TODAY + timedelta(days=5)
    agreed = agreements(contract("a", 8.0, until=ends), contract("a", 8.0, since=ends), contract("b", 0.0, until=ends))

    assert lint(agreed) == Remarks()


def test_a_project_for_gpus_that_neither_the_cluster_nor_a_contract_has_is_an_error() -> None:
    agreed = agreements(contract("a", 8.0), projects=[project(gpu_type=GpuType("h10"))])

    assert the_one(lint(agreed).errors).text == (
        "project llm of a wants GPUs of type h10; the cluster has GPUs without a type; correct gpu_type, or leave the "
        "project out"
    )


def test_a_project_may_wait_for_gpus_that_a_contract_names() -> None:
    coming = contract("a", 8.0, since=TODAY + timedelta(days=365), gpu_type=H100)

    assert lint(agreements(coming, projects=[project(gpu_type=H100)])) == Remarks()


@pytest.mark.parametrize(("gpus", "is_told"), [(15.0, False), (16.0, False), (17.0, True)])
def test_a_project_that_wants_more_than_its_team_ever_gets_is_a_warning(gpus: float, is_told: bool) -> None:
    agreed = agreements(contract("a", 8.0, cap=16.0), projects=[project(gpus=gpus)])

    assert kinds(lint(agreed).warnings) == ([RemarkKind.PROJECT_BEYOND_TERMS] if is_told else [])


def test_a_project_is_measured_by_the_contract_of_the_day_on_which_it_begins() -> None:
    july = date(2026, 7, 1)
    agreed = agreements(
        contract("a", 8.0, cap=8.0, until=july),
        contract("a", 8.0, since=july),
        projects=[project(gpus=32.0, begins_on=july)],
    )

    assert lint(agreed) == Remarks()


@pytest.mark.parametrize(("ends_in_days", "is_told"), [(-1, False), (0, False), (1, True)])
def test_a_project_that_is_over_is_not_told(ends_in_days: int, is_told: bool) -> None:
    over = project(
        gpu_type=GpuType("v100"), begins_on=TODAY - timedelta(days=9), ends_on=TODAY + timedelta(days=ends_in_days)
    )

    assert bool(lint(agreements(contract("a", 8.0), projects=[over])).errors) is is_told


def test_a_project_of_an_organisation_is_told_once_and_asks_for_nothing() -> None:
    agreed = agreements(
        contract("a", 8.0), contract("org", 8.0, cap=8.0), projects=[project(team=TeamName("org"), gpus=32.0)], a="org"
    )

    assert the_one(lint(agreed).warnings).text == (
        "project llm of org is of an organisation, whose teams are a: what it wants is left out; write it down for one "
        "of these"
    )
    assert agreed.askers == {"a"}


def test_teams_and_organisations_without_an_account_are_named() -> None:
    agreed = agreements(contract("a", 8.0), contract("b", 8.0), a="org", b="org")

    assert find_missing_accounts(agreed, known=[TeamName("b"), TeamName("root")]) == ("a", "org")
    assert find_missing_accounts(agreed, known=[TeamName(each) for each in ("a", "b", "org")]) == ()


# --- laws ---------------------------------------------------------------------------------------------------------


@given(
    guarantees=st.lists(st.integers(min_value=0, max_value=40), min_size=1, max_size=5),
    installed=st.integers(min_value=0, max_value=80),
)
def test_without_organisations_it_is_an_error_exactly_if_guarantees_add_up_to_more_than_there_is(
    guarantees: list[int], installed: int
) -> None:
    agreed = agreements(*(contract(f"t{place}", float(each)) for place, each in enumerate(guarantees)))

    found = lint(agreed, installed=float(installed))

    assert (RemarkKind.BEYOND_INSTALLED in kinds(found.errors)) is (sum(guarantees) > installed)


@st.composite
def any_tree(draw: st.DrawFn) -> Agreements:
    """A few organisations and teams, two levels deep and more; some have no contract."""
    above: dict[str, str] = {}
    contracts = []
    for place in range(draw(st.integers(min_value=1, max_value=6))):
        name = f"t{place}"
        if place and draw(st.booleans()):
            above[name] = f"t{draw(st.integers(min_value=0, max_value=place - 1))}"
        guarantee = float(draw(st.integers(min_value=0, max_value=16)))
        cap = draw(st.sampled_from([math.inf, guarantee, guarantee + 8.0]))
        borrow_limit = draw(st.sampled_from([math.inf, 0.0, 4.0]))
        until = draw(st.sampled_from([None, TODAY]))
        contracts.append(contract(name, guarantee, cap=cap, borrow_limit=borrow_limit, until=until))
    return agreements(*contracts, **above)


@given(agreed=any_tree(), installed=st.integers(min_value=0, max_value=64), more=st.integers(min_value=0, max_value=9))
def test_what_is_found_without_fault_is_kept_by_the_allocation(agreed: Agreements, installed: int, more: int) -> None:
    if lint(agreed, installed=float(installed)).errors:
        return
    terms = agreed.terms_on(TODAY, ONE_TYPE)
    asked = {each.team: each.guarantee + more for each in terms if each.team not in agreed.organisations}

    granted = allocate(terms, asked=asked, supply=float(installed))

    for team in asked:
        assert granted[team].total >= granted[team].terms.guarantee - 1e-6


@given(agreed=any_tree(), installed=st.integers(min_value=0, max_value=64))
def test_a_guarantee_that_the_allocation_breaks_is_an_error(agreed: Agreements, installed: int) -> None:
    terms = agreed.terms_on(TODAY, ONE_TYPE)
    asked = {each.team: each.guarantee for each in terms if each.team not in agreed.organisations}

    granted = allocate(terms, asked=asked, supply=float(installed))

    if any(granted[team].total < amount - 1e-6 for team, amount in asked.items()):
        assert lint(agreed, installed=float(installed)).errors
