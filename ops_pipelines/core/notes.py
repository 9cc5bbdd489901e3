"""Messages: notes that wait in the outbox, the channels that take them, when they may go out, and shared words.

A *note* is one fact for one recipient. Notes become messages when they are delivered: alike ones together, one alone,
or many as a digest; a *batch* names the notes that went into one message. What is reported is decided in
`people.compose`.

Values and their arithmetic. cluster.yaml sets them under `notifier`; what is reported at all is not decided here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import Enum
from typing import Protocol

from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, NodeName, PlanId, Topology, parse_node_name
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.policy import PolicyError

# -- messages to people --


class Audience(Enum):
    OWNER = "owner"
    """The user whose job it is."""
    TEAM = "team"
    """The team whose jobs suffer."""
    ON_CALL = "on_call"
    """The operator who is paged."""


class Severity(Enum):
    """How much a message may disturb, by what the recipient loses or must do; never by how loud a log line was."""

    INFO = "info"
    """It is over, or nothing is lost: read it when you like."""
    NOTICE = "notice"
    """Something of yours was moved or will be; nothing to do."""
    WARNING = "warning"
    """Something is lost, or somebody is asked for an answer today."""
    CRITICAL = "critical"
    """Somebody must act now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An address of our own pages. Nothing else of a message is ever made clickable."""

    label: str
    url: str = field(repr=False)
    """http(s), without spaces. It may carry a right (an approval), so it is in no repr."""


PersonalLinks = Callable[[str], tuple[Link, ...]]
"""Given the name of a person with a channel of their own, returns the links that are for nobody else."""


def no_links(person: str) -> tuple[Link, ...]:
    """Return the links of a message that gives nobody a right of their own."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `thread` groups the messages of one incident.

    Title, subject and body are untrusted: they quote logs, jobs and users. An adapter shows them as text, in which
    nobody is mentioned and nothing is a link, a heading or a command.
    """

    audience: Audience
    recipient: str
    """The user name for OWNER, the account for TEAM, a role for ON_CALL. Untrusted: an adapter looks it up, never
    formats it into a URL."""
    thread: str
    title: str
    body: str
    severity: Severity = Severity.WARNING
    key: str = ""
    """Names the message: the same key is the same message, however often it is handed in. Empty: nobody asks."""
    subject: str = ""
    """The same for every message of a thread: what mail programs sort by. Empty: the title."""
    links: tuple[Link, ...] = ()
    personal_links: PersonalLinks = field(default=no_links, compare=False, repr=False)
    """Asked only for persons who have a channel to themselves: what is in a shared room is everybody's."""
    closes: tuple[str, ...] = ()
    """The threads that end with this message: a pager that rang for one of them is notified that it is over."""


class Notifier(Protocol):
    """Sends messages."""

    def send(self, message: Message) -> str:
        """Deliver and return the receipt in words; raise SourceUnavailable if no channel took the message."""
        ...


# -- the outbox --


BATCH_PREFIX = "MSG-"
"""Begins the name of every batch, which is the key of its message."""
NOT_SENT = "not sent: "
"""Begins the receipt of a note that was settled before it went out: nobody heard it."""


class Lane(Enum):
    """How a note travels."""

    AT_ONCE = "at_once"
    """As soon as alike ones had time to join it."""
    DIGEST = "digest"
    """With everything else for its recipient, at the time of the digest."""


