"""What is asked of sacct and squeue, which rows of their answers count, and what is reported when they give none."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.lake.accounting import read_waiting
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.client import DELIMITER, SlurmAccounting

RECORDED = Path(__file__).parents[1] / "data" / "slurm"
START = datetime(2026, 11, 21, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
WIDTH = 28


class FakeSacct:
    """Answers with the given rows under the header that was asked for."""

    def __init__(self, *rows: str, returncode: int = 0, stderr: str = "", is_headed: bool = True) -> None:
        self.rows, self.returncode, self.stderr, self.is_headed = rows, returncode, stderr, is_headed
        self.asked: list[Sequence[str]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        self.asked.append(argv)
        self.environments.append(environment)
        fields = next(part for part in argv if part.startswith("--format=")).removeprefix("--format=").split(",")
        header = [DELIMITER.join(fields)] if self.is_headed else []
        return CommandAnswer(
            returncode=self.returncode, stdout="\n".join([*header, *self.rows, ""]), stderr=self.stderr
        )


def row(job: str, end: str, start: str = "2026-11-21T04:00:00") -> str:
    return DELIMITER.join([job, end, start, *["x"] * (WIDTH - 3)])


def read(sacct: FakeSacct, *, start: datetime = START, end: datetime = START + HOUR) -> list[str]:
    """Return the ids of the rows that were passed on."""
    pages = SlurmAccounting(run=sacct).read_attempts(start=start, end=end)
    lines = [line for page in pages for line in page.body.decode().split("\n")[1:] if line]
    return [line.partition(DELIMITER)[0] for line in lines]


@pytest.mark.parametrize(
    ("end", "is_taken"),
    [
        ("2026-11-21T04:59:59", False),
        ("2026-11-21T05:00:00", True),
        ("2026-11-21T05:59:59", True),
        ("2026-11-21T06:00:00", False),
        ("Unknown", False),
        ("2026-99-21T05:00:00", True),
    ],
)
def test_an_attempt_counts_in_the_stretch_in_which_it_ended(end: str, is_taken: bool) -> None:
    assert read(FakeSacct(row("7", end))) == (["7"] if is_taken else [])


def test_the_rest_of_a_broken_row_goes_where_its_beginning_goes() -> None:
    sacct = FakeSacct(row("7", "2026-11-21T05:10:00"), "second line", row("8", "2026-11-21T07:10:00"), "third line")

    assert read(sacct) == ["7", "second line"]


def test_a_long_stretch_is_asked_for_in_pieces_that_follow_each_other() -> None:
    sacct = FakeSacct()

    read(sacct, end=START + timedelta(hours=13))

    starts = [part for argv in sacct.asked for part in argv if part.startswith("--starttime")]
    assert starts == [
        "--starttime=2026-11-21T05:00:00",
        "--starttime=2026-11-21T11:00:00",
        "--starttime=2026-11-21T17:00:00",
    ]


def test_every_attempt_of_every_user_is_asked_for_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SACCT_FEDERATION", "1")
    sacct = FakeSacct()

    read(sacct)

    assert {"--duplicates", "--allusers"} <= set(sacct.asked[0])
    assert sacct.environments[0]["TZ"] == "UTC"
    assert sacct.environments[0]["SLURM_TIME_FORMAT"] == "standard"
    assert "SACCT_FEDERATION" not in sacct.environments[0]


def test_a_database_that_is_gone_is_no_answer() -> None:
    with pytest.raises(SourceUnavailable, match="Connection refused"):
        read(FakeSacct(returncode=1, stderr="sacct: error: Problem talking to the database: Connection refused"))


def test_an_answer_without_its_header_is_nonsense() -> None:
    with pytest.raises(SourceNonsense, match="no header"):
        read(FakeSacct("Invalid time specification", is_headed=False))


# -- who waits --


class FakeSqueue:
    """Answers with a text that squeue printed once."""

    def __init__(self, stdout: str, *, returncode: int = 0, stderr: str = "") -> None:
        self.answer = CommandAnswer(returncode=returncode, stdout=stdout, stderr=stderr)
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        self.asked.append(argv)
        return self.answer


def waiting(name: str) -> list[tuple[object, ...]]:
    """Return job, GPUs, reason and whether it is reported when it could start, of those that wait in a recorded
    answer."""
    text = (RECORDED / f"squeue-{name}.json").read_bytes().decode(errors="replace")
    (page,) = SlurmAccounting(run=FakeSqueue(text)).read_waiting(at=START)
    assert (page.start, page.end, page.source) == (START, START, "squeue")
    parsed = read_waiting(page.body, source=page.source, at=page.start)
    assert parsed.reasons == {}
    rows = parsed.tables["job_accounting"].to_pylist() if parsed.tables else []
    assert all(row["state"] == "PENDING" and row["started_at"] is None and row["submitted_at"] for row in rows)
    return [(row["job"], row["gpu_count"], row["reason"], row["eligible_at"] is not None) for row in rows]


def test_waiting_tasks_of_an_array_are_one_row_and_a_held_one_another() -> None:
    assert waiting("22.05-array-with-held-task") == [
        ("10_0", 8, "JobHeldUser", True),
        ("10_[4-9%3]", 8, "JobArrayTaskLimit", False),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "22.05-held-while-running",
        "22.05-ended-while-held",
        "22.05-cancelled-requeued-held-all-completing",
        "22.05-heterogeneous",
    ],
)
def test_what_runs_ends_or_has_ended_does_not_wait(name: str) -> None:
    assert waiting(name) == []


def test_a_part_of_a_heterogeneous_job_that_waits_is_told_apart() -> None:
    assert waiting("22.05-heterogeneous-one-component-still-ends") == [("6+1", 4, "JobHeldUser", True)]


def test_a_controller_that_is_gone_is_no_empty_queue() -> None:
    text = (RECORDED / "squeue-22.05-controller-gone-rc-0.json").read_text(encoding="utf-8")

    with pytest.raises(SourceUnavailable, match="squeue"):
        list(SlurmAccounting(run=FakeSqueue(text)).read_waiting(at=START))


def test_a_squeue_that_fails_is_no_empty_queue() -> None:
    squeue = FakeSqueue("", returncode=1, stderr="squeue: error: Unable to contact slurm controller")

    with pytest.raises(SourceUnavailable, match="Unable to contact"):
        list(SlurmAccounting(run=squeue).read_waiting(at=START))


def test_a_text_that_is_no_json_is_nonsense() -> None:
    with pytest.raises(SourceNonsense, match="no JSON"):
        list(SlurmAccounting(run=FakeSqueue("JOBID STATE")).read_waiting(at=START))


@pytest.mark.parametrize(
    ("states", "is_taken"),
    [
        ('"PENDING"', True),
        ('["PENDING"]', True),
        ('["PENDING", "REQUEUED"]', True),
        ('["REQUEUE_HOLD"]', True),
        ('["SPECIAL_EXIT"]', True),
        ('["PENDING", "COMPLETING"]', False),
        ('["RUNNING"]', False),
        ('["CANCELLED"]', False),
    ],
)
def test_who_waits_is_told_by_the_state_in_every_shape(states: str, is_taken: bool) -> None:
    text = (
        f'{{"errors": [], "jobs": [{{"job_id": 7, "job_state": {states}, "account": "a", "submit_time": 1795246995}}]}}'
    )

    (page,) = SlurmAccounting(run=FakeSqueue(text)).read_waiting(at=START)

    assert read_waiting(page.body, source=page.source, at=START).accepted == int(is_taken)
