"""What becomes of the production code's plans in simulated time: when each act comes, and what it does to the job.

Acts succeed, after as long as they were measured to take. Whether and what to do is `remediate.decide`'s, when to
interrupt the job `remediate.timing`'s, whether somebody must approve first `remediate.guardrails.consents`'s.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from numpy.random import Generator

from ops_pipelines.core.action import MESSAGES, Verb
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState
from ops_pipelines.core.observation import Observation
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proof import Patience, Refusal
from ops_pipelines.remediate.decide import Decision
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.timing import is_moment
from ops_pipelines_lab.whatif import peers
from ops_pipelines_lab.whatif.autopilot import Autopilot
from ops_pipelines_lab.whatif.fault_mix import Entry, Event, Trouble
from ops_pipelines_lab.whatif.measured import Duration, Fixed, Measured, seconds_held, seconds_until_hold

LOOK_AT_NAMED = Fixed(300.0)
"""Assumption: a person who is shown the part and why needs five minutes to agree."""
_LOOKS_AT_MOST = timedelta(minutes=5)
"""How far apart the looks at an incident that waits become, as in `remediate.due`."""
_NO_LIMITS = frozenset({"response", "confirmation", "empty_plan"})
"""Refusals that say nothing of the policy's limits."""


class World(Protocol):
    """What carrying out needs to know of the simulated world, and may ask of it."""

    def now(self) -> datetime: ...

    def checkpointed_at(self) -> datetime:
        """Return when the newest durable checkpoint was taken."""
        ...

    def enter(self, after: float, event: Event, **what: object) -> None:
        """Let something happen after so many seconds."""
        ...

    def holds(self, node: NodeName) -> bool:
        """Return whether the job holds a node."""
        ...

    def troubled(self, node: NodeName) -> bool:
        """Return whether anything is in truth wrong with a node: for the count of wrong drains alone."""
        ...

    def call(self, trouble: Trouble | None, look: Duration) -> None:
        """Call a person, who looks for so long once he has acknowledged."""
        ...

    def search_by_hand(self, trouble: Trouble) -> Duration:
        """Return how long a person looks for a part that nobody has named."""
        ...

    def start_elsewhere(self, trouble: Trouble | None, nodes: tuple[NodeName, ...], *, held_seconds: float) -> None:
        """Stop the job, and start it again without these nodes after so long."""
        ...


