"""The act between us and Alertmanager, with all of it real: an alert fires, its node breaks, is silenced, and healed.

Also what must hold at the end of every drill: no silence of ours outlives its node's absence, none of anybody else's
was touched, and every message arrived.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus

from ops_pipelines.core.action import Verb
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import NOT_SENT, Audience, KeptNote, NoteState
from ops_pipelines.core.observation import ALERT_SOURCE, Observation
from ops_pipelines_lab.drills.lab_act import HealedAct, is_done
from ops_pipelines_lab.drills.lab_alertmanager import AlertmanagerView, SeenSilence, post_webhook
from ops_pipelines_lab.drills.lab_stage import Demand, LabView
from ops_pipelines_lab.drills.lab_surroundings import ALARM, CLUSTER_NAME

OURS = f"ops-pipelines/{CLUSTER_NAME}"
"""What a silence of ours says of who made it."""
_FORGED = "NodeRAIDDiskFailure"
"""An alert that would call for a person, if anybody believed it."""
_TOLD_COUNT = 2
_PAGE_COUNT = 1_000
_NOTES_COUNT = 2_000


class AlertedNode(HealedAct):
    """An alert of a node fires before its GPU falls off, is silenced while we work there, and ends afterwards."""

    fault = "an alert fires, and its node breaks"

    def __init__(self, view: LabView, name: str) -> None:
        super().__init__(view, name)
        self._foreign_silence = ""
        self._forged_answers: tuple[int, ...] = ()
        self._told_before_count = 0
        self._is_broken = False
        self._was_condition = False
        self._silenced_by: tuple[str, ...] = ()
        self._is_heard_again = False

    @property
    def kept_silences(self) -> tuple[str, ...]:
        """The silences that the drill made in an operator's part, by id."""
        return (self._foreign_silence,) if self._foreign_silence else ()

    def _break(self) -> str:
        now = self.view.stage.cluster.clock.now()
        # For a node of ours that is in service: anyone who looks only at the node would end it.
        others = sorted(set(self.view.stage.slurm.node_names) - set(self.before.nodes))
        self._foreign_silence = self._alertmanager.silence_as_operator(others[-1], now=now)
        self._forged_answers = self._forge(now)
        self.view.stage.around.site.raise_alarm(self.node)
        return f"{ALARM} fires for {self.node}, then Xid 79 there; a forged {_FORGED}, and an operator's silence"

    def _go_on(self) -> None:
        if not self._is_broken:
            self._was_condition = bool(self._conditions())
            self._told_before_count = self._told_count()
            if self._was_condition and self._told_before_count >= _TOLD_COUNT:
                self._is_broken = True
                self._drop_gpu()
                self.view.say(f"{self.name}: the alert was sent {self._told_before_count} times; now its GPU falls off")
            return
        if self._is_heard_again:
            return
        alerts = self._alertmanager.alerts_of(self.node)
        if not self._silenced_by:
            self._silenced_by = next((each.silenced_by for each in alerts if each.state == "suppressed"), ())
            if self._silenced_by:
                self.view.say(f"{self.name}: the alert is silenced")
            elif super()._is_over():
                self._end_alarm("it was never silenced")  # `demands` says so.
        elif any(each.state == "active" for each in alerts):
            self._end_alarm("the silence is over")

    def _end_alarm(self, why: str) -> None:
        self._is_heard_again = True
        self.view.stage.around.site.end_alarm(self.node)
        self.view.say(f"{self.name}: {why}, and the alert ends")

    def _is_over(self) -> bool:
        if not super()._is_over():
            return False
        is_left_to_people = any(each.state is IncidentState.ESCALATED for each in self._incidents(self.node))
        is_told = is_left_to_people or self._is_told_over(self._incident_name())
        return is_told and self._is_heard_again and not self._conditions()

    def how_it_stands(self) -> str:
        return (
            f"{super().how_it_stands()}; the alert was sent {self._told_count()} times, condition: "
            f"{bool(self._conditions())}, silenced: {bool(self._silenced_by)}, heard again: {self._is_heard_again}"
        )

    def demands(self) -> Iterator[Demand]:
        yield from super().demands()
        refused = (int(HTTPStatus.FORBIDDEN),) * len(self._forged_answers)
        yield Demand(
            is_so=bool(refused) and self._forged_answers == refused,
            otherwise=f"forged alerts were answered with {self._forged_answers}, not 403",
        )
        evidence = [each for each in self._evidence() if each.source == ALERT_SOURCE]
        known = [each.signature for each in evidence if each.node == self.node]
        yield Demand(
            is_so=known == [ALARM],
            otherwise=f"the alert was sent {self._told_before_count} times, and is {known} in the evidence, not one",
        )
        yield Demand(
            is_so=all(each.signature != _FORGED for each in evidence), otherwise=f"a forged {_FORGED} was believed"
        )
        yield from self._silence_demands()
        yield from self._message_demands()

    def _silence_demands(self) -> Iterator[Demand]:
        silences = [each for each in self._alertmanager.silences() if each.silence_id in self._silenced_by]
        incident = self._incident_name()
        yield Demand(
            is_so=[each.created_by for each in silences] == [OURS] and incident in silences[0].comment.split(),
            otherwise=f"the alert was silenced by {[(each.created_by, each.comment) for each in silences]}, "
            f"not once by {OURS} for {incident}",
        )
        returned_at = self._ended_at(Verb.RESUME)
        drained_at = self._ended_at(Verb.DRAIN)
        for each in silences:
            self.did += f"; silenced for {(each.ends_at - each.starts_at).total_seconds():.0f} s"
            yield Demand(
                is_so=drained_at is not None
                and returned_at is not None
                and drained_at <= each.starts_at <= returned_at,
                otherwise=f"silenced at {each.starts_at}, drained at {drained_at}, returned at {returned_at}",
            )
            yield Demand(
                is_so=returned_at is not None and returned_at <= each.ends_at,
                otherwise=f"the silence ended at {each.ends_at}, before the node was returned at {returned_at}",
            )
            people = self.view.stage.around.site.told_people()
            begun = [each for each in people if _tells(each, self.node)]
            yield Demand(is_so=bool(begun), otherwise="Alertmanager sent people nothing: our route swallowed the alert")

    def _message_demands(self) -> Iterator[Demand]:
        """Demand that owner and on-call heard of it, and in one thread: that of the incident."""
        incident = self._incident_name()
        received = self.view.stage.around.site.received()
        thread = [each for each in received if each.get("thread") == incident]
        heard = {each.get("audience") for each in thread}
        yield Demand(
            is_so=Audience.OWNER.value in heard, otherwise=f"of {incident} only {sorted(map(str, heard))} heard"
        )
        # Alike ones that came due together are one message, whose thread is its own.
        strays = [
            each
            for each in received
            if incident in f"{each.get('title')} {each.get('message')}".split()
            and each.get("thread") != incident
            and not str(each.get("thread")).startswith("MSG-")
        ]
        yield Demand(is_so=not strays, otherwise=f"{len(strays)} messages of {incident} stand in another thread")

    # -- looking --

    @property
    def _alertmanager(self) -> AlertmanagerView:
        url = self.view.stage.around.alertmanager_url
        assert url is not None  # without it the act is left out
        return AlertmanagerView(url=url)

    def _conditions(self) -> tuple[Observation, ...]:
        try:
            found = self.view.stage.cluster.ledger.conditions()
        except LedgerError:
            return ()
        return tuple(each for each in found if each.source == ALERT_SOURCE and each.node == self.node)

    def _evidence(self) -> Iterator[Observation]:
        ledger, after = self.view.stage.cluster.ledger, 0
        while page := ledger.evidence_after(after, limit=_PAGE_COUNT):
            yield from (each.observation for each in page)
            after = page[-1].seq

    def _told_count(self) -> int:
        """Return how often Alertmanager notified people of it: as often it notified us, by the same settings."""
        return sum(_tells(each, self.node) for each in self.view.stage.around.site.told_people())

    def _incident_name(self) -> str:
        return next((each.incident for each in self._incidents(self.node) if each.plan_count > 0), "no incident")

    def _ended_at(self, verb: Verb) -> datetime | None:
        done = [each for each in self.view.records_of(self.node) if each.action.verb is verb and is_done(each)]
        return done[0].outcome.finished_at if done and done[0].outcome is not None else None

    def _is_told_over(self, incident: str) -> bool:
        """Return whether the on-call heard of the end; the owner's own thread ends earlier."""
        received = self.view.stage.around.site.received()
        closed = [each.get("closes") for each in received if each.get("audience") == Audience.ON_CALL.value]
        return any(isinstance(each, list) and incident in each for each in closed)

    def _forge(self, now: datetime) -> tuple[int, ...]:
        """Hand in an alert without a token, with a wrong one, and with a signature; return the answers."""
        alert = {
            "status": "firing",
            "fingerprint": "feedfacecafebeef",
            "startsAt": now.isoformat(),
            "labels": {"alertname": _FORGED, "node": self.node, "cluster": CLUSTER_NAME},
            "annotations": {},
        }
        body = {"version": "4", "alerts": [alert]}
        forged: tuple[dict[str, str], ...] = (
            {},
            {"Authorization": "Bearer guessed"},
            {"X-Signature-256": "sha256=" + 64 * "0"},
        )
        return tuple(post_webhook(self.view.stage.around.serve_url, body, headers=each) for each in forged)


