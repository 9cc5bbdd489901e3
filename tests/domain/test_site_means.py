"""What plans need and the site does not offer: named before `auto` begins, and never started."""

import pytest

from ops_pipelines.core.action import SOFT, Verb
from ops_pipelines.core.cluster import SiteMeans
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent, LadderLimits, Mode, Policy, Risk
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.ladder import find_gaps, within_means
from ops_pipelines.remediate.planning import plan_remediation
from tests.domain.builders import facts, incident, job, node, policy, topology, unreachable, xid

ALL = frozenset(SiteMeans)
REPAIRS = {Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE}
VITAL = [
    (SiteMeans.INSPECT, ActionClass.RETURN_NODE, Risk.NO_INSPECTION),
    (SiteMeans.CHECK, ActionClass.CHECK, Risk.NO_NODE_TESTS),
    (SiteMeans.POWER, ActionClass.POWER, Risk.NO_POWER_SWITCH),
]


def refusals(lacks: set[SiteMeans], by: Policy) -> list[str]:
    return [each.reason for each in find_gaps(ALL - lacks, by) if each.is_refusal]


def planned(what: Incident, known: ClusterFacts, *, lacks: set[SiteMeans], by: Policy | None = None) -> IncidentPlan:
    here = within_means(by or policy(Mode.AUTO), ALL - lacks)
    plan = plan_remediation(what, known, policy=here, topology=topology())
    assert isinstance(plan, IncidentPlan), plan
    return plan


def verbs(plan: IncidentPlan) -> list[str]:
    return [each.verb.value for each in plan.actions if each.verb not in SOFT]


def test_site_that_offers_everything_changes_nothing() -> None:
    assert find_gaps(ALL, policy(Mode.AUTO)) == ()
    assert within_means(policy(Mode.AUTO), ALL) == policy(Mode.AUTO)


@pytest.mark.parametrize(("lacks", "kind", "risk"), VITAL)
def test_auto_is_refused_without_what_brings_a_node_back_until_that_is_meant(
    lacks: SiteMeans, kind: ActionClass, risk: Risk
) -> None:
    (refused,) = refusals({lacks}, policy(Mode.AUTO))

    assert refused.startswith(f"mode: auto is refused: cluster.yaml names no {lacks.value} under fleet")
    assert f"accepted_risks: {{{risk.value}: who, and why}}" in refused
    assert refusals({lacks}, policy(Mode.AUTO, consents={kind: Consent.FORBID})) == []
    taken = policy(Mode.AUTO, accepted_risks={risk: "A. Operator"})
    assert refusals({lacks}, taken) == []
    assert "the risk is taken: A. Operator" in find_gaps(ALL - {lacks}, taken)[0].reason


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
@pytest.mark.parametrize("lacks", [each for each, _, _ in VITAL])
def test_other_modes_are_told_and_not_refused(mode: Mode, lacks: SiteMeans) -> None:
    (gap,) = find_gaps(ALL - {lacks}, policy(mode))

    assert not gap.is_refusal
    assert gap.reason.startswith("mode: auto would be refused: ")


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        (SiteMeans.RESET_GPU, "the node is rebooted instead"),
        (SiteMeans.REBOOT, "the node goes to the repair queue instead"),
    ],
)
def test_repair_that_is_not_offered_is_told_with_what_comes_in_its_place(lacks: SiteMeans, says: str) -> None:
    (gap,) = find_gaps(ALL - {lacks}, policy(Mode.AUTO))

    assert not gap.is_refusal
    assert says in gap.reason


@pytest.mark.parametrize(("count", "told"), [(0, 0), (1, 1)])
def test_installing_anew_is_missed_only_where_the_ladder_has_it(count: int, told: int) -> None:
    by = policy(Mode.AUTO, ladder=LadderLimits(max_reimages_count=count))

    assert len(find_gaps(ALL - {SiteMeans.REIMAGE}, by)) == told
    assert len(find_gaps(ALL - {SiteMeans.REIMAGE}, within_means(by, ALL - {SiteMeans.REIMAGE}))) == told


@pytest.mark.parametrize("lacks", [SiteMeans.INSPECT, SiteMeans.CHECK])
@pytest.mark.parametrize("what", [incident(xid(79)), incident(xid(48))])
def test_repair_whose_proof_cannot_be_had_is_not_begun(lacks: SiteMeans, what: Incident) -> None:
    plan = planned(what, facts(jobs=[job()]), lacks={lacks})

    assert verbs(plan) == ["drain", "notify_owner", "hold", "fence", "exclude", "release", "page_human"]
    assert f"Not started: cluster.yaml names no {lacks.value} under fleet, so that no repair could be proven." in (
        plan.actions[-1].text
    )


def test_who_takes_the_risk_of_untested_nodes_has_them_repaired() -> None:
    taken = policy(Mode.AUTO, accepted_risks={Risk.NO_NODE_TESTS: "A. Operator"})

    assert "reboot" in verbs(planned(incident(xid(79)), facts(), lacks={SiteMeans.CHECK}, by=taken))


def test_silent_node_is_fenced_for_its_job_and_its_power_stays_off_where_no_repair_could_be_proven() -> None:
    silent = facts(nodes=[node(is_responding=False)], jobs=[job()])

    plan = planned(incident(unreachable(seconds_ago=60)), silent, lacks={SiteMeans.CHECK})

    assert {Verb.POWER_OFF, Verb.RELEASE} <= {each.verb for each in plan.actions}
    assert not REPAIRS & {each.verb for each in plan.actions}
    assert plan.actions[-1].verb is Verb.PAGE_HUMAN


def test_silent_node_without_a_job_is_left_its_power_where_no_repair_could_be_proven() -> None:
    silent = facts(nodes=[node(is_responding=False)])

    assert verbs(planned(incident(unreachable(seconds_ago=60)), silent, lacks={SiteMeans.CHECK})) == [
        "drain",
        "page_human",
    ]


def test_job_of_a_silent_node_is_not_held_where_no_power_switch_could_let_it_go() -> None:
    silent = facts(nodes=[node(is_responding=False)], jobs=[job()])

    plan = planned(incident(unreachable(seconds_ago=60)), silent, lacks={SiteMeans.POWER})

    assert verbs(plan) == ["drain", "notify_owner", "page_human"]


def test_without_a_reset_the_node_is_rebooted() -> None:
    assert "reboot" in verbs(planned(incident(xid(48)), facts(), lacks={SiteMeans.RESET_GPU}))
