"""Takes alerts in: what fires is a condition until it is resolved, told gone by Alertmanager, or not told for a day.

A webhook tells changes, so what fires is remembered in the ledger and changes are applied. Decoding is
`frames.formats.alertmanager`; who may hand alerts in is decided before anything arrives here.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.observation import ALERT_SOURCE, Observation, Rejected
from ops_pipelines.frames.formats.alertmanager import AlertsRead

UNTOLD_FOR = timedelta(days=1)
"""Alertmanager tells again what still fires (`repeat_interval`, 4 h unless set): what it has not told for so long is
forgotten. It does not tell the end of what was silenced when it ended (prometheus/alertmanager issue 226)."""
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
    """End the alerts that were not told again for `UNTOLD_FOR`; return them."""
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

    It tells no end of an alert that is silenced when it ends, and our own silences are such.
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
    """Return when each remembered alert was last told; minutes are exact enough for a day."""
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
