"""What is sent to Slurm, with which environment, and what its refusals mean: on recorded answers, without a server."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Checkpointing
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer, run_command
from ops_pipelines.resources.slurm.client import COMMAND_LIMIT_SECONDS
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler

DATA = Path(__file__).parents[1] / "data" / "slurm"
NOW = datetime(2026, 11, 21, 7, 42, tzinfo=UTC)
YES = CommandAnswer(returncode=0, stdout="", stderr="")


class FixedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def no(stderr: str) -> CommandAnswer:
    return CommandAnswer(returncode=1, stdout="", stderr=stderr + "\n")


class RecordedSlurm:
    """Answers reads from recorded files and commands as reported (else yes); keeps the commands."""

    def __init__(
        self,
        *,
        jobs: str = "squeue-22.05-held-while-running.json",
        nodes: str = "sinfo-22.05-mixed-down-drained-fail.json",
        version: str = "slurm-wlm 22.05.8",
        reservations: str = "No reservations in the system\n",
        answers: Mapping[str, CommandAnswer] | None = None,
    ) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.reads: list[tuple[str, ...]] = []
        self.environment: Mapping[str, str] = {}
        self._answers = answers or {}
        self._texts = {"squeue": jobs, "sinfo": nodes}
        self._version = version
        self._reservations = reservations

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        assert 0 < timeout_seconds <= COMMAND_LIMIT_SECONDS < 5
        self.environment = environment
        if argv[1] == "--version":
            return CommandAnswer(returncode=0, stdout=self._version + "\n", stderr="")
        if "--json" in argv:
            self.reads.append(tuple(argv))
            program = "squeue" if argv[0] == "squeue" else "sinfo"
            text = (DATA / self._texts[program]).read_text(errors="replace")
            return CommandAnswer(returncode=0, stdout=text, stderr="")
        if "reservation" in argv and "show" in argv:
            return CommandAnswer(returncode=0, stdout=self._reservations, stderr="")
        self.commands.append(tuple(argv))
        return self._answers.get(argv[1], YES)

    def scheduler(self, **options: object) -> SlurmScheduler:
        return SlurmScheduler(clock=FixedClock(), run=self, **options)  # type: ignore[arg-type]  # keywords of one call


def job_file(tmp_path: Path, **changes: object) -> str:
    """A recorded running job with changes, as a file."""
    answer = json.loads((DATA / "squeue-22.05-held-while-running.json").read_text())
    answer["jobs"][0] |= {"state_reason": "None", "priority": 1, **changes}
    path = tmp_path / "squeue.json"
    path.write_text(json.dumps(answer))
    return str(path)


# -- environment and versions --


def test_clients_get_nothing_that_steers_them_but_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_TIME_FORMAT", "SLURM_JWT", "SLURM_CLUSTERS", "SQUEUE_STATES", "SQUEUE_FORMAT", "SINFO_FORMAT"):
        monkeypatch.setenv(name, "%s")
    monkeypatch.setenv("SLURM_CONF", "/etc/elsewhere.conf")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    slurm = RecordedSlurm()

    slurm.scheduler(slurm_conf=Path("/etc/slurm.conf")).read_nodes()

    steering = {
        name: value for name, value in slurm.environment.items() if name.startswith(("SLURM", "SQUEUE", "SINFO"))
    }
    assert steering == {"SLURM_CONF": "/etc/slurm.conf"}
    assert (slurm.environment["TZ"], slurm.environment["LC_ALL"]) == ("UTC", "C.UTF-8")
    assert slurm.environment["PATH"] == os.environ["PATH"]


def test_configuration_of_this_process_is_kept_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/elsewhere.conf")
    slurm = RecordedSlurm()

    slurm.scheduler().read_nodes()

    assert slurm.environment["SLURM_CONF"] == "/etc/elsewhere.conf"


@pytest.mark.parametrize(
    ("version", "nodes", "program"),
    [
        ("slurm-wlm 22.05.8", "sinfo-22.05-mixed-down-drained-fail.json", "sinfo"),
        ("slurm 23.02.0", "scontrol-nodes-25.11-from-source.json", "scontrol"),
        ("slurm 25.11.4-rc1", "scontrol-nodes-25.11-drained-mixed-silent.json", "scontrol"),
    ],
)
def test_nodes_are_asked_of_the_client_that_lists_them_one_by_one(version: str, nodes: str, program: str) -> None:
    slurm = RecordedSlurm(version=version, nodes=nodes)

    assert len(slurm.scheduler().read_nodes()) == 4
    assert [argv[0] for argv in slurm.reads] == [program]  # and the reservations, as text


def test_version_that_cannot_be_read_is_nonsense() -> None:
    with pytest.raises(SourceNonsense, match="version"):
        RecordedSlurm(version="Slurm, sort of").scheduler().read_nodes()


# -- reading --


@pytest.mark.parametrize("read", [SlurmScheduler.read_nodes, SlurmScheduler.read_jobs])
def test_unreachable_controller_is_never_an_empty_cluster(read: Callable[[SlurmScheduler], object]) -> None:
    gone = RecordedSlurm(jobs="squeue-22.05-controller-gone-rc-0.json", nodes="sinfo-22.05-controller-gone-rc-0.json")

    with pytest.raises(SourceUnavailable):
        read(gone.scheduler())


def test_one_job_that_cannot_be_believed_hides_behind_no_others(tmp_path: Path) -> None:
    slurm = RecordedSlurm(jobs=job_file(tmp_path, nodes="gpu[1-"))

    with pytest.raises(SourceNonsense, match=r"1 job\(s\)"):
        slurm.scheduler().read_jobs()


def test_node_that_cannot_be_believed_is_left_out_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = tmp_path / "sinfo.json"
    good = json.loads((DATA / "sinfo-22.05-mixed-down-drained-fail.json").read_text())
    good["nodes"][0]["name"] = "; reboot"
    nodes.write_text(json.dumps(good))

    assert len(RecordedSlurm(nodes=str(nodes)).scheduler().read_nodes()) == 3
    assert "left out" in caplog.text


def test_checkpoint_file_beneath_a_root_tells_when_it_was_written(tmp_path: Path) -> None:
    checkpoint = tmp_path / "roots" / "last"
    checkpoint.parent.mkdir()
    checkpoint.write_text("42")
    os.utime(checkpoint, (1795246000, 1795246000))
    slurm = RecordedSlurm(jobs=job_file(tmp_path, comment=f"workload=training ckpt={checkpoint}"))

    (with_root,) = slurm.scheduler(checkpoint_roots=[tmp_path / "roots"]).read_jobs()
    (without_root,) = slurm.scheduler().read_jobs()

    assert with_root.checkpointed_at == datetime.fromtimestamp(1795246000, UTC)
    assert without_root.checkpointed_at is None


def test_job_whose_file_was_seen_once_is_known_to_save_its_work_and_a_declared_path_alone_is_a_promise(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "last"
    scheduler = RecordedSlurm(jobs=job_file(tmp_path, comment=f"ckpt={checkpoint}")).scheduler(
        checkpoint_roots=[tmp_path]
    )

    (before,) = scheduler.read_jobs()
    checkpoint.write_text("42")
    os.utime(checkpoint, (1795246000, 1795246000))
    (seen,) = scheduler.read_jobs()
    checkpoint.unlink()
    (after,) = scheduler.read_jobs()

    assert [job.checkpointing for job in (before, seen, after)] == [
        Checkpointing.UNKNOWN,
        Checkpointing.YES,
        Checkpointing.YES,
    ]
    assert [job.checkpointed_at is None for job in (before, seen, after)] == [True, False, True]


def test_checkpoint_written_in_the_future_is_not_believed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last"
    checkpoint.write_text("42")
    os.utime(checkpoint, (NOW.timestamp() + 60, NOW.timestamp() + 60))
    slurm = RecordedSlurm(jobs=job_file(tmp_path, comment=f"ckpt={checkpoint}"))

    (job,) = slurm.scheduler(checkpoint_roots=[tmp_path]).read_jobs()

    assert job.checkpointed_at is None


def test_limits_are_asked_of_the_running_controller() -> None:
    text = (DATA / "scontrol-config-22.05-short-silence-limit.txt").read_text()
    slurm = RecordedSlurm(answers={"show": CommandAnswer(returncode=0, stdout=text, stderr="")})

    limits = slurm.scheduler().read_limits()

    assert slurm.commands == [("scontrol", "show", "config")]
    assert limits.silence_limit == timedelta(seconds=10)


# -- nodes --


def test_batch_is_drained_by_one_command_with_the_reason_as_one_word() -> None:
    slurm = RecordedSlurm()

    slurm.scheduler().drain([NodeName("gpu015"), NodeName("gpu001")], reason='"a" | $(reboot) \'; x=y')

    assert slurm.commands == [
        ("scontrol", "update", "NodeName=gpu001,gpu015", "State=DRAIN", 'Reason=""a" | $(reboot) \'; x=y"')
    ]


def test_batch_with_an_unknown_node_drains_nothing() -> None:
    """Slurm 22.05 answers "Invalid node name specified" and drains the other nodes of the batch all the same."""
    slurm = RecordedSlurm()

    with pytest.raises(SourceRefused, match="gpu099"):
        slurm.scheduler().drain([NodeName("gpu001"), NodeName("gpu099")], reason="x")

    assert slurm.commands == []


def test_refusal_of_a_batch_leaves_the_effect_unknown_because_part_of_it_may_be_drained() -> None:
    slurm = RecordedSlurm(answers={"update": no("slurm_update error: Invalid node state specified")})

    with pytest.raises(SourceUnavailable, match="may be drained"):
        slurm.scheduler().drain([NodeName("gpu001"), NodeName("gpu015")], reason="x")


@pytest.mark.parametrize("name", ["ALL", "all", "gpu[001-016]", "gpu001,gpu002", "gpu001 State=DOWN", ""])
def test_word_that_means_many_nodes_is_no_node_name(name: str) -> None:
    slurm = RecordedSlurm()

    with pytest.raises(ValueError):
        slurm.scheduler().drain([NodeName(name)], reason="x")

    assert slurm.commands == []


@pytest.mark.parametrize(
    ("node", "command"),
    [
        pytest.param("gpu001", [], id="in service: nothing to send"),
        pytest.param("gpu012", [("scontrol", "update", "NodeName=gpu012", "State=UNDRAIN")], id="set to FAIL"),
        pytest.param("gpu013", [("scontrol", "update", "NodeName=gpu013", "State=RESUME")], id="down and drained"),
    ],
)
def test_resume_sends_what_the_state_needs(node: str, command: list[tuple[str, ...]]) -> None:
    slurm = RecordedSlurm()

    slurm.scheduler().resume(NodeName(node))

    assert slurm.commands == command


def test_node_that_is_down_and_silent_is_not_resumed() -> None:
    slurm = RecordedSlurm(nodes="sinfo-22.05-drained-with-jobs-down-silent-reserved.json")

    with pytest.raises(SourceRefused, match="does not answer"):
        slurm.scheduler().resume(NodeName("gpu013"))

    assert slurm.commands == []


# -- jobs --


def test_running_job_is_requeued_and_held_by_one_command(tmp_path: Path) -> None:
    slurm = RecordedSlurm(jobs=job_file(tmp_path))

    slurm.scheduler().hold(JobId("26"))

    assert slurm.commands == [("scontrol", "requeuehold", "26")]


def test_pending_job_is_held_and_cannot_slip_into_running_between_two_commands(tmp_path: Path) -> None:
    pending = no("Job is pending execution for job 26")
    slurm = RecordedSlurm(jobs=job_file(tmp_path, job_state="PENDING"), answers={"requeuehold": pending})

    slurm.scheduler().hold(JobId("26"))

    assert [command[1:] for command in slurm.commands] == [("requeuehold", "26"), ("hold", "26"), ("requeuehold", "26")]


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        pytest.param({}, [("scontrol", "hold", "26")], id="marked, not requeued"),
        pytest.param({"priority": 0, "state_reason": "JobHeldAdmin"}, [], id="marked already"),
    ],
)
def test_job_on_a_silent_node_is_marked_because_a_requeue_would_lose_its_gpus_when_the_node_goes_down(
    tmp_path: Path, changes: Mapping[str, object], commands: list[tuple[str, ...]]
) -> None:
    slurm = RecordedSlurm(
        jobs=job_file(tmp_path, nodes="gpu[001,013]", **changes),
        nodes="sinfo-22.05-drained-with-jobs-down-silent-reserved.json",
    )

    slurm.scheduler().hold(JobId("26"))

    assert slurm.commands == commands


def test_hold_of_the_user_is_left_as_it_is(tmp_path: Path) -> None:
    """`scontrol hold` would make it an administrator's hold, which the user could not take back."""
    held = job_file(tmp_path, job_state="PENDING", priority=0, state_reason="JobHeldUser")
    slurm = RecordedSlurm(jobs=held)

    slurm.scheduler().hold(JobId("26"))

    assert slurm.commands == []


