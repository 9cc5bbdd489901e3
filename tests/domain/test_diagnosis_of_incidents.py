"""One incident a cause: storms, switches, hung jobs, damage and culprits, whatever the order."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import AtFault, Component, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import Catalogue, Finding, LogRule, Response
from ops_pipelines.core.identity import JobId, NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentState, covers, fold
from ops_pipelines.core.observation import DETECTOR_SOURCE, HISTORY_SOURCE, NO_NODE, Observation, Signal
from ops_pipelines.diagnose.correlate import correlate, is_clearing_due
from ops_pipelines.diagnose.hypothesis import RAISED_AT, confidence_of, response_of
from ops_pipelines.observe.rules import find
from tests.domain.builders import (
    CATALOGUE,
    GPU,
    NODE,
    NOW,
    OTHER_NODE,
    ago,
    attempt,
    conditions_of,
    gpu_missing,
    job,
    node,
    node_names,
    telemetry_stale,
    unreachable,
    verdict,
    world,
    xid,
)

LEAF = Component(kind=ComponentKind.LEAF_SWITCH, name="s0")
WEAK = LogRule(
    signature="lustre_timeout",
    category="storage_lustre",
    component="storage",
    meaning="a Lustre server did not answer in time",
    at_fault=AtFault.STORAGE,
    family=Family.STORAGE,
    actions=(FirstAction.INVESTIGATE_STORAGE,),
    confidence=0.4,
)
TIMEOUT = LogRule(
    signature="nccl_watchdog_timeout",
    category="nccl_collective_timeout",
    component="nccl",
    meaning="a collective did not finish in time",
    at_fault=AtFault.APPLICATION,
    family=Family.COLLECTIVE,
    actions=(FirstAction.RESTART_JOB,),
    confidence=0.7,
    is_secondary=True,
)
RULES = Catalogue(
    xids={**CATALOGUE.xids, 45: replace(CATALOGUE.xids[43], code=45, is_secondary=True)},
    signatures={rule.signature: rule for rule in (WEAK, TIMEOUT)},
)


def seen(
    signal: Signal,
    node: str = NODE,
    *,
    seconds_ago: float = 0.0,
    component: Component | None = None,
    job_id: str | None = None,
    text: str = "as measured",
) -> Finding:
    """Return the finding of a condition that a detector sees."""
    observation = Observation(
        signal=signal,
        node=NodeName(node),
        observed_at=ago(seconds_ago),
        source=DETECTOR_SOURCE,
        position=f"{signal.value}/{node}/{component}/{job_id}",
        text=text,
        component=component,
        job=None if job_id is None else JobId(job_id),
    )
    return find(observation, RULES)


def link_down(node: str, *, seconds_ago: float = 0.0) -> Finding:
    port = Component(kind=ComponentKind.LINK, name="mlx5_0", node=NodeName(node))
    return seen(Signal.LINK_DOWN, node, seconds_ago=seconds_ago, component=port)


def said(signature: str, node: str = NODE, *, seconds_ago: float = 0.0, job_id: str | None = None) -> Finding:
    """Return the finding of a line that matched a signature."""
    observation = Observation(
        signal=Signal.LOG_SIGNATURE,
        node=NodeName(node),
        observed_at=ago(seconds_ago),
        source="job_logs",
        position=f"{signature}/{node}/{job_id}@{seconds_ago}",
        signature=signature,
        job=None if job_id is None else JobId(job_id),
    )
    return find(observation, RULES)


def raised(incidents: tuple[Incident, ...]) -> list[Incident]:
    return [each for each in incidents if each.is_open and not each.is_watched]


def culprits(incident: Incident) -> tuple[Component, ...]:
    assert incident.hypothesis is not None
    return incident.hypothesis.culprits


# -- what is shared ---------------------------------------------------------------------------------------------


def test_a_leaf_switch_is_one_incident_and_not_eight_nodes() -> None:
    findings = [link_down(node) for node in node_names(8)]

    changed = correlate(findings, [], world(conditions=conditions_of(*findings)))

    (incident,) = raised(changed)
    assert culprits(incident) == (LEAF,)
    assert incident.response is Response.PAGE_MASS_EVENT
    assert incident.hypothesis is not None
    assert incident.hypothesis.affected_nodes == frozenset(node_names(8))
    assert incident.hypothesis.first_action is FirstAction.INVESTIGATE_FABRIC
    assert sum(each.state is IncidentState.MERGED for each in changed) == 8


def test_the_rest_of_a_switch_joins_it_and_a_node_elsewhere_does_not() -> None:
    findings = [link_down(node) for node in node_names(8)]
    present = conditions_of(*findings, link_down("gpu009"))
    (wide,) = raised(correlate(findings[:5], [], world(conditions=present)))

    changed = correlate([*findings[5:], link_down("gpu009")], [wide], world(conditions=present, incident_count=6))

    assert {each.suspect: len(each.seen_on) for each in raised(changed)} == {LEAF: 8, None: 1}


def test_links_that_went_down_days_apart_are_no_switch() -> None:
    findings = [link_down(node, seconds_ago=86_400 * number) for number, node in enumerate(node_names(8))]

    changed = correlate(findings, [], world(conditions=conditions_of(*findings)))

    assert all(each.suspect is None for each in raised(changed))
    assert len(raised(changed)) == 8


def test_what_stays_broken_after_a_wide_fault_gets_its_own_incident() -> None:
    findings = [link_down(node, seconds_ago=600) for node in node_names(8)]
    (wide,) = raised(correlate(findings, [], world(conditions=conditions_of(*findings), now=ago(600))))

    (mostly_over,) = correlate([], [wide], world(conditions=conditions_of(findings[2]), incident_count=9))
    later = NOW + timedelta(minutes=30)
    changed = correlate([], [mostly_over], world(conditions=conditions_of(findings[2]), incident_count=9, now=later))

    (left,) = raised(changed)
    assert left.nodes == {findings[2].node}
    assert left.suspect is None
    assert {each.incident: each.state for each in changed}[wide.incident] is IncidentState.RESOLVED


# -- culprit and damage -----------------------------------------------------------------------------------------


def test_a_storm_of_xid_45_on_other_nodes_is_damage_of_one_fault() -> None:
    nodes = node_names(16)
    storm = [
        replace(find(replace(each.evidence[0], position=f"{node}/{number}", node=node), RULES))
        for node in nodes[1:]
        for number in range(8)
        for each in (xid(45, node=node),)
    ]

    (incident,) = correlate([xid(79, seconds_ago=2), *storm], [], world(jobs=[job(nodes=nodes)]))

    assert incident.nodes == {NODE}
    assert culprits(incident) == (Component(kind=ComponentKind.GPU, name=GPU, node=NODE),)
    assert sum(finding.count for finding in incident.findings) == 1 + len(storm)
    assert len(incident.findings) <= 5
    assert incident.hypothesis is not None
    assert len(incident.hypothesis.affected_nodes) >= 1


@pytest.mark.parametrize("first", ["damage", "cause"])
def test_a_hung_job_whose_node_lost_a_gpu_is_its_damage(first: str) -> None:
    hang = seen(Signal.JOB_HUNG, NO_NODE, seconds_ago=30, job_id="42")
    around = world(jobs=[job("42", nodes=(NODE, OTHER_NODE))], conditions=conditions_of(hang))
    order = [hang, xid(79)] if first == "damage" else [xid(79), hang]

    (opened,) = raised(correlate(order[:1], [], around))
    changed = correlate(order[1:], [opened], replace(around, incident_count=1))

    known = {opened.incident: opened} | {each.incident: each for each in changed}
    (left,) = raised(tuple(known.values()))
    assert left.nodes == {NODE}
    assert attempt("42") in left.victims


def test_a_hang_that_nothing_explains_is_the_jobs_own() -> None:
    hang = seen(Signal.JOB_HUNG, NO_NODE, job_id="42")

    (incident,) = raised(correlate([hang], [], world(jobs=[job("42")], conditions=conditions_of(hang))))

    assert culprits(incident) == (Component(kind=ComponentKind.JOB, name="42"),)
    assert incident.nodes == frozenset()


def test_a_hang_in_which_one_node_differs_names_the_node() -> None:
    hang = seen(Signal.JOB_HUNG, OTHER_NODE, job_id="42")
    around = world(jobs=[job("42", nodes=(NODE, OTHER_NODE))], conditions=conditions_of(hang))

    (incident,) = raised(correlate([hang], [], around))

    assert [each.node for each in culprits(incident)] == [OTHER_NODE]
    assert incident.response is Response.PAGE


def test_a_collective_that_timed_out_long_after_its_cause_still_joins_it() -> None:
    jobs = [job("42", nodes=(NODE, OTHER_NODE))]
    (cause,) = correlate([xid(79, seconds_ago=660)], [], world(jobs=jobs, now=ago(660)))

    (changed,) = correlate([said("nccl_watchdog_timeout", OTHER_NODE, job_id="42")], [cause], world(jobs=jobs))

    assert changed.incident == cause.incident
    assert changed.nodes == {NODE}


# -- weak evidence ----------------------------------------------------------------------------------------------


def test_one_weak_line_is_watched_and_two_nodes_raise_it() -> None:
    (watched,) = correlate([said("lustre_timeout")], [], world())
    (raised_now,) = correlate([said("lustre_timeout", OTHER_NODE)], [watched], world(incident_count=1))

    assert watched.is_watched
    assert confidence_of(watched.findings) < RAISED_AT <= confidence_of(raised_now.findings)
    assert raised_now.response is Response.PAGE
    assert culprits(raised_now)[0].kind is ComponentKind.STORAGE
    assert raised_now.nodes == frozenset()


@pytest.mark.parametrize(("minutes", "is_open"), [(30, True), (31, False)])
def test_what_was_only_watched_is_forgotten(minutes: int, is_open: bool) -> None:
    then = ago(60 * minutes)
    (watched,) = correlate([said("lustre_timeout", seconds_ago=60 * minutes)], [], world(now=then))

    changed = correlate([], [watched], world(incident_count=1))

    assert [each.is_open for each in changed or (watched,)] == [is_open]


# -- flapping ---------------------------------------------------------------------------------------------------


def test_a_condition_that_comes_and_goes_is_one_incident() -> None:
    down = link_down(NODE)
    (opened,) = correlate([down], [], world(conditions=conditions_of(down)))
    (quiet,) = correlate([], [opened], world(incident_count=1))
    later = NOW + timedelta(minutes=9)
    again = replace(down, evidence=(replace(down.evidence[0], position="again", observed_at=later),), found_at=later)

    (back,) = correlate([again], [quiet], world(incident_count=1, now=later, conditions=conditions_of(again)))

    assert quiet.quiet_since == NOW
    assert back.incident == opened.incident
    assert back.quiet_since is None


@pytest.mark.parametrize(("minutes", "is_closed"), [(9, False), (10, True)])
def test_a_condition_that_stays_away_closes_its_incident(minutes: int, is_closed: bool) -> None:
    down = link_down(NODE)
    (opened,) = correlate([down], [], world(conditions=conditions_of(down)))
    (quiet,) = correlate([], [opened], world(incident_count=1))
    now = NOW + timedelta(minutes=minutes)

    changed = correlate([], [quiet], world(incident_count=1, now=now))

    assert bool(changed) is is_closed
    assert is_clearing_due(quiet, (), now=now) is is_closed


# -- invariants -------------------------------------------------------------------------------------------------

any_finding = st.one_of(
    st.builds(
        lambda node, ago_: xid(79, node=node, seconds_ago=ago_), st.sampled_from(node_names(8)), st.integers(0, 90)
    ),
    st.builds(lambda node, ago_: link_down(node, seconds_ago=ago_), st.sampled_from(node_names(8)), st.integers(0, 90)),
    st.builds(
        lambda node, ago_: said("nccl_watchdog_timeout", node, seconds_ago=ago_, job_id="42"),
        st.sampled_from(node_names(8)),
        st.integers(0, 90),
    ),
    st.builds(
        lambda node, ago_: said("lustre_timeout", node, seconds_ago=ago_),
        st.sampled_from(node_names(8)),
        st.integers(0, 90),
    ),
    st.builds(lambda node: unreachable(node=node), st.sampled_from(node_names(8))),
    st.just(seen(Signal.JOB_HUNG, NO_NODE, seconds_ago=10, job_id="42")),
)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), findings=st.lists(any_finding, max_size=14))
def test_shuffled_and_doubled_evidence_gives_the_same_incidents(data: st.DataObject, findings: list[Finding]) -> None:
    around = world(jobs=[job("42", nodes=node_names(4))], conditions=conditions_of(*findings))
    shuffled = data.draw(st.permutations([*findings, *findings[:3]]))

    assert correlate(shuffled, [], around) == correlate(findings, [], around)


@settings(max_examples=80, deadline=None)
@given(findings=st.lists(any_finding, max_size=14))
def test_only_parts_with_evidence_of_their_own_are_culprits(findings: list[Finding]) -> None:
    around = world(jobs=[job("42", nodes=node_names(4))], conditions=conditions_of(*findings))

    for incident in raised(correlate(findings, [], around)):
        if incident.is_mass_event:
            continue  # Many nodes at once: it names none as culprit, and nothing is touched.
        assert incident.hypothesis is not None
        assert 0.0 <= incident.hypothesis.confidence < 1.0
        for part in incident.hypothesis.culprits:
            assert part.node is None or any(
                finding.node == part.node and not finding.is_secondary for finding in incident.findings
            )
            assert part.node not in incident.hypothesis.affected_nodes or part.node is None


@settings(max_examples=100, deadline=None)
@given(data=st.data(), count=st.integers(0, 40))
def test_folding_forgets_no_count_and_knows_no_order(data: st.DataObject, count: int) -> None:
    findings = [xid(79, position=str(number), seconds_ago=number % 7) for number in range(count)]
    shuffled = data.draw(st.permutations(findings))

    folded = fold(findings)

    assert sum(each.count for each in folded) == count
    assert len(folded) <= 4
    assert fold(shuffled) == folded
    assert {(each.rule, each.node): each.count for each in fold((*folded, *folded))} == {
        (each.rule, each.node): each.count for each in fold(folded)
    }


def test_an_incident_covers_what_it_was_and_not_what_it_will_be() -> None:
    (first,) = correlate([xid(79)], [], world())
    (more,) = correlate([xid(79, position="more")], [first], world(incident_count=1))

    assert covers(more, first)
    assert covers(more, more)
    assert not covers(first, more)


def test_a_rack_that_was_blamed_first_becomes_part_of_what_hits_five() -> None:
    dark = [unreachable(node=node) for node in node_names(20)]
    present = conditions_of(*dark)
    (rack,) = raised(correlate(dark[:4], [], world(conditions=present)))

    changed = correlate(dark[4:], [rack], world(conditions=present, incident_count=5))

    (mass,) = raised(changed)
    assert rack.suspect is not None
    assert rack.suspect.kind is ComponentKind.RACK
    assert mass.suspect is None
    assert mass.nodes == frozenset(node_names(20))


def test_a_second_dark_rack_of_one_feed_turns_the_first_into_the_feed() -> None:
    around = world(node_count=8)
    fed = replace(
        around,
        topology=replace(
            around.topology,
            places={node: replace(place, power_feed="feed0") for node, place in around.topology.places.items()},
        ),
    )
    dark = [unreachable(node=node) for node in node_names(8)]
    (rack,) = raised(correlate(dark[:4], [], replace(fed, conditions=conditions_of(*dark[:4]))))
    told = replace(rack, state=IncidentState.ESCALATED)

    changed = correlate(dark[4:], [told], replace(fed, conditions=conditions_of(*dark), incident_count=5))

    (feed,) = raised(changed)
    assert feed.incident == rack.incident
    assert culprits(feed) == (Component(kind=ComponentKind.POWER_FEED, name="feed0"),)
    assert feed.nodes == frozenset(node_names(8))


def test_a_gpu_is_blamed_and_not_its_node_besides_and_detail_stands_with_the_evidence() -> None:
    lost = replace(xid(79), at_fault=AtFault.GPU, family=Family.GPU, explanation="it fell off; sources disagree")
    missing = replace(gpu_missing(), response=lost.response, family=Family.GPU)

    (found,) = correlate([lost, missing], [], world(conditions=conditions_of(missing)))

    assert found.hypothesis is not None
    assert [str(part) for part in found.hypothesis.culprits] == [f"gpu {GPU} of {NODE}"]
    assert found.hypothesis.statement == "it fell off"
    assert any("sources disagree" in sentence for sentence in found.hypothesis.evidence_for)


def test_what_a_collective_says_alone_is_watched_and_blames_no_node() -> None:
    (watched,) = correlate([said("nccl_watchdog_timeout", job_id="42")], [], world(jobs=[job("42")]))

    assert watched.is_watched
    assert watched.nodes == frozenset()


# -- what a wide fault must not hide ----------------------------------------------------------------------------


def rack_of_silence(*, stale: bool = False) -> list[Finding]:
    make = telemetry_stale if stale else unreachable
    return [make(node=node) for node in node_names(4)[1:]]


def test_exporters_that_stop_blame_no_rack() -> None:
    stale = rack_of_silence(stale=True)

    changed = correlate(stale, [], world(conditions=conditions_of(*stale)))

    assert all(each.suspect is None for each in changed)


@pytest.mark.parametrize("together", [pytest.param(True, id="at once"), pytest.param(False, id="later")])
def test_a_lost_gpu_in_a_dark_rack_stays_its_own_incident(together: bool) -> None:
    dark = rack_of_silence()
    around = world(conditions=conditions_of(*dark))
    if together:
        known = {each.incident: each for each in correlate([*dark, xid(79)], [], around)}
    else:
        known = {each.incident: each for each in correlate(dark, [], around)}
        opened = [each for each in known.values() if each.is_open]
        known |= {each.incident: each for each in correlate([xid(79)], opened, replace(around, incident_count=9))}

    assert (frozenset({NODE}), Response.REBOOT_NODE) in {
        (each.nodes, each.response) for each in raised(tuple(known.values()))
    }


def test_a_repair_that_waits_is_not_merged_into_a_switch() -> None:
    (waiting,) = correlate([xid(79, seconds_ago=3000)], [], world(now=ago(3000)))
    links = [link_down(node) for node in node_names(8)]

    changed = correlate(links, [waiting], world(conditions=conditions_of(*links), incident_count=1))

    known = {waiting.incident: waiting} | {each.incident: each for each in changed}
    assert known[waiting.incident].state is IncidentState.OPEN
    assert LEAF in {each.suspect for each in known.values()}


@pytest.mark.parametrize("order", [(0, 0, 0, 2, 0), (2, 0, 0, 0, 0), (0, 2, 0, 0, 0)])
def test_a_verdict_of_the_driver_is_never_folded_away(order: tuple[int, ...]) -> None:
    findings = [verdict(code, seconds_ago=100 - number) for number, code in enumerate(order)]

    (incident,) = raised(correlate(findings, [], world()))

    assert incident.response is Response.REBOOT_NODE


def test_a_dark_rack_does_not_switch_the_guard_against_mass_events_off() -> None:
    dark = [unreachable(node=node) for node in node_names(32)[:4]]
    elsewhere = [xid(79, node=node) for node in node_names(40)[8:]]

    changed = raised(correlate([*dark, *elsewhere], [], world(conditions=conditions_of(*dark))))

    assert not [each for each in changed if each.response is Response.REBOOT_NODE]


def test_one_of_three_nodes_that_stays_dead_gets_its_own_incident_in_the_end() -> None:
    around = replace(
        world(), topology=Topology(places=dict(list(world().topology.places.items())[:3]), gpus_per_node=8)
    )
    dark = [unreachable(node=node) for node in node_names(3)]
    (rack,) = raised(correlate(dark, [], replace(around, conditions=conditions_of(*dark))))
    paged = replace(rack, state=IncidentState.ESCALATED)
    left = replace(around, conditions=conditions_of(dark[0]), incident_count=4)

    assert is_clearing_due(paged, left.conditions, now=NOW)
    (quiet,) = correlate([], [paged], left)
    assert not is_clearing_due(quiet, left.conditions, now=NOW)
    later = NOW + timedelta(minutes=30)
    assert is_clearing_due(quiet, left.conditions, now=later)
    changed = correlate([], [quiet], replace(left, now=later))

    assert [(each.nodes, each.response) for each in raised(changed)] == [({dark[0].node}, Response.POWER_CYCLE)]


def test_what_is_due_changes_something() -> None:
    """Or a run would be started for it for ever."""
    links = [link_down(node) for node in node_names(8)]
    (wide,) = raised(correlate(links, [], world(conditions=conditions_of(*links))))
    for conditions in ((), conditions_of(links[0]), conditions_of(*links)):
        known = wide
        for minutes in range(0, 120, 7):
            now = NOW + timedelta(minutes=minutes)
            if known.is_open and is_clearing_due(known, conditions, now=now):
                changed = correlate([], [known], world(conditions=conditions, incident_count=9, now=now))
                assert changed
                known = next((each for each in changed if each.incident == known.incident), known)


def test_an_old_word_about_storage_does_not_hide_the_next_outage() -> None:
    words = [said("lustre_timeout", node, seconds_ago=604_800) for node in node_names(2)]
    (old,) = raised(correlate(words, [], world(now=ago(604_800))))
    paged = replace(old, state=IncidentState.ESCALATED)
    stalls = [seen(Signal.STORAGE_STALL, node) for node in node_names(4)]

    changed = correlate(stalls, [paged], world(conditions=conditions_of(*stalls), incident_count=1))

    assert paged.incident not in {each.incident for each in raised(changed)}
    assert raised(changed)


def test_one_node_alone_does_not_blame_what_all_share() -> None:
    (only,) = correlate([replace(said("lustre_timeout"), confidence=0.9)], [], world())

    assert only.is_watched


def test_a_node_whose_metrics_stay_away_is_told_and_stays_told() -> None:
    stale = telemetry_stale()
    (opened,) = correlate([stale], [], world(conditions=conditions_of(stale)))

    later = world(conditions=conditions_of(stale), now=NOW + timedelta(hours=2), incident_count=1)

    assert opened.response is Response.PAGE
    assert correlate([], [opened], later) == ()


def test_trouble_of_another_kind_is_not_joined_to_what_a_person_was_paged_for() -> None:
    down = link_down(NODE, seconds_ago=600)
    (opened,) = correlate([down], [], world(conditions=conditions_of(down), now=ago(600)))
    paged = replace(opened, state=IncidentState.ESCALATED)
    narrow = seen(Signal.PCIE_DEGRADED, NODE)

    changed = correlate([narrow], [paged], world(conditions=conditions_of(down, narrow), incident_count=1))

    assert [each.incident for each in changed] != [paged.incident]


def test_damage_calls_for_no_repair() -> None:
    damage = replace(xid(48), is_secondary=True)

    assert response_of([xid(54), damage]) is Response.PAGE


def test_words_alone_repair_nothing() -> None:
    harsh = replace(
        WEAK, signature="kernel_panic", actions=(FirstAction.REBOOT_NODE,), family=Family.HOST, confidence=0.95
    )
    rules = replace(RULES, signatures={**RULES.signatures, harsh.signature: harsh})
    line = replace(said("lustre_timeout").evidence[0], signature="kernel_panic")

    assert find(line, rules).response is Response.PAGE


@pytest.mark.parametrize("state", [IncidentState.ACTING, IncidentState.VERIFYING])
def test_a_repetition_does_not_end_with_the_repair_of_today(state: IncidentState) -> None:
    (opened,) = correlate([xid(79)], [], world())
    repaired = replace(opened, state=state, plan_count=1)
    often = replace(xid(54), evidence=(replace(xid(54).evidence[0], source=HISTORY_SOURCE),))

    (own,) = raised(correlate([often], [repaired], world(incident_count=1)))

    assert own.incident != opened.incident
    assert own.response is Response.PAGE


def test_a_restart_ends_a_repair_that_nobody_began_and_no_page() -> None:
    (lost,) = correlate([xid(79, seconds_ago=1200)], [], world(now=ago(1200)))
    (worn,) = correlate([xid(54, node=OTHER_NODE, seconds_ago=1200)], [], world(now=ago(1200), incident_count=1))
    restarted = [node(name, booted_at=ago(600)) for name in (NODE, OTHER_NODE)]

    changed = correlate([], [lost, worn], replace(world(incident_count=2), nodes=restarted))

    assert [(each.incident, each.state) for each in changed] == [(lost.incident, IncidentState.RESOLVED)]
