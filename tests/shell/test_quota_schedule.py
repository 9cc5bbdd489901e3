"""The schedule of quotas: a run a morning, and none where nobody named teams."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.acting_jobs import quota_schedule_in


@pytest.mark.parametrize(
    ("text", "runs"), [("teams: teams.yaml\n", True), ("teams: null\n", False), ("name: a\n", False), (None, True)]
)
def test_a_morning_without_teams_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, runs: bool
) -> None:
    file = tmp_path / "cluster.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("OPS_PIPELINES_CLUSTER", str(file))

    context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 11, 22, 5, tzinfo=UTC))
    found = quota_schedule_in("UTC")(context)

    if runs:
        assert isinstance(found, dg.RunRequest)
        assert found.partition_key == "2026-11-22"
    else:
        assert isinstance(found, dg.SkipReason)
        assert "names no file of teams" in str(found.skip_message)
