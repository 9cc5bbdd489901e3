"""Playbooks of a site, run by the real ansible on this machine: once for a key, and never believed for an exit code."""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.release import Change, Component, Means
from ops_pipelines.core.rollout import Direction, InstallOrder, InstallReport, InstallState
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import AnsibleSettings
from ops_pipelines.resources.fleet import ansible as ansible_installs
from ops_pipelines.resources.fleet.ansible import AnsibleInstalls, plain_environment
from ops_pipelines_lab.drills.daemon_processes import wait_until
from tests.resources.install_orders import KEY, NODE, OTHER_KEY, OTHER_NODE, change, image, order


@pytest.fixture
def playbooks(tmp_path: Path) -> Path:
    """Playbooks for the node, which is this machine."""
    place = tmp_path / "playbooks"
    (place / "group_vars").mkdir(parents=True)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (place / "group_vars" / "all.yml").write_text(yaml.safe_dump(local))
    note = {"content": "{{ ops_component }} {{ ops_version }} {{ ops_direction }} {{ flavor }}\n"}
    copy = {"dest": f"{tmp_path}/{{{{ inventory_hostname }}}}.note", **note}
    write(place, "driver.yml", [{"name": "put the driver", "ansible.builtin.copy": copy}])
    write(place, "broken.yml", [{"name": "check the disk", "ansible.builtin.fail": {"msg": "no space left"}}])
    write(place, "elsewhere.yml", [{"ansible.builtin.debug": {"msg": "x"}}], hosts="other_group")
    write(place, "slow.yml", [{"name": "wait", "ansible.builtin.wait_for": {"path": f"{tmp_path}/go", "timeout": 60}}])
    return place


def write(place: Path, name: str, tasks: list[dict[str, object]], *, hosts: str = "all") -> None:
    play = {"hosts": hosts, "gather_facts": False, "tasks": tasks}
    (place / name).write_text(yaml.safe_dump([play]))


@pytest.fixture
def installs(tmp_path: Path, playbooks: Path) -> AnsibleInstalls:
    return installs_of(tmp_path, playbooks)


def installs_of(tmp_path: Path, playbooks: Path, *, limit: timedelta = timedelta(minutes=1)) -> AnsibleInstalls:
    settings = AnsibleSettings(playbooks=playbooks, limit=limit)
    return AnsibleInstalls(settings, tmp_path / "state" / "ansible", clock=SystemClock())


def played(*words: str, **given: object) -> Change:
    return change(*words, means=Means.ANSIBLE, **given)  # type: ignore[arg-type]  # as `change` takes them


def wait_for(read: Callable[[], InstallReport | None]) -> InstallReport:
    def is_over() -> bool:
        report = read()
        return report is not None and report.state is not InstallState.RUNNING

    wait_until("the playbooks", is_over, timeout_seconds=60.0, every_seconds=0.05)
    found = read()
    assert found is not None
    return found


def test_a_playbook_runs_on_the_node_alone_with_what_the_order_says_and_once(
    installs: AnsibleInstalls, tmp_path: Path
) -> None:
    given = order(played("driver.yml", "flavor=open-{version}"))

    installs.start(NODE, given, key=KEY)
    installs.start(NODE, given, key=KEY)
    report = wait_for(lambda: installs.report(NODE, key=KEY))

    assert (report.state, report.said) == (InstallState.INSTALLED, "driver.yml ended well on gpu003")
    assert (tmp_path / "gpu003.note").read_text() == "driver 580.126.20 forward open-580.126.20\n"
    (tmp_path / "gpu003.note").unlink()
    installs.start(NODE, given, key=KEY)
    assert installs.report(NODE, key=KEY) == report
    kept = tmp_path / "state" / "ansible" / KEY
    assert json.loads((kept / "inventory" / "hosts.json").read_text()) == {"all": {"hosts": {"gpu003": {}}}}
    assert kept.stat().st_mode & 0o077 == 0


def test_playbooks_run_one_after_another_and_the_first_that_fails_ends_them(
    installs: AnsibleInstalls, tmp_path: Path
) -> None:
    given = order(played("broken.yml"), played("driver.yml", "flavor=x", component=Component.DCGM))

    installs.start(NODE, given, key=KEY)
    report = wait_for(lambda: installs.report(NODE, key=KEY))

    assert report.state is InstallState.FAILED
    assert report.said == "broken.yml ended as failed: check the disk: no space left"
    assert not (tmp_path / "gpu003.note").exists()


def test_a_playbook_whose_hosts_do_not_match_has_installed_nothing(installs: AnsibleInstalls) -> None:
    installs.start(NODE, order(played("elsewhere.yml")), key=KEY)

    report = wait_for(lambda: installs.report(NODE, key=KEY))

    assert (report.state, "expected `hosts: all`" in report.said) == (InstallState.FAILED, True)


def test_the_way_back_plays_the_rollback(installs: AnsibleInstalls, tmp_path: Path) -> None:
    back = played("broken.yml", rollback=("driver.yml", "flavor=old"))

    installs.start(NODE, order(back, direction=Direction.BACK, version="570.1"), key=KEY)

    assert wait_for(lambda: installs.report(NODE, key=KEY)).state is InstallState.INSTALLED
    assert (tmp_path / "gpu003.note").read_text() == "driver 570.1 back old\n"


