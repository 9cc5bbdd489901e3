"""Everything that is looked for in jobs, in one call."""

from ops_pipelines.core.identity import Topology
from ops_pipelines.frames.detectors.hang import detect_hangs
from ops_pipelines.frames.detectors.idle import detect_idle_gpus
from ops_pipelines.frames.detectors.loss import detect_losses
from ops_pipelines.frames.detectors.stall import detect_stalled_jobs
from ops_pipelines.frames.detectors.storage import detect_storage_stalls
from ops_pipelines.frames.detectors.straggler import detect_stragglers
from ops_pipelines.frames.panels.detection import Detection, Detector
from ops_pipelines.frames.panels.panel import Panel


def job_detectors() -> tuple[Detector, ...]:
    """Return all of them."""
    return (
        detect_hangs,
        detect_stragglers,
        detect_stalled_jobs,
        detect_storage_stalls,
        detect_idle_gpus,
        detect_losses,
    )


def detect_jobs(panel: Panel, *, topology: Topology) -> list[Detection]:
    """Return what is seen of jobs, by time. Nothing of it depends on `topology` yet: peers are the ranks of a job."""
    found = [detection for detect in job_detectors() for detection in detect(panel)]
    return sorted(found, key=lambda each: (each.first_seen_at, each.position))
