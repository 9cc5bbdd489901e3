"""All pages about teams, for the web process: one desk, and what each page remembers of it."""

from collections.abc import Callable
from pathlib import Path

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.lake import LakeError
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.pages.index import Tile
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.terminal.advice_pages import advice_page, advice_tile
from ops_pipelines.terminal.capacity_pages import CapacityPages
from ops_pipelines.terminal.cost_pages import CostPages, cost_file, cost_tile
from ops_pipelines.terminal.placement_pages import PlacementPages
from ops_pipelines.terminal.quota_pages import quota_tile, quotas_page
from ops_pipelines.terminal.teams_at_hand import TeamsAtHand


class TeamPages:
    """The pages of one cluster's teams. Every method but `tiles` raises NotThere for what is not there."""

    def __init__(self, open_cluster: Callable[[], Cluster], cluster_file: Path | None) -> None:
        self._open_cluster = open_cluster
        self._at_hand = TeamsAtHand(open_cluster, cluster_file)
        self._costs = CostPages()
        self._placement = PlacementPages()
        self._capacity = CapacityPages()

    def quotas(self, proposal: str | None) -> str:
        """Return the page of a proposal, the newest unless one is named."""
        return quotas_page(proposal, self._open_cluster(), self._desk_or_none())

    def costs(self, month: str | None) -> str:
        """Return the page of a month, the running one unless one is named."""
        return self._costs.page(month, self._at_hand.whole_desk())

    def cost_file(self, name: str) -> bytes:
        """Return a statement as it was written."""
        return cost_file(name, self._at_hand.whole_desk())

    def advice(self, week: str | None) -> str:
        """Return the page of a week, the newest with advice unless one is named."""
        return advice_page(week, self._at_hand.whole_desk())

    def placement(self, day: str | None) -> str:
        """Return the page of a day, yesterday unless one is named."""
        return self._placement.page(day, self._at_hand.whole_desk())

    def capacity(self, quarter: str | None) -> str:
        """Return the page of a quarter's report, the newest unless one is named."""
        return self._capacity.page(quarter, self._at_hand.whole_desk())

    def capacity_document(self, quarter: str | None) -> bytes:
        """Return the same report as JSON."""
        return self._capacity.document(quarter, self._at_hand.whole_desk())

    def tiles(self) -> tuple[Tile, ...]:
        """Return the headline numbers; a page that has none at this moment has a dash. Raises LedgerError."""
        cluster = self._open_cluster()
        desk = self._desk_or_none()
        if desk is None:
            return (quota_tile(cluster, None),)
        return (
            quota_tile(cluster, desk),
            _told(cost_tile, desk, path="chargeback", title="Costs"),
            _told(advice_tile, desk, path="advice", title="Advice"),
            self._placement.tile(desk),
            _told(self._capacity.tile, desk, path="capacity", title="Capacity"),
        )

    def _desk_or_none(self) -> TeamsDesk | None:
        """Return the desk; None where it cannot be had: who opens a page that needs it reads what is wrong."""
        try:
            return self._at_hand.desk()
        except PolicyError:
            return None


def _told(tile: Callable[[TeamsDesk], Tile], desk: TeamsDesk, *, path: str, title: str) -> Tile:
    try:
        return tile(desk)
    except (LakeError, StatementFilesError):
        return Tile(path=path, title=title, value="-", about="cannot be read now; its page says why")
