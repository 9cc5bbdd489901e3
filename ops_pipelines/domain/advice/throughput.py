"""Advice on how GPUs were used: waiting for input, for the network, for kernels that are too small, for one rank.

The verdicts are those of catalogue/efficiency_rules.csv; here it is asked whether a share of them is worth saying.
"""

from ops_pipelines.domain.advice.advice import AdviceKind, Confidence, Finding
from ops_pipelines.domain.advice.weighing import is_a_session, not_measured, of_work, serves, shown_hours, weigh
from ops_pipelines.domain.advice.work import JobWork
from ops_pipelines.teams.settings import AdviceSettings

STALLED, COMMUNICATES, SMALL = "input_stalled", "communication_bound", "small_kernels"
_OF_THE_RANK = frozenset({"straggler_lags"})
"""Its host and input are the program's; all other stragglers are parts that are slow: health, not advice."""


def judge_input(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """GPUs that waited for data."""
    ratio, use = work.ratio_of(STALLED), work.uses.get(STALLED)
    if use is None or ratio < settings.stall_least_ratio:
        early = work.early_gpu_hours.get(STALLED, 0.0)
        if early < settings.least_gain_gpu_hours or work.seen_gpu_hours <= 0:
            return None
        warm = of_work(
            AdviceKind.INPUT_STALL, work, evidence=("it waited for data in its first hours",), low=0.0, expected=0.0,
            do="nothing", confidence=Confidence.LOW, measure=ratio,
        )  # fmt: skip
        return weigh(warm, settings, against=("it waited for data in its first hour alone, while caches fill",))
    waited = use.gpu_hours * (1 - (use.utilisation_ratio or 0.0))
    advice = of_work(
        AdviceKind.INPUT_STALL,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) GPUs waited for input",
            "not known how busy they were in it"
            if use.utilisation_ratio is None
            else f"in it they were busy {use.utilisation_ratio:.0%} of the time",
        ),
        low=waited / 2 if use.utilisation_ratio is not None else 0.0,
        expected=waited if use.utilisation_ratio is not None else use.gpu_hours / 2,
        do=(
            "give the loader more workers and let it fetch ahead, keep decoded data on local NVMe, read large files in "
            "place of many small ones"
        ),
        confidence=Confidence.MEDIUM if use.utilisation_ratio is not None else Confidence.LOW,
        measure=ratio,
        but=("evaluations and checkpoints wait for storage, too",),
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), not_measured(work, settings)))


def judge_communication(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """GPUs that waited for the network while all ranks did alike."""
    ratio, use = work.ratio_of(COMMUNICATES), work.uses.get(COMMUNICATES)
    if use is None or ratio < settings.communication_least_ratio:
        return None
    expected = use.gpu_hours * settings.communication_gain_ratio
    advice = of_work(
        AdviceKind.COMMUNICATION_BOUND,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) links were full and tensor pipes waited",
        ),
        low=expected / 3,
        expected=expected,
        do=(
            "let communication overlap with computing, use larger buckets or fewer ranks a collective, keep tensor "
            "parallelism within a node; ask for nodes below one leaf switch"
        ),
        confidence=Confidence.LOW,
        measure=ratio,
        but=("how much of it can be hidden depends on the model; the gain is an assumption",),
    )
    hung = "it hung in a collective: an incident, not a way of working" if _hung(work, use.gpu_hours) else None
    one = "one rank lagged, and the others waited for it" if work.straggler_gpu_hours else None
    return weigh(advice, settings, against=(serves(work), hung, one, not_measured(work, settings)))


def judge_batch(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """Kernels that leave most of the GPU empty, with memory to spare."""
    ratio, use = work.ratio_of(SMALL), work.uses.get(SMALL)
    if use is None or ratio < settings.small_batch_least_ratio:
        return None
    memory, active = use.memory_used_ratio, use.sm_active_ratio
    # With twice the SM activity the same work takes half of the time; more than the target is promised to nobody.
    saved = 0.25 if active is None else max(0.0, 1 - active / settings.sm_target_ratio)
    advice = of_work(
        AdviceKind.SMALL_BATCH,
        work,
        evidence=(
            f"{ratio:.0%} of the measured time ({shown_hours(use.gpu_hours)}) kernels were too small for the GPU",
            *(() if active is None else (f"SMs were active {active:.0%} of the time",)),
            *(() if memory is None else (f"{memory:.0%} of device memory was in use",)),
        ),
        low=use.gpu_hours * saved / 2 if active is not None else 0.0,
        expected=use.gpu_hours * saved,
        do="try a larger batch, compiled or fused kernels, CUDA graphs; or share the GPU (MIG, several runs)",
        confidence=Confidence.MEDIUM if active is not None and memory is not None else Confidence.LOW,
        measure=ratio,
        but=("a larger batch may need another learning rate",),
    )
    full = (
        f"{memory:.0%} of device memory was in use: a larger batch may not fit"
        if memory is not None and memory > settings.small_batch_most_memory_ratio
        else None
    )
    return weigh(advice, settings, against=(serves(work), is_a_session(work), full, not_measured(work, settings)))


def straggler_ratio(work: JobWork) -> float:
    """Return the share of the measured time in which one rank held the others up by what its program does."""
    hours = sum(work.straggler_gpu_hours.get(rule, 0.0) for rule in _OF_THE_RANK)
    return 0.0 if work.seen_gpu_hours <= 0 else min(1.0, hours / work.seen_gpu_hours)


def judge_straggler(work: JobWork, settings: AdviceSettings) -> Finding | None:
    """One rank that the others wait for."""
    if not work.straggler_gpu_hours or work.seen_gpu_hours <= 0:
        return None
    hours = sum(work.straggler_gpu_hours.values())
    if hours / work.seen_gpu_hours < settings.straggler_least_ratio:
        return None
    own = sum(work.straggler_gpu_hours.get(rule, 0.0) for rule in _OF_THE_RANK)
    advice = of_work(
        AdviceKind.STRAGGLER,
        work,
        evidence=(
            f"{hours / work.seen_gpu_hours:.0%} of the measured time ({shown_hours(hours)}) one GPU lagged behind "
            f"its peers; {len(work.straggler_gpus)} different ones",
        ),
        low=own * settings.straggler_low_ratio,
        expected=own * settings.straggler_loss_ratio,
        do="look at the input and the host work of the rank that lags: its share of the data, its loader, its logging",
        confidence=Confidence.LOW,
        measure=straggler_ratio(work),
        but=("a slow host shows in the same way",),
    )
    part = "its clock or its part is slow: that is health, and the operators'" if own < hours / 2 else None
    same = "always the same GPU: more likely the part than the program" if len(work.straggler_gpus) == 1 else None
    return weigh(advice, settings, against=(serves(work), part, same, not_measured(work, settings)))


def _hung(work: JobWork, gpu_hours: float) -> bool:
    return work.hung_gpu_hours > gpu_hours / 2
