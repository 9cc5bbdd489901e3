"""Pages of rollouts for the web process: gathers what `rollouts.report` shows, and changes nothing.

What the gate sees may take weeks of the lake to read: it is asked once for all askers, and remembered for a while.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import RolloutId, cause_of
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.rollout import Rollout
from ops_pipelines.core.sources import SourceError
from ops_pipelines.report.html import page_of
from ops_pipelines.rollouts.cycle import calendar_of
from ops_pipelines.rollouts.gate.evidence import Verdict
from ops_pipelines.rollouts.gate_sources import judge_of
from ops_pipelines.rollouts.plan_report import MOST_RELEASES, MOST_ROLLOUTS, LyingRelease, rollouts_document
from ops_pipelines.rollouts.report import RolloutMatter, rollout_document
from ops_pipelines.terminal.edge import RECENT

_REMEMBERED = timedelta(seconds=20)
"""Passes look about as often; whoever reloads the page meanwhile gets what was seen before."""


class NoSuchRollout(LookupError):
    """What was asked for is not there. The message says what is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    rollout: Rollout
    at: datetime
    verdict: Verdict | None


class RolloutPages:
    """Pages of one cluster's rollouts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._judged: dict[RolloutId, _Judged] = {}

    def listed(self, cluster: Cluster) -> str:
        """Return the page of all rollouts, and of the releases that lie ready. Raises LedgerError."""
        now = cluster.clock.now()
        rollouts = cluster.ledger.rollouts(final_since=now - RECENT)
        document = rollouts_document(
            cluster=cluster.name,
            rollouts=rollouts,
            nodes={each.rollout: cluster.ledger.rollout_nodes(each.rollout) for each in rollouts[-MOST_ROLLOUTS:]},
            releases=_releases(cluster),
            policy=cluster.rules.policy,
            now=now,
        )
        return page_of(document)

    def page(self, name: str, cluster: Cluster) -> str:
        """Return the page of one rollout. Raises NoSuchRollout, LedgerError."""
        # PostgreSQL takes no zero byte, and no name of ours has one.
        rollout = cluster.ledger.rollout(RolloutId(name)) if name.isprintable() else None
        if rollout is None:
            raise NoSuchRollout(f"there is no rollout {name[:80]}; `ops-pipelines rollout history` lists them")
        nodes = cluster.ledger.rollout_nodes(rollout.rollout)
        return page_of(
            rollout_document(
                RolloutMatter(
                    cluster=cluster.name,
                    rollout=rollout,
                    nodes=nodes,
                    release=cluster.ledger.release(rollout.release_digest),
                    plan=cluster.ledger.rollout_plan(rollout.plan),
                    calendar=_calendar(rollout, cluster),
                    racks={node: place.rack for node, place in cluster.rules.topology.places.items()},
                    records=cluster.ledger.records(cause_of(rollout.rollout)),
                    verdict=self._verdict(rollout, cluster),
                    now=cluster.clock.now(),
                )
            )
        )

    def _verdict(self, rollout: Rollout, cluster: Cluster) -> Verdict | None:
        """Return what the gate says of a rollout as it stands, seen a moment ago at most."""
        now = cluster.clock.now()
        with self._lock:
            known = self._judged.get(rollout.rollout)
            if known is not None and known.rollout == rollout and now - known.at < _REMEMBERED:
                return known.verdict
            verdict = judge_of(rollout, cluster)(rollout, cluster.ledger.rollout_nodes(rollout.rollout))
            self._judged = {name: each for name, each in self._judged.items() if now - each.at < _REMEMBERED}
            self._judged[rollout.rollout] = _Judged(rollout=rollout, at=now, verdict=verdict)
            return verdict


def _releases(cluster: Cluster) -> tuple[LyingRelease, ...]:
    """Return what lies in the directory of releases, readable or not."""
    files = cluster.rollout_files
    if files is None:
        return ()
    names = files.release_names()
    found = [_release(name, cluster) for name in names[:MOST_RELEASES]]
    return (*found, *(LyingRelease(name=name, release=None) for name in names[MOST_RELEASES:]))


def _release(name: str, cluster: Cluster) -> LyingRelease:
    assert cluster.rollout_files is not None, "it has just named this release"
    try:
        return LyingRelease(name=name, release=cluster.rollout_files.release(name))
    except PolicyError:  # Its words hold paths of ours; whoever may change the file gets them from the command line.
        return LyingRelease(name=name, release=None)


def _calendar(rollout: Rollout, cluster: Cluster) -> WorkCalendar | None:
    """Return the windows and freezes around a rollout; None where they cannot be read."""
    try:
        return calendar_of(cluster, now=rollout.created_at)[0]
    except (SourceError, PolicyError):
        return None
