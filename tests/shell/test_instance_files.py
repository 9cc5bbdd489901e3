"""The two Dagster instances that are shipped: one on SQLite, one on PostgreSQL, and otherwise the same."""

from pathlib import Path

import pytest
import yaml
from dagster import DagsterInstance, DagsterRun
from dagster._config import process_config
from dagster._core.instance.ref import InstanceRef
from dagster_postgres.utils import pg_config, pg_url_from_config

from ops_pipelines.resources.dagster_postgres import KeptPostgresStorage
from ops_pipelines.resources.dagster_sqlite import KeptRunStorage
from ops_pipelines_lab.drills.stack import DATABASE_PREFIX

ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> dict[str, object]:
    content = yaml.safe_load((ROOT / "deploy" / name).read_text())
    assert isinstance(content, dict)
    return content


def test_the_instances_differ_in_their_storage_only() -> None:
    on_sqlite, on_postgres = read("dagster.yaml"), read("dagster.postgres.yaml")

    storages = [each.pop("storage") for each in (on_sqlite, on_postgres)]

    assert all(storages)
    assert on_postgres == on_sqlite


def test_the_instance_on_postgres_takes_every_part_of_its_address_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.postgres.yaml").read_text())
    for name, part in {"HOST": "db.example", "PORT": "5433", "USER": "ops", "PASSWORD": "p", "NAME": "runs"}.items():
        monkeypatch.setenv(f"{DATABASE_PREFIX}{name}", part)

    storage = InstanceRef.from_dir(str(tmp_path)).storage_data

    assert storage is not None
    assert (storage.module_name, storage.class_name) == (KeptPostgresStorage.__module__, KeptPostgresStorage.__name__)
    config = process_config(pg_config(), yaml.safe_load(storage.config_yaml)).value
    assert config is not None
    assert pg_url_from_config(config) == "postgresql+psycopg2://ops:p@db.example:5433/runs"


def test_the_instance_on_sqlite_keeps_its_files_where_dagster_itself_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    with DagsterInstance.from_config(str(tmp_path)) as ours:
        ours.add_run(DagsterRun(job_name="remediate"))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as dagsters:
        found = [run.job_name for run in dagsters.get_runs()]

    assert isinstance(ours.run_storage, KeptRunStorage)
    assert found == ["remediate"]
