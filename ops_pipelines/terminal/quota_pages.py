"""The page of quotas for the web process: gathers what `pages.quotas` shows from the ledger; changes nothing.

The scheduler is not asked: a page must not wait for it. What is in force is as the ledger knows it.
"""

from collections.abc import Sequence

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.lake import LakeError
from ops_pipelines.core.proposal import ProposalId, ProposalRecord, ProposalState
from ops_pipelines.pages.index import Tile
from ops_pipelines.quotas.propose import Used, used_in
from ops_pipelines.quotas.report import matter_of, moved_gpus, next_step, quota_document
from ops_pipelines.report.html import page_of
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.terminal.teams_at_hand import NotThere

_RECORDS = 40
"""Some days have several: so many reach two weeks back."""


def quotas_page(asked: str | None, cluster: Cluster, desk: TeamsDesk | None) -> str:
    """Return the page of one proposal; None: of the newest. Raises NotThere, LedgerError."""
    records = cluster.ledger.proposals(limit=_RECORDS)
    record = _chosen(asked, cluster, records)
    return page_of(quota_document(matter_of(record, records, cluster, desk, used=_used(record, desk))))


def quota_tile(cluster: Cluster, desk: TeamsDesk | None) -> Tile:
    """Return the newest proposal in a number. Raises LedgerError."""
    records = cluster.ledger.proposals(limit=1)
    if not records:
        return Tile(path="quotas", title="Quotas", value="-", about="nothing was proposed yet")
    record = records[0]
    given, _ = moved_gpus(record.proposal)
    said = next_step(matter_of(record, records, cluster, desk, used={}))
    return Tile(
        path="quotas",
        title="Quotas",
        value=f"{given:g}",
        about=f"GPUs move on {record.proposal.day}; {record.state.value.replace('_', ' ')}. {said}",
    )


def _chosen(asked: str | None, cluster: Cluster, records: Sequence[ProposalRecord]) -> ProposalRecord | None:
    if asked is None:
        current = [each for each in records if each.state is not ProposalState.SUPERSEDED]
        return next(iter(current or records), None)
    # PostgreSQL takes no zero byte, and no name of ours has one.
    found = cluster.ledger.proposal(ProposalId(asked)) if asked.isprintable() else None
    if found is None:
        raise NotThere(f"there is no proposal {asked[:80]}; `ops-pipelines quota history` lists them")
    return found


def _used(record: ProposalRecord | None, desk: TeamsDesk | None) -> Used:
    """Return what teams used on the day before a proposal; nothing where the lake does not say."""
    if record is None or desk is None:
        return {}
    try:
        return used_in(desk, day=record.proposal.day)
    except LakeError:  # The quotas are shown all the same, and what was used as not known.
        return {}
