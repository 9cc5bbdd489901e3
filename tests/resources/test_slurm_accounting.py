"""What is asked of sacct, which rows of its answer count, and what is said when it gives none."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.ports.source_error import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.command_line import CommandAnswer
from ops_pipelines.resources.slurm.accounting import DELIMITER, SlurmAccounting

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
