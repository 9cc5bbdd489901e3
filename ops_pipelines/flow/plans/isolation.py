"""What an isolation waits for after its last act: the end of the jobs that were left on the node, and its own page.

A repair is kept back from a busy node by its guardrail; an isolation repairs nothing, and its proof begins with tests
that need the node to themselves.
"""

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.domain.guardrails.facts import jobs_on
from ops_pipelines.flow.acts.fresh_facts import CHEAP, read_facts


def why_isolation_waits(plan: IncidentPlan, incident: Incident, cluster: Cluster) -> str | None:
    """Return why an isolation is not over although every act was tried; None of any other plan, and if it is.

    A node that somebody else drained is left to them. Raises SourceError if the scheduler does not answer.
    """
    if plan.response is not Response.ISOLATE or all(action.verb is not Verb.DRAIN for action in plan.actions):
        return None
    facts = read_facts(CHEAP, cluster)
    busy = [job.job for node in sorted(incident.nodes) for job in jobs_on(node, facts)]
    if busy:
        return f"idle_node: job(s) {', '.join(busy)} still run there; its tests begin when they are gone"
    told = {record.action.key for record in facts.records if record.outcome is not None}
    if any(action.verb is Verb.PAGE_HUMAN and action.key not in told for action in plan.actions):
        return "no channel has taken the message to the operator on call yet"
    return None
