"""What every `Silencer` does. Subclass as `class TestX(SilencerContract)` and define the fixture `silencer`."""

from datetime import datetime, timedelta

import pytest

from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.notes import Silencer, WantedSilence

HOUR = timedelta(hours=1)


def wanted(node: str, number: int = 1) -> WantedSilence:
    return WantedSilence(node=NodeName(node), incident=IncidentId(f"INC-{number:04d}"))


class SilencerContract:
    @pytest.fixture
    def silencer(self) -> Silencer:
        raise NotImplementedError("a subclass of SilencerContract provides the fixture `silencer`")

    @pytest.fixture
    def now(self) -> datetime:
        raise NotImplementedError("a subclass of SilencerContract provides the fixture `now`")

    def test_silence_shows_its_node_its_incident_and_its_end(self, silencer: Silencer, now: datetime) -> None:
        made = silencer.silence(wanted("gpu-01.a_b"), starts_at=now, ends_at=now + HOUR)

        (shown,) = silencer.ours()
        assert (shown.silence_id, shown.node) == (made, "gpu-01.a_b")
        assert "INC-0001" in shown.comment.split()
        assert abs(shown.ends_at - now - HOUR) < timedelta(seconds=1)

    def test_renewed_silence_is_still_one_and_lasts_longer(self, silencer: Silencer, now: datetime) -> None:
        silencer.silence(wanted("gpu001"), starts_at=now, ends_at=now + HOUR)
        (before,) = silencer.ours()

        renewed = silencer.renew(before, wanted("gpu001", 2), ends_at=now + 2 * HOUR)

        (after,) = silencer.ours()
        assert after.silence_id == renewed
        assert after.ends_at - before.ends_at >= HOUR - timedelta(seconds=1)
        assert "INC-0002" in after.comment.split()

    def test_ended_silence_is_gone_and_ending_it_again_is_fine(self, silencer: Silencer, now: datetime) -> None:
        silencer.silence(wanted("gpu001"), starts_at=now, ends_at=now + HOUR)
        silencer.silence(wanted("gpu002"), starts_at=now, ends_at=now + HOUR)
        first = next(each for each in silencer.ours() if each.node == "gpu001")

        silencer.expire(first)
        silencer.expire(first)

        assert [each.node for each in silencer.ours()] == ["gpu002"]
