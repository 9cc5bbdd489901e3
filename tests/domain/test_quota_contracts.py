"""Contracts and agreements: what is in force on a day, and what can never be true."""

from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.quotas.allocation import allocate
from ops_pipelines.teams.contracts import (
    Agreements,
    Contract,
    carry_undeclared,
    children_of,
    from_the_top,
    overlaps,
    parent_faults,
)
from ops_pipelines.teams.projects import Project

NEW_YEAR = date(2026, 1, 1)
H100 = GpuType("h100")
ONE_TYPE = GpuType("")
TEAMS = ("a", "b", "c", "d")


def contract(
    team: str, guarantee: float, *, since: date = NEW_YEAR, until: date | None = None, gpu_type: GpuType = ONE_TYPE
) -> Contract:
    terms = Terms(team=TeamName(team), guarantee=guarantee)
    return Contract(terms=terms, valid_from=since, valid_until=until, gpu_type=gpu_type)


def agreements(*contracts: Contract, **parents: str | None) -> Agreements:
    known: dict[str, str | None] = {each.team: None for each in contracts} | parents
    return Agreements(
        parents={TeamName(team): None if above is None else TeamName(above) for team, above in known.items()},
        contracts=contracts,
    )


def project(**changes: object) -> Project:
    usual: dict[str, object] = {"name": "llm", "team": TeamName("a"), "gpus": 64.0, "begins_on": NEW_YEAR}
    return Project(**(usual | changes))  # type: ignore[arg-type]  # the fields of Project


def guarantees(agreed: Agreements, day: date, gpu_type: GpuType = ONE_TYPE) -> dict[str, float]:
    return {each.team: each.guarantee for each in agreed.terms_on(day, gpu_type)}


# --- what is in force ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "guarantee"),
    [
        (date(2025, 12, 31), 0.0),
        (date(2026, 1, 1), 8.0),
        (date(2026, 6, 30), 8.0),
        (date(2026, 7, 1), 16.0),
        (date(9999, 12, 31), 16.0),
    ],
)
def test_a_contract_holds_from_its_first_day_until_the_day_before_its_end(day: date, guarantee: float) -> None:
    july = date(2026, 7, 1)
    agreed = agreements(contract("a", 16.0, since=july), contract("a", 8.0, until=july))

    assert guarantees(agreed, day) == {"a": guarantee}


def test_in_a_gap_a_team_has_no_guarantee_and_may_borrow_as_any_other() -> None:
    agreed = agreements(contract("a", 8.0, until=date(2026, 2, 1)), contract("a", 8.0, since=date(2026, 3, 1)))

    (terms,) = agreed.terms_on(date(2026, 2, 1), ONE_TYPE)

    assert terms == Terms(team=TeamName("a"), guarantee=0.0)
    assert (terms.weight, terms.most) == (1.0, float("inf"))


def test_types_of_gpus_are_agreed_on_apart() -> None:
    agreed = agreements(contract("a", 8.0, gpu_type=H100), contract("a", 4.0, gpu_type=GpuType("a100")))

    assert guarantees(agreed, NEW_YEAR, H100) == {"a": 8.0}
    assert guarantees(agreed, NEW_YEAR, ONE_TYPE) == {"a": 0.0}
    assert agreed.gpu_types == {"h100", "a100"}


def test_terms_name_what_a_team_belongs_to_with_a_contract_and_without() -> None:
    agreed = agreements(contract("lab", 8.0), contract("science", 8.0), lab="science", idle="science")

    assert {each.team: each.parent for each in agreed.terms_on(NEW_YEAR, ONE_TYPE)} == {
        "idle": "science",
        "lab": "science",
        "science": None,
    }
    assert agreed.organisations == {"science"}


def test_the_terms_of_a_day_are_what_an_allocation_takes() -> None:
    agreed = agreements(contract("lab", 8.0), contract("other", 8.0), lab="science", science=None)

    granted = allocate(agreed.terms_on(NEW_YEAR, ONE_TYPE), asked={TeamName("lab"): 12.0}, supply=16.0)

    assert granted[TeamName("lab")].total == 12.0


