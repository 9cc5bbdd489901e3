"""The accounting contract on the twin."""

from pathlib import Path

import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.sources import Accounting
from ops_pipelines_lab.simulator.accounting import SimulatedAccounting
from ops_pipelines_lab.simulator.journal import EntryKind
from tests.ports.accounting_contract import AccountingContract, AccountingWorld
from tests.simulator.simulated_world import SimulatedWorld


class AccountedWorld(SimulatedWorld):
    """The twin with its accounts."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._accounting = SimulatedAccounting(self.twin)

    @property
    def accounting(self) -> Accounting:
        return self._accounting

    def cancel(self, job: JobId) -> None:
        self.twin.command(EntryKind.CANCEL, job=job)


class TestSimulatedAccounting(AccountingContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> AccountingWorld:
        return AccountedWorld(tmp_path)
