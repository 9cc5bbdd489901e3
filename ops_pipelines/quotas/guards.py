"""What is in the way of applying a proposal now: judged on fresh state, whatever was found when it was made.

Reads and judges, writes nothing. Each hindrance says what was found and what to do. What two writers do at once is the
ledger's business.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import QuotaProof
from ops_pipelines.core.proposal import GpuType, QuotaProposal, TeamName
from ops_pipelines.core.scheduler import (
    ALL_TYPES,
    AccountQuota,
    Change,
    QuotaChange,
    QuotaProbe,
    QuotasInForce,
    TypedLimits,
    find_obstacles,
    needs_enforcement,
    needs_types,
)
from ops_pipelines.quotas.gather_supply import count_supply
from ops_pipelines.quotas.morning import standstill
from ops_pipelines.quotas.proof import prove_proposal
from ops_pipelines.quotas.propose import proof_inputs
from ops_pipelines.teams.desk import TeamsDesk

LONGEST_AGE = timedelta(hours=36)
"""A proposal of another day may be applied until it is so old: nodes, jobs and demand have moved on since."""


def refuse_without_consent(policy: Policy, *, actor: str, lease_token: str | None) -> Iterator[str]:
    """Yield why this actor may not set quotas: a person shows no lease, the autopilot always does."""
    if policy.mode is Mode.OBSERVE:
        yield "mode is observe: quotas are proposed and never set; write `mode: approve` into policy.yaml"
        return
    if actor == AUTOPILOT and lease_token is None:
        yield "the autopilot shows no lease; let the run that holds it apply quotas"
    if lease_token is None:
        return
    consent = policy.consent_to(ActionClass.QUOTAS)
    if consent is not Consent.AUTO:
        yield (
            f"consents.quotas is {consent.value}: the autopilot does not set quotas by itself; a person does, with "
            "`ops-pipelines quota apply`"
        )


def find_hindrances(
    proposal: QuotaProposal,
    changes: Sequence[Change],
    desk: TeamsDesk,
    *,
    in_force: QuotasInForce,
    probe: QuotaProbe,
    proof: QuotaProof,
    now: datetime,
) -> tuple[str, ...]:
    """Return why a proposal must not be applied now; nothing if it may. `proof` is what `prove_now` says."""
    return (
        *_too_old(proposal, desk, now=now),
        *_standing_still(proposal, desk, now=now),
        *hindrances_of_scheduler(changes, in_force=in_force, probe=probe),
        *(f"{each}; propose again" for each in proof.contradictions),
    )


def prove_now(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> QuotaProof:
    """Prove a proposal on today's agreements and the nodes that are healthy now. Raises SourceError without them."""
    supplies = {line.gpu_type: line.supply for line in count_supply(desk, now=now).lines}
    inputs = replace(proof_inputs(proposal, desk), supplies=supplies)
    return prove_proposal(proposal, inputs, content=desk.cluster.ledger.content_of(proposal), made_at=now)


def hindrances_of_scheduler(
    changes: Sequence[Change], *, in_force: QuotasInForce, probe: QuotaProbe
) -> tuple[str, ...]:
    """Return why the scheduler would not take the changes, or would hold nobody to them."""
    found = list(find_obstacles(changes, in_force.accounts))
    if needs_enforcement(changes) and not probe.is_enforced:
        found.append(f"limits would hold nobody: {probe.enforced_because}")
    typed = needs_types(changes)
    if typed and probe.typed_limits is not TypedLimits.HELD:
        names = ", ".join(sorted({change.gpu_type for change in typed}))
        found.append(
            f"a limit on {names} would not hold jobs that name no type: {probe.typed_because}. Limit all types "
            "together instead (`--total`, or `quotas: {limits: total}` in cluster.yaml)"
        )
    return tuple(found)


def warnings_of(probe: QuotaProbe) -> tuple[str, ...]:
    """Return what weakens limits or fair share here."""
    free = sorted(partition for partition, weight in probe.gpu_billing.items() if weight == 0)
    unbilled = (
        f"GPUs are free in {', '.join(free)}: fair share does not count them; set TRESBillingWeights=GRES/gpu=1 there"
    )
    return (*((unbilled,) if free else ()), *probe.warnings)


