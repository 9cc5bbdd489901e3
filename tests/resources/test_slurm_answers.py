"""Slurm's JSON becomes nodes and jobs; each file in tests/data/slurm is one way in which reality bites."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.observation import Checkpointing, JobState, NodeState, NodeStatus, Workload
from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.slurm.answers import prolog_in, read_config_answer, read_nodes_answer, tell_version
from ops_pipelines.resources.slurm.jobs import JobRow, read_jobs_answer

DATA = Path(__file__).parents[1] / "data" / "slurm"
NOW = datetime(2026, 11, 21, 7, 42, tzinfo=UTC)
"""Within the minutes in which the answers were recorded, and before any planned end."""


def at(epoch_seconds: int) -> datetime:
    return datetime.fromtimestamp(epoch_seconds, UTC)


def recorded(name: str) -> str:
    return (DATA / name).read_text(errors="replace")


def jobs_of(name: str) -> dict[str, JobRow]:
    answer = read_jobs_answer(recorded(name), source=name, now=NOW)
    assert answer.rejected == ()
    return {row.status.job: row for row in answer.jobs}


def nodes_of(name: str) -> dict[str, NodeStatus]:
    answer = read_nodes_answer(recorded(name), source=name)
    assert answer.rejected == ()
    return {node.node: node for node in answer.nodes}


def job_text(**changes: object) -> str:
    """A recorded running job, with some values changed."""
    answer = json.loads(recorded("squeue-22.05-held-while-running.json"))
    answer["jobs"][0] |= {"state_reason": "None", "priority": 1, **changes}
    return json.dumps(answer)


def one_job(**changes: object) -> JobRow:
    answer = read_jobs_answer(job_text(**changes), source="squeue", now=NOW)
    assert answer.rejected == ()
    return answer.jobs[0]


# -- no answer, and no sense --


def test_empty_list_of_an_unreachable_controller_is_no_answer_although_squeue_succeeded() -> None:
    with pytest.raises(SourceUnavailable, match="Unspecified error"):
        jobs_of("squeue-22.05-controller-gone-rc-0.json")


def test_empty_list_of_an_unreachable_controller_is_no_answer_although_sinfo_succeeded() -> None:
    with pytest.raises(SourceUnavailable, match="Unspecified error"):
        nodes_of("sinfo-22.05-controller-gone-rc-0.json")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("JobId=1 JobState=RUNNING", id="text"),
        pytest.param("[]", id="a list"),
        pytest.param("{}", id="no jobs, as SLURM_TIME_FORMAT makes sacct print with rc 0"),
        pytest.param('{"jobs": null}', id="null"),
        pytest.param('{"jobs": {}}', id="an object"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_answer_without_a_list_of_jobs_is_nonsense(text: str) -> None:
    with pytest.raises(SourceNonsense):
        read_jobs_answer(text, source="squeue", now=NOW)


def test_cluster_without_jobs_is_an_answer() -> None:
    assert read_jobs_answer('{"errors": [], "jobs": []}', source="squeue", now=NOW).jobs == ()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"job_id": None}, id="no id"),
        pytest.param({"job_id": True}, id="id is no number"),
        pytest.param({"job_state": None}, id="no state"),
        pytest.param({"job_state": []}, id="no state in the list"),
        pytest.param({"nodes": "gpu[001-"}, id="broken host list"),
        pytest.param({"nodes": "gpu001;reboot"}, id="host list with a command"),
        pytest.param({"start_time": "yesterday"}, id="time is text"),
    ],
)
def test_row_that_cannot_be_believed_is_rejected_with_its_reason_and_place(changes: Mapping[str, object]) -> None:
    answer = read_jobs_answer(job_text(**changes), source="squeue", now=NOW)

    assert answer.jobs == ()
    assert [(row.source, row.position) for row in answer.rejected] == [("squeue", "jobs[0]")]
    assert answer.rejected[0].reason


# -- jobs --


def test_job_name_with_newlines_is_one_job_and_forges_no_other() -> None:
    jobs = jobs_of("squeue-22.05-hostile-names-and-comments.json")

    assert sorted(jobs) == ["21", "22", "23", "24", "25"]
    assert [jobs[job].status.name for job in sorted(jobs)] == [
        "$(reboot)",
        "'; DROP TABLE jobs; --",
        "a|b JobState=FAILED NodeList=gpu009\nJobId=999 JobName=evil UserId=root(0) JobState=RUNNING NodeList=gpu001",
        "größer als ✓",
        "bad\ufffd\ufffdutf",
    ]
    assert {row.status.state for row in jobs.values()} == {JobState.RUNNING}
    assert jobs["23"].status.nodes == {"gpu004"}


def test_scontrol_text_lets_a_job_name_forge_a_record() -> None:
    """Why text is not read: line 2 looks like job 999, running as root on a node that it never saw."""
    lines = recorded("scontrol-22.05-text-forged-by-a-job-name.txt").splitlines()

    assert lines[1].startswith("JobId=999 JobName=evil UserId=root(0) JobState=RUNNING NodeList=gpu001 ")


def test_workload_and_checkpoint_come_from_the_comment_in_either_form() -> None:
    jobs = jobs_of("squeue-22.05-hostile-names-and-comments.json")

    said = {job: (row.status.workload, row.status.checkpointed_at, row.checkpoint_path) for job, row in jobs.items()}
    assert said["21"] == (Workload.TRAINING, None, "/srv/ckpt/run7")
    assert said["22"] == (Workload.TRAINING, datetime(2026, 11, 21, 7, tzinfo=UTC), None)
    assert said["23"] == (Workload.UNKNOWN, None, None)
    assert said["24"] == (Workload.BATCH, None, None)
    assert said["25"] == (Workload.UNKNOWN, None, None)


def test_requeued_attempt_that_still_ends_is_told_from_a_cancelled_one() -> None:
    jobs = jobs_of("squeue-22.05-cancelled-requeued-held-all-completing.json")
    cancelled, requeued, held = (jobs[job].status for job in ("5", "6", "7"))

    assert {job.state for job in (cancelled, requeued, held)} == {JobState.COMPLETING}
    assert (cancelled.is_held, requeued.is_held, held.is_held) == (False, False, True)
    assert (cancelled.started_at, cancelled.ended_at) == (at(1795246901), at(1795246903))
    # start_time is the time of the requeue by then; the attempt's own start is gone.
    assert (requeued.started_at, requeued.ended_at) == (None, None)
    assert (held.started_at, held.ended_at) == (None, None)
    assert (cancelled.restart_count, requeued.restart_count, held.restart_count) == (0, 1, 1)


def test_requeue_hold_reads_as_held_and_pending_without_an_attempt() -> None:
    job = jobs_of("squeue-22.05-array-with-held-task.json")["10_0"].status

    assert (job.state, job.is_held, job.nodes, job.attempt) == (JobState.PENDING, True, frozenset(), None)
    assert job.restart_count == 1


@pytest.mark.parametrize(
    ("changes", "is_held"),
    [
        pytest.param({"job_state": "PENDING", "priority": 0, "state_reason": "BeginTime"}, True, id="priority 0"),
        pytest.param({"job_state": "PENDING", "priority": 0, "state_reason": "JobHeldUser"}, True, id="by user"),
        pytest.param({"job_state": "PENDING", "priority": 0, "state_reason": "JobHeldAdmin"}, True, id="by admin"),
        pytest.param({"job_state": "REQUEUE_HOLD", "priority": 0}, True, id="requeue hold as a state"),
        pytest.param(
            {"job_state": "PENDING", "priority": 1, "state_reason": "BeginTime"}, False, id="waits to restart"
        ),
        pytest.param(
            {"job_state": "PENDING", "priority": None, "state_reason": "Priority"}, False, id="no priority yet"
        ),
        pytest.param({"job_state": "RUNNING", "priority": 1}, False, id="running"),
        pytest.param({"job_state": "SUSPENDED", "priority": 0}, False, id="suspended has priority 0"),
        pytest.param({"job_state": "FAILED", "priority": 0, "state_reason": "JobHeldUser"}, False, id="ended"),
    ],
)
def test_hold_is_priority_0_or_its_reason(changes: Mapping[str, object], is_held: bool) -> None:
    assert one_job(**changes).status.is_held is is_held


def test_running_job_that_was_held_runs_on_and_reads_as_held() -> None:
    job = jobs_of("squeue-22.05-held-while-running.json")["26"].status

    assert (job.state, job.is_held) == (JobState.RUNNING, True)


def test_special_exit_is_a_held_pending_job_once_and_no_hold_after_it_was_cancelled() -> None:
    special = jobs_of("squeue-22.05-special-exit-suspended-cancelled-before-start.json")["19"].status
    cancelled = jobs_of("squeue-22.05-ended-while-held.json")["19"].status

    assert (special.state, special.is_held, special.started_at) == (JobState.PENDING, True, None)
    assert (cancelled.state, cancelled.is_held) == (JobState.CANCELLED, False)


def test_suspended_job_keeps_its_nodes_and_start_and_is_not_held() -> None:
    job = jobs_of("squeue-22.05-special-exit-suspended-cancelled-before-start.json")["20"].status

    assert (job.state, job.is_held) == (JobState.SUSPENDED, False)
    assert job.nodes == {"gpu015"}
    assert (job.started_at, job.ended_at) == (at(1795247152), None)


def test_job_cancelled_before_it_started_never_ran() -> None:
    job = jobs_of("squeue-22.05-special-exit-suspended-cancelled-before-start.json")["18"].status

    assert (job.state, job.attempt, job.ended_at) == (JobState.CANCELLED, None, at(1795247152))


def test_array_tasks_are_named_by_task_and_those_that_wait_are_one_row() -> None:
    jobs = jobs_of("squeue-22.05-array-with-running-tasks.json")

    assert sorted(jobs) == ["10_0", "10_1", "10_2", "10_waiting"]
    assert {job for job, row in jobs.items() if row.is_waiting_array} == {"10_waiting"}
    assert jobs["10_waiting"].status.nodes == frozenset()


def test_array_task_that_carries_the_arrays_own_id_is_named_by_task() -> None:
    """`scontrol requeue 27` would requeue both tasks: job id 27 is task 1 and the whole array."""
    jobs = jobs_of("squeue-22.05-last-array-task-has-the-array-id.json")

    assert sorted(jobs) == ["27_0", "27_1"]


def test_typed_gpu_tres_repeat_the_plain_ones_and_count_once() -> None:
    jobs = jobs_of("squeue-22.05-plain-and-typed-gpu-tres.json")

    assert {job: row.status.gpu_count for job, row in jobs.items()} == {"28": 16, "29": 4}


@pytest.mark.parametrize(
    ("changes", "gpu_count"),
    [
        pytest.param({"tres_alloc_str": "cpu=1,gres/gpu:h100=8,gres/gpu:a100=2"}, 10, id="typed only"),
        pytest.param({"tres_alloc_str": "cpu=1,node=1"}, 8, id="GPUs not accounted, so counted from the details"),
        pytest.param({"tres_alloc_str": "", "tres_req_str": "gres/gpu=4"}, 4, id="asked for"),
        pytest.param({"tres_alloc_str": "cpu=1", "gres_detail": []}, 0, id="none"),
    ],
)
def test_gpus_of_a_job_are_counted(changes: Mapping[str, object], gpu_count: int) -> None:
    job = one_job(**{"gres_detail": ["gpu:h100:8(IDX:0-7)"], **changes}).status

    assert job.gpu_count == gpu_count


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("CONFIGURING", JobState.RUNNING),
        ("NODE_FAIL", JobState.NODE_FAIL),
        ("PREEMPTED", JobState.PREEMPTED),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("DEADLINE", JobState.TIMEOUT),
        ("BOOT_FAIL", JobState.FAILED),
        ("A_STATE_OF_TOMORROW", JobState.UNKNOWN),
    ],
)
def test_every_state_has_a_word_and_a_new_one_is_unknown(name: str, state: JobState) -> None:
    assert one_job(job_state=name).status.state is state


def test_user_without_a_name_is_named_by_number() -> None:
    assert one_job(user_name="", user_id=1007).status.user == "uid 1007"


def test_job_that_must_not_be_requeued_says_so() -> None:
    assert not one_job(requeue=False).status.is_requeueable


def test_jobs_that_25_11_printed_are_read() -> None:
    jobs = {job: row.status for job, row in jobs_of("squeue-25.11-running-completing-array-held.json").items()}

    assert sorted(jobs) == ["1", "2", "3", "4_1", "4_waiting", "6"]
    assert (jobs["1"].state, jobs["1"].started_at, jobs["1"].gpu_count) == (JobState.RUNNING, at(1795960854), 16)
    assert (jobs["1"].workload, jobs["1"].nodes) == (Workload.TRAINING, {"gpu001", "gpu002"})
    assert (jobs["2"].gpu_count, jobs["2"].ends_by) == (3, at(1795961454))
    assert (jobs["3"].state, jobs["3"].ended_at) == (JobState.COMPLETING, None)  # Its node is silent.
    assert (jobs["4_1"].state, jobs["4_waiting"].state) == (JobState.RUNNING, JobState.PENDING)
    assert (jobs["6"].is_held, jobs["4_waiting"].is_held) == (True, False)
    assert jobs["6"].excluded_nodes == {"gpu003", "gpu004"}


def test_jobs_as_the_sources_of_25_11_write_them_are_read() -> None:
    jobs = {job: row.status for job, row in jobs_of("squeue-25.11-from-source.json").items()}

    assert sorted(jobs) == ["40", "41", "42", "43", "44_0", "44_waiting", "46", "47"]
    assert (jobs["40"].state, jobs["40"].started_at, jobs["40"].gpu_count) == (JobState.RUNNING, at(1795246607), 16)
    assert jobs["40"].nodes == {"gpu001", "gpu002"}
    assert (jobs["41"].state, jobs["41"].is_held) == (JobState.PENDING, True)
    assert jobs["41"].excluded_nodes == {"gpu003", "gpu004"}
    assert (jobs["42"].state, jobs["42"].started_at, jobs["42"].ended_at) == (JobState.COMPLETING, None, None)
    assert (jobs["43"].state, jobs["43"].ended_at) == (JobState.COMPLETING, at(1795246749))
    assert not jobs["44_waiting"].is_held  # NO_VAL is no priority
    assert (jobs["46"].ended_at, jobs["46"].gpu_count) == (None, 16)
    assert jobs["47"].state is JobState.UNKNOWN


def test_jobs_of_23_02_have_plain_times_and_wrapped_numbers() -> None:
    job = jobs_of("squeue-23.02-from-source.json")["50"].status

    assert (job.state, job.started_at, job.is_held) == (JobState.RUNNING, at(1795246607), False)


@pytest.mark.parametrize(
    ("changes", "ends_by"),
    [
        pytest.param({"end_time": 1795249999}, at(1795249999), id="runs"),
        pytest.param({"end_time": 1795249999, "job_state": "SUSPENDED"}, at(1795249999), id="suspended"),
        pytest.param({"end_time": 1795249999, "time_limit": None}, None, id="UNLIMITED, which Slurm plans for a year"),
        pytest.param(
            {"end_time": 1795249999, "time_limit": {"set": True, "infinite": True}}, None, id="25.11 UNLIMITED"
        ),
        pytest.param({"end_time": 1795249999, "job_state": "PENDING"}, None, id="a guess about the future"),
        pytest.param({"end_time": 1795249999, "job_state": "COMPLETING"}, None, id="requeued"),
        pytest.param({"end_time": 0}, None, id="unset"),
    ],
)
def test_only_an_attempt_that_runs_under_a_limit_has_an_end(
    changes: Mapping[str, object], ends_by: datetime | None
) -> None:
    assert one_job(**changes).status.ends_by == ends_by


def test_partition_and_what_the_comment_declares_are_read() -> None:
    job = one_job(comment="service=chat min_serving=3 ckpt=none ckpt_every=1800").status

    assert (job.partition, job.service, job.min_serving_count) == ("batch", "chat", 3)
    assert (job.checkpointing, job.checkpoint_every) == (Checkpointing.NO, timedelta(minutes=30))


# -- nodes --


def test_partitions_and_last_choice_are_read() -> None:
    nodes = nodes_of("sinfo-22.05-reserved-and-last-choice.json")

    assert {name: node.is_last_choice for name, node in nodes.items()} == {
        "gpu001": False,
        "gpu002": True,
        "gpu003": False,
    }
    assert {node.partitions for node in nodes.values()} == {frozenset({"batch"})}
    assert {node.state for node in nodes.values()} == {NodeState.IDLE}


@pytest.mark.parametrize(("weight", "is_last"), [(999_999, False), (1_000_000, True), (1_000_001, True)])
def test_weight_of_a_million_is_the_last_choice(weight: int, is_last: bool) -> None:
    text = json.dumps({"nodes": [{"name": "gpu001", "state": "idle", "weight": weight}]})

    answer = read_nodes_answer(text, source="sinfo")

    assert [node.is_last_choice for node in answer.nodes] == [is_last]
    assert answer.weights == {"gpu001": weight}


def test_drain_down_and_fail_are_read_with_reason_and_time() -> None:
    nodes = nodes_of("sinfo-22.05-mixed-down-drained-fail.json")

    assert (nodes["gpu013"].state, nodes["gpu013"].is_drained) == (NodeState.DOWN, True)
    assert (nodes["gpu013"].reason, nodes["gpu013"].reason_set_at) == ("INC-7 ours", at(1795246988))
    assert (nodes["gpu012"].state, nodes["gpu012"].is_drained) == (NodeState.IDLE, True)
    assert (nodes["gpu015"].state, nodes["gpu015"].gpu_count, nodes["gpu015"].gpu_in_use_count) == (
        NodeState.MIXED,
        8,
        3,
    )
    assert (nodes["gpu001"].reason, nodes["gpu001"].reason_set_at) == (None, None)


def test_draining_node_still_has_its_jobs_and_a_silent_one_does_not_respond() -> None:
    nodes = nodes_of("sinfo-22.05-drained-with-jobs-down-silent-reserved.json")

    assert (nodes["gpu001"].state, nodes["gpu001"].is_drained, nodes["gpu001"].gpu_in_use_count) == (
        NodeState.MIXED,
        True,
        7,
    )
    assert nodes["gpu001"].reason == "xid79 GPU 3; ticket=INC-1"
    assert (nodes["gpu013"].state, nodes["gpu013"].is_responding) == (NodeState.DOWN, False)
    assert (nodes["gpu014"].state, nodes["gpu014"].is_drained) == (NodeState.IDLE, False)


def test_node_just_resumed_does_not_respond_and_has_no_boot_time_until_it_registers() -> None:
    node = nodes_of("sinfo-22.05-just-resumed-and-reboot-requested.json")["gpu012"]

    assert (node.state, node.is_drained, node.is_responding, node.booted_at) == (NodeState.IDLE, False, False, None)


def test_reason_that_ends_like_a_suffix_is_kept_as_typed() -> None:
    node = nodes_of("sinfo-22.05-just-resumed-and-reboot-requested.json")["gpu011"]

    assert node.reason == "typed by hand [root@2026-01-01T00:00:00]"


def test_nodes_that_25_11_printed_are_read() -> None:
    nodes = nodes_of("scontrol-nodes-25.11-drained-mixed-silent.json")

    assert [each.state for each in nodes.values()] == [
        NodeState.ALLOCATED, NodeState.ALLOCATED, NodeState.MIXED, NodeState.DOWN,
    ]  # fmt: skip
    assert [each.gpu_in_use_count for each in nodes.values()] == [8, 8, 3, 0]
    assert (nodes["gpu001"].is_drained, nodes["gpu001"].reason, nodes["gpu001"].reason_set_at) == (
        True,
        "ops-pipelines: INC-0001 Xid 79",
        at(1795960854),
    )
    assert [name for name, each in nodes.items() if not each.is_responding] == ["gpu004"]
    assert {each.booted_at for each in nodes.values()} == {at(1795887468)}


def test_nodes_as_the_sources_of_25_11_write_them_are_read() -> None:
    nodes = nodes_of("scontrol-nodes-25.11-from-source.json")

    assert (nodes["gpu001"].state, nodes["gpu001"].is_drained, nodes["gpu001"].reason_set_at) == (
        NodeState.MIXED,
        True,
        at(1795246754),
    )
    assert (nodes["gpu001"].gpu_count, nodes["gpu001"].gpu_in_use_count) == (8, 7)
    assert (nodes["gpu002"].is_responding, nodes["gpu002"].booted_at) == (False, None)
    assert (nodes["gpu003"].gpu_count, nodes["gpu003"].gpu_in_use_count) == (8, 3)
    assert nodes["gpu004"].state is NodeState.UNKNOWN


@pytest.mark.parametrize(("allocated_cpus", "expected"), [("0", 0), ("1", 16), ("null", 16)])
def test_gpus_of_a_node_on_which_no_cpu_is_allocated_are_in_nobodys_use(allocated_cpus: str, expected: int) -> None:
    """Seen on 22.05 after it gave up a silent node by itself: 16 of 8 GPUs in use, by no job."""
    text = (
        '{"nodes": [{"name": "gpu001", "state": "down", "state_flags": [], "gres": "gpu:h100:8", '
        f'"gres_used": "gpu:h100:16(IDX:0-7)", "alloc_cpus": {allocated_cpus}}}]}}'
    )

    (node,) = read_nodes_answer(text, source="sinfo").nodes

    assert node.gpu_in_use_count == expected


def test_node_whose_name_could_reach_a_shell_is_rejected() -> None:
    answer = read_nodes_answer('{"nodes": [{"name": "gpu001;reboot", "state": "idle"}]}', source="sinfo")

    assert answer.nodes == ()
    assert "not a node name" in answer.rejected[0].reason


# -- settings --

CONFIG = "scontrol-config-22.05-short-silence-limit.txt"


def config_with(name: str, value: str) -> str:
    """The recorded settings, one of them with another value."""
    lines = recorded(CONFIG).splitlines()
    (index,) = [number for number, line in enumerate(lines) if line.split("=")[0].strip() == name]
    lines[index] = f"{name:<23} = {value}"
    return "\n".join(lines)


def test_limits_are_read_from_the_settings_that_slurmctld_runs_with() -> None:
    limits = read_config_answer(recorded(CONFIG), source="scontrol")

    assert limits.silence_limit == timedelta(seconds=10)
    assert limits.ping_interval == timedelta(seconds=10) / 3
    assert limits.answer_limit == timedelta(seconds=10)
    assert not limits.is_every_down_node_returned
    assert limits.is_requeue_the_default


def test_a_guard_among_numbered_prologs_is_found() -> None:
    """25.11 may run several, and numbers also a single one."""
    shown = recorded("scontrol-config-25.11-numbered-prolog.txt")
    ours = "PrologSlurmctld[0]      = /srv/drill/etc/start_guard/start_guard.sh"
    others = shown.replace(ours, "PrologSlurmctld[0]      = /site/prolog")
    both = others.replace("= /site/prolog", f"= /site/prolog\n{ours.replace('[0]', '[1]')}")

    assert (read_config_answer(shown, source="scontrol").version, ours in shown) == ("25.11.7", True)
    assert [read_config_answer(each, source="scontrol").unguarded for each in (shown, both)] == ["", ""]
    assert "/site/prolog, not the start guard" in read_config_answer(others, source="scontrol").unguarded
    assert prolog_in(shown) == prolog_in(both) == "/srv/drill/etc/start_guard/start_guard.sh"


def test_slurm_without_a_silence_limit_neither_gives_nodes_up_nor_asks_them() -> None:
    limits = read_config_answer(config_with("SlurmdTimeout", "0 sec"), source="scontrol")

    assert (limits.silence_limit, limits.ping_interval) == (None, None)


@pytest.mark.parametrize(
    ("value", "is_returned"), [pytest.param("0", False), pytest.param("1", False), pytest.param("2", True)]
)
def test_only_return_to_service_2_brings_back_whatever_was_set_down(value: str, is_returned: bool) -> None:
    limits = read_config_answer(config_with("ReturnToService", value), source="scontrol")

    assert limits.is_every_down_node_returned is is_returned


def test_jobs_that_are_not_requeued_by_default_are_seen() -> None:
    assert not read_config_answer(config_with("JobRequeue", "0"), source="scontrol").is_requeue_the_default


def test_setting_of_a_plugin_of_the_same_name_is_not_taken_for_slurms_own() -> None:
    text = recorded(CONFIG) + "\nSome Plugin Configuration:\nSlurmdTimeout = 9000 sec\n"

    assert read_config_answer(text, source="scontrol").silence_limit == timedelta(seconds=10)


@pytest.mark.parametrize("name", ["SlurmdTimeout", "MessageTimeout", "ReturnToService", "JobRequeue"])
@pytest.mark.parametrize("value", ["(null)", "", "5 min", "-1", "1e3 sec"])
def test_setting_that_is_no_number_is_nonsense_and_never_a_default(name: str, value: str) -> None:
    with pytest.raises(SourceNonsense, match=name):
        read_config_answer(config_with(name, value), source="scontrol")


@pytest.mark.parametrize("text", ["", "slurm_load_ctl_conf error: Unable to contact slurm controller"])
def test_answer_without_settings_is_nonsense(text: str) -> None:
    with pytest.raises(SourceNonsense, match="'nothing' for SlurmdTimeout"):
        read_config_answer(text, source="scontrol")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("22.05.8", "Slurm 22.05.8: every act"),
        ("25.11.7", "Slurm 25.11.7: its contracts"),
        ("25.05.1", "Slurm 25.05.1: not run by us"),
        ("", ""),
    ],
)
def test_of_a_version_is_told_what_was_run(version: str, said: str) -> None:
    assert tell_version(version).startswith(said)
    assert bool(tell_version(version)) is bool(version)