class NoteState(Enum):
    """What became of a note."""

    WAITING = "waiting"
    SENT = "sent"
    UNDELIVERABLE = "undeliverable"
    """No channel took it within a day. It stays here, is listed, and counts in the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One fact for one recipient, in words. Quotes logs, jobs and users: untrusted text."""

    key: str
    """Names the fact and whom it is notified: the same key is kept once, so that nobody hears the same thing twice."""
    audience: Audience
    recipient: str
    thread: str
    """The incident, or the rollout."""
    subject: str
    """The same for every note of a thread and audience."""
    title: str
    body: str
    line: str
    """The fact in one line, for a digest."""
    severity: Severity
    lane: Lane
    likeness: str
    """Notes of one recipient and one likeness that wait together become one message."""
    made_at: datetime
    ready_at: datetime
    """Not delivered before."""
    lines_title: str = ""
    """The title of several alike ones, with `{count}` for how many; empty: that of the first."""
    lost_gpu_hours: float = 0.0
    """What its recipient lost, as far as it is known: a digest adds it up."""
    asks_for: PlanId | None = None
    """The plan that its recipient is asked to approve; None: nothing is asked."""
    is_last: bool = False
    """Whether it ends its thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNote:
    """A note with what became of it."""

    note: Note
    state: NoteState
    batch: str | None
    """The message that it went into, or goes into when it is tried again; None: not tried yet."""
    attempt_count: int
    next_at: datetime
    """When it may be tried; of a note under way, when anyone who tries it counts as dead."""
    sent_at: datetime | None
    receipt: str
    """Of the channels that took it; empty until then."""
    problem: str
    """Why the last attempt failed; empty if none did. Names no URL."""


class Outbox(Protocol):
    """Keeps notes. Every method is one transaction; all raise LedgerError."""

    def hand_in(self, notes: Collection[Note], *, source: str, after: str | None, cursor: str, now: datetime) -> int:
        """Keep the notes whose key is new and move the cursor of `source`; return how many were new.

        Notes and cursor move in the same transaction. Raises LedgerConflict, and keeps nothing, if the cursor no longer
        is at `after`: somebody else reported in between.
        """
        ...

    def notes_of(self, thread: str) -> tuple[KeptNote, ...]:
        """Return every note of one incident, oldest first."""
        ...

    def waiting_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        """Return the oldest notes that wait, in the order in which they were handed in."""
        ...

    def sent_times(self, since: datetime) -> Mapping[tuple[Audience, str], tuple[datetime, ...]]:
        """Return when messages went to each recipient since then, oldest first: one time a message, not a note."""
        ...

    def claim_notes(self, batch: str, keys: Collection[str], *, until: datetime, now: datetime) -> bool:
        """Begin an attempt to deliver these notes as one message; False if one of them is not due for it any more.

        All or none. Until then nobody else tries them; who dies meanwhile has them tried again under the same name.
        """
        ...

    def mark_delivered(self, batch: str, *, receipt: str, now: datetime) -> None:
        """Write that the message was taken."""
        ...

    def mark_undelivered(self, batch: str, *, problem: str, again_at: datetime | None, now: datetime) -> None:
        """Write that no channel took the message; `again_at` None gives it up for good."""
        ...

    def recent_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        """Return the newest notes, newest first, those that wait or failed before those that were sent."""
        ...

    def count_notes(self) -> Mapping[NoteState, int]:
        """Return how many notes there are in each state; 0 where there are none."""
        ...

    def forget_sent(self, before: datetime) -> int:
        """Delete what was sent before then and return how much; what waits or failed stays."""
        ...


# -- silences in Alertmanager for nodes that are out of service --


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSilence:
    """One node whose alerts are to be quiet, and the incident or rollout for which it is out of service."""

    node: NodeName
    incident: IncidentId

    def __post_init__(self) -> None:
        """Refuse what is no node: a silence without one would be a silence of everything."""
        parse_node_name(self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One running silence that we made."""

    silence_id: str
    node: NodeName | None
    """None where its matchers are not those that we write for any node: somebody changed it."""
    comment: str
    starts_at: datetime
    ends_at: datetime


class Silencer(Protocol):
    """Makes and ends silences. Every method raises SourceUnavailable or SourceNonsense.

    A silence matches the alerts of exactly one node of this cluster, whatever that node is called. Silences of people
    and of other clusters are neither shown nor touched.
    """

    def ours(self) -> tuple[Silence, ...]:
        """Return the running silences that this cluster's autopilot made."""
        ...

    def silence(self, wanted: WantedSilence, *, starts_at: datetime, ends_at: datetime) -> str:
        """Silence the alerts of a node until `ends_at`; return the silence's id."""
        ...

    def renew(self, silence: Silence, wanted: WantedSilence, *, ends_at: datetime) -> str:
        """Let a running silence last until `ends_at`, for that incident; return its id, which may be another one."""
        ...

    def expire(self, silence: Silence) -> None:
        """End a running silence now; one that has ended already is fine."""
        ...

    def standing_alerts(self) -> frozenset[str] | None:
        """Return the fingerprints of all alerts that fire now, silenced ones too.

        None while nobody can tell: Alertmanager forgets all alerts when it starts, and is reported again only later.
        """
        ...


# -- how quiet the autopilot is --


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRules:
    """When notes become messages. Pages of a plan are no notes: nothing here delays them."""

    group_window: timedelta = timedelta(seconds=20)
    """How long a note waits for alike ones. Assumption: a fault that hits several nodes shows on all within that."""
    burst_count: int = 6
    """So many messages a recipient gets at once; what is over becomes one digest when there is room again."""
    refill: timedelta = timedelta(minutes=10)
    """After this long there is room for one message more, up to the burst."""
    quiet_from: time | None = time(22, 0)
    """Local time at which the night of the on-call begins; None: there is none. What needs nobody waits until its
    end."""
    quiet_until: time = time(7, 0)
    digest_at: time = time(7, 0)
    """Local time of the daily digest."""
    zone: tzinfo = UTC
    give_up_after: timedelta = timedelta(days=1)
    """A message that no channel took for so long is kept as undeliverable."""
    kept_for: timedelta = timedelta(days=90)
    """How long what was sent stays listed."""

    def __post_init__(self) -> None:
        if self.burst_count < 1:
            raise PolicyError(f"notifier.burst_count is {self.burst_count}; with less than 1 nobody is ever notified")
        for name in ("refill", "give_up_after", "kept_for"):
            if getattr(self, name) <= timedelta(0):
                raise PolicyError(f"notifier.{name} must be above 0")
        if self.group_window < timedelta(0):
            raise PolicyError("notifier.group_seconds is negative; it must be 0 or more (0: nothing waits for company)")


