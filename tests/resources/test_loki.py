"""Loki's HTTP API, spoken to a fake server: cursors, ties, pages, credentials, broken answers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import LogBatch, SourceNonsense, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import LokiSettings
from ops_pipelines.resources.loki import LokiLogs
from tests.ports.logs_contract import LogsContract
from tests.resources.fake_loki import FakeLoki, serve_loki

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
SECOND = 1_000_000_000
NOW_NS = int(NOW.timestamp()) * SECOND
SETTLE = timedelta(seconds=10)


class SteppedClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def fake() -> Iterator[FakeLoki]:
    with serve_loki() as server:
        yield server


def logs(fake: FakeLoki, **changes: object) -> LokiLogs:
    settings = LokiSettings(url=fake.url, query='{job="kernel"}')
    return LokiLogs(replace(settings, **changes), clock=SteppedClock())


def read_all(source: LokiLogs, *, max_lines: int) -> list[str]:
    texts: list[str] = []
    batch = source.read_new(None, max_lines=max_lines)
    while batch.lines:
        texts += [line.text for line in batch.lines]
        batch = source.read_new(batch.cursor, max_lines=max_lines)
    return texts


class WrittenLoki:
    """A Loki to which two nodes write; time passes with every line."""

    def __init__(self, fake: FakeLoki) -> None:
        self._fake = fake
        self._clock = SteppedClock()
        self._logs = LokiLogs(LokiSettings(url=fake.url, query='{job="kernel"}', settle=SETTLE), clock=self._clock)
        self._count = 0

    @property
    def logs(self) -> LokiLogs:
        return self._logs

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        return NodeName("gpu001"), NodeName("gpu002")

    def write(self, node: NodeName) -> str:
        self._count += 1
        text = f"message number {self._count}."
        self._fake.add(int(self._clock.now().timestamp()) * SECOND, f"kernel: {text}", node=node, job="kernel")
        self._clock.wait(SETTLE.total_seconds() + 1)
        return text


class TestLokiLogs(LogsContract):
    @pytest.fixture
    def world(self, fake: FakeLoki) -> WrittenLoki:
        return WrittenLoki(fake)


@pytest.mark.parametrize("max_lines", [1, 2, 3, 5, 100])
def test_lines_of_one_nanosecond_are_neither_lost_nor_repeated(fake: FakeLoki, max_lines: int) -> None:
    for number in range(7):
        fake.add(NOW_NS - 60 * SECOND, f"tie {number}", node=f"gpu{number % 3}")
    fake.add(NOW_NS - 30 * SECOND, "later", node="gpu0")

    texts = read_all(logs(fake), max_lines=max_lines)

    assert sorted(texts) == sorted([f"tie {number}" for number in range(7)] + ["later"])
    assert texts[-1] == "later"


def test_more_ties_than_a_page_holds_are_said_to_be_lost(fake: FakeLoki) -> None:
    fake.max_page = 4
    for number in range(9):
        fake.add(NOW_NS - 60 * SECOND, f"tie {number}", node="gpu0")
    fake.add(NOW_NS - 30 * SECOND, "later", node="gpu0")
    source = logs(fake, max_page_lines=4)

    first = source.read_new(None, max_lines=100)
    second = source.read_new(first.cursor, max_lines=100)

    assert len(first.lines) == 4
    assert [line.text for line in second.lines] == ["later"]
    assert "is lost" in second.notes[0]


def test_lines_younger_than_the_settling_time_wait(fake: FakeLoki) -> None:
    fake.add(NOW_NS - 11 * SECOND, "old enough", node="gpu0")
    fake.add(NOW_NS - 9 * SECOND, "too young", node="gpu0")

    assert read_all(logs(fake, settle=SETTLE), max_lines=10) == ["old enough"]


def test_line_that_comes_late_within_the_settling_time_is_read(fake: FakeLoki) -> None:
    clock = SteppedClock()
    source = LokiLogs(LokiSettings(url=fake.url, query="{a='b'}", settle=SETTLE), clock=clock)
    empty = source.read_new(None, max_lines=10)
    fake.add(NOW_NS - 5 * SECOND, "late", node="gpu0")
    clock.wait(20)

    batch = source.read_new(empty.cursor, max_lines=10)

    assert [line.text for line in batch.lines] == ["late"]


def test_long_silence_is_crossed_in_windows_in_one_reading(fake: FakeLoki) -> None:
    fake.add(NOW_NS - 100 * SECOND, "after a week", node="gpu0")
    source = logs(fake, look_back=timedelta(days=7), window=timedelta(hours=1))

    batch = source.read_new(None, max_lines=10)

    assert [line.text for line in batch.lines] == ["after a week"]
    assert fake.query_count == 7 * 24


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        pytest.param({"node": "gpu001"}, "gpu001", id="node"),
        pytest.param({"instance": "gpu001:9100"}, "gpu001", id="port cut off"),
        pytest.param({"hostname": "gpu001.example", "instance": "x"}, "gpu001.example", id="first label counts"),
        pytest.param({"instance": "fe80::1"}, "fe80::1", id="IPv6 stays"),
        pytest.param({"app": "x"}, None, id="none"),
    ],
)
def test_node_comes_from_the_labels(fake: FakeLoki, labels: dict[str, str], node: str | None) -> None:
    fake.add(NOW_NS - 60 * SECOND, "x", **labels)

    (line,) = logs(fake).read_new(None, max_lines=10).lines

    assert line.node == node


def test_job_comes_from_its_label(fake: FakeLoki) -> None:
    fake.add(NOW_NS - 60 * SECOND, "loss: 1.2", slurm_job_id="4711", node="gpu0")

    (line,) = logs(fake, job_label="slurm_job_id").read_new(None, max_lines=10).lines

    assert line.job == "4711"


def test_credentials_and_tenant_come_from_files_and_go_into_headers(fake: FakeLoki, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    fake.tenant, fake.authorization = "team-a", "Bearer s3cret"
    source = logs(fake, tenant="team-a", bearer_token_file=tmp_path / "token")

    assert source.read_new(None, max_lines=1).lines == ()
    with pytest.raises(SourceUnavailable, match="refused the credentials"):
        logs(fake, tenant="team-b", bearer_token_file=tmp_path / "token").read_new(None, max_lines=1)


def test_basic_auth_reads_its_password_at_each_question(fake: FakeLoki, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("old")
    source = logs(fake, basic_auth_user="ops", basic_auth_password_file=password)
    fake.demand_basic("ops", "new")

    with pytest.raises(SourceUnavailable, match="refused the credentials"):
        source.read_new(None, max_lines=1)
    password.write_text("new")

    assert source.read_new(None, max_lines=1).lines == ()


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, SourceNonsense), (404, SourceNonsense), (429, SourceUnavailable), (500, SourceUnavailable),
     (302, SourceUnavailable)],
)  # fmt: skip
def test_refusal_is_an_error_that_does_not_repeat_the_answer(
    fake: FakeLoki, status: int, error: type[Exception]
) -> None:
    fake.status = status

    with pytest.raises(error) as caught:
        logs(fake).read_new(None, max_lines=1)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b'{"data": null}', b'{"data": {"resultType": "matrix", "result": []}}',
        b'{"data": {"resultType": "streams", "result": [{"stream": {}, "values": [["x", "y"]]}]}}',
        b'{"data": {"resultType": "streams", "result": [{"stream": {}, "values": [["1"]]}]}}',
        b'{"data": {"resultType": "streams", "result": [{"stream": [], "values": []}]}}',
        b"\xff\xfe\x00",
    ],
)  # fmt: skip
def test_answer_that_is_no_stream_is_nonsense(fake: FakeLoki, body: bytes) -> None:
    fake.body = body

    with pytest.raises(SourceNonsense):
        logs(fake).read_new(None, max_lines=1)


def test_structured_metadata_beside_a_line_does_not_disturb(fake: FakeLoki) -> None:
    values = [[str(NOW_NS - 60 * SECOND), "text", {"trace": "1"}]]
    streams = [{"stream": {"node": "gpu0"}, "values": values}]
    fake.body = json.dumps({"data": {"resultType": "streams", "result": streams}}).encode()

    batch: LogBatch = logs(fake).read_new(None, max_lines=1)

    assert [line.text for line in batch.lines] == ["text"]


def test_absent_server_is_unavailable() -> None:
    source = LokiLogs(LokiSettings(url="http://127.0.0.1:9", query="{a='b'}"), clock=SteppedClock())

    with pytest.raises(SourceUnavailable, match="did not answer"):
        source.read_new(None, max_lines=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://x"}, {"url": "http://user:pw@x"}, {"query": "rate({a='b'}[5m])"}, {"basic_auth_user": "x"},
        {"bearer_token_file": Path("/t"), "basic_auth_user": "u", "basic_auth_password_file": Path("/p")},
        {"window": timedelta(0)}, {"max_page_lines": 1},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    good = LokiSettings(url="http://loki:3100", query='{job="kernel"}')

    with pytest.raises(ValueError, match=r"\w"):
        LokiLogs(replace(good, **settings), clock=SteppedClock())