def test_one_node_has_one_installation_at_a_time_and_others_are_let_be(
    installs: AnsibleInstalls, tmp_path: Path
) -> None:
    installs.start(NODE, order(played("slow.yml")), key=KEY)

    with pytest.raises(SourceUnavailable, match="still runs on gpu003"):
        installs.start(NODE, order(played("driver.yml", "flavor=x")), key=OTHER_KEY)
    running = installs.report(NODE, key=KEY)
    installs.start(OTHER_NODE, order(played("driver.yml", "flavor=x")), key=OTHER_KEY)
    other = wait_for(lambda: installs.report(OTHER_NODE, key=OTHER_KEY))
    (tmp_path / "go").write_text("")

    assert running is not None
    assert running.state is InstallState.RUNNING
    assert other.state is InstallState.INSTALLED
    assert wait_for(lambda: installs.report(NODE, key=KEY)).state is InstallState.INSTALLED


def test_a_playbook_that_does_not_end_is_ended(tmp_path: Path, playbooks: Path) -> None:
    installs = installs_of(tmp_path, playbooks, limit=timedelta(seconds=2))

    installs.start(NODE, order(played("slow.yml")), key=KEY)
    report = wait_for(lambda: installs.report(NODE, key=KEY))

    assert (report.state, report.said) == (InstallState.FAILED, "slow.yml did not end in time and was ended")


def test_a_run_whose_process_is_gone_has_failed(installs: AnsibleInstalls, tmp_path: Path) -> None:
    place = tmp_path / "state" / "ansible"
    place.mkdir(mode=0o750, parents=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    told = {"node": NODE, "started_at": "2026-11-22T03:00:00+00:00", "limit_seconds": 60.0, "order": {},
            "pid": 2**22 + 1, "process_began": "1", "boot_id": boot_id}  # fmt: skip
    (place / f"{KEY}.lock").write_text(json.dumps(told))

    report = installs.report(NODE, key=KEY)

    assert report is not None
    assert (report.state, report.said.startswith("cut short")) == (InstallState.FAILED, True)
    with pytest.raises(SourceNonsense, match="of gpu003, not of gpu004"):
        installs.report(OTHER_NODE, key=KEY)


def test_nothing_is_known_of_a_key_that_was_not_started(installs: AnsibleInstalls) -> None:
    assert installs.report(NODE, key=KEY) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(order(played("gone.yml")), "there is no playbook gone.yml", id="no such file"),
        pytest.param(order(played("../driver.yml")), "is no playbook", id="out of the directory"),
        pytest.param(order(played("/etc/driver.yml")), "is no playbook", id="anywhere"),
        pytest.param(order(played("-e.yml")), "is no playbook", id="an option"),
        pytest.param(order(played("link.yml")), "there is no playbook", id="a link that leads out"),
        pytest.param(order(played("driver.yml", "flavor")), "is no variable", id="no value"),
        pytest.param(order(played("driver.yml", "ops_key=1")), "is no variable", id="a name of ours"),
        pytest.param(order(played("driver.yml", "a=1", "a=2")), "is no variable", id="twice"),
        pytest.param(order(played("driver.yml", "a={weather}")), "is no variable", id="unknown placeholder"),
        pytest.param(order(played("driver.yml", "a={{ lookup('pipe', 'id') }}")), "holds a template", id="template"),
        pytest.param(
            order(played("driver.yml", "a={artifact}", artifact=image("/x/{% raw %}"))), "holds a template", id="path"
        ),
        pytest.param(order(played("driver.yml"), version="{{ x }}"), "is no version", id="a version from a node"),
    ],
)
def test_a_play_that_is_none_is_refused_and_starts_nothing(
    installs: AnsibleInstalls, playbooks: Path, tmp_path: Path, given: InstallOrder, said: str
) -> None:
    (tmp_path / "outside.yml").write_text("[]")
    (playbooks / "link.yml").symlink_to(tmp_path / "outside.yml")

    with pytest.raises(SourceRefused, match=said):
        installs.start(NODE, given, key=KEY)

    assert installs.report(NODE, key=KEY) is None


def test_without_ansible_it_is_said_what_to_install(installs: AnsibleInstalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible_installs, "find_spec", lambda _: None)

    with pytest.raises(SourceRefused, match=r"ansible-runner is not installed here; run: pip install 'ops-pipelines\["):
        installs.start(NODE, order(played("driver.yml")), key=KEY)


def test_playbooks_get_no_secrets_of_ours_and_check_host_keys() -> None:
    given = {"SECRET": "x", "HOME": "/root", "ANSIBLE_VAULT_PASSWORD_FILE": "/v", "PATH": os.environ["PATH"]}

    environment = plain_environment(given)

    ours = {"HOME", "PATH", "LC_ALL", "ANSIBLE_HOST_KEY_CHECKING"}
    assert environment.keys() == {*ours, "ANSIBLE_VAULT_PASSWORD_FILE"}
    assert environment["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))
