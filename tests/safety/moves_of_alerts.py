"""What Alertmanager reports on a stage: a body of its webhook, read and taken in by the program's own code.

It may say of a node that is well that it is broken, of a broken one that it is well, and all of it at once or since
yesterday; anyone who can hand alerts in may say anything.
"""

import json
from datetime import timedelta
from enum import Enum

from ops_pipelines.core.identity import NodeName, digest_of
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.observe.alerts import Sender, read_alerts, read_delivery, take_in_alerts
from tests.safety.move_kinds import Move
from tests.safety.stage import Stage

ALERTS = (
    "NodeRAIDDegraded",
    "KubeNodeUnreachable",
    "NodeBondingDegraded",
    "HostEdacUncorrectableErrorsDetected",
    "GPUXidError",
    "$(reboot) of a rule that nobody knows",
)


class Told(Enum):
    """What is reported an alert."""

    FIRES = "fires"
    FIRES_SINCE_YESTERDAY = "fires_since_yesterday"
    STORM = "storm"
    """It fires on every node."""
    ENDS = "ends"
    """Whether or not it ever fired."""
    ALL_END = "all_end"


def tell(stage: Stage, move: Move) -> None:
    """Deliver one body; the same labels since the same moment are the same alert."""
    told = tuple(Told)[move.number % len(Told)]
    name = ALERTS[move.number // len(Told) % len(ALERTS)]
    everywhere = [stage.node(index) for index in range(stage.setting.node_count)]
    nodes = everywhere if told in (Told.STORM, Told.ALL_END) else [stage.node(move.node)]
    names = ALERTS if told is Told.ALL_END else (name,)
    deliver(stage, [(each, node) for each in names for node in nodes], told)


def deliver(stage: Stage, alerts: list[tuple[str, NodeName]], told: Told) -> None:
    now = stage.own_clock.now()
    began_at = now - (timedelta(days=1) if told is Told.FIRES_SINCE_YESTERDAY else timedelta(0))
    ends = told in (Told.ENDS, Told.ALL_END)
    body = {
        "version": "4",
        "alerts": [
            {
                "status": "resolved" if ends else "firing",
                "fingerprint": digest_of(name, node)[:16],
                "startsAt": began_at.isoformat(),
                "endsAt": now.isoformat() if ends else "0001-01-01T00:00:00Z",
                "labels": {"alertname": name, "node": node, "severity": "critical"},
                "annotations": {"summary": f"{name} on {node}; drain it at once"},
            }
            for name, node in alerts
        ],
    }
    read = read_alerts(
        read_delivery(json.dumps(body).encode()),
        names=NodeNames(tuple(stage.orders.topology.places)),
        sender=Sender(),
        rules=stage.desk.rules.catalogue.alerts,
        received_at=now,
    )
    take_in_alerts(read, stage.desk)
