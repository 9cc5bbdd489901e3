"""Every guardrail by its name: what it is judged on, and which limit of the policy it keeps. Words for people.

The rules themselves are `guardrails`, `preconditions`, `budgets` and `job_limits`; a test holds the names together.
"""

from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.policy import ActionClass, Consent, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWords:
    """One guardrail in words."""

    guardrail: str
    judged_on: str
    limit: str
    """The limit that holds here; empty where it is yes or no."""


def read_rulebook(policy: Policy) -> tuple[RuleWords, ...]:
    """Return every guardrail of `judge`, in the order in which they are asked."""
    budget, event, caps = policy.drain_budget, policy.mass_event, policy.blast_caps
    ladder, recovery = policy.ladder, policy.recovery
    windows = ", ".join(f"{each.name} until {each.ends_at:%Y-%m-%d %H:%M} UTC" for each in policy.freeze_windows)
    rows = (
        ("pause", "the ledger's pause", ""),
        ("mode", "policy.yaml", f"mode {policy.mode.value}"),
        ("consent", "policy.yaml, by class of act", _forbidden(policy)),
        ("approval", "approvals of exactly this plan", f"mode {policy.mode.value}{_approved(policy)}"),
        ("known_node", "cluster.yaml and the scheduler's nodes", ""),
        ("untouchable", "policy.yaml", f"{len(policy.untouchable_nodes)} nodes"),
        ("known_job", "the scheduler's jobs", ""),
        ("owned", "rollouts that have a node in hand, and incidents that are at work on it", ""),
        ("fresh_telemetry", "whether the metrics answer", _seconds(policy.durations.telemetry_stale_after)),
        ("foreign_drain", "the drain's reason and time against our own records", ""),
        ("our_drain", "the drain's reason and time against our own records", ""),
        ("idle_node", "the jobs that the scheduler shows on the node", ""),
        ("hidden_work", "the node's GPUs in use", ""),
        ("held_first", "whether the jobs on a silent node are held", ""),
        ("answers_again", "whether the node answers, and our reboots of it", ""),
        ("off_first", "our power-off and its witness", ""),
        ("rung_order", "what was tried before for this incident", ""),
        ("requeueable", "what the job declares", ""),
        ("our_mark", "our mark on the job, and plans that move it", ""),
        ("same_attempt", "the job's present start", ""),
        ("fenced_first", "our fence and its witness", ""),
        ("silent_node", "every node of the attempt", ""),
        ("free_spares", "state, jobs, GPUs and reservation of each spare node", ""),
        ("freeze_window", "the time of the facts", windows or "none"),
        (
            "rung_exhausted",
            "repairs begun on the node, for whatever cause",
            f"{ladder.max_gpu_resets_count} resets, {ladder.max_reboots_count} reboots, "
            f"{ladder.max_power_cycles_count} power cycles, {ladder.max_reimages_count} re-images within "
            f"{_seconds(ladder.memory)}",
        ),
        ("cool_down", "the last repair of the same kind on the node", _seconds(ladder.cool_down)),
        (
            "drain_budget",
            "declared nodes out of service, whoever took them out, and drains under way",
            f"{budget.max_out_count} in all, {budget.max_out_per_rack_count} in a rack, "
            f"{budget.min_in_service_ratio:.0%} in service",
        ),
        ("drain_rate", "nodes that we drained within the hour, rollouts apart", f"{budget.max_new_per_hour_count}"),
        ("rollout_share", "nodes that rollouts have out of service", f"{policy.rollouts.max_out_count}"),
        ("partition_cap", "nodes of its partitions out of service", f"{caps.max_out_per_partition_ratio:.0%}"),
        ("leaf_cap", "nodes below its leaf switch out of service", _count(caps.max_out_per_leaf_count)),
        ("nvlink_cap", "nodes of its NVLink domain out of service", _count(caps.max_out_per_nvlink_domain_count)),
        ("probation_cap", "nodes chosen last", f"{caps.max_on_probation_count}"),
        (
            "storm_brake",
            "nodes on which we began anything destructive, rollouts apart",
            f"{event.min_node_count} within {_seconds(event.brake_window)}",
        ),
        (
            "requeue_limit",
            "attempts of the job that we ended",
            f"{recovery.max_requeues_count} within {_seconds(recovery.requeue_window)}",
        ),
        (
            "min_serving",
            "replicas of its service that serve; where a known fault ended jobs, one less for each GPU that it took",
            f"as declared, else {recovery.default_min_serving_ratio:.0%}",
        ),
        ("hourly_loss", "what our holds of the last hour cost", f"{caps.max_gpu_hours_per_hour:g} GPU-hours"),
    )
    return tuple(RuleWords(guardrail=name, judged_on=on, limit=limit) for name, on, limit in rows)


def _forbidden(policy: Policy) -> str:
    kinds = [kind.value for kind in ActionClass if policy.consents.get(kind) is Consent.FORBID]
    return f"forbidden: {', '.join(kinds)}" if kinds else "nothing is forbidden"


def _approved(policy: Policy) -> str:
    named = [f"{kind.value}: {policy.consents[kind].value}" for kind in ActionClass if kind in policy.consents]
    return f"; {', '.join(named)}" if named else ""


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"


def _count(count: int | None) -> str:
    return "none" if count is None else f"{count}"
