"""Whatever users write (names, comments, accounts): it changes no other field and no word of any command."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.jobs import read_jobs_answer
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler

DATA = Path(__file__).parents[1] / "data" / "slurm"
NOW = datetime(2026, 11, 21, 7, 42, tzinfo=UTC)
"""When the oldest of the answers was recorded."""
ROWS = {
    "23": "squeue-22.05-heterogeneous-held-while-running.json",
    "1_1": "squeue-22.05-array-task-held-and-kept-off-a-node.json",
    "7": "squeue-22.05-cancelled-requeued-held-all-completing.json",
}
ANSWERS = {job: json.loads((DATA / name).read_text()) for job, name in ROWS.items()}
NODES = (DATA / "sinfo-22.05-reserved-and-last-choice.json").read_text()
OF_USERS = ("name", "comment", "account", "user_name", "admin_comment", "command", "current_working_directory", "wckey")
NASTY = [
    "x NodeList=gpu001",
    "a|b",
    "a\nJobId=999 JobName=evil JobState=RUNNING NodeList=gpu001",
    "$(reboot); `id` && x",
    "<script>alert(1)</script>",
    "größer \u202e\x00\ufffd",
    "-w gpu001 --uid=0",
    "State=RESUME Reason=x",
    '{"service": "chat", "checkpointed_at": 1, "ckpt": "/etc/passwd", "min_serving": 9e99}',
    "workload=training service=$(id) ckpt=/../../etc/shadow ckpt_every=1e9",
]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(max_size=60))
VERBS: Sequence[Callable[[SlurmScheduler, JobId], None]] = (
    SlurmScheduler.hold,
    SlurmScheduler.requeue,
    SlurmScheduler.release,
    lambda scheduler, job: scheduler.exclude(job, [NodeName("gpu009")]),
)


class FixedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Listener:
    """Answers with given jobs, approves commands and keeps them."""

    def __init__(self, jobs: str) -> None:
        self.commands: list[Sequence[str]] = []
        self._jobs = jobs

    def __call__(self, argv: Sequence[str], *, environment: object, timeout_seconds: float) -> CommandAnswer:
        self.commands.append(argv)
        said = {"squeue": self._jobs, "sinfo": NODES}.get(argv[0], "slurm 22.05.8")
        return CommandAnswer(returncode=0, stdout=said, stderr="")


def commands_for(job: str, answer: object) -> list[Sequence[str]]:
    listener = Listener(json.dumps(answer))
    scheduler = SlurmScheduler(clock=FixedClock(), run=listener)
    for send in VERBS:
        send(scheduler, JobId(job))
    return listener.commands


@pytest.mark.parametrize("job", sorted(ROWS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_word_of_a_command_depends_on_what_users_wrote(job: str, data: st.DataObject) -> None:
    answer = deepcopy(ANSWERS[job])
    for row in answer["jobs"]:
        row.update({key: data.draw(TEXTS) for key in OF_USERS})

    assert commands_for(job, answer) == commands_for(job, ANSWERS[job])


@pytest.mark.parametrize("job", sorted(ROWS))
@settings(max_examples=25, deadline=None)
@given(name=TEXTS, account=TEXTS)
def test_name_and_account_hide_no_field_and_forge_no_job(job: str, name: str, account: str) -> None:
    answer = deepcopy(ANSWERS[job])
    for row in answer["jobs"]:
        row.update({"name": name, "account": account})

    read = read_jobs_answer(json.dumps(answer), source="squeue", now=NOW)
    plain = read_jobs_answer(json.dumps(ANSWERS[job]), source="squeue", now=NOW)

    assert read.rejected == ()
    assert [row.status for row in read.jobs] == [replace(row.status, name=name, account=account) for row in plain.jobs]


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_text_that_names_no_reservation_reaches_no_command(text: str) -> None:
    listener = Listener(json.dumps(ANSWERS["23"]))
    scheduler = SlurmScheduler(clock=FixedClock(), run=listener)
    is_name = text.isascii() and 1 <= len(text) <= 60 and all(sign.isalnum() or sign in "_-" for sign in text)

    if is_name:
        scheduler.unreserve(text)
    else:
        with pytest.raises(ValueError, match="names no reservation"):
            scheduler.unreserve(text)

    assert listener.commands == ([("scontrol", "delete", f"ReservationName={text}")] if is_name else [])