ENDED = {"end_time": int(NOW.timestamp()) - 1}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"job_state": "COMPLETED", **ENDED}, id="completed"),
        pytest.param({"job_state": "FAILED", **ENDED}, id="failed"),
        pytest.param({"job_state": "COMPLETING", **ENDED}, id="cancelled, its processes still end"),
        pytest.param({"job_state": "A_STATE_OF_TOMORROW"}, id="unknown state"),
    ],
)
@pytest.mark.parametrize("verb", ["hold", "requeue", "release"])
def test_job_whose_run_is_over_is_refused_although_slurm_would_run_it_again(
    tmp_path: Path, changes: Mapping[str, object], verb: str
) -> None:
    """Slurm 22.05 obeys `requeuehold` of a finished or just cancelled job: rc 0, and the job is back."""
    slurm = RecordedSlurm(jobs=job_file(tmp_path, **changes))

    with pytest.raises(SourceRefused, match="its run is over"):
        getattr(slurm.scheduler(), verb)(JobId("26"))

    assert slurm.commands == []


def test_job_that_was_requeued_and_still_ends_can_be_held(tmp_path: Path) -> None:
    requeued = job_file(tmp_path, job_state="COMPLETING", end_time=int(NOW.timestamp()) + 3600)
    slurm = RecordedSlurm(jobs=requeued)

    slurm.scheduler().hold(JobId("26"))

    assert slurm.commands[0] == ("scontrol", "requeuehold", "26")


