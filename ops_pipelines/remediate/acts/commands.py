"""The command of each verb, sent once; and what bears witness of it.

The release is the one that the rollout was opened with, whatever the file says by now; which step, and which way,
stands in the act itself. Sending it is `commands'`, reading what became of it `witnesses'`.

What the reading says of the act is `remediate.testimony`'s.

Whether it may be sent, and whether it happened, is `perform`'s business.
"""

from collections.abc import Sequence
from datetime import timedelta

from ops_pipelines.core.action import OVERLAP, Action, Urgency, Verb, reservation_of
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.node_tests import suite_named
from ops_pipelines.core.notes import (
    ON_CALL,
    Audience,
    Link,
    Message,
    Severity,
    body_of,
    names_of,
    places,
    subject_of,
    sureness,
)
from ops_pipelines.core.observation import JobState, JobStatus, NodeInspection
from ops_pipelines.core.rollout import InstallOrder, RolloutNode, UnorderableError, order_for, step_of
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, mark_on
from ops_pipelines.remediate.testimony import Scene

# -- what an act of a rollout installs or activates --


def order_of(action: Action, cluster: Cluster) -> InstallOrder:
    """Return the order of the step that an act is about; raise SourceRefused where there is none, and why."""
    if action.node is None:
        raise SourceRefused(f"{action.verb.value} names no node; nothing was sent")
    rollout = cluster.ledger.rollout(RolloutId(action.incident))
    node = None if rollout is None else _node_of(rollout.rollout, action.node, cluster)
    if rollout is None or node is None:
        raise SourceRefused(f"{action.incident} is no rollout with {action.node}; nothing is installed outside one")
    try:
        step, direction = step_of(action.part)
        return order_for(cluster.ledger.release(rollout.release_digest), node, step=step, direction=direction)
    except UnorderableError as problem:
        raise SourceRefused(str(problem)) from problem


def _node_of(rollout: RolloutId, name: NodeName, cluster: Cluster) -> RolloutNode | None:
    return next((each for each in cluster.ledger.rollout_nodes(rollout) if each.node == name), None)


# -- reads what bears witness of one act --


_OF_JOBS = frozenset({Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE})


def look(action: Action, cluster: Cluster) -> Scene:
    """Read what bears witness of an action; what cannot be read stays None."""
    try:
        if action.verb in _OF_JOBS and action.attempt is not None:
            wanted = action.attempt.job
            return Scene(job=next((job for job in cluster.scheduler.read_jobs() if job.job == wanted), None))
        if action.verb in (Verb.RESERVE, Verb.UNRESERVE):
            return Scene(nodes=cluster.scheduler.read_nodes())
        if action.verb is Verb.CHECK and action.node is not None:
            return Scene(is_check_over=cluster.fleet.read_check(action.node, key=action.key) is not None)
        if action.verb is Verb.INSTALL and action.node is not None:
            report = cluster.fleet.read_install(action.node, key=action.key)
            return Scene(install=report, is_install_unknown=report is None)
        if action.verb is Verb.RELOAD_DRIVER and action.node is not None:
            versions = cluster.fleet.read_versions(action.node)
            return Scene(versions=versions, wanted_versions=order_of(action, cluster).versions)
        if action.verb in (Verb.DRAIN, Verb.DECLARE_DOWN, Verb.RESUME, Verb.PUT_LAST, Verb.PUT_BACK):
            return Scene(node=next((node for node in cluster.scheduler.read_nodes() if node.node == action.node), None))
        if action.verb is Verb.POWER_OFF and action.node is not None:
            return Scene(power=cluster.fleet.power_state(action.node))
    except SourceError:
        return Scene()
    return Scene(inspection=None if action.node is None else inspect_node(action.node, cluster))


def inspect_node(node: NodeName, cluster: Cluster) -> NodeInspection | None:
    """Ask a node how it sees itself; None if it does not answer."""
    try:
        return cluster.fleet.inspect(node)
    except SourceError:
        return None


# -- the command of each verb --


