"""Takes alerts of Alertmanager in: what fires is a condition until it is resolved or reported gone.

Here: what of a body can be believed, and which node an alert means. Not here: who may send (`resources.web_access`),
what becomes of it in the ledger (`observe.alerts`), what an alert means (catalogue/alerts.csv, `observe`).

A webhook reports changes, so what fires is remembered in the ledger and changes are applied. Decoding is
`observe.alerts`; who may hand alerts in is decided before anything arrives here.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import AlertRule
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import ALERT_SOURCE, NO_NODE, Observation, Rejected, Signal
from ops_pipelines.lake.node_names import HOST_LABELS, TARGET_LABELS, NodeNames
from ops_pipelines.lake.quantities import readable

# -- what Alertmanager's webhook sends (version 4) --


MOST_ALERTS = 2_000
"""Of one body; as many as a cluster has nodes. What is beyond is reported as one rejected row."""
_MOST_NAME_LENGTH = 128
_MOST_TEXT_LENGTH = 400
_MOST_AHEAD = timedelta(minutes=5)
"""As for log lines: a date further ahead than clocks differ is replaced by the time of arrival."""
_FINGERPRINT = re.compile(r"[0-9a-f]{1,32}")
_MOST_LEVELS = 16
"""Alertmanager needs four."""
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_WORDS = ("summary", "description", "message")
"""Annotations that say what is wrong, best first; the conventions of the mixins."""


class NotAWebhook(ValueError):
    """The body as a whole cannot be read. The message says what was expected and what was found."""


class AlertState(Enum):
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert as it was sent. Labels and annotations are anybody's text."""

    state: AlertState
    fingerprint: str
    """Names the set of its labels."""
    starts_at: datetime
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def position(self) -> str:
        """Where it is among all alerts: the same labels since the same moment are the same alert."""
        return f"{self.fingerprint}/{self.starts_at.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one body held."""

    alerts: tuple[Alert, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How alerts of this cluster are reported from others, and where they name the node."""

    node_label: str = "node"
    labels: Mapping[str, str] | None = None
    """What every alert of this cluster carries; None: anyone who sends watches this cluster only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsRead:
    """What a delivery means: each alert is in exactly one of these, or was left alone."""

    firing: tuple[Observation, ...]
    resolved: tuple[Observation, ...]
    rejected: tuple[Rejected, ...]
    ignored_count: int
    """Alerts that say nothing of the cluster: watchdogs, our own."""


def read_delivery(body: bytes) -> Delivery:
    """Return the alerts of one body, and those that cannot be believed; raise NotAWebhook if it is none."""
    sent = _decode(body)
    if not isinstance(sent, dict):
        raise NotAWebhook(f"expected a JSON object, found {_kind(sent)}")
    if sent.get("version") != "4":
        raise NotAWebhook(f'expected "version": "4", found {str(sent.get("version"))[:20]!r}; send Alertmanager\'s own')
    items = sent.get("alerts")
    if not isinstance(items, list):
        raise NotAWebhook(f'expected a list under "alerts", found {_kind(items)}')
    alerts: list[Alert] = []
    rejected: list[Rejected] = []
    for index, item in enumerate(items[:MOST_ALERTS]):
        try:
            alerts.append(_read_alert(item))
        except ValueError as problem:
            rejected.append(_rejected(f"alert {index + 1}", str(problem), item))
    left_out = max(0, len(items) - MOST_ALERTS) + _truncated_count(sent)
    if left_out:
        what = f"{left_out} more alerts of one body were left out; expected at most {MOST_ALERTS}"
        rejected.append(Rejected(source=ALERT_SOURCE, position="more", reason=what, text=""))
    return Delivery(alerts=tuple(alerts), rejected=tuple(rejected))


def read_alerts(
    delivery: Delivery, *, names: NodeNames, sender: Sender, rules: Mapping[str, AlertRule], received_at: datetime
) -> AlertsRead:
    """Return what began and what ended, with the reason for whatever could not be believed.

    An alert that names a machine which cluster.yaml does not list is rejected: it may be of another cluster, or of a
    server that nobody here drains. One that names none is kept as evidence of the cluster as a whole.
    """
    firing: dict[str, Observation] = {}
    resolved: dict[str, Observation] = {}
    rejected = list(delivery.rejected)
    ignored_count = 0
    for alert in delivery.alerts:
        name = readable(alert.labels["alertname"])
        rule = rules.get(name)
        if rule is not None and not rule.is_evidence:
            ignored_count += 1
            continue
        try:
            _check_cluster(alert, sender)
            node = _node_of(alert, names, sender)
        except ValueError as problem:
            rejected.append(_rejected(alert.position, str(problem), {"labels": dict(alert.labels)}))
            continue
        told = _observe(alert, name, node, received_at=received_at)
        # Of the same alert twice in one body its end counts: it is the later word.
        (firing if alert.state is AlertState.FIRING else resolved)[alert.position] = told
    return AlertsRead(
        firing=tuple(told for position, told in firing.items() if position not in resolved),
        resolved=tuple(resolved.values()),
        rejected=tuple(rejected),
        ignored_count=ignored_count,
    )


def _decode(body: bytes) -> object:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise NotAWebhook(f"expected UTF-8, found byte 0x{body[problem.start]:02x} at {problem.start}") from problem
    _check_depth(text)
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant, parse_int=_read_int)
    except json.JSONDecodeError as problem:
        raise NotAWebhook(f"expected JSON: {problem.msg} at character {problem.pos}") from problem