def quiet_end(rules: TellRules, now: datetime) -> datetime | None:
    """Return when the night that it is now ends; None by day."""
    if rules.quiet_from is None or rules.quiet_from == rules.quiet_until:
        return None
    clock = now.astimezone(rules.zone).time()
    if rules.quiet_from < rules.quiet_until:
        is_night = rules.quiet_from <= clock < rules.quiet_until
    else:
        is_night = clock >= rules.quiet_from or clock < rules.quiet_until
    return next_time(rules.quiet_until, rules.zone, now) if is_night else None


def next_time(at: time, zone: tzinfo, now: datetime) -> datetime:
    """Return the first instant after `now` at which clocks in `zone` show `at`."""
    today = now.astimezone(zone).date()
    for day in (today, today + timedelta(days=1), today + timedelta(days=2)):
        moment = datetime.combine(day, at, tzinfo=zone).astimezone(UTC)
        if moment > now:
            return moment
    raise AssertionError("some day of three has that time ahead")


def room_for(sent: Sequence[datetime], rules: TellRules, now: datetime) -> int:
    """Return how many messages a recipient may get now: a bucket of `burst_count`, one more each `refill`.

    `sent` are the times of what they got, in any order; what is older than burst x refill no longer counts.
    """
    room = float(rules.burst_count)
    before = now - rules.burst_count * rules.refill
    for moment in sorted(each for each in sent if before < each <= now):
        room = min(float(rules.burst_count), room + (moment - before) / rules.refill) - 1.0
        before = moment
    return max(0, int(min(float(rules.burst_count), room + (now - before) / rules.refill) + 1e-9))


# -- the words that all notes share --


_SHOWN_COUNT = 8
_LONGEST_CAUSE = 160

ON_CALL = "operator on call"
"""The one recipient of that audience: who that is tonight, the channels know."""
REPAIR_WORDS = {
    Response.ISOLATE: "take the node out of service and test it",
    Response.RESET_GPU: "reset the GPU",
    Response.REBOOT_NODE: "reboot the node",
    Response.POWER_CYCLE: "fence the node by its power and start it again",
    Response.REIMAGE: "install the node again",
    Response.RETURN_TO_VENDOR: "hand the node over for repair by hands",
}


def places(incident: Incident, topology: Topology) -> str:
    """Return where an incident is: `gpu003 (rack r1)`, or the first of many nodes and how many more."""
    names = sorted(incident.nodes or incident.seen_on)
    if not names:
        return "no node"
    shown = [_place(name, topology) for name in names[:_SHOWN_COUNT]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def names_of(incident: Incident) -> str:
    """Return the same without racks, for a title."""
    names = sorted(incident.nodes or incident.seen_on)
    return "the cluster" if not names else f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _place(name: NodeName, topology: Topology) -> str:
    place = topology.places.get(name)
    return name if place is None else f"{name} (rack {place.rack})"


def sureness(incident: Incident) -> str:
    """Return how sure the diagnosis is, and the evidence against it."""
    if incident.hypothesis is None:
        return "not estimated"
    against = incident.hypothesis.evidence_against
    return f"{incident.hypothesis.confidence:.0%}" + (f"; against it: {against[0]}" if against else "")


def short_cause(incident: Incident) -> str:
    """Return what is wrong in one line of a digest."""
    cause = " ".join(incident.cause.split())
    return cause if len(cause) <= _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]}..."


def subject_of(incident: Incident) -> str:
    """Return the subject of the incident's thread: it never changes, so that mail programs keep the thread together."""
    return f"{incident.incident} since {clock_time(incident.opened_at)}"


def clock_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def minutes(duration: timedelta) -> str:
    """Return a duration as people say it: `40 s`, `6 min`, `3.5 h`."""
    seconds = max(0.0, duration.total_seconds())
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def body_of(parts: Iterable[tuple[str, str]]) -> str:
    """Return labelled sentences, one a line, without those that have nothing to say."""
    # On one line each: a line break in what a log stated would begin a line that looks like ours.
    return "\n".join(f"{label}: {' '.join(said.split())}" for label, said in parts if said)


def gpu_hours(hours: float) -> str:
    """Return GPU-hours with as many digits as mean something."""
    return f"{hours:.2f} GPU-hours" if hours < 10 else f"{hours:,.0f} GPU-hours"