class CarryingOut:
    """Takes evidence to the decision, and its plans to the job."""

    def __init__(self, autopilot: Autopilot, measured: Measured, random: Generator, *, world: World) -> None:
        self._autopilot = autopilot
        self._policy = autopilot.rules.policy
        self._measured = measured
        self._random = random
        self._world = world
        self._about: dict[IncidentId, Trouble] = {}
        self._look_counts: dict[IncidentId, int] = {}
        self._looks_due: set[IncidentId] = set()
        self._moving: set[Trouble] = set()
        self._is_held_back: set[tuple[IncidentId, str]] = set()
        self.wrong_drain_count = 0

    @property
    def held_back(self) -> Counter[str]:
        """Incidents by the limit of the policy that kept the job where it was."""
        return Counter(name for _, name in self._is_held_back)

    def decide(self, observations: Sequence[Observation], *, about: Trouble | None) -> None:
        """Let the production code decide on new evidence, and begin what it plans."""
        autopilot, now = self._autopilot, self._world.now()
        autopilot.checkpointed_at = self._world.checkpointed_at()
        decision = autopilot.decide(observations, now=now)
        if about is not None:
            for incident in decision.incidents:
                if _is_about(incident, about):
                    self._about.setdefault(incident.incident, about)
        self._follow(decision)

    def is_moving(self, trouble: Trouble) -> bool:
        """Return whether the job is about to be moved off it: what more is seen of it until then changes nothing."""
        return trouble in self._moving

    def go_on(self, entry: Entry) -> None:
        """Something that was entered here is due: a look, a person's yes, a hold."""
        match entry:
            case Entry(event=Event.LOOK, incident=str() as incident):
                self._looks_due.discard(incident)
                known = self._autopilot.incidents.get(incident)
                if known is not None and known.state is IncidentState.OPEN:
                    self.decide((), about=None)
            case Entry(event=Event.YES, plan=IncidentPlan() as plan):
                self._act(plan)
            case Entry(event=Event.HOLD, plan=IncidentPlan() as plan):
                self._hold(plan)

    def _follow(self, decision: Decision) -> None:
        for plan in decision.plans:
            # What was done for one of them may have ended another.
            incident = self._autopilot.incidents.get(plan.incident)
            if incident is not None and incident.state is IncidentState.OPEN:
                self._begin(plan)
        for incident_id, refusal in decision.refusals:
            self._wait(incident_id, refusal)

    def _wait(self, incident: IncidentId, refusal: Refusal) -> None:
        if refusal.guardrail == "response" or incident in self._looks_due:
            return
        if refusal.guardrail not in _NO_LIMITS:
            self._is_held_back.add((incident, refusal.guardrail))
        number = self._look_counts.get(incident, 0)
        every = self._policy.durations.retry_after
        waited = every * (2**number - 1)
        if refusal.patience is Patience.NEVER or waited >= self._policy.durations.waiting_limit:
            self._page(incident)
            return
        self._look_counts[incident] = number + 1
        self._looks_due.add(incident)
        after = min(every * 2 ** max(0, number - 1), _LOOKS_AT_MOST)
        self._world.enter(after.total_seconds(), Event.LOOK, incident=incident)

    def _begin(self, plan: IncidentPlan) -> None:
        verbs = {action.verb for action in plan.actions}
        is_said_only = verbs <= MESSAGES
        if self._policy.mode is Mode.OBSERVE and verbs != {Verb.PAGE_HUMAN}:
            return  # The plan is shown, and nothing is done: nobody's job is touched, no owner is notified.
        self._autopilot.begin(plan, now=self._world.now())
        if is_said_only:
            self._tell(plan)
        elif any(needs_yes(action, self._policy) for action in plan.actions):
            self._world.call(None, LOOK_AT_NAMED)
            self._world.enter(peers.ACKNOWLEDGE.draw(self._random), Event.YES, plan=plan)
        else:
            self._act(plan)

    def _tell(self, plan: IncidentPlan) -> None:
        is_page = any(action.verb is Verb.PAGE_HUMAN for action in plan.actions)
        event = IncidentEvent.NEEDS_HUMAN if is_page else IncidentEvent.NOTHING_TO_VERIFY
        self._autopilot.end(plan.incident, event, now=self._world.now())
        trouble = self._about.get(plan.incident)
        if is_page:
            self._page(plan.incident)
        elif trouble is not None and trouble.recurs:
            # The owner is notified of what the program did, and looks for the reason like anybody else.
            self._world.call(trouble, self._world.search_by_hand(trouble))

    def _page(self, incident: IncidentId) -> None:
        trouble = self._about.get(incident)
        if trouble is None or trouble.verdict.is_culprit_named:
            self._world.call(trouble, LOOK_AT_NAMED)
        else:
            self._world.call(trouble, self._world.search_by_hand(trouble))

    def _act(self, plan: IncidentPlan) -> None:
        """Drain at once, and hold the job once its run has started, unless the job is to be left where it is."""
        if not self._is_acting(plan):
            return  # An approval that comes after its incident continued by itself is void.
        for action in plan.actions:
            if action.verb is Verb.DRAIN and action.node is not None:
                self.wrong_drain_count += self._world.holds(action.node) and not self._world.troubled(action.node)
                self._autopilot.note(action, plan, begun_at=self._world.now(), ended_at=self._world.now())
        if any(action.verb is Verb.HOLD for action in plan.actions):
            after = seconds_until_hold(plan.actions, self._measured.latencies, self._random)
            self._world.enter(after, Event.HOLD, plan=plan)
            trouble = self._about.get(plan.incident)
            if trouble is not None:
                self._moving.add(trouble)
            return
        for timing in plan.timings:
            # What was too much to lose was left running, although another moment would have cost less.
            is_too_much = timing.options and timing.options[0].moment is not timing.moment
            self._is_held_back.add((plan.incident, "blast_radius" if is_too_much else timing.moment.value))
        self._finish(plan)

    def _hold(self, plan: IncidentPlan) -> None:
        """Interrupt the job now, or look again whether its moment has come."""
        trouble = self._about.get(plan.incident)
        nodes = tuple(
            action.node
            for action in plan.actions
            if action.verb is Verb.DRAIN and action.node is not None and self._world.holds(action.node)
        )
        if not self._is_acting(plan) or not nodes:
            self._stop_moving(trouble)  # Somebody was faster.
            return
        now = self._world.now()
        self._autopilot.checkpointed_at = self._world.checkpointed_at()
        job = self._autopilot.job()
        if not all(is_moment(timing, job, noticed_at=now, now=now) for timing in plan.timings):
            self._world.enter(self._policy.durations.look_every.total_seconds(), Event.HOLD, plan=plan)
            return
        held = seconds_held(plan.actions, self._measured.latencies, self._random)
        for action in plan.actions:
            if action.verb is not Verb.DRAIN:
                self._autopilot.note(action, plan, begun_at=now, ended_at=now + timedelta(seconds=held))
        self._stop_moving(trouble)
        self._world.start_elsewhere(trouble, nodes, held_seconds=held)
        self._finish(plan)

    def _stop_moving(self, trouble: Trouble | None) -> None:
        if trouble is not None:
            self._moving.discard(trouble)

    def _is_acting(self, plan: IncidentPlan) -> bool:
        incident = self._autopilot.incidents.get(plan.incident)
        return incident is not None and incident.state is IncidentState.ACTING

    def _finish(self, plan: IncidentPlan) -> None:
        if self._is_acting(plan):
            self._autopilot.end(plan.incident, IncidentEvent.STEPS_DONE, now=self._world.now())


def _is_about(incident: Incident, trouble: Trouble) -> bool:
    """Return whether an incident that has just changed is about this trouble: of its node, or of the job as a whole."""
    return trouble.node is None or trouble.is_of_switch or not incident.nodes or trouble.node in incident.nodes
