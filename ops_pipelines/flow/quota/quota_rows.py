"""The lines of a proposal as rows of the lake's table `gpu_quotas`: one a team and type, at the day's beginning.

The ledger says what was proposed and what became of it; the lake repeats it beside demand, for SQL and pictures.
"""

from collections.abc import Mapping
from datetime import date, datetime

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.lake import Rows
from ops_pipelines.core.proposal import GpuType, ProposalState, QuotaProposal, TeamName
from ops_pipelines.teams.desk import TeamsDesk

TABLE = "gpu_quotas"
Used = Mapping[tuple[TeamName, GpuType], float]
"""GPUs that each team ran on average on the last full day."""


def store_lines(desk: TeamsDesk, proposal: QuotaProposal, *, state: ProposalState, used: Used) -> int:
    """Make these lines all that the lake says of the proposal's day; return how many there are. Raises LakeError."""
    from ops_pipelines.lake.schema import TABLES

    at = begin_of(proposal.day, desk)
    rows: Rows = TABLES[TABLE].from_rows(
        {
            "team": line.team,
            "gpu_type": line.gpu_type,
            "time": at,
            "proposal": proposal.proposal,
            "state": state.value,
            "limit_gpus": line.limit,
            "before_gpus": line.before,
            "after_gpus": line.after,
            "guarantee_gpus": line.guarantee,
            "ran_last_gpus": line.ran_last,
            "used_mean_gpus": used.get((line.team, line.gpu_type)),
            "wanted_mean_gpus": line.wanted_mean,
            "debt_gpus": line.debt,
            "reason": line.reason,
            "counterfactual": line.counterfactual,
        }
        for line in proposal.lines
    )
    desk.lake.replace_hour(TABLE, hour_of(at), rows)
    return rows.num_rows


def used_in(desk: TeamsDesk, *, day: date) -> Used:
    """Return what the lake says that each team used, in the lines of a day; nothing where the day has none."""
    from ops_pipelines.frames.demand.served import used_gpus

    return used_gpus(desk.lake.read_hour(TABLE, hour_of(begin_of(day, desk))))


def begin_of(day: date, desk: TeamsDesk) -> datetime:
    """Return when a local day begins, in UTC."""
    from ops_pipelines.lake.rates import day_begins

    return day_begins(day, zone=desk.zone)