def test_array_task_is_named_by_task_in_commands() -> None:
    slurm = RecordedSlurm(jobs="squeue-22.05-last-array-task-has-the-array-id.json")

    slurm.scheduler().hold(JobId("27_1"))

    assert slurm.commands == [("scontrol", "requeuehold", "27_1")]


@pytest.mark.parametrize("job", ["10", "10_waiting"])
def test_command_that_would_touch_a_whole_array_is_refused(job: str) -> None:
    slurm = RecordedSlurm(jobs="squeue-22.05-array-with-running-tasks.json")

    with pytest.raises(SourceRefused):
        slurm.scheduler().hold(JobId(job))

    assert slurm.commands == []


def test_component_of_a_heterogeneous_job_is_held_through_its_leader() -> None:
    slurm = RecordedSlurm(jobs="squeue-22.05-heterogeneous.json")

    slurm.scheduler().hold(JobId("16"))

    assert slurm.commands == [("scontrol", "requeuehold", "15")]


def test_exclusion_adds_to_the_list_that_is_there(tmp_path: Path) -> None:
    slurm = RecordedSlurm(jobs=job_file(tmp_path, job_state="PENDING", excluded_nodes="gpu[001-002]"))

    slurm.scheduler().exclude(JobId("26"), [NodeName("gpu009")])

    assert slurm.commands == [("scontrol", "update", "JobId=26", "ExcNodeList=gpu001,gpu002,gpu009")]


