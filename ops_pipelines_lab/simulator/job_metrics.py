"""What the pretended jobs say of themselves: training steps, and inference services with queues and latencies.

The first rank's node serves it, while it answers. Inference is Triton with the vLLM backend, which shows the series of
both. The names of the training series are ours: no exporter is common to all launchers.
"""

import math
from collections.abc import Iterator
from datetime import datetime

from ops_pipelines.core.observation import Workload
from ops_pipelines_lab.simulator.exposition import Metric, Reading, joined
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.load import Load
from ops_pipelines_lab.simulator.world import World

_STEP_SECONDS = Metric("training_step_seconds", "gauge", "Duration of the last training step.", 6)
_TOKENS = Metric("training_tokens_per_second", "gauge", "Tokens trained on, a second.", 3)
_STEPS = Metric("training_steps_total", "counter", "Training steps done by this attempt.")
_LOSS = Metric("training_loss", "gauge", "Training loss.", 6)
_TOKENS_PER_GPU_SECOND = 3_200.0
"""Assumption: a 70-billion-parameter model on H100 at a third of its peak."""
_SLOWED_BY = {Load.INPUT_STALLED: 3.4, Load.COMMUNICATION_BOUND: 2.1}
"""How much longer a step takes than it would."""

_REQUESTS_PER_GPU_SECOND = 1.5
_PROMPT_TOKENS, _WRITTEN_TOKENS = 900, 210
_FAILED_RATIO = 0.0008
_MEAN_SECONDS, _SPREAD = 2.6, 0.55
"""Latencies are log-normal: median and spread of the logarithm."""
_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
"""Buckets of vLLM's request latency."""
_QUANTILES = (("0.5", 0.0), ("0.95", 1.644854), ("0.99", 2.326348))
"""Quantile, and its place in the standard normal distribution."""
_LATENCY = "vllm:e2e_request_latency_seconds"
_LATENCY_HELP = "Histogram of e2e request latency in seconds."
_BUCKET, _SUM, _COUNT = (
    Metric(f"{_LATENCY}_{part}", "histogram", _LATENCY_HELP, decimals, family=_LATENCY)
    for part, decimals in (("bucket", 0), ("sum", 3), ("count", 0))
)
_QUEUE_SUM, _QUEUE_COUNT = (
    Metric(
        f"vllm:request_queue_time_seconds_{part}",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
        decimals,
        family="vllm:request_queue_time_seconds",
    )
    for part, decimals in (("sum", 3), ("count", 0))
)
_RUNNING = Metric("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
_WAITING = Metric("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
_CACHE = Metric("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", 6)
_ENDED = Metric("vllm:request_success_total", "counter", "Count of successfully processed requests.")
_PROMPTS = Metric("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
_WRITTEN = Metric("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.")
_SUCCESS = Metric("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes")
_FAILURE = Metric("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes")
_PENDING = Metric(
    "nv_inference_pending_request_count",
    "gauge",
    "Instantaneous number of pending requests awaiting execution per-model.",
)
_SUMMARY = Metric(
    "nv_inference_request_summary_us", "summary", "Summary of inference request durations in microseconds"
)


def jobs_by_first_node(world: World) -> dict[str, list[Job]]:
    """Return the jobs that run, by the node of their first rank."""
    found: dict[str, list[Job]] = {}
    for job in world.controller.jobs.values():
        if job.is_running and job.allocation:
            found.setdefault(next(iter(job.allocation)), []).append(job)
    return found


def job_readings(node: Node, jobs: list[Job], *, at: datetime, own: str = "") -> Iterator[Reading]:
    """Yield what `jobs`, whose first rank is on `node`, say of themselves."""
    for job in jobs if node.answers else ():
        if job.spec.workload is Workload.TRAINING:
            yield from _training(job, at, own)
        elif job.spec.workload is Workload.INFERENCE:
            yield from _inference(job, at, own)


def _training(job: Job, at: datetime, own: str) -> Iterator[Reading]:
    labels = joined(own, f'job_id="{job.job}",job_name="{job.spec.name}",user="{job.spec.user}"')
    work_seconds = job.fresh_work(at).total_seconds()
    # As with `_SLOWED_BY`: a slow step shows in what the job says of itself, its work goes on at its own pace.
    whole_seconds = job.spec.step_seconds * _SLOWED_BY.get(job.load, 1.0) * (1 + job.slowdown_ratio)
    step_seconds = whole_seconds * (1 + 0.03 * _wave(job, at))
    # A hung rank goes on saying how long its last step took, but no further token is trained on.
    rate = 0.0 if job.hung_at is not None else _TOKENS_PER_GPU_SECOND * job.gpu_count
    yield _STEP_SECONDS, labels, step_seconds
    yield _TOKENS, labels, rate * job.spec.step_seconds / step_seconds
    yield _STEPS, labels, int(work_seconds / whole_seconds)
    yield _LOSS, labels, 1.8 + 9.0 / (1 + (job.saved_work.total_seconds() + work_seconds) / 400.0)


def _inference(job: Job, at: datetime, own: str) -> Iterator[Reading]:
    model = job.spec.name
    labels = joined(own, f'model_name="{model}",engine="0"')
    triton = joined(own, f'model="{model}",version="1"')
    rate = _REQUESTS_PER_GPU_SECOND * job.gpu_count
    ended = int(rate * job.fresh_work(at).total_seconds())
    failed = int(_FAILED_RATIO * ended)
    hung_seconds = 0.0 if job.hung_at is None else (at - job.hung_at).total_seconds()
    median_seconds = _MEAN_SECONDS * (1 + 0.12 * _wave(job, at)) + min(hung_seconds, 600.0)
    waiting = min(100_000, round(rate * hung_seconds) + round(0.3 * rate * (1 + _wave(job, at))))
    mean_seconds = _MEAN_SECONDS * math.exp(_SPREAD**2 / 2)
    yield _RUNNING, labels, 0 if hung_seconds else round(rate * median_seconds)
    yield _WAITING, labels, waiting
    yield _CACHE, labels, 0.62 + 0.2 * _wave(job, at)
    yield _ENDED, joined(labels, 'finished_reason="stop"'), ended - failed
    yield _ENDED, joined(labels, 'finished_reason="abort"'), failed
    yield _PROMPTS, labels, _PROMPT_TOKENS * ended
    yield _WRITTEN, labels, _WRITTEN_TOKENS * ended
    for bound, share in _SHARES:
        yield _BUCKET, joined(labels, f'le="{bound}"'), int(share * ended)
    yield _BUCKET, joined(labels, 'le="+Inf"'), ended
    yield _SUM, labels, mean_seconds * ended
    yield _COUNT, labels, ended
    yield _QUEUE_SUM, labels, 0.2 * ended
    yield _QUEUE_COUNT, labels, ended
    yield _SUCCESS, triton, ended - failed
    yield _FAILURE, triton, failed
    yield _PENDING, triton, waiting
    for quantile, place in _QUANTILES:
        microseconds = 1e6 * median_seconds * math.exp(_SPREAD * place)
        yield _SUMMARY, joined(triton, f'quantile="{quantile}"'), microseconds


def _wave(job: Job, at: datetime) -> float:
    phase = int(job.job) % 17 / 17
    return math.sin(2 * math.pi * (at.timestamp() % 1e6 / (140.0 + 60.0 * phase) + phase))


def _share_below(seconds: float) -> float:
    return 0.5 * (1 + math.erf(math.log(seconds / _MEAN_SECONDS) / (_SPREAD * math.sqrt(2))))


_SHARES = tuple((bound, _share_below(bound)) for bound in _BOUNDS)
