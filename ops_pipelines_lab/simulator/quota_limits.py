"""Accounts of the pretended scheduler, and what their GPUs may sum up to. Placing jobs is `controller`'s business.

As in Slurm, a job that completes still counts, and one that waits for its account keeps no node from others. Shares are
kept and shown; the pretended queue goes by priority and age.
"""

from collections.abc import Collection, Iterable

from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import QuotaOrder
from ops_pipelines_lab.simulator.scenario import Scenario


class QuotaLimits:
    """The accounts there are, each with its limit and share."""

    def __init__(self, scenario: Scenario) -> None:
        jobs = (*scenario.initial_jobs, *(each.job for each in scenario.arrivals))
        limited = {each.account: each.gpu_count for each in scenario.limits}
        names = sorted({*scenario.accounts, *limited, *(job.account for job in jobs)})
        self.limits: dict[str, int] = limited
        """Account -> GPUs at most; who is not named has no limit."""
        self.fairshares: dict[str, int | None] = dict.fromkeys(names, 1)
        """Account -> its share; None: none of its own."""

    @property
    def accounts(self) -> Collection[str]:
        """Return every account that is known."""
        return self.fairshares.keys()

    def add_account(self, account: str) -> None:
        """Know an account from now on; one that is known stays as it is."""
        self.fairshares.setdefault(account, 1)

    def set(self, orders: Iterable[QuotaOrder]) -> None:
        for order in orders:
            if order.is_fairshare:
                self.fairshares[order.account] = order.value
            elif order.value is None:
                self.limits.pop(order.account, None)
            else:
                self.limits[order.account] = order.value

    def holds(self, job: Job, jobs: Collection[Job]) -> bool:
        """Return whether the job waits for its account: with it, more GPUs would be in use than the limit."""
        limit = self.limits.get(job.spec.account)
        if limit is None:
            return False
        in_use = sum(
            len(gpus) for each in jobs if each.spec.account == job.spec.account for gpus in each.allocation.values()
        )
        return in_use + job.gpu_count > limit