def test_exclusion_that_is_there_already_sends_nothing(tmp_path: Path) -> None:
    slurm = RecordedSlurm(jobs=job_file(tmp_path, job_state="PENDING", excluded_nodes="gpu[001-002]"))

    slurm.scheduler().exclude(JobId("26"), [NodeName("gpu002")])

    assert slurm.commands == []


@pytest.mark.parametrize("job", ["26; scontrol shutdown", "-1", "$(reboot)", ""])
def test_id_that_is_no_job_id_reaches_no_command(job: str) -> None:
    slurm = RecordedSlurm()

    with pytest.raises(ValueError):
        slurm.scheduler().release(JobId(job))

    assert slurm.commands == []


def test_exclusion_is_set_on_every_component_that_lacks_it_because_any_may_be_put_there() -> None:
    slurm = RecordedSlurm(jobs="squeue-22.05-heterogeneous-held-while-running.json")

    slurm.scheduler().exclude(JobId("23"), [NodeName("gpu003")])

    assert slurm.commands == [("scontrol", "update", f"JobId={job}", "ExcNodeList=gpu003") for job in ("23", "24")]


# -- reservations --

IDLE = "sinfo-22.05-reserved-and-last-choice.json"
RESERVED = (DATA / "scontrol-reservations-22.05-ours-over-planned.txt").read_text()
HALF_PAST = datetime(2026, 11, 21, 8, 30, 0, 999, tzinfo=UTC)


