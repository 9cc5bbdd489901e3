"""The contract of past work on rows in memory, which stand for the lake in tests of the gate."""

import pytest

from ops_pipelines.core.sources import PastWork
from tests.ports.kept_work import KeptWork
from tests.ports.past_work_contract import ALLOCATIONS, STEPS, PastWorkContract


class TestKeptWork(PastWorkContract):
    @pytest.fixture
    def past(self) -> PastWork:
        return KeptWork(ALLOCATIONS, STEPS)
