"""What `check-config` says of teams: agreements that cannot be kept, and what the scheduler lacks of what they name.

A guarantee that is beyond what is installed keeps quotas from being made; the autopilot repairs nodes all the same. So
it is a warning here, and a fault of the file is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.quota_limits import Quotas
from ops_pipelines.quotas.lint import find_missing_accounts, lint_quotas
from ops_pipelines.quotas.today import Capacity
from ops_pipelines.resources.config.cluster_config import AccountingKind, ClusterConfig, SchedulerKind, installed_gpus
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.settings import LimitsOn

_SHOWN_NAME_COUNT = 4


def find_team_cautions(
    config: ClusterConfig, agreements: Agreements | None, *, now: datetime | None = None
) -> tuple[str, ...]:
    """Return what should be meant in teams.yaml and in what cluster.yaml says of teams, in words for the operator."""
    if agreements is None:
        unused = [f"quotas.qos_of names {each}" for each in sorted(config.limits.qos_of)]
        return tuple(f"{each}, and cluster.yaml names no `teams`: no limit is set" for each in unused)
    at = now or SystemClock().now()
    zone = ZoneInfo(agreements.timezone)
    gpus = installed_gpus(config, now=at, zone=zone)
    found = lint_quotas(
        agreements,
        day=at.astimezone(zone).date(),
        capacity={gpu_type: Capacity(installed=count, healthy=count) for gpu_type, count in gpus.items()},
    )
    return (
        *(f"teams.yaml: no quotas can be made: {each.text}" for each in found.errors),
        *(f"teams.yaml: {each.text}" for each in found.warnings),
        *_of_settings(config, agreements),
    )


def ask_limits(config: ClusterConfig, agreements: Agreements | None, *, clock: Clock) -> Callable[[], str] | None:
    """Return what asks the scheduler for the limits of teams; None where nothing was agreed, or it keeps none."""
    if agreements is None:
        return None
    from ops_pipelines.wiring import open_quotas

    quotas = open_quotas(config, clock=clock)
    return None if quotas is None else partial(_ask, quotas, agreements)


def _ask(quotas: Quotas, agreements: Agreements) -> str:
    in_force = quotas.read()
    said = f"answers: {len(in_force.accounts)} accounts"
    missing = find_missing_accounts(agreements, known=in_force.accounts)
    if missing:
        said += f"; {len(missing)} of teams.yaml not known to it: add them, or correct the names ({_some(missing)})"
    if in_force.unheeded:
        unheeded = sorted(in_force.unheeded)
        said += f"; of {len(unheeded)} it follows other limits than are kept ({_some(unheeded)})"
    if in_force.rejected:
        said += f"; {len(in_force.rejected)} could not be believed ({in_force.rejected[0].reason[:80]})"
    return said


def _of_settings(config: ClusterConfig, agreements: Agreements) -> Iterator[str]:
    for team in sorted(config.limits.qos_of):
        if team not in agreements.parents:
            yield f"quotas.qos_of names {team}, which is no team of teams.yaml; declare it there, or leave it out"
    if config.scheduler.kind is SchedulerKind.SLURM and config.accounting is AccountingKind.NONE:
        yield "accounting is none, and Slurm keeps limits there: quotas are proposed, and cannot be applied"
    if config.limits.limits_on is LimitsOn.PER_TYPE and not any(each.gpu_type for each in config.bought.values()):
        yield "quotas.limits is per_type, and no rack says its gpu_type; say it, or set limits: total"
    if agreements.monthly_budget_cents and config.prices is None:
        yield "teams.yaml states budgets, and cluster.yaml no `prices`: nothing is charged; state them"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(each[:80] for each in names[:_SHOWN_NAME_COUNT])
    return f"{shown} ..." if len(names) > _SHOWN_NAME_COUNT else shown
