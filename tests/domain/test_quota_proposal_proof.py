"""A proposal that holds what it should passes every proof; one that is broken in one place does not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, ProposedQuota, QuotaProposal, SupplyLine, TeamName, Terms
from ops_pipelines.quotas.demand import queue_chance
from ops_pipelines.quotas.proof import PROOFS, ProofInputs
from ops_pipelines.quotas.proposing import headline_of_lines, propose_lines
from ops_pipelines.quotas.rebalance import rebalance, wished_quotas
from ops_pipelines.quotas.today import Today
from ops_pipelines.teams.desk import QuotaPolicy, RebalanceSettings

A, B, C, ORG = TeamName("a"), TeamName("b"), TeamName("c"), TeamName("org")
H100 = GpuType("h100")
NOW = datetime(2026, 3, 2, 5, 0, tzinfo=UTC)
POLICY = QuotaPolicy(rebalance=RebalanceSettings(step_cap_ratio=0.1))
TERMS = (
    Terms(team=ORG, guarantee=40, cap=64),
    Terms(team=A, guarantee=16, cap=48, parent=ORG),
    Terms(team=B, guarantee=16, parent=ORG),
    Terms(team=C, guarantee=8, unit=4),
)


def line(team: TeamName, before: float, after: int, **more: object) -> ProposedQuota:
    agreed = next(each for each in TERMS if each.team == team)
    values: dict[str, object] = {
        "limit": int(before),
        "guarantee": agreed.guarantee,
        "most": agreed.most,
        "floor": agreed.guarantee,
        "ran_last": 0.0,
        "wanted_mean": 20.0,
        "debt": 0.0,
        "reason": "because",
        "counterfactual": "otherwise",
        **more,
    }
    return ProposedQuota(team=team, gpu_type=H100, before=before, after=after, **values)  # type: ignore[arg-type]


def proposal(*lines: ProposedQuota, supply: float = 100.0, **more: object) -> QuotaProposal:
    counts = SupplyLine(gpu_type=H100, installed=104, broken=0, in_rollouts=0, slack=4, supply=supply)
    values: dict[str, object] = {"demand_until": NOW - timedelta(hours=1), **more}
    return QuotaProposal(
        day=NOW.date(),
        made_at=NOW,
        lines=lines,
        supplies=(counts,),
        step_caps=((H100, supply / 10),),
        headline="",
        **values,  # type: ignore[arg-type]  # fields of QuotaProposal
    )


GOOD = proposal(line(A, 30, 36), line(B, 30, 28), line(C, 40, 36))
INPUTS = ProofInputs(terms={H100: TERMS}, policy=POLICY)


def contradicted(found: QuotaProposal, inputs: ProofInputs = INPUTS) -> Mapping[str, tuple[str, ...]]:
    said = {name: find(found, inputs) for name, (_, find) in PROOFS.items()}
    return {name: problems for name, problems in said.items() if problems}


def of(made: QuotaProposal, *lines: ProposedQuota, **more: object) -> QuotaProposal:
    named = {each.team: each for each in lines}
    return replace(made, lines=tuple(named.get(each.team, each) for each in made.lines), **more)  # type: ignore[arg-type]


def test_a_proposal_that_holds_what_it_should_is_contradicted_by_nothing() -> None:
    assert contradicted(GOOD) == {}


@pytest.mark.parametrize(
    ("broken", "proof", "said"),
    [
        (of(GOOD, line(C, 40, 40)), "sum_within_supply", "quotas add up to 104 GPUs, and 100 may be given out"),
        (replace(GOOD, supplies=()), "sum_within_supply", "a h100 is of a type of GPU with no supply"),
        (of(GOOD, line(B, 20, 15)), "floors_kept", "b h100 gets 15, and is guaranteed 16"),
        (of(GOOD, line(B, 30, 28, ran_last=29.0)), "floors_kept", "falls to 28, and ran 29 in the last full hour"),
        (of(GOOD, line(A, 46, 49), line(B, 16, 16)), "caps_kept", "a h100 gets 49, and 48 at most was agreed"),
        (of(GOOD, line(A, 36, 37)), "caps_kept", "the teams of org get 65 together, and 64 at most"),
        (of(GOOD, line(C, 40, 35)), "caps_kept", "c h100 gets 35, which is no whole multiple of 4"),
        (of(GOOD, line(A, 20, 18), line(B, 20, 18)), "organisations_kept", "get 36 together, and org is guaranteed 40"),
        (of(GOOD, line(A, 25, 36), line(B, 35, 28)), "step_within_cap", "11 GPUs move by choice, and 10 may in a day"),
        (of(GOOD, line(A, 26, 36), line(B, 26, 28), line(C, 48, 36)), "step_within_cap", "12 GPUs move by choice"),
        (replace(GOOD, step_caps=()), "step_within_cap", "no step is named"),
        (replace(GOOD, frozen_because="an incident"), "freeze_kept", "c h100 goes from 40 to 36 though quotas stand"),
        (replace(GOOD, demand_until=None), "inputs_fresh", "no demand was seen"),
        (replace(GOOD, demand_until=NOW + timedelta(hours=1)), "inputs_fresh", "later than the proposal"),
        (replace(GOOD, demand_until=NOW - timedelta(hours=3, seconds=1)), "inputs_fresh", "3:00:01 before"),
        (replace(GOOD, known_hour_ratio=0.89), "inputs_fresh", "89% of the hours are known; expected 90%"),
        (replace(GOOD, known_hour_ratio=math.nan), "inputs_fresh", "of the hours are known"),
        (of(GOOD, line(A, 30, 36, wanted_mean=math.nan)), "inputs_fresh", "a h100 has an amount that is no number"),
        (of(GOOD, line(A, 30, 36, debt=math.inf)), "inputs_fresh", "a h100 has an amount that is no number"),
        (replace(GOOD, lines=GOOD.lines[:2]), "inputs_fresh", "c has 0 lines; expected one"),
        (replace(GOOD, lines=(*GOOD.lines, GOOD.lines[2])), "inputs_fresh", "c has 2 lines; expected one"),
        (replace(GOOD, lines=(*GOOD.lines, line(ORG, 0, 0))), "inputs_fresh", "org has 1 lines; expected none"),
    ],
)
def test_what_is_broken_in_one_place_is_found(broken: QuotaProposal, proof: str, said: str) -> None:
    assert any(said in problem for problem in contradicted(broken)[proof])


@pytest.mark.parametrize(
    "kept",
    [
        of(GOOD, line(A, 26, 36), line(B, 34, 28)),
        of(GOOD, line(A, 26, 36), line(B, 28, 28), line(C, 46, 36)),
        of(GOOD, line(B, 30, 28, ran_last=28.0)),
        replace(GOOD, demand_until=NOW - timedelta(hours=3)),
        replace(GOOD, known_hour_ratio=0.9),
    ],
)
def test_what_is_just_within_is_no_contradiction(kept: QuotaProposal) -> None:
    assert contradicted(kept) == {}


def test_lost_nodes_and_owed_guarantees_may_pass_the_step() -> None:
    lost = proposal(line(A, 30, 24), line(B, 30, 24), line(C, 40, 12), supply=60)
    owed = proposal(line(A, 0, 24), line(B, 64, 40), line(C, 36, 36))

    assert contradicted(lost) == {}
    assert contradicted(owed) == {}
    # Beyond the guarantee of 16 the step allows 10, and not one more.
    assert contradicted(of(owed, line(A, 0, 26), line(B, 64, 38))) == {}
    assert "step_within_cap" in contradicted(of(owed, line(A, 0, 27), line(B, 64, 37)))


def test_teams_of_large_units_lend_no_slack_to_the_step_of_others() -> None:
    # Nothing is lost, owed or above a cap: units of 4 are no reason to move more than 10.
    assert contradicted(of(GOOD, line(A, 26, 36), line(B, 34, 28))) == {}
    assert "step_within_cap" in contradicted(of(GOOD, line(A, 25, 36), line(B, 35, 28)))


@pytest.mark.parametrize(
    ("gets", "proof"), [((20, 20), None), ((20, 19), "organisations_kept"), ((15, 25), "floors_kept")]
)
def test_what_an_organisation_is_guaranteed_is_kept_to_the_gpu(gets: tuple[int, int], proof: str | None) -> None:
    kept = proposal(line(A, 20, gets[0]), line(B, 20, gets[1]), line(C, 40, 40))

    assert list(contradicted(kept)) == ([] if proof is None else [proof])


@pytest.mark.parametrize(("rises", "is_kept"), [(16, True), (17, False)])
def test_in_a_freeze_teams_of_an_organisation_rise_to_what_is_owed_and_no_further(rises: int, is_kept: bool) -> None:
    still = proposal(line(A, 10, rises), line(B, 30, 30), line(C, 40, 40), frozen_because="a mass event")

    assert ("freeze_kept" not in contradicted(still)) is is_kept


@pytest.mark.parametrize(
    ("cap", "falls_to", "is_kept"),
    [(31, 19, True), (31, 13, False), (36, 24, True), (37, 25, True), (37, 24, True), (37, 23, False), (64, 19, False)],
)
def test_in_a_freeze_what_is_given_within_an_organisation_at_its_cap_is_given_by_its_others(
    cap: int, falls_to: int, is_kept: bool
) -> None:
    # Of 37 GPUs, 12 are left to A of what its organisation is guaranteed; B had 25.
    terms = (
        Terms(team=A, guarantee=4, cap=12, parent=ORG),
        Terms(team=B, guarantee=1, parent=ORG),
        Terms(team=C, guarantee=16),
        Terms(team=ORG, guarantee=23, cap=cap),
    )
    still = proposal(
        line(A, 0, 12, guarantee=4.0, most=12.0),
        line(B, 25, falls_to, guarantee=1.0, most=math.inf),
        line(C, 32, 32, guarantee=16.0, most=math.inf),
        supply=37,
        frozen_because="a mass event",
    )

    assert ("freeze_kept" not in contradicted(still, replace(INPUTS, terms={H100: terms}))) is is_kept


@pytest.mark.parametrize(("after", "is_kept"), [(8, False), (9, True), (10, True), (11, False)])
def test_each_has_what_is_left_of_his_guarantee_to_less_than_a_unit(after: int, is_kept: bool) -> None:
    # Of 15 GPUs, 9.6 are left to A where 16 were guaranteed, and 5.4 to C where 9 were.
    terms = (Terms(team=A, guarantee=16), Terms(team=C, guarantee=9))
    cut = proposal(line(A, 30, after, most=math.inf), line(C, 9, 15 - after, guarantee=9.0, most=math.inf), supply=15)

    found = contradicted(cut, replace(INPUTS, terms={H100: terms}))

    assert ("floors_kept" not in found) is is_kept


def test_guarantees_that_do_not_fit_are_cut_and_nobody_has_more_than_his_own() -> None:
    cut = proposal(line(A, 30, 10), line(B, 30, 10), line(C, 40, 4), supply=24)

    assert contradicted(cut) == {}
    assert "floors_kept" in contradicted(of(cut, line(C, 40, 12), line(A, 30, 2)))


def test_in_a_freeze_quotas_may_be_more_than_what_is_healthy_and_guarantees_are_given() -> None:
    still = proposal(line(A, 10, 16), line(B, 30, 30), line(C, 40, 40), supply=60, frozen_because="a mass event")

    assert contradicted(still) == {}
    assert {"sum_within_supply", "freeze_kept"} & contradicted(of(still, line(C, 40, 44))).keys()


def test_fresh_supply_is_what_a_proposal_is_held_against_when_it_is_applied() -> None:
    inputs = replace(INPUTS, supplies={H100: 99.0})

    assert contradicted(GOOD, inputs)["sum_within_supply"] == (
        "h100: quotas add up to 100 GPUs, and 99 may be given out; propose again",
    )


def days_before(*quotas: tuple[float, int]) -> tuple[QuotaProposal, ...]:
    return tuple(
        replace(proposal(line(A, before, after)), day=NOW.date() - timedelta(days=len(quotas) - number))
        for number, (before, after) in enumerate(quotas)
    )


@pytest.mark.parametrize(
    ("earlier", "is_refused"),
    [
        (((36, 30), (30, 36), (36, 30)), True),
        (((30, 36), (36, 30)), False),
        # Somebody else turned it the third time: from 40 to the 30 that hold now.
        (((36, 30), (30, 36), (36, 40)), True),
        (((36, 35), (35, 36), (36, 30)), False),
        (((36, 30), (30, 36), (36, 30), (30, 30)), False),
    ],
)
def test_a_third_turn_within_three_days_is_refused(earlier: Sequence[tuple[float, int]], is_refused: bool) -> None:
    inputs = replace(INPUTS, earlier=days_before(*earlier))

    assert ("no_flip_flop" in contradicted(GOOD, inputs)) is is_refused


# --- what is proposed passes ---------------------------------------------------------------------------------------

AMOUNTS = st.integers(0, 60).map(float)
CHANCES = st.lists(AMOUNTS, min_size=1, max_size=5).map(lambda found: queue_chance(found, weights=[1.0] * len(found)))


@st.composite
def mornings(draw: st.DrawFn) -> Today:
    """Teams right below the cluster, teams of an organisation, and one of an organisation within it."""
    units = st.sampled_from([1.0, 1.0, 4.0, 8.0])
    org, inner = TeamName("o"), TeamName("i")
    parents = draw(st.lists(st.sampled_from([None, org, inner]), min_size=1, max_size=6))
    terms = []
    for number, parent in enumerate(parents):
        unit = draw(units)
        guarantee = unit * draw(st.integers(0, 3))
        cap = draw(st.sampled_from([math.inf, guarantee + 2 * unit, guarantee + 40 * unit]))
        terms.append(
            Terms(
                team=TeamName(f"t{number}"),
                guarantee=guarantee,
                cap=cap,
                weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
                priority=draw(st.integers(0, 1)),
                borrow_limit=draw(st.sampled_from([math.inf, 16.0])),
                unit=unit,
                parent=parent,
            )
        )
    if org in parents or inner in parents:
        guarantee = float(draw(st.integers(0, 40)))
        terms.append(Terms(team=org, guarantee=guarantee, cap=guarantee + draw(st.sampled_from([8.0, 64.0, math.inf]))))
    if inner in parents:
        guarantee = float(draw(st.integers(0, 20)))
        cap = guarantee + draw(st.sampled_from([4.0, 40.0, math.inf]))
        terms.append(Terms(team=inner, guarantee=guarantee, cap=cap, parent=org))
    teams = [each.team for each in terms if each.team not in (org, inner)]
    unit_of = {each.team: each.unit for each in terms}
    strangers = frozenset([TeamName("s")]) if draw(st.booleans()) else frozenset()
    terms += [Terms(team=team, guarantee=0, weight=0, priority=-1) for team in strangers]
    teams += strangers
    unit_of.update(dict.fromkeys(strangers, 1.0))
    supply = float(draw(st.integers(8, 160)))

    def quotas() -> dict[TeamName, float]:
        return {team: unit_of[team] * draw(st.integers(0, 40 // int(unit_of[team]))) for team in teams}

    chances = {team: draw(CHANCES) for team in teams}
    debts = {team: float(draw(st.integers(-30, 30))) for team in teams}
    why = draw(st.sampled_from(["", "", "", "frozen", "returns"]))
    wished = [
        wished_quotas(terms, {team: draw(CHANCES) for team in teams}, supply=supply, strangers=strangers)
        for _ in range(3)
    ]
    return Today(
        terms=terms,
        quotas=quotas(),
        chances=chances,
        too_large=draw(st.sampled_from([wished, [dict.fromkeys(teams, 0.0)] * 3])),
        ran_last={team: draw(AMOUNTS) for team in teams},
        supply=supply,
        strangers=strangers,
        debts=debts if draw(st.booleans()) else {},
        gangs={team: draw(st.sampled_from([0, 16, 32])) for team in teams},
        lately=[quotas() for _ in range(draw(st.integers(0, 4)))],
        frozen_because="an incident" if why == "frozen" else "",
        returns_to_contract="the freeze of the week before" if why == "returns" else "",
    )


def proposed(today: Today, policy: QuotaPolicy) -> tuple[QuotaProposal, ProofInputs]:
    found = rebalance(today, settings=policy.rebalance)
    lines = propose_lines(
        found,
        today=today,
        gpu_type=H100,
        limits={team: int(quota) for team, quota in today.quotas.items()},
        wanted={},
    )
    supplies = (SupplyLine(gpu_type=H100, installed=200, broken=0, in_rollouts=0, slack=0, supply=today.supply),)
    caps = ((H100, found.step_cap),)
    made = QuotaProposal(
        day=NOW.date(),
        made_at=NOW,
        lines=lines,
        supplies=supplies,
        step_caps=caps,
        headline=headline_of_lines(lines, supplies=supplies, step_caps=caps, frozen_because=today.frozen_because),
        frozen_because=today.frozen_because,
        demand_until=NOW,
    )
    return made, ProofInputs(terms={H100: [each for each in today.terms if each.team != "s"]}, policy=policy)


def earlier_of(today: Today) -> tuple[QuotaProposal, ...]:
    """Return the proposals that led to the quotas of late."""
    known = [*today.lately, today.quotas]
    return tuple(
        QuotaProposal(
            day=NOW.date() - timedelta(days=len(today.lately) - number),
            made_at=NOW - timedelta(days=9 - number),
            lines=tuple(replace(GOOD.lines[0], team=team, before=then[team], after=int(now[team])) for team in now),
            supplies=(),
            step_caps=(),
            headline="",
        )
        for number, (then, now) in enumerate(pairwise(known))
    )


@given(mornings())
def test_what_is_proposed_passes_every_proof(today: Today) -> None:
    made, inputs = proposed(today, POLICY)

    assert contradicted(made, replace(inputs, earlier=earlier_of(today))) == {}


@given(mornings())
def test_the_same_morning_gives_the_same_proposal(today: Today) -> None:
    assert proposed(today, POLICY) == proposed(today, POLICY)
