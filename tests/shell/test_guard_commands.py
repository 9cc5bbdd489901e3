"""`ops-pipelines guard`: installed by one command, seen through, taken out again, and never by halves."""

import os
import pwd
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ops_pipelines import cli

USER = pwd.getpwuid(0).pw_name


@pytest.fixture
def slurm_conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=a\nPrologSlurmctld=/site/prolog\n")
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["guard", *words])


def install(slurm_conf: Path, *words: str, user: str = USER) -> Result:
    here = slurm_conf.parent
    return run(
        *(
            "install",
            "--slurm-conf",
            str(slurm_conf),
            "--directory",
            str(here / "guard"),
            "--state",
            str(here / "state"),
            "--fallback",
            str(here / "fallback"),
        ),
        *("--user", user, *words),
    )


def test_a_dry_run_says_what_would_be_done_and_does_nothing(slurm_conf: Path) -> None:
    before = slurm_conf.read_text()

    answer = install(slurm_conf, "--dry-run")

    assert answer.exit_code == 0
    assert "would let" in answer.output
    assert "then /site/prolog" in answer.output
    assert slurm_conf.read_text() == before
    assert not (slurm_conf.parent / "guard").exists()


def test_a_slurm_in_a_place_of_its_own_is_asked_by_its_own_programs(
    slurm_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = slurm_conf.parent / "opt" / "bin" / "scontrol"
    scontrol.parent.mkdir(parents=True)
    scontrol.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")

    answer = install(slurm_conf, "--dry-run")
    install(slurm_conf)

    assert f"would ask Slurm by {scontrol}" in answer.output
    environment = (slurm_conf.parent / "guard" / "start_guard.env").read_text()
    assert f"PATH={scontrol.parent}:/usr/local/sbin:" in environment


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/nowhere"])
def test_the_systems_own_slurm_is_asked_by_name(path: str, slurm_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)

    assert "would ask Slurm by scontrol" in install(slurm_conf, "--dry-run").output


def test_an_unknown_user_or_a_missing_slurm_conf_changes_nothing(slurm_conf: Path) -> None:
    unknown = install(slurm_conf, user="nobody-at-all")
    missing = run("install", "--slurm-conf", str(slurm_conf.with_name("none.conf")), "--user", USER)

    assert (unknown.exit_code, missing.exit_code) == (cli.ExitCode.USAGE, cli.ExitCode.USAGE)
    assert "nobody-at-all" in unknown.output
    assert not (slurm_conf.parent / "guard").exists()


@pytest.mark.parametrize("job", ["x", "1;2", ""])
def test_a_pass_is_for_a_job_and_has_a_reason(slurm_conf: Path, job: str) -> None:
    answer = run("pass", job, "--reason", "apart", "--directory", str(slurm_conf.parent / "guard"))

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "no job id" in answer.output


def test_without_a_guard_its_commands_say_how_to_install_it(slurm_conf: Path) -> None:
    answer = run("status", "--directory", str(slurm_conf.parent / "guard"))

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "guard install" in answer.output


def test_what_is_not_installed_is_not_taken_out(slurm_conf: Path) -> None:
    before = slurm_conf.read_text()

    answer = run("uninstall", "--slurm-conf", str(slurm_conf), "--directory", str(slurm_conf.parent / "guard"))

    assert answer.exit_code == cli.ExitCode.USAGE
    assert slurm_conf.read_text() == before


def test_slurm_conf_is_not_changed_where_its_user_could_not_run_the_guard(slurm_conf: Path) -> None:
    here = slurm_conf.parent
    before = slurm_conf.read_text()
    here.chmod(0o700)

    answer = install(slurm_conf, user="nobody")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "user nobody cannot use" in answer.output
    assert slurm_conf.read_text() == before


def test_the_way_to_the_state_is_open_whatever_roots_umask(slurm_conf: Path) -> None:
    here = slurm_conf.parent
    before = os.umask(0o077)
    try:
        answer = install(slurm_conf, "--state", str(here / "var" / "lib" / "state"))
    finally:
        os.umask(before)

    assert answer.exit_code == 0
    assert [(here / each).stat().st_mode & 0o777 for each in ("var", "var/lib")] == [0o755, 0o755]
    assert (here / "var/lib/state").stat().st_mode & 0o027 == 0


def test_installed_twice_and_taken_out_the_sites_own_prolog_is_back(slurm_conf: Path) -> None:
    here = slurm_conf.parent
    words = ("--slurm-conf", str(slurm_conf), "--directory", str(here / "guard"))

    first = install(slurm_conf)
    second = install(slurm_conf)
    installed = slurm_conf.read_text()
    has_place_for_passes = (here / "state" / "passes").is_dir()
    passed = run("pass", "4711", "--reason", "apart", "--directory", str(here / "guard"))
    out = run("uninstall", *words)

    assert [each.exit_code for each in (first, second, passed, out)] == [0, 0, 0, 0]
    assert has_place_for_passes
    assert f"PrologSlurmctld={here}/guard/start_guard.sh" in installed
    assert "/site/prolog" not in installed
    assert (here / "state" / "passes" / "4711").read_text().endswith("apart\n")
    assert slurm_conf.read_text() == "ClusterName=a\nPrologSlurmctld=/site/prolog\n"