def _tells(told: object, node: NodeName) -> bool:
    """Return whether a body of Alertmanager's webhook says that the alarm of this node fires."""
    alerts = told.get("alerts") if isinstance(told, dict) else None
    return isinstance(alerts, list) and any(
        each["status"] == "firing" and each["labels"].get("alertname") == ALARM and each["labels"].get("node") == node
        for each in alerts
    )


# -- at the end of every drill --


def find_silences(silences: Sequence[SeenSilence], *, kept: Collection[str]) -> Iterator[Demand]:
    """Demand that none of ours still silences anything, and that those of people (`kept`, ids) still do.

    At the end of a drill every node is in service or in a person's hands.
    """
    for each in silences:
        if each.created_by == OURS:
            yield Demand(
                is_so=not each.is_running, otherwise=f"{', '.join(each.matchers)} is still silenced: {each.comment}"
            )
    running = {each.silence_id for each in silences if each.is_running}
    for silence_id in kept:
        yield Demand(is_so=silence_id in running, otherwise=f"the silence {silence_id} of an operator was ended")


def find_unsent(notes: Sequence[KeptNote]) -> Iterator[Demand]:
    """Demand that messages were composed, and that each was taken by a channel, at once or when tried again."""
    sent = [each for each in notes if each.state is NoteState.SENT and not each.receipt.startswith(NOT_SENT)]
    yield Demand(is_so=bool(sent), otherwise="nobody was notified of anything")
    for each in notes:
        is_well = each.state is NoteState.SENT or (each.state is NoteState.WAITING and not each.problem)
        yield Demand(
            is_so=is_well,
            otherwise=f"{each.state.value}: {each.note.title!r} to {each.note.audience.value}: {each.problem}",
        )


def read_notes(view: LabView) -> tuple[KeptNote, ...]:
    """Return the newest notes of the outbox; none where it is not at hand."""
    outbox = view.stage.cluster.outbox
    return () if outbox is None else outbox.recent_notes(limit=_NOTES_COUNT)
