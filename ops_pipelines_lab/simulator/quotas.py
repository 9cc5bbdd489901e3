"""The port `Quotas` on the twin. Only translates: what a limit does is `quota_limits`."""

from collections.abc import Sequence

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.quota_limits import (
    ALL_TYPES,
    AccountQuota,
    Change,
    FairshareChange,
    QuotaProbe,
    QuotasInForce,
    TypedLimits,
    find_obstacles,
    needs_types,
    refuse_twice_the_same,
)
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines_lab.simulator.journal import EntryKind, QuotaOrder
from ops_pipelines_lab.simulator.twin import Twin

_ONE_TYPE = "every simulated node has GPUs of one type, and jobs name none; set a limit on all types together"


class SimulatedQuotas:
    """The port `Quotas` on the twin. A batch is one entry of its journal: in as a whole, or not at all."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def read(self) -> QuotasInForce:
        with self._twin.present() as world:
            quotas = world.controller.quotas
            accounts = {
                TeamName(name): AccountQuota(
                    account=TeamName(name),
                    parent=None,
                    limits={ALL_TYPES: quotas.limits[name]} if name in quotas.limits else {},
                    fairshare=quotas.fairshares[name],
                )
                for name in sorted(quotas.accounts)
            }
            return QuotasInForce(accounts=accounts, read_at=world.now)

    def probe(self) -> QuotaProbe:
        return QuotaProbe(
            is_enforced=True,
            enforced_because="the simulated scheduler holds every job beyond its account's limit",
            typed_limits=TypedLimits.NOT_HELD,
            typed_because=_ONE_TYPE,
            gpu_billing=dict.fromkeys(sorted(self._twin.scenario.partitions), 1.0),
        )

    def apply(self, changes: Sequence[Change]) -> None:
        refuse_twice_the_same(changes)
        if not changes:
            return
        if typed := needs_types(changes):
            raise SourceRefused(f"{', '.join(map(str, typed))[:300]}: {_ONE_TYPE}")
        accounts = self.read().accounts
        obstacles = find_obstacles(changes, accounts)
        if obstacles:
            raise SourceRefused("; ".join(obstacles))
        due = [change for change in changes if change.stands_in(accounts[change.account]) != change.after]
        if due:
            self._twin.command(EntryKind.SET_QUOTAS, quotas=tuple(map(_order, due)))


def _order(change: Change) -> QuotaOrder:
    return QuotaOrder(account=change.account, value=change.after, is_fairshare=isinstance(change, FairshareChange))
