"""Has a repaired node tested while it stays drained, and says what its tests show.

Which tests fit the fault and how good is good enough are `core.node_tests`'; the tests themselves run
on the node, under the key of the action that asked for them, so that they are started once however often we ask.
"""

from dataclasses import replace

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.machines import NOT_OFFERED
from ops_pipelines.core.node_tests import BY_HAND, CheckState, covers, is_settling, judge_check, suite_for, suite_named
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import ActionClass, Consent
from ops_pipelines.core.sources import SourceError
from ops_pipelines.domain.returning.verification import TestsStanding
from ops_pipelines.flow.acts.perform import Stage, perform
from ops_pipelines.flow.lease import Lease

_NODE_IS_BUSY = ("idle_node: ", "hidden_work: ")
"""Begin the refusals of a test while another one, or a job, still runs on the node."""
_BASELINE_COUNT = 20
"""So many earlier tests of the node are looked at."""


def check_of(incident: Incident, node: NodeName, cluster: Cluster) -> Action | None:
    """Return the act that has a repaired node tested; None where the catalogue knows no tests."""
    suites = cluster.rules.catalogue.suites
    if not suites:
        return None
    suite = suite_for({finding.family for finding in incident.findings if not finding.is_secondary}, suites)
    check = Action(
        verb=Verb.CHECK, incident=incident.incident, node=node, suite=suite.name, try_number=incident.plan_count
    )
    begun = [
        each.action
        for each in cluster.ledger.records(incident.incident)
        if each.action.verb is Verb.CHECK and each.action.node == node and each.action.try_number == check.try_number
    ]
    enough = {each.name for each in suites if covers(each, (suite,))}
    for each in reversed(begun):
        if each.suite in enough:
            return each
    # What was found since the tests began asks for more of them: another act, beside the one that was begun.
    return replace(check, part=suite.name) if begun else check


def see_to_tests(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> TestsStanding:
    """Start the tests or look how far they are, and return what they say.

    Where the site offers none the verdict rests on everything else, and says so. Where it does, and they could not be
    started, nothing is proven.
    """
    check = check_of(incident, node, cluster)
    is_forbidden = cluster.rules.policy.consent_to(ActionClass.CHECK) is Consent.FORBID
    if check is not None and is_forbidden and _record_of(check, cluster) is None:  # What was begun is read.
        return TestsStanding(proofs=("no tests on the node: policy.yaml says consents.check: forbid",))
    if check is None:
        return TestsStanding(proofs=("no tests on the node: the catalogue knows none",))
    progress = perform(Order(action=check, behind=incident.plan), cluster, lease=lease, judged_on=incident)
    if progress.stage is Stage.WAITING and not progress.reason.startswith(_NODE_IS_BUSY):
        return TestsStanding(waits_for=progress.reason)
    if progress.stage in (Stage.UNDER_WAY, Stage.WAITING):
        return TestsStanding(are_running=True)
    if progress.stage is Stage.FAILED:
        record = _record_of(check, cluster)
        if record is not None and record.outcome is not None and record.outcome.kind is OutcomeKind.UNKNOWN:
            return TestsStanding(unknowns=(f"its tests came to no end: {progress.reason}",))
        if progress.reason.startswith(NOT_OFFERED):
            return TestsStanding(proofs=(f"no tests on the node: {progress.reason}",))
        return TestsStanding(unknowns=(f"its tests could not be started: {progress.reason}",))
    return _judge(check, node, cluster)


def _judge(check: Action, node: NodeName, cluster: Cluster) -> TestsStanding:
    try:
        found = cluster.fleet.read_check(node, key=check.key)
    except SourceError as problem:
        return TestsStanding(unknowns=(f"what its tests found could not be read: {problem}",))
    if found is None:
        return TestsStanding(unknowns=("its tests were over, and are gone",))
    if found.suite not in (check.suite, BY_HAND):
        said = f"its tests are of the suite {found.suite[:80]!r}; asked for were those of {check.suite!r}"
        return TestsStanding(unknowns=(said,))
    # By what we asked for: a node does not choose by what it is judged. Of tests named one by one it knows no suite.
    suite = suite_named(check.suite, cluster.rules.catalogue.suites)
    past = cluster.ledger.checks(node, limit=_BASELINE_COUNT)
    verdict = judge_check(
        found,
        suite,
        cluster.rules.catalogue.gates,
        [each for each, was_well in past if was_well and each.key != check.key],
    )
    cluster.ledger.keep_check(found, is_well=verdict.state is CheckState.WELL)
    not_run = (f"not run: {', '.join(verdict.not_run)}",) if verdict.not_run else ()
    return TestsStanding(
        faults=verdict.faults,
        unknowns=verdict.unknowns,
        proofs=(*verdict.proofs, *verdict.unjudged, *not_run),
        is_settling=is_settling(found, suite),
    )


def _record_of(check: Action, cluster: Cluster) -> ActionRecord | None:
    return next((each for each in cluster.ledger.records(check.incident) if each.action.key == check.key), None)