def _check_depth(text: str) -> None:
    """Raise NotAWebhook before a parser goes down further than any webhook does."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        depth += _STEP.get(found[0], 0)
        if depth > _MOST_LEVELS:
            raise NotAWebhook(f"expected at most {_MOST_LEVELS} levels of JSON, found more")


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotAWebhook("expected each key once, found one twice in an object: nobody can say which of them counts")
    return found


def _refuse_constant(text: str) -> object:
    raise NotAWebhook(f"expected JSON, found {text}, which is none")


def _read_int(text: str) -> object:
    return int(text) if len(text) <= 20 else text


def _truncated_count(sent: Mapping[str, object]) -> int:
    found = sent.get("truncatedAlerts")
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _read_alert(item: object) -> Alert:
    if not isinstance(item, dict):
        raise ValueError(f"expected an object, found {_kind(item)}")
    labels = _texts(item.get("labels"), "labels")
    name = labels.get("alertname", "")
    if not 0 < len(name) <= _MOST_NAME_LENGTH:
        raise ValueError(f"expected a label alertname of 1 to {_MOST_NAME_LENGTH} characters, found {len(name)}")
    fingerprint = item.get("fingerprint")
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError("expected a fingerprint of 1 to 32 hexadecimal digits")
    try:
        state = AlertState(item.get("status"))
    except ValueError:
        raise ValueError("expected the status firing or resolved") from None
    return Alert(
        state=state,
        fingerprint=fingerprint,
        starts_at=_time(item.get("startsAt"), "startsAt"),
        labels=labels,
        annotations=_texts(item.get("annotations", {}), "annotations"),
    )


def _texts(found: object, what: str) -> Mapping[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"expected {what} to be an object of texts")
    return {str(key): str(value) for key, value in found.items()}


def _time(found: object, what: str) -> datetime:
    try:
        if not isinstance(found, str):
            raise ValueError
        at = datetime.fromisoformat(found)
        if at.utcoffset() is None or at.year < 2000:
            raise ValueError
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"expected {what} to be a time as in RFC 3339, with its zone, after the year 2000") from None


def _check_cluster(alert: Alert, sender: Sender) -> None:
    for label, value in (sender.labels or {}).items():
        found = alert.labels.get(label)
        if found != value:
            said = "no such label" if found is None else f"{readable(found)!r}"
            raise ValueError(f"expected {label}={value!r}, found {said}: the alert is of another cluster")


def _node_of(alert: Alert, names: NodeNames, sender: Sender) -> NodeName:
    """Return the node that the labels name, NO_NODE if none does; raise ValueError for one that is not ours.

    The label of cluster.yaml first, then those that say who is measured; who was scraped counts only where nothing
    else is known, since one exporter may speak of every node.
    """
    unknown = ""
    for group in ((sender.node_label,), HOST_LABELS, TARGET_LABELS):
        named = {label: alert.labels[label] for label in group if label in alert.labels}
        # `find` knows the usual labels only: any other is handed in as the node that was asked.
        found, is_unknown = names.find(named, node=named.get(sender.node_label))
        if found and is_unknown is not True:
            return NodeName(found)
        unknown = unknown or found
    if unknown:
        raise ValueError(f"cluster.yaml lists no node {readable(unknown)[:100]!r}; expected one of its racks")
    return NO_NODE


def _observe(alert: Alert, name: str, node: NodeName, *, received_at: datetime) -> Observation:
    words = next((alert.annotations[key] for key in _WORDS if alert.annotations.get(key)), "")
    text = f"alert {name}" + (f": {readable(words)}" if words else "")
    is_ahead = alert.starts_at - received_at > _MOST_AHEAD
    remark = f" [dated {alert.starts_at.isoformat()}, in the future; time of arrival taken]" if is_ahead else ""
    return Observation(
        signal=Signal.ALERT,
        node=node,
        observed_at=received_at if is_ahead else alert.starts_at,
        source=ALERT_SOURCE,
        position=alert.position,
        signature=name,
        text=text[:_MOST_TEXT_LENGTH] + remark,
    )


def _rejected(position: str, reason: str, item: object) -> Rejected:
    return Rejected(source=ALERT_SOURCE, position=position, reason=reason, text=readable(json.dumps(item)))


def _kind(found: object) -> str:
    return {type(None): "nothing", dict: "an object", list: "a list", str: "a text"}.get(type(found), "a value")


# -- takes alerts in --


UNTOLD_FOR = timedelta(days=1)
"""Alertmanager reports again what still fires (`repeat_interval`, 4 h unless set): what it has not reported for so long
is forgotten. It does not tell the end of what was silenced when it ended (prometheus/alertmanager issue 226)."""
MOST_REMEMBERED = 5_000
"""Alerts that fire at once and are remembered; every reading of the ledger's state goes through all of them."""
_TOO_MANY = f"more than {MOST_REMEMBERED} alerts fire at once; expected fewer. Send node alerts only (route.matchers)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsTaken:
    """What came of one delivery."""

    new_count: int
    """Alerts that were not evidence before."""
    ended_count: int
    rejected_count: int
    ignored_count: int


