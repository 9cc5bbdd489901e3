"""Faults that show in jobs: hangs, stragglers, crash loops, nodes that fail jobs, a loss that goes astray.

BLOOM's chronicle: a hang of three hours at 100 % utilisation without any timeout; ByteDance's traces: one slow worker
sets the pace of all; RSC: one 1,024-GPU job requeued 35 times, 40 nodes that failed the jobs of many users.
"""

from dataclasses import replace

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines_lab.simulator.replay import texts
from ops_pipelines_lab.simulator.replay.day import GPUS_PER_NODE, Brush, FaultClass
from ops_pipelines_lab.simulator.replay.injection import Injector
from ops_pipelines_lab.simulator.replay.jobs import NEVER, Attempt, Freeze, Look, Program, draw_program

_SMALL = 4


def _job(attempt: Attempt) -> Component:
    return Component(kind=ComponentKind.JOB, name=attempt.job)


def _end_of_hang(injector: Injector, attempt: Attempt) -> float:
    """Return when a hang is over: at the collective timeout, or when a person cancels the job."""
    style = attempt.program.style
    if style.watchdog_seconds < NEVER:
        return injector.now + style.watchdog_seconds + float(injector.rng.uniform(1, 30))
    return injector.now + float(injector.rng.uniform(1500, 4200))


def _stop(injector: Injector, attempt: Attempt, over: float) -> None:
    """Let a hung job end at `over`, as its watchdog or a person has it, and begin again."""
    is_timeout = attempt.program.style.watchdog_seconds < NEVER
    injector.cluster.prolong(attempt, over + 60)
    if is_timeout and len(attempt.nodes) * attempt.program.gpus_per_node > 1:
        injector.write_timeouts(attempt, over)

    def stop() -> None:
        if attempt.ended is not None:
            return
        if is_timeout:
            injector.cluster.write_teardown(attempt, share=0.85)
            injector.cluster.end(attempt, JobState.FAILED)
        else:
            injector.cluster.write_end(attempt, JobState.CANCELLED)
            injector.cluster.end(attempt, JobState.CANCELLED)
        if injector.rng.random() < 0.9:
            injector.cluster.restart(attempt, after=float(injector.rng.uniform(120, 900)))

    injector.cluster.at(over, stop)


def hang_one_rank(injector: Injector) -> bool:
    """One rank stops: its process died or waits for something of its own; all others spin in the next collective.

    In a third of the cases the whole node stops. Nothing is logged before the timeout.
    """
    attempt = injector.pick_attempt(min_nodes=2, lasts=4500)
    if attempt is None:
        return False
    rng, now = injector.rng, injector.now
    node = int(rng.choice(attempt.nodes))
    is_whole_node = rng.random() < 0.33
    gpu = injector.gpu_of(node, attempt)
    idle = tuple(range(node * 8, node * 8 + 8)) if is_whole_node else (gpu,)
    over = _end_of_hang(injector, attempt)
    attempt.freeze(Freeze(began=now, ended=over, idle_gpus=idle, look=Look.SPINNING))
    if rng.random() < 0.4:
        # The process is gone: its memory is free and its GPU falls asleep.
        for each in idle:
            injector.canvas.paint("gpus/memory_used_bytes", each, (now + 5, over), Brush.SET, 4.0 * 2**20)
            injector.canvas.paint("gpus/power_watts", each, (now + 5, over), Brush.SET, 72.0)
            injector.canvas.paint("gpus/sm_clock_hertz", each, (now + 5, over), Brush.SET, 345.0)
    _stop(injector, attempt, over)
    fleet = injector.fleet
    injector.tell(
        FaultClass.HANG_ONE_RANK,
        onset=now,
        end=over,
        culprit=fleet.node_component(node) if is_whole_node else fleet.gpu_component(gpu),
        own=(node,),
        affected=attempt.nodes,
        jobs=(attempt.job,),
        steps_began=attempt.first_step + attempt.program.style.step_seconds,
    )
    return True


