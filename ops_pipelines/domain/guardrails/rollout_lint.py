"""Finds limits of rollouts that forbid everything, or limit nothing, by accident; and what an operator should know.

What holds of all other limits is `policy_lint`'s, which asks this too. What is only said refuses nothing.
"""

from collections.abc import Iterator
from datetime import timedelta

from ops_pipelines.core.policy import ActionClass, Consent, Policy, RolloutLimits

USUAL_CLAIM = timedelta(hours=6)
"""Which failure a release promises to find on its first nodes, where it does not say: the default of its claims."""
_JUDGED_AFTER = timedelta(hours=1)
"""# Assumption: so long after the slowest failure would have begun, it has shown itself."""


def lint_rollouts(policy: Policy) -> Iterator[str]:
    """Yield why rollouts must not be begun under this policy, one sentence a reason, opening with its key."""
    limits, budget = policy.rollouts, policy.drain_budget
    if limits.max_out_count > budget.max_out_count > 0 and limits.max_out_count != RolloutLimits().max_out_count:
        yield (
            f"rollouts.max_out_count is {limits.max_out_count}, more than drain_budget.max_out_count, "
            f"{budget.max_out_count}: it limits nothing; it is the rollouts' own part of that budget"
        )
    for name in ("install_limit", "verify_limit"):
        if getattr(limits, name) == timedelta(0):
            yield f"rollouts.{name}_seconds is 0: nothing could ever be seen within it, so that everything would fail"
    reading = limits.good_read_every * (limits.good_read_count - 1)
    if timedelta(0) < limits.verify_limit <= reading:
        yield (
            f"rollouts.verify_limit_seconds is {limits.verify_limit.total_seconds():g}, and {limits.good_read_count} "
            f"reads take {reading.total_seconds():g} s: no version could ever be seen to run"
        )
    if policy.maintenance_windows == () and not policy.maintenance_calendars:
        yield (
            "maintenance_windows is empty: no rollout could ever begin; leave it out for any time outside freezes, or "
            "say consents.update: forbid"
        )


def caution_about_rollouts(policy: Policy) -> Iterator[str]:
    """Yield what is no mistake, and yet should be meant: when rollouts begin, and what they leave to faults.

    Not of a policy that says nothing of rollouts: who begins none need not read of them.
    """
    is_said = ActionClass.UPDATE in policy.consents or policy.rollouts != RolloutLimits()
    if not is_said or policy.consent_to(ActionClass.UPDATE) is Consent.FORBID:
        return
    if policy.maintenance_windows is None and not policy.maintenance_calendars:
        yield "maintenance_windows is not declared: a rollout may take nodes at any time outside freeze windows"
    limit, least = policy.rollouts.soak_limit, USUAL_CLAIM + _JUDGED_AFTER
    if limit < least:
        yield (
            f"rollouts.soak_limit_seconds is {limit.total_seconds():g}: a release that claims the usual "
            f"{USUAL_CLAIM.total_seconds() / 3600:g} hours works {least.total_seconds():g} s on its first nodes before "
            "they can be found good, so that its rollout would stop and ask"
        )
    most, budget = policy.rollouts.max_out_count, policy.drain_budget.max_out_count
    if 0 < budget <= most:
        yield (
            f"rollouts.max_out_count is {most} of the {budget} nodes that may be out (drain_budget.max_out_count): "
            "while a rollout goes on, a broken node may find no place"
        )
