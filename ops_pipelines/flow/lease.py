"""The right to act: held by one process at a time, compared inside the budget transaction and before each command.

The code server holds it and gives its token to the runs it starts; a job launched where no code server runs takes
the lease for itself. Each other holder begins a new epoch, and the token is of one epoch: a process that was suspended
after its before-entry finds its token outdated and sends nothing. The gap that remains is between that look and the
start of the command itself.
"""

from datetime import datetime, timedelta

from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.ledger import Ledger

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

    def require(self, ledger: Ledger, now: datetime) -> None:
        """Raise LedgerConflict where the right to act is gone: to be asked right before what is sent beside acts."""
        token = self.token(ledger, now)
        if token is None or not is_current(token, ledger, now):
            raise LedgerConflict(
                "the right to act ran out or went to another process; nothing was sent, and whoever has it goes on"
            )


def is_current(token: str | None, ledger: Ledger, now: datetime) -> bool:
    """Return whether a token still gives the right to send; None is a person's word, which needs no lease."""
    return token is None or token == ledger.current_lease(now)
