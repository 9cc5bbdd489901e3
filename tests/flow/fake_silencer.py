"""An Alertmanager in memory, and one that does not answer."""

from dataclasses import replace
from datetime import datetime

from ops_pipelines.core.notes import Silence, WantedSilence
from ops_pipelines.core.sources import SourceUnavailable


class FakeSilencer:
    """Implements `core.notes.Silencer`."""

    def __init__(self) -> None:
        self.running: list[Silence] = []
        self.standing: frozenset[str] | None = frozenset()
        self.is_down = False
        self._made_count = 0

    def ours(self) -> tuple[Silence, ...]:
        self._answer()
        return tuple(self.running)

    def silence(self, wanted: WantedSilence, *, starts_at: datetime, ends_at: datetime) -> str:
        self._answer()
        self._made_count += 1
        self.running.append(
            Silence(
                silence_id=f"silence-{self._made_count}",
                node=wanted.node,
                comment=f"{wanted.incident} {wanted.node}",
                starts_at=starts_at,
                ends_at=ends_at,
            )
        )
        return self.running[-1].silence_id

    def renew(self, silence: Silence, wanted: WantedSilence, *, ends_at: datetime) -> str:
        self._answer()
        renewed = replace(silence, ends_at=ends_at, comment=f"{wanted.incident} {wanted.node}")
        self.running = [renewed if each.silence_id == silence.silence_id else each for each in self.running]
        return silence.silence_id

    def expire(self, silence: Silence) -> None:
        self._answer()
        self.running = [each for each in self.running if each.silence_id != silence.silence_id]

    def standing_alerts(self) -> frozenset[str] | None:
        self._answer()
        return self.standing

    def _answer(self) -> None:
        if self.is_down:
            raise SourceUnavailable("http://am.example/api/v2 did not answer within 10 s; check that it runs")