# --- who was never declared ---------------------------------------------------------------------------------------


def test_a_team_that_nobody_declared_is_carried_without_guarantee_and_weight_and_served_last() -> None:
    first = Terms(team=TeamName("a"), guarantee=8.0, priority=-3)
    demanded = [TeamName("x"), TeamName("a"), TeamName("")]

    carried = carry_undeclared([first], demanded=demanded)

    assert carried[0] is first
    assert [(each.team, each.guarantee, each.weight, each.priority) for each in carried[1:]] == [
        ("", 0.0, 0.0, -3),
        ("x", 0.0, 0.0, -3),
    ]


@pytest.mark.parametrize(("supply", "left"), [(9.9, 0.0), (14.0, 4.0)])
def test_who_is_carried_gets_only_what_all_others_leave(supply: float, left: float) -> None:
    stranger, known = TeamName("x"), TeamName("a")
    terms = carry_undeclared([Terms(team=known, guarantee=2.0, priority=-1)], demanded=[stranger])

    granted = allocate(terms, asked={known: 10.0, stranger: 4.0}, supply=supply)

    assert (granted[known].total, granted[stranger].total) == (min(10.0, supply), left)


def test_where_all_are_declared_nobody_is_carried() -> None:
    terms = (Terms(team=TeamName("a"), guarantee=8.0),)

    assert carry_undeclared(terms, demanded=[TeamName("a")]) == terms
    assert carry_undeclared((), demanded=[]) == ()


# --- what can never be true ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "since", "is_overlap"),
    [
        (date(2026, 6, 30), date(2026, 7, 1), False),
        (date(2026, 7, 1), date(2026, 7, 1), False),
        (date(2026, 7, 2), date(2026, 7, 1), True),
        (None, date(2026, 7, 1), True),
    ],
)
def test_contracts_overlap_from_the_first_day_on_that_both_hold(
    until: date | None, since: date, is_overlap: bool
) -> None:
    one, other = contract("a", 8.0, until=until), contract("a", 8.0, since=since)

    assert overlaps([other, one]) == (((one, other),) if is_overlap else ())


def test_overlap_names_both_contracts_and_the_day_on_which_to_end_the_earlier() -> None:
    with pytest.raises(ValueError) as refused:
        agreements(
            contract("a", 8.0, until=date(2027, 1, 1), gpu_type=H100),
            contract("a", 9.0, since=date(2026, 7, 1), gpu_type=H100),
        )

    assert str(refused.value) == (
        "the contract of a for h100 from 2026-07-01 on begins while the contract of a for h100 from 2026-01-01 until "
        "2027-01-01 holds; expected one for a day: end the earlier on 2026-07-01, or begin the later when it ends"
    )


def test_two_contracts_that_are_alike_overlap_and_one_is_to_be_kept() -> None:
    with pytest.raises(ValueError, match="keep one of them"):
        agreements(contract("a", 8.0), contract("a", 8.0))


def test_a_short_contract_within_a_long_one_does_not_hide_the_next_overlap() -> None:
    long = contract("a", 1.0)
    short = contract("a", 2.0, since=date(2026, 2, 1), until=date(2026, 2, 2))
    later = contract("a", 3.0, since=date(2026, 3, 1))

    assert overlaps([later, short, long]) == ((long, short), (long, later))


def test_contracts_of_other_teams_and_other_types_do_not_overlap() -> None:
    assert overlaps([contract("a", 8.0), contract("b", 8.0), contract("a", 8.0, gpu_type=H100)]) == ()


@pytest.mark.parametrize("until", [date(2025, 12, 31), NEW_YEAR])
def test_a_contract_that_holds_on_no_day_is_refused(until: date) -> None:
    with pytest.raises(ValueError, match="holds on no day"):
        contract("a", 8.0, until=until)