def part_settable(
    changes: Sequence[Change], desk: TeamsDesk, *, in_force: QuotasInForce
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that may be set, and of the others in words why they are left out.

    An account that nobody declared keeps what it has: a slip in teams.yaml must not stop a team's work. One that the
    scheduler lacks runs nothing, so that its limit is no matter.
    """
    declared = frozenset() if desk.agreements is None else frozenset(desk.agreements.parents)
    kept, left_out = [], []
    for change in changes:
        if change.account not in declared:
            left_out.append(f"{change.account} keeps what it has: teams.yaml does not name it; declare it there")
        elif change.account not in in_force.accounts:
            left_out.append(f"nothing is set for {change.account}: the scheduler has no such account; add it there")
        else:
            kept.append(change)
    return tuple(kept), tuple(dict.fromkeys(left_out))


# -- each of them --


def _too_old(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> Iterator[str]:
    today = now.astimezone(desk.zone).date()
    age = now - proposal.made_at
    if proposal.day != today and age >= LONGEST_AGE:
        yield (
            f"{proposal.proposal} is of {proposal.day}, made {age.total_seconds() / 3600:.0f} hours ago; expected one "
            f"of today ({today}) or younger than {LONGEST_AGE.total_seconds() / 3600:.0f} hours: propose again"
        )


def _standing_still(proposal: QuotaProposal, desk: TeamsDesk, *, now: datetime) -> Iterator[str]:
    """Yield why quotas stand still by now; what was proposed knowing of a standstill moves only what it may."""
    rules = desk.cluster.rules
    incidents = desk.cluster.ledger.read_state(now).incidents
    why = standstill(incidents, topology=rules.topology, policy=desk.policy, now=now)
    if why and not proposal.frozen_because:
        yield f"quotas stand still by now: {why}; propose again"


def below_what_runs(changes: Sequence[Change], desk: TeamsDesk, *, in_force: QuotasInForce) -> tuple[str, ...]:
    """Return, as warnings, each limit that would be lowered below what runs under it now.

    No hindrance: the floor is what ran in the last full hour when it was proposed, and what runs is never touched.
    """
    lowered = [
        change
        for change in changes
        if isinstance(change, QuotaChange)
        and change.after is not None
        and (change.before is None or change.after < change.before)
    ]
    if not lowered:
        return ()
    running = running_by_account(desk.cluster.scheduler.read_jobs(), in_force.accounts, desk.gpu_type_of)
    found = []
    for change in lowered:
        own = running.get(change.account, {})
        now_runs = sum(own.values()) if change.gpu_type == ALL_TYPES else own.get(change.gpu_type, 0.0)
        if change.after is not None and now_runs > change.after:
            found.append(
                f"{change}: {now_runs:g} GPUs run there now; they run on, and nothing starts until they are fewer"
            )
    return tuple(found)


def running_by_account(
    jobs: Iterable[JobStatus], accounts: Mapping[TeamName, AccountQuota], types: Mapping[NodeName, GpuType]
) -> Mapping[TeamName, Mapping[GpuType, float]]:
    """Return the GPUs of jobs that have processes, by account and type; those above an account have its jobs, too."""
    found: defaultdict[TeamName, defaultdict[GpuType, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        if job.state not in MAY_HAVE_PROCESSES or not job.nodes:
            continue
        for account in _upwards(TeamName(job.account), accounts):
            for node in job.nodes:
                found[account][types.get(node, GpuType(""))] += job.gpu_count / len(job.nodes)
    return found


def _upwards(account: TeamName, accounts: Mapping[TeamName, AccountQuota]) -> Iterator[TeamName]:
    """Yield an account and all above it, each once: what is read may go in circles."""
    seen: set[TeamName] = set()
    above: TeamName | None = account
    while above is not None and above not in seen:
        seen.add(above)
        yield above
        quota = accounts.get(above)
        above = None if quota is None else quota.parent