def send_command(action: Action, cluster: Cluster, facts: ClusterFacts) -> str:
    """Send the command of an action and return the receipt, empty if the system gives none.

    Raises SourceRefused if the system says no, SourceError if it does not answer: then it may have happened.
    """
    scheduler, fleet = cluster.scheduler, cluster.fleet
    match action.verb:
        case Verb.PAGE_HUMAN:
            return cluster.notifier.send(page_of(action, cluster))
        case Verb.NOTIFY_OWNER:
            return cluster.notifier.send(notice_to_owner(action, cluster, recipient=_owner(action, facts)))
        case Verb.FENCE:
            # Hold ends the steps; the fence is waiting until they are seen gone. On a node that was silent the hold
            # only marked the job: if all its nodes answer again, it is requeued now.
            marked = facts.jobs.get(action.attempt.job) if action.attempt is not None else None
            is_marked = marked is not None and marked.state is JobState.RUNNING and marked.is_held
            if marked is not None and is_marked and _do_all_answer(marked, facts):
                scheduler.hold(marked.job)
            return ""
    if action.attempt is not None:
        job = action.attempt.job
        match action.verb:
            case Verb.HOLD:
                scheduler.hold(job)
            case Verb.MARK | Verb.UNMARK:
                send_marks([action], cluster, facts)
            case Verb.RELEASE:
                # What was marked first had a priority, which a release alone would not bring back.
                mark = mark_on(action.attempt, facts.records)
                scheduler.release(job) if mark is None else scheduler.unmark({job: mark.priority})
            case Verb.EXCLUDE if action.node is not None:
                scheduler.exclude(job, [action.node])
            case Verb.RESERVE:
                until = cluster.clock.now() + _room_for(cluster)
                scheduler.reserve(action.spares, name=reservation_of(action), until=until)
            case Verb.UNRESERVE:
                scheduler.unreserve(reservation_of(action))
    elif action.node is not None:
        match action.verb:
            case Verb.DRAIN:
                scheduler.drain([action.node], reason=action.text)
            case Verb.DECLARE_DOWN:
                scheduler.declare_down(action.node, reason=action.text)
            case Verb.RESUME:
                scheduler.resume(action.node)
            case Verb.PUT_LAST:
                scheduler.put_last(action.node)
            case Verb.PUT_BACK:
                scheduler.put_back(action.node)
            case Verb.REIMAGE:
                fleet.reimage(action.node, reason=action.text)
            case Verb.CHECK:
                suite = suite_named(action.suite, cluster.rules.catalogue.suites)
                fleet.start_check(action.node, suite=action.suite, tests=suite.tests, key=action.key)
            case Verb.INSTALL:
                fleet.start_install(action.node, order_of(action, cluster), key=action.key)
            case Verb.RELOAD_DRIVER:
                fleet.reload_driver(action.node)
            case Verb.REBOOT:
                fleet.reboot(action.node, reason=action.text)
            case Verb.POWER_OFF:
                fleet.power_off(action.node)
            case Verb.POWER_ON:
                fleet.power_on(action.node)
            case Verb.RESET_GPU if action.gpu is not None:
                fleet.reset_gpu(action.node, action.gpu)
    return ""


def send_marks(actions: Sequence[Action], cluster: Cluster, facts: ClusterFacts) -> None:
    """Send marks, or what takes them off, with one command for all; raises as `send_command` does."""
    attempts = [action.attempt for action in actions if action.attempt is not None]
    if actions[0].verb is Verb.MARK:
        cluster.scheduler.mark(attempts)
        return
    marks = {attempt.job: mark_on(attempt, facts.records) for attempt in attempts}
    cluster.scheduler.unmark({job: None if mark is None else mark.priority for job, mark in marks.items()})


def _room_for(cluster: Cluster) -> timedelta:
    """Return how long spare nodes are kept free at most: what holding and fencing may take."""
    durations = cluster.rules.policy.durations
    return durations.fence_limit + 4 * durations.command_limit + durations.run_patience


def _do_all_answer(job: JobStatus, facts: ClusterFacts) -> bool:
    return all(name in facts.nodes and facts.nodes[name].is_responding for name in job.nodes)


def _owner(action: Action, facts: ClusterFacts) -> str:
    job: JobStatus | None = facts.jobs.get(action.attempt.job) if action.attempt is not None else None
    return job.user if job is not None else "unknown"


def page_of(action: Action, cluster: Cluster) -> Message:
    """Return the page of an act: what a person is needed for, where, how sure we are, and where to look."""
    incident = cluster.ledger.incident(action.incident)
    where = "" if incident is None else f" {names_of(incident)}"
    facts = [("What you must do", action.text)]
    if incident is not None:
        facts += [
            ("What", incident.cause if incident.cause not in action.text else ""),
            ("Where", places(incident, cluster.rules.topology)),
            ("How sure", sureness(incident)),
        ]
    return Message(
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        thread=action.incident,
        title=f"{action.incident}{where}: {_calls_for(action)}",
        subject="" if incident is None else subject_of(incident),
        body=body_of(facts),
        severity=Severity.CRITICAL if action.urgency is Urgency.AT_ONCE else Severity.WARNING,
        key=action.key,
        links=_report(action, cluster),
    )


def _calls_for(action: Action) -> str:
    return "two copies of a job at once" if action.part.startswith(OVERLAP) else "please look"


def notice_to_owner(action: Action, cluster: Cluster, *, recipient: str) -> Message:
    """Return the message to the owner of a job. Where the job erred by itself, they are the one who must look."""
    incident = cluster.ledger.incident(action.incident)
    is_own_error = incident is not None and incident.response is Response.NOTIFY_OWNER
    return Message(
        audience=Audience.OWNER,
        recipient=recipient,
        thread=action.incident,
        title=f"{action.incident}: your {action.target}",
        subject="" if incident is None else subject_of(incident),
        body=" ".join(action.text.split()),
        severity=Severity.WARNING if is_own_error or action.part.startswith(OVERLAP) else Severity.NOTICE,
        key=action.key,
    )


def _report(action: Action, cluster: Cluster) -> tuple[Link, ...]:
    if cluster.pages_url is None:
        return ()
    return (Link(label=f"report of {action.incident}", url=f"{cluster.pages_url}/incidents/{action.incident}"),)
