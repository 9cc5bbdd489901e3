"""How far the ledger was seen, kept in Dagster's storage too: there it outlives the state directory with all in it.

What is compared, and what follows, is the ledger's (`Ledger.compare_seen`); asked before each tick and each run.
"""

from contextlib import suppress
from datetime import datetime, timedelta

import dagster as dg

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError

KEPT_EVERY = timedelta(seconds=30)
"""It may lag; the one in the state directory is newer."""
_kept_at: dict[str, datetime] = {}


def seen_key(cluster: Cluster) -> str:
    """Return the key under which Dagster keeps it."""
    return f"ops_pipelines/ledger_seen/{cluster.name}"


def keep_seen_beside(cluster: Cluster, instance: dg.DagsterInstance) -> None:
    """Compare with what Dagster keeps, and keep there what is newer, every now and then.

    A ledger that cannot be read says so elsewhere.
    """
    key, storage = seen_key(cluster), instance.daemon_cursor_storage
    kept = storage.get_cursor_values({key}).get(key)
    with suppress(LedgerError):
        seen = cluster.ledger.compare_seen(kept)
        now = cluster.clock.now()
        last = _kept_at.get(key)
        is_due = kept is None or last is None or abs(now - last) >= KEPT_EVERY
        if seen is not None and seen != kept and is_due:
            storage.set_cursor_values({key: seen})
            _kept_at[key] = now