def reserve(slurm: RecordedSlurm, name: str, *, until: datetime = HALF_PAST) -> None:
    slurm.scheduler().reserve([NodeName("gpu003"), NodeName("gpu001")], name=name, until=until)


def test_reservation_lets_in_nobody_kills_nobody_and_ends_by_itself() -> None:
    slurm = RecordedSlurm(nodes=IDLE)

    reserve(slurm, "INC-7_12")

    assert slurm.commands == [
        (
            "scontrol",
            "create",
            "reservation",
            "ReservationName=INC-7_12",
            "Nodes=gpu001,gpu003",
            f"Users={os.geteuid()}",
            "StartTime=now",
            "EndTime=2026-11-21T08:30:00",
            "Flags=FLEX",
        )
    ]


def test_reservation_that_slurm_knows_is_changed_in_one_step() -> None:
    slurm = RecordedSlurm(nodes=IDLE, reservations=RESERVED)

    reserve(slurm, "INC-7_job-12", until=HALF_PAST.astimezone(timezone(timedelta(hours=9))))

    end = "EndTime=2026-11-21T08:30:00"
    assert slurm.commands == [
        ("scontrol", "update", "ReservationName=INC-7_job-12", "Nodes=gpu001,gpu003", end),
    ]


@pytest.mark.parametrize(
    ("until", "is_refused"),
    [
        pytest.param(NOW, True, id="now"),
        pytest.param(NOW + timedelta(seconds=0.9), True, id="now, in Slurm's whole seconds"),
        pytest.param(NOW + timedelta(seconds=1), False, id="the next second"),
        pytest.param(NOW.replace(tzinfo=None) + timedelta(hours=1), True, id="without a zone"),
    ],
)
def test_reservation_needs_an_end_that_lies_ahead(until: datetime, is_refused: bool) -> None:
    slurm = RecordedSlurm(nodes=IDLE)

    with pytest.raises(ValueError, match="would end at") if is_refused else nullcontext():
        reserve(slurm, "INC-7", until=until)

    assert len(slurm.commands) == (0 if is_refused else 1)


@pytest.mark.parametrize(
    "node",
    [pytest.param("gpu012", id="set to FAIL"), pytest.param("gpu013", id="down"), pytest.param("gpu015", id="busy")],
)
def test_node_that_is_not_free_is_not_reserved_although_slurm_would_take_a_drained_one(node: str) -> None:
    slurm = RecordedSlurm()

    with pytest.raises(SourceRefused, match=node):
        slurm.scheduler().reserve([NodeName("gpu001"), NodeName(node)], name="INC-7", until=HALF_PAST)

    assert slurm.commands == []


@pytest.mark.parametrize(
    "said",
    [
        "Error creating the reservation: Requested nodes are busy",
        "Error creating the reservation: Requested reservation overlaps with another reservation",
        "Error creating the reservation: Access/permission denied",
    ],
)
def test_slurm_refuses_a_reservation_clearly(said: str) -> None:
    with pytest.raises(SourceRefused):
        reserve(RecordedSlurm(nodes=IDLE, answers={"create": no(said)}), "INC-7")


