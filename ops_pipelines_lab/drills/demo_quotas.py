"""The parts of the demo in which a person decides: a reboot that needs approval, given by link; and quotas, from a
morning's proposal to its approval and its rollback.

The demo's policy says `consents: {reboot: approve}`, so that the plans of other parts wait half-way. The person of this
part gets a link for each, opens it as a chat's preview would, and then sends the form of the page.

The limits of the simulated accounts are a year old: product holds GPUs that it no longer uses, and science, which
launched a model last week, waits. Their past is simulated, too; what is proposed of it is the program's. Judged on what
the twin was ordered and on its jobs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.observation import Checkpointing, JobState, Workload
from ops_pipelines.core.proposal import ProposalRecord, ProposalState
from ops_pipelines.terminal.approval import CONFIRMATION
from ops_pipelines.terminal.incidents import read_incidents
from ops_pipelines.terminal.outlook import PlanStanding
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part, expect
from ops_pipelines_lab.drills.demo_setup import ANSWERS_FILE, QUOTA_ANSWER_FILE
from ops_pipelines_lab.simulator.ground_truth import read_losses, read_progress
from ops_pipelines_lab.simulator.journal import Entry, EntryKind
from ops_pipelines_lab.simulator.past_demand import PastPlan, TeamHabit
from ops_pipelines_lab.simulator.scenario import AccountLimit, JobSpec, Scenario
from ops_pipelines_lab.simulator.twin import Twin

PERSON = "operator of the demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenApproval:
    """One link, and what came of opening it and of its form."""

    plan: str
    opened_status: int
    is_approved_by_opening: bool
    form_status: int


def begin_asking(twin: Twin) -> Injected:
    """Break nothing: the other parts do."""
    return Injected(part="k", at=twin.now(), nodes=(), job=None)


def answer_what_waits(evidence: Evidence) -> None:
    """Give an approval by link to each plan that waits for one, as the person who was sent the link."""
    for plan in _waiting(evidence):
        try:
            said = evidence.call(("approval-link", plan, "--person", PERSON))
        except RuntimeError:
            continue  # It changed, or waits no more, since it was listed; the next look shows it.
        link = next(word for word in said.split() if "/approve/" in word)
        opened = evidence.browse(link, None)
        is_approved = _yes_to(plan, _approvals(evidence)) is not None
        sent = evidence.browse(link, {CONFIRMATION: plan})
        answer = GivenApproval(
            plan=plan, opened_status=opened.status, is_approved_by_opening=is_approved, form_status=sent.status
        )
        with (evidence.state / ANSWERS_FILE).open("a") as stream:
            stream.write(json.dumps(asdict(answer)) + "\n")


def _waiting(evidence: Evidence) -> tuple[PlanId, ...]:
    found = read_incidents(evidence.cluster, closed_within=None).incidents or ()
    plans = [each.plan for each in found if each.plan is not None]
    return tuple(plan.recorded.plan for plan in plans if plan.standing is PlanStanding.WAITS_FOR_APPROVAL)


def _approvals(evidence: Evidence) -> Sequence[Approval]:
    state = evidence.cluster.ledger.read_state(evidence.cluster.clock.now())
    return (*state.approvals, *state.past_approvals)


def _yes_to(plan: str | None, approvals: Sequence[Approval]) -> Approval | None:
    return next((each for each in approvals if each.plan == plan and each.link), None)


def _answers(evidence: Evidence) -> tuple[GivenApproval, ...]:
    path = evidence.state / ANSWERS_FILE
    return tuple(GivenApproval(**json.loads(line)) for line in path.read_text().splitlines()) if path.exists() else ()


def _reboots(evidence: Evidence) -> tuple[ActionRecord, ...]:
    ledger = evidence.cluster.ledger
    incidents = ledger.incidents_since(evidence.injected.at)
    records = [record for incident in incidents for record in ledger.records(incident.incident)]
    return tuple(record for record in records if record.action.verb is Verb.REBOOT)


def _asked_first(evidence: Evidence, *, reboot_count: int) -> tuple[str, ...]:
    answers, approvals, reboots = _answers(evidence), _approvals(evidence), _reboots(evidence)
    given = {record.action.key: _yes_to(record.plan, approvals) for record in reboots}
    unasked = [
        record.action.node or ""
        for record in reboots
        if (yes := given[record.action.key]) is None or yes.given_at > record.begun_at
    ]
    waiting = _waiting(evidence)
    return expect(
        (len(reboots) >= reboot_count, f"{len(reboots)} reboots started, {reboot_count} expected"),
        (not waiting, f"{len(waiting)} plan(s) wait for approval"),
        (not unasked, f"rebooted without approval by link: {', '.join(unasked)}"),
        (not any(each.is_approved_by_opening for each in answers), "a link that was only opened approved its plan"),
        (
            all(each.opened_status == 200 for each in answers),
            f"links were answered {[a.opened_status for a in answers]}",
        ),
    )


def _tell_answers(evidence: Evidence) -> tuple[str, ...]:
    approvals, lines = _approvals(evidence), []
    for record in _reboots(evidence):
        yes = _yes_to(record.plan, approvals)
        if yes is not None:
            seconds = (record.begun_at - yes.given_at).total_seconds()
            said = f"opening its link approved nothing, its form did, in the name of {yes.actor!r}"
            lines.append(f"{record.plan}: {said}; {record.action.node} was rebooted {seconds:.0f} s later")
    return tuple(lines)


def consent_part(*, reboot_count: int) -> Part:
    """Return the part, beside parts that need so many reboots."""
    return Part(
        letter="k",
        title="policy.yaml asks for approval before a reboot: opening the link does nothing, its form approves",
        inject=begin_asking,
        differences=partial(_asked_first, reboot_count=reboot_count),
        limit_seconds=300.0,
        proceed=answer_what_waits,
        tell=_tell_answers,
    )


_LIMIT_SECONDS = 150.0
_LOOKED_BACK = 20
LIMITS: Mapping[str, int] = {"platform": 88, "product": 144, "research": 272, "science": 80}
"""As somebody set them a year ago. They add up to what the demo's 76 nodes have, less the slack."""
PAST = PastPlan(
    habits=(
        TeamHabit(team="platform", quota=88, base=82, by_day=2),
        # It has 144, and has not used more than 112 since its service moved to smaller models.
        TeamHabit(team="product", quota=144, base=102, by_day=6, idle_ratio=0.2),
        TeamHabit(team="research", quota=272, base=266, by_day=4),
        TeamHabit(team="science", quota=80, base=58, by_day=14, launch_gpus=48),
    ),
    noise_ratio=0.02,
)
_WAITING = JobSpec(
    name="climate-ensemble",
    user="science-train",
    account="science",
    workload=Workload.TRAINING,
    node_count=3,
    checkpoint_interval_seconds=10.0,
    checkpointing=Checkpointing.YES,
    time_limit_seconds=7 * 86_400.0,
    step_seconds=0.5,
    priority=50,
)
"""24 GPUs beside the 64 that science trains on: more than its old limit, whatever else it runs."""


