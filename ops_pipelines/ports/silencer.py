"""Silences in Alertmanager for nodes that are out of service: asked for, renewed and ended. Ours alone."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.identity import IncidentId, NodeName, parse_node_name


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

        None while nobody can tell: Alertmanager forgets all alerts when it starts, and is told again only later.
        """
        ...
