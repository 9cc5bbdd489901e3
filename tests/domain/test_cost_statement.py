"""The statement: lines that add up to the cost of the assets to the cent, no matter who bears them."""

import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import whole_month
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.costs.focus import Issuer, focus_rows, total_cents
from ops_pipelines.costs.statement import LostHours, Service, Statement, make_statement
from ops_pipelines.costs.usage import Bearer, Fate, PartUsage, Used
from ops_pipelines.teams.price import AssetCost, Installed, asset_cost
from tests.domain.cost_facts import H100, JUNE, PRICES, first, held, one_node, owner, usage_of

MONTH = whole_month(JUNE)
BEARERS = (
    held("ml", "llm"),
    held("ml"),
    held("vision"),
    *(Bearer(fate=fate) for fate in Fate if fate is not Fate.ALLOCATED),
)
ALL_SECONDS = 8 * MONTH.seconds


def cost_of_one_node(**more: int) -> AssetCost:
    return asset_cost(MONTH, Installed(assets=[one_node(MONTH)], joules=10**11, **more), PRICES)


def cents_by_name(statement: Statement, service: Service) -> dict[str, int]:
    return {" ".join(line.bearer.names): line.cents for line in statement.lines if line.service is service}


cuts = st.lists(st.integers(0, ALL_SECONDS), min_size=len(BEARERS) - 1, max_size=len(BEARERS) - 1).map(sorted)