def test_a_contract_of_one_day_is_a_contract() -> None:
    assert contract("a", 8.0, until=date(2026, 1, 2)).holds_on(NEW_YEAR)


def test_a_contract_has_days_and_no_times_and_leaves_the_parent_to_the_team() -> None:
    with pytest.raises(ValueError, match="time of day"):
        contract("a", 8.0, since=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="the parent belongs to the team"):
        Contract(terms=Terms(team=TeamName("a"), guarantee=1.0, parent=TeamName("b")), valid_from=NEW_YEAR)


def test_all_that_cannot_be_true_is_told_at_once() -> None:
    with pytest.raises(ValueError) as refused:
        Agreements(
            parents={TeamName("a"): TeamName("nobody"), TeamName("b"): TeamName("b")},
            contracts=(contract("x", 8.0), contract("a", 1.0), contract("a", 2.0)),
            projects=(project(), project(), project(team=TeamName("y"))),
            monthly_budget_cents={TeamName("z"): 1, TeamName("a"): -1},
        )

    told = str(refused.value).split("; ")
    for start in (
        "a belongs to nobody, which is not declared",
        "b belongs to itself",
        "the contract of a from 2026-01-01 on begins with",
        "the contract of x from 2026-01-01 on is of no declared team",
        "project llm of y is of no declared team",
        "project llm of a is there twice",
        "the budget of z is of no declared team",
        "the budget of a is -1 cents a month",
    ):
        assert any(each.startswith(start) for each in told), start


# --- parents ------------------------------------------------------------------------------------------------------


def parents(**told: str | None) -> dict[TeamName, TeamName | None]:
    return {TeamName(team): None if above is None else TeamName(above) for team, above in told.items()}


def test_a_circle_is_told_once_and_names_all_who_stand_in_it() -> None:
    faults = parent_faults(parents(c="a", b="c", a="b", below="a", fine=None))

    assert faults == {"a": "a belongs to itself by way of b, c; leave the parent of one of them out"}


def test_two_circles_are_two_faults() -> None:
    assert set(parent_faults(parents(a="b", b="a", c="d", d="c", e="e"))) == {"a", "c", "e"}


def test_each_team_comes_after_its_parent() -> None:
    found = from_the_top(children_of(parents(a="m", m="z", z=None, b=None)))

    assert found == ("b", "z", "m", "a")


def test_a_chain_of_thousands_of_parents_is_followed() -> None:
    chain = {TeamName(f"t{each:05}"): TeamName(f"t{each + 1:05}") for each in range(5_000)}
    whole = {**chain, TeamName("t05000"): None}

    assert parent_faults(whole) == {}
    assert from_the_top(children_of(whole))[-1] == "t00000"


# --- projects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "gpus"),
    [(date(2025, 12, 31), 0.0), (NEW_YEAR, 48.0), (date(2026, 1, 31), 48.0), (date(2026, 2, 1), 0.0)],
)
def test_a_project_wants_its_gpus_times_its_probability_while_it_lasts(day: date, gpus: float) -> None:
    assert project(ends_on=date(2026, 2, 1), probability=0.75).expected_gpus(day) == gpus


def test_a_project_without_an_end_goes_on() -> None:
    assert project().is_on(date(2030, 1, 1))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ends_on": NEW_YEAR}, "begins on 2026-01-01 and ends on 2026-01-01"),
        ({"ends_on": date(2025, 12, 31)}, "expected an end on a later day"),
        ({"begins_on": datetime(2026, 1, 1, tzinfo=UTC)}, "time of day"),
        ({"gpus": 0.0}, "wants 0 GPUs"),
        ({"gpus": -1.0}, "wants -1 GPUs"),
        ({"gpus": float("nan")}, "wants nan GPUs"),
        ({"gpus": float("inf")}, "wants inf GPUs"),
        ({"probability": 0.0}, "has probability 0;"),
        ({"probability": 1.01}, "has probability 1.01"),
        ({"probability": float("nan")}, "has probability nan"),
    ],
)
def test_a_project_that_cannot_be_is_refused_by_name(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"project llm of a.*{sentence}"):
        project(**changes)


