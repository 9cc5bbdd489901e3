"""What people see of advice: metadata in which no job name means anything, settings from policy.yaml, the command."""

import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from rich.console import Console

from ops_pipelines.assets.teams import describe_advice, efficiency_advice
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import one_line
from ops_pipelines.efficiency.kept import AdviceReport
from ops_pipelines.efficiency.week import advice_document, advice_json, of_team, report_rows
from ops_pipelines.report.document import to_json
from ops_pipelines.report.terminal import print_document
from ops_pipelines.resources.config.policy_file import read_advice_settings
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.desk import AdviceSettings
from tests.domain.advice_facts import advice
from tests.flow.advice_stage import WEEK, AdviceStage, Job

ROOT = Path(__file__).parents[2]
HOSTILE = one_line("x](http://evil) <script>alert(1)</script> | `#` [bold]\n\x1b[2J" + "y" * 10_000)
REPORT = AdviceReport(
    week=WEEK,
    chosen=(advice(subject=HOSTILE, team=TeamName("te|am"), evidence=(HOSTILE,)),),
    withheld=(),
    unknown=(HOSTILE,),
)


def test_a_hostile_job_name_is_no_markdown_and_no_html_in_metadata(tmp_path: Path) -> None:
    shown = describe_advice(REPORT, (), told=(), desk=AdviceStage(tmp_path).desk())

    table = shown["advice"]
    assert isinstance(table, dg.TableMetadataValue)
    for cell in (str(value) for record in table.records for value in record.data.values()):
        assert cell.isprintable()
        assert "<script" not in cell.replace("\\<", "")
        assert "](" not in cell.replace("\\]", "")
    sentences = shown["sentences"]
    assert isinstance(sentences, dg.MarkdownMetadataValue)
    assert "](" not in str(sentences.md_str).replace("\\]", "")


def test_a_hostile_job_name_steers_no_terminal() -> None:
    out = Console(record=True, width=200, file=io.StringIO())

    document = advice_document(report_rows(REPORT), cluster="c", week=WEEK, currency=None, now=WEEK.end)
    print_document(out, document)

    text = out.export_text()
    assert "\x1b" not in text
    assert "[bold]" in text


def test_json_holds_the_week_and_one_team_alone() -> None:
    other = replace(REPORT, chosen=(*REPORT.chosen, advice()))

    said = json.loads(to_json(advice_json(of_team(other, "vision"), cluster="c")))

    assert (said["week"], [each["team"] for each in said["advice"]]) == ("2026-W45", ["vision"])
    assert said["advice"][0]["gain_cents"] is None


def test_the_asset_tells_keeps_and_shows(tmp_path: Path) -> None:
    bench = AdviceStage(tmp_path)
    bench.lake = ParquetLake(str(tmp_path / "lake"), clock=cast("Any", bench.clock))
    bench.run(Job(job="1", name="train_1", verdict="input_stalled", hours=30))

    result = dg.materialize(
        [efficiency_advice],
        partition_key=WEEK.start.strftime("%Y-%m-%d"),
        resources={"teams_desk": bench.desk()},
        selection=[efficiency_advice],
    )

    (made,) = result.asset_materializations_for_node("efficiency_advice")
    assert made.metadata["said_count"].value == 1
    assert made.metadata["told_team_count"].value == 1
    assert bench.lake.read_hour("efficiency_advice", WEEK.end).num_rows == 1


def test_the_policy_that_is_delivered_states_the_defaults() -> None:
    settings, read_listing = read_advice_settings(ROOT / "policy.yaml")

    assert settings == AdviceSettings()
    assert read_listing is None


def test_what_the_policy_says_is_read(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    (tmp_path / "files.csv").write_bytes(b"path")
    policy.write_text(
        "advice: {per_team_count: 1, stale_after_days: 30, lesser_types: {h100: l40s}, storage_listing: files.csv}\n"
    )

    settings, read_listing = read_advice_settings(policy)

    assert (settings.per_team_count, settings.stale_after) == (1, timedelta(days=30))
    assert dict(settings.lesser_types) == {"h100": "l40s"}
    assert read_listing is not None
    assert read_listing() == b"path"


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ("{worse_ratio: 1.0}", "worse_ratio"),
        ("{per_team_count: 0}", "per_team_count"),
        ("{stall_least_ratio: 1.5}", "stall_least_ratio"),
        ("{lesser_types: {h100: h100}}", "lesser_types"),
        ("{idle_ladder: {is_on: true, first_warning_after_minutes: 300}}", "idle_ladder"),
        ("{unheard_of: 1}", "unheard_of"),
    ],
)
def test_nonsense_under_advice_is_a_fault_with_its_key(tmp_path: Path, section: str, word: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"advice: {section}\n")

    with pytest.raises(ConfigError, match=word):
        read_advice_settings(policy)