def take_in_alerts(read: AlertsRead, cluster: Cluster) -> AlertsTaken:
    """Make alerts evidence and conditions; the same delivery again changes nothing. Raises LedgerError.

    Of two alerts with the same labels the one that began later lasts; an older one that is delivered late is evidence
    of what has been.
    """
    now = cluster.clock.now()
    remembered = {_labels_of(each): each for each in fired(cluster)}
    told = _read_told(cluster)
    begun: dict[str, Observation] = {}
    ended: set[str] = set()
    rejected: list[Rejected] = list(read.rejected)
    for alert in sorted(read.firing, key=_began_at):
        known = remembered.get(_labels_of(alert))
        if known is not None and _began_at(known) > _began_at(alert):
            begun[alert.position] = alert
            ended.add(alert.position)
            continue
        if known is None and len(remembered) >= MOST_REMEMBERED:
            rejected.append(Rejected(source=ALERT_SOURCE, position=alert.position, reason=_TOO_MANY, text=alert.text))
            continue
        if known is not None and known.position != alert.position:
            ended.add(known.position)
        remembered[_labels_of(alert)] = begun[alert.position] = alert
        told[alert.position] = now
    for alert in read.resolved:
        known = remembered.get(_labels_of(alert))
        begun.setdefault(alert.position, alert)  # It may have come and gone while nobody listened.
        ended.add(alert.position)
        if known is not None and _began_at(known) <= _began_at(alert):
            ended.add(known.position)
            del remembered[_labels_of(alert)]
    new_count = cluster.ledger.change_conditions(
        source=ALERT_SOURCE, begun=tuple(begun.values()), ended=tuple(sorted(ended)), now=now
    )
    _keep_told(told, remembered.values(), cluster, rejected=rejected, now=now)
    return AlertsTaken(
        new_count=new_count,
        ended_count=len(ended),
        rejected_count=len(rejected),
        ignored_count=read.ignored_count,
    )