# --- laws ---------------------------------------------------------------------------------------------------------

DAYS = st.integers(min_value=0, max_value=40).map(lambda each: NEW_YEAR + timedelta(days=each))
TYPES = st.sampled_from([ONE_TYPE, H100])


@st.composite
def any_contracts(draw: st.DrawFn) -> list[Contract]:
    """Contracts of a few teams, types and weeks: some overlap."""
    made = []
    for guarantee in range(draw(st.integers(min_value=0, max_value=8))):
        since = draw(DAYS)
        length = draw(st.integers(min_value=1, max_value=20) | st.none())
        until = None if length is None else since + timedelta(days=length)
        team = draw(st.sampled_from(TEAMS))
        made.append(contract(team, float(guarantee + 1), since=since, until=until, gpu_type=draw(TYPES)))
    return made


@st.composite
def any_agreements(draw: st.DrawFn) -> Agreements:
    made = draw(any_contracts())
    later = {id(each) for _, each in overlaps(made)}
    above: dict[TeamName, TeamName | None] = {}
    for team in TEAMS:
        above[TeamName(team)] = draw(st.sampled_from([None, *above]))
    return Agreements(parents=above, contracts=tuple(each for each in made if id(each) not in later))


@given(agreed=any_agreements(), day=DAYS, gpu_type=st.sampled_from([ONE_TYPE, H100, GpuType("b200")]))
def test_on_every_day_every_team_has_one_set_of_terms_that_an_allocation_takes(
    agreed: Agreements, day: date, gpu_type: GpuType
) -> None:
    terms = agreed.terms_on(day, gpu_type)

    assert [each.team for each in terms] == list(TEAMS)
    assert sum(each.total for each in allocate(terms, asked={}, supply=8.0).values()) == 0.0


@given(agreed=any_agreements(), day=DAYS, gpu_type=TYPES, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_contracts_and_teams_changes_nothing(
    agreed: Agreements, day: date, gpu_type: GpuType, shuffle: Random
) -> None:
    contracts, above = list(agreed.contracts), list(agreed.parents.items())
    shuffle.shuffle(contracts)
    shuffle.shuffle(above)

    again = Agreements(parents=dict(above), contracts=tuple(contracts))

    assert again.terms_on(day, gpu_type) == agreed.terms_on(day, gpu_type)


@given(made=any_contracts(), shuffle=st.randoms(use_true_random=False))
def test_an_overlap_is_found_exactly_where_some_day_has_two_contracts(made: list[Contract], shuffle: Random) -> None:
    days = [NEW_YEAR + timedelta(days=each) for each in range(70)]
    keys = {(each.team, each.gpu_type) for each in made}
    has_two = any(
        sum(each.holds_on(day) for each in made if (each.team, each.gpu_type) == key) > 1
        for key in keys
        for day in days
    )
    found = overlaps(made)
    shuffle.shuffle(made)

    assert bool(found) is has_two
    assert overlaps(made) == found


@given(agreed=any_agreements(), day=DAYS, gpu_type=TYPES)
def test_a_day_has_at_most_one_contract_of_a_team_and_type_and_its_terms_are_that_of_the_day(
    agreed: Agreements, day: date, gpu_type: GpuType
) -> None:
    for terms in agreed.terms_on(day, gpu_type):
        held = [
            each
            for each in agreed.contracts
            if (each.team, each.gpu_type) == (terms.team, gpu_type) and each.holds_on(day)
        ]
        assert len(held) <= 1
        assert agreed.contract_on(day, team=terms.team, gpu_type=gpu_type) == (held[0] if held else None)
        assert terms.guarantee == (held[0].terms.guarantee if held else 0.0)