def hang_of_program(injector: Injector) -> bool:
    """All ranks wait for each other alike: a mismatched collective, a deadlock of the program. No node is at fault."""
    attempt = injector.pick_attempt(lasts=4500)
    if attempt is None:
        return False
    now = injector.now
    over = _end_of_hang(injector, attempt)
    look = attempt.program.style.waiting if injector.rng.random() < 0.5 else Look.SPINNING
    attempt.freeze(Freeze(began=now, ended=over, look=look))
    _stop(injector, attempt, over)
    injector.tell(
        FaultClass.HANG_OF_PROGRAM,
        onset=now,
        end=over,
        culprit=_job(attempt),
        affected=attempt.nodes,
        jobs=(attempt.job,),
        steps_began=attempt.first_step + attempt.program.style.step_seconds,
    )
    return True


def slow_gpu(injector: Injector) -> bool:
    """One GPU is 10 to 40 % slower than its peers, and no reason is given: they wait for it in every step.

    Half of them run at lower clocks. The others hold their clocks and are busy while their peers wait: their share of
    active multiprocessors stays high where that of the others falls with the rate of steps.
    """
    attempt = injector.pick_attempt(min_nodes=1, is_stepping=False, lasts=7200)
    if attempt is None:
        return False
    rng, canvas, fleet, now = injector.rng, injector.canvas, injector.fleet, injector.now
    node = int(rng.choice(attempt.nodes))
    gpu = injector.gpu_of(node, attempt)
    slower = float(rng.uniform(0.6, 0.9))
    times = injector.repair(node, soon=float(rng.uniform(1500, 6000)))
    span = (now, times.rebooted)
    if rng.random() < 0.6:
        canvas.paint("gpus/sm_clock_hertz", gpu, span, Brush.SCALE, slower)
        canvas.paint("gpus/power_watts", gpu, span, Brush.SCALE, slower**0.7)
    # The slow one works all the time; its peers wait for it, spinning: their kernels stay resident.
    canvas.paint("gpus/sm_active_ratio", gpu, span, Brush.SCALE, 1 / (0.5 + 0.5 * slower))
    injector.slow(attempt, now, times.rebooted, slower)

    def requeue() -> None:
        if attempt.ended is None:
            injector.cluster.write_end(attempt, JobState.CANCELLED)
            injector.cluster.end(attempt, JobState.CANCELLED)
            injector.cluster.restart(attempt, after=float(rng.uniform(60, 600)))

    injector.cluster.at(times.rebooted - 1, requeue)
    injector.tell(
        FaultClass.SLOW_GPU,
        onset=now,
        end=times.returned,
        culprit=fleet.gpu_component(gpu),
        own=(node,),
        affected=attempt.nodes,
        jobs=(attempt.job,),
    )
    return True


def loss_diverges(injector: Injector) -> bool:
    """The loss becomes no number, or climbs and stays; the job runs until somebody sees it. All sensors are well."""
    attempt = injector.pick_attempt(lasts=4500)
    if attempt is None:
        return False
    rng, scribe, now = injector.rng, injector.scribe, injector.now
    style = attempt.program.style
    if not (style.counts_steps or style.logs):
        return False
    over = now + float(rng.uniform(900, 4000))
    is_nan = rng.random() < 0.7 or not style.counts_steps
    attempt.loss_breaks.append((now, "nan" if is_nan else "diverge"))
    injector.cluster.prolong(attempt, over + 60)
    if is_nan:
        # Programs that check write it at once; the others with their next line of steps, which is kept now.
        time = now + float(rng.uniform(0.5, style.step_seconds))
        for index in range(int(rng.integers(1, 6))):
            step = int((time - attempt.first_step) / style.step_seconds) + index
            text = (
                f" iteration {step:8d}/  500000 | consumed samples: {step * 2048:12d} | elapsed time per iteration "
                f"(ms): {style.step_seconds * 1000:.1f} | learning rate: 6.000E-05 | global batch size:  2048 | lm "
                "loss: nan | grad norm: nan |"
                if rng.random() < 0.6
                else f"WARNING: loss is nan at step {step}, skipping the update"
            )
            scribe.job(attempt, time + index * style.step_seconds, text)

    def stop() -> None:
        if attempt.ended is None:
            injector.cluster.write_end(attempt, JobState.CANCELLED)
            injector.cluster.end(attempt, JobState.CANCELLED)
            injector.cluster.restart(attempt, after=float(rng.uniform(300, 1500)))

    injector.cluster.at(over, stop)
    injector.tell(
        FaultClass.LOSS_DIVERGES,
        onset=now,
        end=over,
        culprit=_job(attempt),
        affected=attempt.nodes,
        jobs=(attempt.job,),
    )
    return True


