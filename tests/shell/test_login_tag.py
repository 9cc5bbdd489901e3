"""The seal on a run that a login launched: one name, one job, one run, for a while."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.run_lanes import TAG_LIFE, LoginKeyError, login_key, read_login, seal_login

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = b"k" * 32
TAG = seal_login(KEY, name="ada", job="approve_plan", run="r1", now=NOW)


@pytest.mark.parametrize(
    ("key", "text", "job", "run", "after", "expected"),
    [
        pytest.param(KEY, TAG, "approve_plan", "r1", timedelta(), "ada", id="as sealed"),
        pytest.param(KEY, TAG, "approve_plan", "r1", TAG_LIFE, "ada", id="at its end"),
        pytest.param(KEY, TAG, "approve_plan", "r1", TAG_LIFE + timedelta(seconds=1), None, id="too old"),
        pytest.param(KEY, TAG, "approve_plan", "r2", timedelta(), None, id="run again"),
        pytest.param(KEY, TAG, "drain_node", "r1", timedelta(), None, id="another job"),
        pytest.param(b"x" * 32, TAG, "approve_plan", "r1", timedelta(), None, id="another key"),
        pytest.param(KEY, TAG.replace("ada", "eve"), "approve_plan", "r1", timedelta(), None, id="another name"),
        pytest.param(KEY, "eve", "approve_plan", "r1", timedelta(), None, id="a name alone"),
        pytest.param(KEY, "", "approve_plan", "r1", timedelta(), None, id="nothing"),
    ],
)
def test_a_tag_speaks_for_one_run_only(
    key: bytes, text: str, job: str, run: str, after: timedelta, expected: str | None
) -> None:
    assert read_login(key, text, job=job, run=run, now=NOW + after) == expected


def test_the_key_is_made_once_for_its_owner_alone_and_refused_when_others_may_read_it(tmp_path: Path) -> None:
    key = login_key(tmp_path)

    assert login_key(tmp_path) == key
    assert (tmp_path / "login.key").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["login.key"]
    (tmp_path / "login.key").chmod(0o640)
    with pytest.raises(LoginKeyError, match="expected 0600"):
        login_key(tmp_path)