def test_reservation_that_is_gone_stays_gone_and_one_in_use_is_refused() -> None:
    gone = no("delete_reservation ReservationName=INC-7: Requested reservation is invalid")
    used = no("delete_reservation ReservationName=INC-7: Requested reservation is in use")
    slurm = RecordedSlurm(answers={"delete": gone})

    slurm.scheduler().unreserve("INC-7")
    with pytest.raises(SourceRefused, match="in use"):
        RecordedSlurm(answers={"delete": used}).scheduler().unreserve("INC-7")

    assert slurm.commands == [("scontrol", "delete", "ReservationName=INC-7")]


# -- last choice --


def test_node_is_put_last_and_back_by_its_weight_and_keeps_the_rest_of_it() -> None:
    slurm = RecordedSlurm(nodes=IDLE)
    scheduler = slurm.scheduler()

    scheduler.put_last(NodeName("gpu001"))
    scheduler.put_last(NodeName("gpu002"))
    scheduler.put_back(NodeName("gpu001"))
    scheduler.put_back(NodeName("gpu002"))

    assert slurm.commands == [
        ("scontrol", "update", "NodeName=gpu001", "Weight=1000001"),
        ("scontrol", "update", "NodeName=gpu002", "Weight=1"),
    ]


def test_node_whose_weight_is_not_told_keeps_it(tmp_path: Path) -> None:
    answer = json.loads((DATA / IDLE).read_text())
    for node in answer["nodes"]:
        del node["weight"]
    (tmp_path / "sinfo.json").write_text(json.dumps(answer))
    slurm = RecordedSlurm(nodes=str(tmp_path / "sinfo.json"))

    with pytest.raises(SourceNonsense, match="no weight"):
        slurm.scheduler().put_last(NodeName("gpu001"))

    assert not any(node.is_last_choice for node in slurm.scheduler().read_nodes())
    assert slurm.commands == []


# -- errors --


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        pytest.param("Requested operation is presently disabled for job 26", SourceRefused, id="Requeue=0"),
        pytest.param("Job not heterogeneous job leader for job 26", SourceRefused, id="part of a job"),
        pytest.param("Access/permission denied for job 26", SourceRefused, id="not allowed"),
        pytest.param(
            "slurm_suspend error: Unable to contact slurm controller (connect failure)", SourceUnavailable, id="gone"
        ),
        pytest.param("Socket timed out on send/recv operation", SourceUnavailable, id="silent"),
        pytest.param(
            "scontrol: error: Munge encode failed: Failed to access munge.sock\nUnexpected message received for job 26",
            SourceUnavailable,
            id="munge is gone",
        ),
        pytest.param("something new", SourceUnavailable, id="never seen: effect unknown"),
    ],
)
def test_clear_no_is_a_refusal_and_all_else_leaves_the_effect_unknown(
    tmp_path: Path, stderr: str, error: type[SourceError]
) -> None:
    slurm = RecordedSlurm(jobs=job_file(tmp_path), answers={"requeuehold": no(stderr)})

    with pytest.raises(error, match=stderr.partition("\n")[0].replace("(", r"\(").replace(")", r"\)")):
        slurm.scheduler().hold(JobId("26"))


def test_missing_client_leaves_the_effect_unknown() -> None:
    with pytest.raises(SourceUnavailable, match="could not be started"):
        run_command(["no-such-client"], environment={}, timeout_seconds=1)


def test_silent_client_is_killed_with_all_that_it_started() -> None:
    """The child keeps the pipe open: waiting for its end would outlast the limit."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"

    with pytest.raises(SourceUnavailable, match="did not answer within"):
        run_command([sys.executable, "-c", program], environment={}, timeout_seconds=0.5)


def test_client_that_prints_without_an_end_is_killed_and_not_believed() -> None:
    program = "import sys\nwhile True: sys.stdout.write('x' * 1048576)"

    with pytest.raises(SourceNonsense, match="more than 8388608 bytes"):
        run_command([sys.executable, "-c", program], environment={}, timeout_seconds=30)


def test_slurm_scheduler_is_a_scheduler() -> None:
    scheduler: Scheduler = RecordedSlurm().scheduler()

    assert scheduler.read_jobs()
