"""The right to act: held by one process at a time, compared inside the budget transaction.

The code server holds it and gives its token to the runs it starts; a job launched where no code server runs takes
the lease for itself. The gap that remains: a process suspended between its before-entry and its command.
"""

from datetime import datetime, timedelta

from ops_pipelines.ports.ledger import Ledger

TTL = timedelta(seconds=15)
"""Three missed sensor turns of 5 s; every command's own limit is below a third of it."""


class Lease:
    """A token to act with. `given` is the token of a run request; without one the current lease is used, or taken."""

    def __init__(self, *, holder: str, given: str | None) -> None:
        self._holder = holder
        self._given = given

    def token(self, ledger: Ledger, now: datetime) -> str | None:
        """Return the token to show; an outdated one is shown as it is, and refused."""
        if self._given is not None:
            return self._given
        return ledger.current_lease(now) or ledger.take_lease(holder=self._holder, ttl=TTL, now=now)