@given(cuts=cuts, lost=st.integers(0, ALL_SECONDS), measured=st.booleans(), data=st.data())
def test_the_residual_is_zero_and_the_order_of_facts_changes_nothing(
    cuts: list[int], lost: int, measured: bool, data: st.DataObject
) -> None:
    edges = [0, *cuts, ALL_SECONDS]
    shares = {bearer: until - since for bearer, since, until in zip(BEARERS, edges, edges[1:], strict=False)}
    cost = cost_of_one_node(storage_byte_seconds=2**51)
    joules = {(bearer, H100): seconds * 100 for bearer, seconds in shares.items()} if measured else None
    told = [
        LostHours(owner=owner("ml", "llm"), gpu_type=H100, incident="INC-1", gpu_seconds=lost),
        LostHours(owner=owner("vision"), gpu_type=H100, incident="INC-1", gpu_seconds=lost // 2),
        LostHours(owner=owner("vision"), gpu_type=H100, incident="INC-2", gpu_seconds=lost // 3),
    ]

    one = make_statement(
        cost,
        usage_of(MONTH, shares),
        joules=joules,
        lost=told,
    )
    mixed = dict(data.draw(st.permutations(list(shares.items()))))
    other = make_statement(
        cost,
        usage_of(MONTH, mixed),
        joules=joules,
        lost=data.draw(st.permutations(told)),
    )

    assert one.residual_cents == 0
    assert sum(line.cents for line in one.lines) == cost.cents
    assert one.lines == other.lines
    assert total_cents(focus_rows(one, Issuer(provider="site", cluster="c1"))) == cost.cents


def test_broken_hours_are_charged_once_and_to_no_team() -> None:
    half = ALL_SECONDS // 2
    broken = Bearer(fate=Fate.BROKEN)

    statement = make_statement(cost_of_one_node(), usage_of(MONTH, {held("ml"): half, broken: half}))
    alone = make_statement(cost_of_one_node(), usage_of(MONTH, {held("ml"): half, Bearer(fate=Fate.IDLE): half}))

    assert statement.rates == alone.rates
    assert statement.cents_of(owner("ml")) == alone.cents_of(owner("ml"))
    by_name = cents_by_name(statement, Service.GPU)
    assert abs(by_name["allocated ml "] - by_name["broken"]) <= 2


def test_the_rate_is_the_cost_over_installed_hours() -> None:
    statement = make_statement(cost_of_one_node(), usage_of(MONTH, {held("ml"): ALL_SECONDS}))

    assert statement.rates == {H100: Fraction(625_000 + 33_333 + 100_001, 8 * 720)}


def test_an_hour_that_is_added_up_and_missing_is_refused() -> None:
    used = {(held("ml"), H100): Used(gpu_seconds=3599), (held("ml"), GpuType("a100")): Used(gpu_seconds=1)}

    with pytest.raises(ValueError, match=r"a100: 1 reported, 0 installed; h100: 3599 reported, 3600 installed"):
        PartUsage(part=MONTH, installed={H100: 3600}, by_bearer=used)


def test_lines_that_do_not_add_up_are_refused() -> None:
    statement = make_statement(cost_of_one_node(), usage_of(MONTH, {held("ml"): ALL_SECONDS}))

    with pytest.raises(ValueError, match="1 cents short"):
        replace(statement, asset_cents=Cents(statement.asset_cents + 1))


def test_two_types_of_gpu_each_bear_their_own_price() -> None:
    a100 = GpuType("l40s")
    cost = asset_cost(
        MONTH,
        Installed(assets=[one_node(MONTH), replace(one_node(MONTH, gpus=4), asset="l40s", gpu_type=a100)]),
        replace(PRICES, space_cents_per_month=0, support_cents_per_month=0, network_cents_per_month=0),
    )
    usage = PartUsage(
        part=MONTH,
        installed={H100: 8 * MONTH.seconds, a100: 4 * MONTH.seconds},
        by_bearer={
            (held("ml"), H100): Used(gpu_seconds=8 * MONTH.seconds),
            (held("vision"), a100): Used(gpu_seconds=4 * MONTH.seconds),
        },
    )

    statement = make_statement(cost, usage)

    assert statement.cents_of(owner("ml")) == 625_000
    assert statement.cents_of(owner("vision")) == 88_889  # 4 * 800,000 / 36


def test_a_credit_is_a_negative_line_with_an_equal_line_of_the_operator() -> None:
    usage = usage_of(MONTH, {held("ml"): ALL_SECONDS})
    lost = [LostHours(owner=owner("ml"), gpu_type=H100, incident="INC-7", gpu_seconds=ALL_SECONDS // 4)]

    plain = make_statement(cost_of_one_node(), usage)
    credited = make_statement(cost_of_one_node(), usage, lost=lost)

    credit = next(line for line in credited.lines if line.service is Service.CREDIT)
    borne = next(line for line in credited.lines if line.service is Service.INCIDENT_CREDIT)
    paid = sum(line.cents for line in plain.lines if line.bearer == held("ml"))
    assert credit.cents == -borne.cents
    assert abs(-credit.cents - Fraction(paid, 4)) < 1
    assert (borne.credited, borne.bearer.owner, borne.cause) == (owner("ml"), None, "INC-7")
    assert credited.cents_of(owner("ml")) == plain.cents_of(owner("ml")) + credit.cents


@pytest.mark.parametrize(("lost_seconds", "refused"), [(3599, 0), (3600, 0), (3601, 1)])
def test_no_more_hours_are_credited_than_the_team_had(lost_seconds: int, refused: int) -> None:
    usage = usage_of(MONTH, {held("ml"): 3600, Bearer(fate=Fate.IDLE): ALL_SECONDS - 3600})
    lost = [LostHours(owner=owner("ml"), gpu_type=H100, incident="INC-7", gpu_seconds=lost_seconds)]

    statement = make_statement(cost_of_one_node(), usage, lost=lost)

    assert sum(each.gpu_seconds for each in statement.refused_credits) == refused
    assert statement.cents_of(owner("ml")) >= 0


def test_a_team_that_had_nothing_gets_no_credit_and_that_is_told() -> None:
    usage = usage_of(MONTH, {Bearer(fate=Fate.IDLE): ALL_SECONDS})
    lost = [LostHours(owner=owner("ml"), gpu_type=H100, incident="INC-7", gpu_seconds=5)]

    statement = make_statement(cost_of_one_node(), usage, lost=lost)

    assert statement.refused_credits == tuple(lost)
    assert not [line for line in statement.lines if line.service is Service.CREDIT]


def test_all_storage_is_idle() -> None:
    cost = cost_of_one_node(storage_byte_seconds=4 * 2**40 * MONTH.seconds)

    statement = make_statement(cost, usage_of(MONTH, {held("ml"): ALL_SECONDS}))

    assert cents_by_name(statement, Service.STORAGE) == {"idle": 4 * 1_999 // 2}


def test_energy_that_no_gpu_drew_is_the_operators() -> None:
    statement = make_statement(
        cost_of_one_node(), usage_of(MONTH, {held("ml"): ALL_SECONDS}), joules={(held("ml"), H100): 10**11 // 2}
    )

    by_name = cents_by_name(statement, Service.ENERGY)
    assert abs(by_name["allocated ml "] - by_name["overhead"]) <= 1


def test_a_cluster_without_gpus_is_borne_by_the_operator() -> None:
    cost = asset_cost(MONTH, Installed(assets=[]), PRICES)

    statement = make_statement(cost, PartUsage(part=MONTH, installed={}, by_bearer={}))

    assert {line.bearer.fate for line in statement.lines} == {Fate.OVERHEAD}
    assert statement.asset_cents == 33_333 + 100_001 + 77_777


def test_cost_and_usage_of_two_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one part of one month"):
        make_statement(cost_of_one_node(), usage_of(first(1), {held("ml"): 8 * 3600}))


def test_a_month_to_date_closes_at_every_hour_that_is_looked_at() -> None:
    seeds = random.Random(7)
    for hours in (1, 23, 24, 25, 719, 720):
        part = first(hours)
        mine = seeds.randrange(part.seconds * 8)
        usage = usage_of(part, {held("ml"): mine, Bearer(fate=Fate.IDLE): part.seconds * 8 - mine})

        statement = make_statement(asset_cost(part, Installed(assets=[one_node(part)]), PRICES), usage)

        assert statement.residual_cents == 0


def test_rows_of_focus_say_credits_and_usage_as_the_specification_has_them() -> None:
    usage = usage_of(MONTH, {held("ml", "llm"): ALL_SECONDS})
    lost = [LostHours(owner=owner("ml", "llm"), gpu_type=H100, incident="INC-7", gpu_seconds=3600)]

    rows = focus_rows(make_statement(cost_of_one_node(), usage, lost=lost), Issuer(provider="site", cluster="c1"))

    by_service = {row["x_Service"]: row for row in rows}
    assert by_service["gpu"]["ChargeCategory"] == "Usage"
    assert by_service["gpu"]["ConsumedQuantity"] == Decimal(8 * 720)
    assert by_service["gpu"]["SubAccountId"] == "ml"
    assert by_service["credit"]["ChargeCategory"] == "Credit"
    assert by_service["credit"]["PricingQuantity"] is None
    assert by_service["x_incident_credit"]["ChargeCategory"] == "Adjustment"
    assert by_service["x_incident_credit"]["SubAccountId"] is None
    assert by_service["x_incident_credit"]["x_Team"] == "ml"
    assert {row["BilledCost"] == row["EffectiveCost"] == row["ListCost"] == row["ContractedCost"] for row in rows} == {
        True
    }