def application_crashes(injector: Injector) -> bool:
    """One program fails 3 to 6 times within the hour, on other nodes each time, and gives the same error.

    A wrapper submits it again under a new job id, or requeues it under the old one.
    """
    rng, cluster, now = injector.rng, injector.cluster, injector.now
    free = [node for node in cluster.free_nodes() if injector.is_clear([node], (), until=now + 4000)]
    if len(free) < 2:
        return False
    size = int(rng.choice([each for each in (1, 1, 2, 4, 8) if each <= len(free)]))
    program = replace(
        draw_program(rng, kind=Workload.TRAINING if rng.random() < 0.7 else Workload.BATCH, node_count=size),
        gpus_per_node=8,
    )
    count, keeps_id, error = int(rng.integers(3, 7)), bool(rng.random() < 0.35), int(rng.integers(1000))
    style = float(rng.random())
    gap = 3300.0 / count
    jobs: list[JobId] = []
    touched: set[int] = set()
    used: list[frozenset[int]] = []
    state = {"first": 0.0, "failed": 0.0}

    def begin(index: int) -> None:
        ready = [node for node in cluster.free_nodes() if injector.is_clear([node], (), until=cluster.now + 1800)]
        fresh = [node for node in ready if not used or node not in used[-1]]
        ready = fresh if len(fresh) >= size else ready
        if len(ready) < size:
            finish()
            return
        nodes = sorted(int(node) for node in rng.choice(ready, size=size, replace=False))
        seconds = float(rng.uniform(0.35, 0.8)) * gap
        attempt = cluster.start(
            program, nodes, seconds=seconds + 600, state=JobState.FAILED,
            job=jobs[0] if keeps_id and jobs else None, restart_count=index if keeps_id else 0,
        )  # fmt: skip
        attempt.rests = [rest for rest in attempt.rests if rest.began < cluster.now + seconds]
        injector.claim(nodes, [attempt.job], until=cluster.now + seconds)
        jobs.append(attempt.job)
        used.append(frozenset(nodes))
        touched.update(nodes)
        cluster.at(cluster.now + seconds, lambda: fail(attempt, index))

    def fail(attempt: Attempt, index: int) -> None:
        if attempt.ended is not None:
            return
        if index == 0:
            state["first"] = cluster.now
        state["failed"] += 1
        rank = int(rng.integers(len(attempt.nodes) * 8))
        node = attempt.nodes[rank // 8]
        pci = injector.fleet.address(rank % 8)
        if style < 0.35:
            injector.scribe.kernel_event(node, cluster.now - 1, texts.mmu_fault(rng, pci), lost=0.1)
            injector.show_xid(node * 8 + rank % 8, 31, cluster.now)
            injector.scribe.job(
                attempt, cluster.now, "RuntimeError: CUDA error: an illegal memory access was encountered", rank=rank
            )
        elif style < 0.5:
            injector.scribe.kernel_event(node, cluster.now - 1, texts.graphics_exception(rng, pci), lost=0.1)
            injector.show_xid(node * 8 + rank % 8, 13, cluster.now)
            injector.scribe.job(
                attempt, cluster.now, "RuntimeError: CUDA error: device-side assert triggered", rank=rank
            )
        else:
            for text in texts.program_error(rng, error):
                injector.scribe.job(attempt, cluster.now, text, rank=rank)
        injector.scribe.job(attempt, cluster.now + 1, texts.task_exit(injector.fleet.names[node], rank, 1))
        cluster.end(attempt, JobState.FAILED)
        if index + 1 < count:
            cluster.at(cluster.now + float(rng.uniform(15, 0.3 * gap)), lambda: begin(index + 1))
        else:
            finish()

    def finish() -> None:
        if state["failed"] < 3 or "told" in state:
            return  # not enough of a loop to call it one
        state["told"] = 1.0
        culprit = Component(kind=ComponentKind.JOB, name=jobs[0])
        injector.tell(
            FaultClass.APPLICATION_CRASHES,
            onset=state["first"],
            end=cluster.now,
            culprit=culprit,
            affected=touched,
            jobs=jobs,
        )

    injector.unfinished.append(finish)
    begin(0)
    return True


def node_fails_jobs(injector: Injector) -> bool:
    """Four and more jobs of different users fail on one node within hours, with various errors, none of hardware."""
    rng, cluster, fleet = injector.rng, injector.cluster, injector.fleet
    lasts = 4 * 3600.0
    free = [node for node in cluster.free_nodes() if injector.is_clear([node], (), until=injector.now + lasts)]
    if not free:
        return False
    node = int(rng.choice(free))
    wanted = int(rng.integers(4, 7))
    jobs: list[JobId] = []
    affected: set[int] = set()
    state = {"first": 0.0}
    cluster.lives[node].keep_free = True
    injector.claim([node], (), until=injector.now + lasts)
    words = (
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault.",
        "OSError: [Errno 5] Input/output error",
        "RuntimeError: NCCL error: unhandled system error",
        "Fatal Python error: Bus error",
        "ValueError: loss is not finite: checksum of gradients differs between replicas",
    )

    def begin() -> None:
        others = [each for each in cluster.free_nodes() if injector.is_clear([each], (), until=cluster.now + 1800)]
        size = int(rng.choice([1, 1, 2, _SMALL]))
        if len(others) < size - 1:
            size = 1
        chosen = [int(each) for each in rng.choice(others, size=size - 1, replace=False)] if size > 1 else []
        kind = Workload.TRAINING if rng.random() < 0.6 else Workload.BATCH
        program: Program = replace(draw_program(rng, kind=kind, node_count=size), gpus_per_node=8)
        seconds = float(rng.uniform(200, 1700))
        attempt = cluster.start(program, [node, *chosen], seconds=seconds + 600, state=JobState.FAILED)
        attempt.rests = [rest for rest in attempt.rests if rest.began < cluster.now + seconds]
        injector.claim(chosen, [attempt.job], until=cluster.now + seconds)
        affected.update(chosen)
        cluster.at(cluster.now + seconds, lambda: fail(attempt))

    def fail(attempt: Attempt) -> None:
        if attempt.ended is not None:
            return
        if not jobs:
            state["first"] = cluster.now
        jobs.append(attempt.job)
        place = attempt.nodes.index(node)
        rank = place * GPUS_PER_NODE + int(rng.integers(8))
        injector.scribe.job(attempt, cluster.now, words[int(rng.integers(len(words)))], rank=rank)
        if rng.random() < 0.7:
            injector.scribe.job(
                attempt, cluster.now + 1, texts.task_exit(fleet.names[node], rank, int(rng.choice([1, 134, 139])))
            )
        if rng.random() < 0.3:
            cluster.write_teardown(attempt, share=1.0)
        cluster.end(attempt, JobState.FAILED)
        if len(jobs) < wanted:
            cluster.at(cluster.now + float(rng.uniform(20, 600)), begin)
        else:
            finish()

    def finish() -> None:
        if len(jobs) < 3 or "told" in state:
            return
        state["told"] = 1.0
        times = injector.repair(node)
        injector.tell(
            FaultClass.NODE_FAILS_JOBS,
            onset=state["first"],
            end=times.returned,
            culprit=fleet.node_component(node),
            own=(node,),
            affected=affected,
            jobs=jobs,
        )

    injector.unfinished.append(finish)
    begin()
    return True
