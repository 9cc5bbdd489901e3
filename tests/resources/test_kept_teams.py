"""What teams.yaml says by now, and what holds while a new one cannot be read."""

from pathlib import Path

import pytest

from ops_pipelines.resources.config.in_force import read_kept_teams, stamp_of
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.wiring import open_teams_desk

ROOT = Path(__file__).parents[2]
GOOD = "timezone: UTC\nteams:\n  - team: research\n    contracts: [{from: 2025-01-01, until: null, guarantee: 64}]\n"
NEXT = GOOD.replace("64", "128")
BROKEN = GOOD.replace("guarantee", "garantee")


def guarantee(path: Path, kept: Path) -> tuple[float, str]:
    told = read_kept_teams(path, kept=kept)
    return told.content.contracts[0].terms.guarantee, told.trouble


def test_a_broken_file_leaves_what_was_said_before_and_says_so_until_it_is_mended(tmp_path: Path) -> None:
    path, kept = tmp_path / "teams.yaml", tmp_path / "last_good.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert guarantee(path, kept) == (64.0, "")
    path.write_text(NEXT, encoding="utf-8")
    assert guarantee(path, kept) == (128.0, "")

    path.write_text(BROKEN, encoding="utf-8")
    found, trouble = guarantee(path, kept)
    assert found == 128.0
    assert trouble.startswith("teams.yaml cannot be used as it is")
    assert str(tmp_path) not in trouble
    path.unlink()
    assert guarantee(path, kept)[0] == 128.0

    path.write_text(GOOD, encoding="utf-8")
    assert guarantee(path, kept) == (64.0, "")


def test_a_file_that_was_never_right_is_refused(tmp_path: Path) -> None:
    path, kept = tmp_path / "teams.yaml", tmp_path / "last_good.yaml"
    path.write_text(BROKEN, encoding="utf-8")

    with pytest.raises(ConfigError, match="garantee"):
        read_kept_teams(path, kept=kept)

    assert not kept.exists()


def test_a_copy_that_cannot_be_kept_is_told_and_the_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(GOOD, encoding="utf-8")

    found, trouble = guarantee(path, tmp_path / "nowhere" / "last_good.yaml")

    assert found == 64.0
    assert "No such file" in trouble


def test_a_file_that_is_not_there_has_no_stamp(tmp_path: Path) -> None:
    assert stamp_of(None) is None
    assert stamp_of(tmp_path / "teams.yaml") is None


def test_the_desk_is_another_once_the_file_has_changed(tmp_path: Path) -> None:
    for name in ("cluster.yaml", "policy.yaml", "teams.yaml", "capacity.yaml", "projects.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    before = open_teams_desk(tmp_path / "cluster.yaml")

    (tmp_path / "teams.yaml").write_text(GOOD, encoding="utf-8")
    after = open_teams_desk(tmp_path / "cluster.yaml")
    (tmp_path / "teams.yaml").write_text(BROKEN, encoding="utf-8")
    held = open_teams_desk(tmp_path / "cluster.yaml")

    assert held is open_teams_desk(tmp_path / "cluster.yaml")
    assert set(before.agreed().parents) > {"research"}
    assert set(after.agreed().parents) == set(held.agreed().parents) == {"research"}
    assert (after.agreements_trouble, held.agreements_trouble != "") == ("", True)
    assert after.cluster is before.cluster