def reject_delivery(reason: str, text: str, cluster: Cluster) -> None:
    """Keep a body that could not be read, once for each reason and text."""
    refused = Rejected(source=ALERT_SOURCE, position="body", reason=reason, text=text)
    cluster.ledger.take_in(
        source=ALERT_SOURCE, observations=(), rejected=(refused,), cursor=None, now=cluster.clock.now()
    )


def forget_untold(cluster: Cluster) -> tuple[Observation, ...]:
    """End the alerts that were not reported again for `UNTOLD_FOR`; return them."""
    now = cluster.clock.now()
    present = fired(cluster)
    if not present:
        return ()
    told = _read_told(cluster)
    gone = tuple(each for each in present if now - told.get(each.position, now) >= UNTOLD_FOR)
    is_known = all(each.position in told for each in present)
    if gone or not is_known:
        _end(gone, present, cluster, told={each.position: now for each in present} | told, now=now)
    return gone


def end_what_is_gone(standing: Collection[str], cluster: Cluster) -> tuple[Observation, ...]:
    """End the alerts whose labels are not among `standing`, the fingerprints that Alertmanager shows; return them.

    It reports no end of an alert that is silenced when it ends, and our own silences are such.
    """
    now = cluster.clock.now()
    present = fired(cluster)
    gone = tuple(each for each in present if _labels_of(each) not in standing)
    if gone:
        _end(gone, present, cluster, told=_read_told(cluster), now=now)
    return gone


def fired(cluster: Cluster) -> tuple[Observation, ...]:
    """Return the alerts that are remembered as firing."""
    return tuple(each for each in cluster.ledger.conditions() if each.source == ALERT_SOURCE)


def _end(
    gone: Sequence[Observation],
    present: Sequence[Observation],
    cluster: Cluster,
    *,
    told: Mapping[str, datetime],
    now: datetime,
) -> None:
    positions = tuple(each.position for each in gone)
    cluster.ledger.change_conditions(source=ALERT_SOURCE, begun=(), ended=positions, now=now)
    ended = frozenset(positions)
    left = [each for each in present if each.position not in ended]
    _keep_told(told, left, cluster, rejected=(), now=now)


def _labels_of(alert: Observation) -> str:
    """Return the fingerprint of an alert's labels."""
    return alert.position.partition("/")[0]


def _began_at(alert: Observation) -> datetime:
    """Return when it began as Alertmanager says, also where the time of arrival was taken for it."""
    return datetime.fromisoformat(alert.position.partition("/")[2])


def _read_told(cluster: Cluster) -> dict[str, datetime]:
    """Return when each remembered alert was last reported; minutes are exact enough for a day."""
    kept = cluster.ledger.cursor(ALERT_SOURCE)
    if kept is None:
        return {}
    return {position: datetime.fromtimestamp(60 * minute, UTC) for position, minute in json.loads(kept).items()}


def _keep_told(
    told: Mapping[str, datetime],
    remembered: Collection[Observation],
    cluster: Cluster,
    *,
    rejected: Sequence[Rejected],
    now: datetime,
) -> None:
    minutes = {each.position: int(told.get(each.position, now).timestamp() // 60) for each in remembered}
    cluster.ledger.take_in(
        source=ALERT_SOURCE,
        observations=(),
        rejected=rejected,
        cursor=json.dumps(minutes, sort_keys=True),
        now=now,
    )
