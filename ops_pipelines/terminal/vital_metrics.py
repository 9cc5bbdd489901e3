"""The program's own health as Prometheus reads it: computed from the ledger at the moment of the scrape.

What the signs mean is `core.health`'s business; whom to page is said in deploy/prometheus.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.health import VitalSigns
from ops_pipelines.core.notes import NoteState
from ops_pipelines.core.policy import Mode, PolicyError
from ops_pipelines.remediate.plans.configuration import read_vital_signs


class VitalSignsCollector(Collector):
    """Computes every metric from the ledger at the moment of the scrape."""

    def __init__(self, open_cluster: Callable[[], Cluster]) -> None:
        self._open_cluster = open_cluster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return what the ledger says; where it cannot be read only that, so that no old number passes for a new."""
        try:
            cluster = self._open_cluster()
            signs = read_vital_signs(cluster)
            notes = {} if cluster.outbox is None else cluster.outbox.count_notes()
        except (LedgerError, PolicyError):
            yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 0)
            return
        yield _gauge("ledger_up", "Whether the ledger could be read for this scrape.", 1)
        yield from _of_the_processes(signs)
        yield from _of_the_work(signs)
        if notes:
            yield _of_the_outbox(notes)


def _of_the_outbox(notes: Mapping[NoteState, int]) -> GaugeMetricFamily:
    messages = _gauge("messages", "Notes of the outbox: waiting, sent within 90 days, undeliverable.", labels=["state"])
    for state in NoteState:
        messages.add_metric([state.value], notes.get(state, 0))
    return messages


def _of_the_processes(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    beats = _gauge("heartbeat_timestamp_seconds", "When each process that watches last ended a tick.", labels=["name"])
    for beat in signs.heartbeats:
        beats.add_metric([beat.name], beat.at.timestamp())
    yield beats
    sources = _gauge("source_failing", "Whether a source did not answer when it was last asked.", labels=["source"])
    for source, problem in signs.source_problems().items():
        sources.add_metric([source], problem is not None)
    yield sources
    yield _gauge("lease_held", "Whether any process has the right to act.", signs.is_lease_held)
    yield _gauge(
        "bystanders",
        "Processes that watch beside the one that may act: stop the second code server or daemon.",
        len(signs.bystanders),
    )
    yield _gauge("paused", "Whether a person has stopped new actions.", signs.pause is not None)
    modes = _gauge("mode", "The mode that the running autopilot works with.", labels=["mode"])
    for mode in Mode:
        modes.add_metric([mode.value], mode is signs.working_mode)
    yield modes


def _of_the_work(signs: VitalSigns) -> Iterator[GaugeMetricFamily]:
    yield _gauge("ledger_head", "Lines of the ledger.", signs.head_seq)
    if signs.newest_evidence_at is not None:
        newest = signs.newest_evidence_at.timestamp()
        yield _gauge("newest_evidence_timestamp_seconds", "When the evidence taken in last was observed.", newest)
    yield _gauge("undecided_evidence", "Observations taken in and not decided on yet.", signs.undecided_evidence_count)
    incidents = _gauge("open_incidents", "Incidents that are not final.", labels=["state", "response"])
    for (state, response), count in signs.open_incidents.items():
        incidents.add_metric([state.value, response.name.lower()], count)
    yield incidents
    yield _gauge("actions_without_outcome", "Actions begun, without an outcome yet.", signs.unfinished_action_count)
    begun_at = signs.oldest_unfinished_begun_at
    age_seconds = 0.0 if begun_at is None else (signs.taken_at - begun_at).total_seconds()
    yield _gauge(
        "oldest_action_without_outcome_seconds", "How long the oldest of them is under way; 0 without one.", age_seconds
    )


def _gauge(name: str, explanation: str, value: float | None = None, *, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ops_pipelines_{name}", explanation, value=value, labels=labels or None)