def with_limits(scenario: Scenario) -> Scenario:
    """Return the demo's cluster with the old limits of its accounts."""
    limits = tuple(AccountLimit(account=account, gpu_count=gpus) for account, gpus in sorted(LIMITS.items()))
    return replace(scenario, limits=limits)


def _begin(twin: Twin) -> Injected:
    """Submit the job that the old limit holds; what was proposed waits for `_answer`.

    No earlier: while another of science's jobs is moved off a broken node, this one would take its room.
    """
    submitted = twin.submit(_WAITING)
    job = next(each for each in read_progress(twin) if each.job == submitted)
    return Injected(part="n", at=twin.now(), nodes=(), job=job)


def _answer(evidence: Evidence) -> None:
    """Do what is left to a person: approve, and once the job runs, take it back."""
    record = newest_proposal(evidence)
    if record is None:
        return
    if record.state is ProposalState.PROPOSED and not _orders(evidence):
        _say(evidence, "quota", "apply", record.name)
    elif record.state is ProposalState.APPLIED and _started_at(evidence) is not None:
        _say(evidence, "quota", "undo", record.name)


def _say(evidence: Evidence, *words: str) -> None:
    try:
        evidence.call(words)
    except RuntimeError as refusal:
        (evidence.state / QUOTA_ANSWER_FILE).write_text(f"{refusal}\n")


def newest_proposal(evidence: Evidence) -> ProposalRecord | None:
    """Return the proposal of the morning, whatever became of it; None before there is one."""
    records = evidence.cluster.ledger.proposals(limit=_LOOKED_BACK)
    return next((each for each in records if each.state is not ProposalState.SUPERSEDED), None)


# -- what must have come of it --


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchedulerOrders:
    """What the scheduler was ordered, and what was set there in between."""

    set_at: datetime
    undone_at: datetime
    between: Mapping[str, int | None]
    limits: Mapping[str, int | None]
    """Now."""


def _orders(evidence: Evidence) -> Sequence[Entry]:
    """Return the orders that the twin took since the part began."""
    since = evidence.injected.at
    entries = evidence.twin.entries()
    return [each for each in entries if each.kind is EntryKind.SET_QUOTAS and each.at >= since and each.refusal is None]


def _told(evidence: Evidence) -> _SchedulerOrders | None:
    orders = _orders(evidence)
    if len(orders) != 2:
        return None
    first, second = orders
    between: dict[str, int | None] = {**LIMITS, **{each.account: each.value for each in first.quotas}}
    with evidence.twin.present() as world:
        limits = dict(world.controller.quotas.limits)
    return _SchedulerOrders(set_at=first.at, undone_at=second.at, between=between, limits=limits)


def _started_at(evidence: Evidence) -> datetime | None:
    """Return since when the job that waited runs; None if it does not."""
    job = evidence.injected.job
    assert job is not None  # the part was started on it
    with evidence.twin.present() as world:
        present = world.controller.jobs.get(job.job)
        return present.started_at if present is not None and present.state is JobState.RUNNING else None


def _shared_out_and_back(evidence: Evidence) -> tuple[str, ...]:
    """Return what is missing: proposed, set as proposed, the job started, nothing ended, and all as it was."""
    waited, record = evidence.injected.job, newest_proposal(evidence)
    assert waited is not None  # the part was started on it
    if record is None:
        return ("no proposal is kept",)
    told = _told(evidence)
    if told is None:
        return (f"limits were set {len(_orders(evidence))} times, not twice; {_words_of(record, evidence)}",)
    proposed = {str(line.team): line.after for line in record.proposal.lines}
    supply = sum(line.supply for line in record.proposal.supplies)
    started = _started_at(evidence)
    ended = [each for each in read_losses(evidence.twin) if told.set_at <= each.ended_at <= told.undone_at]
    chain = evidence.cluster.ledger.verify_chain()
    return expect(
        (waited.state is JobState.PENDING, f"job {waited.job} did not wait before: it was {waited.state.value}"),
        (record.state is ProposalState.UNDONE, _words_of(record, evidence)),
        (told.between == proposed, f"set was {dict(told.between)}, proposed {proposed}"),
        (sum(proposed.values()) <= supply, f"{sum(proposed.values())} GPUs were given out, {supply:g} are there"),
        (proposed.get("science", 0) > LIMITS["science"], "science, which starves, got no more"),
        (proposed.get("product", 0) < LIMITS["product"], "product, which hoards, kept all"),
        (started is not None, f"job {waited.job} does not run"),
        (
            started is None or told.set_at <= started <= told.undone_at,
            f"job {waited.job} did not start between the new limits and the old ones",
        ),
        (not ended, f"{len(ended)} job(s) were ended meanwhile"),
        (dict(told.limits) == dict(LIMITS), f"limits are {dict(told.limits)} in the end, were {dict(LIMITS)}"),
        (chain.first_broken_seq is None, f"the ledger's chain is broken: {chain.problem}"),
    )


def _words_of(record: ProposalRecord, evidence: Evidence) -> str:
    answer = evidence.state / QUOTA_ANSWER_FILE
    refused = f"; the last answer: {answer.read_text().strip()}" if answer.exists() else ""
    return f"{record.name} is {record.state.value.replace('_', ' ')}: {record.reason}{refused}"


# -- what it showed --


def _tell(evidence: Evidence) -> tuple[str, ...]:
    record, told = newest_proposal(evidence), _told(evidence)
    if record is None:
        return ()
    lines = [f"{record.name}: {record.proposal.headline}", *_changes(record)]
    started, job = _started_at(evidence), evidence.injected.job
    if told is not None and started is not None and job is not None:
        seconds = (started - told.set_at).total_seconds()
        lines.append(
            f"job {job.job} ({job.gpu_count} GPUs of {job.account}) started {seconds:.0f} s after the limits were set, "
            "and runs on though they are the old ones again"
        )
    return tuple(lines)


def _changes(record: ProposalRecord) -> Iterator[str]:
    for line in record.proposal.lines:
        if line.limit != line.after:
            yield f"{line.team} {line.limit} -> {line.after}: {line.reason}"


def quota_commands(cluster_file: str) -> tuple[str, ...]:
    """Return how a person of the endless demo looks at the proposal, approves it, and rolls it back."""
    words = ("quota diff", "quota apply PROPOSAL", "quota undo PROPOSAL")
    return tuple(f"ops-pipelines {each} --cluster {cluster_file}" for each in words)


# -- the runs of a morning --


def day_key(now: datetime) -> str:
    """Return the partition of the running day. The demo's days are UTC's."""
    return f"{now.astimezone(UTC):%Y-%m-%d}"


def after_the_fill(now: datetime) -> Mapping[str, str]:
    """Return the jobs that run each morning or Monday on what the lake has, each with the partition to look at.

    Days and weeks are the running ones: the simulated cluster has only existed for so long.
    """
    today: date = now.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    return {
        "sum_demand": f"{today - timedelta(days=1)}",
        "report_placement": f"{today}",
        "charge_teams": f"{today:%Y-%m}",
        "advise_teams": f"{monday}",
    }


QUOTAS = Part(
    letter="n",
    title="quotas a year old starve one team while another hoards: proposed, approved, set, and taken back",
    inject=_begin,
    differences=_shared_out_and_back,
    limit_seconds=_LIMIT_SECONDS,
    proceed=_answer,
    tell=_tell,
)
