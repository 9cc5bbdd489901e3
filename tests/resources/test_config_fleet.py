"""The section `fleet` of cluster.yaml where power is a matter of Redfish."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.resources.config.cluster_config import AnsibleSettings, RebootBy, find_install_gaps
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.redfish_settings import Authentication, find_weaknesses
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.terminal.config_check import call_the_roll
from ops_pipelines.wiring import assemble
from tests.resources.install_orders import KEY, NODE, change, order

ROOT = Path(__file__).parents[2]
MINIMAL = """\
name: c
state_directory: state
policy: policy.yaml
gpus_per_node: 8
racks: [{name: r1, nodes: "gpu[001-002]"}]
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
notifier: {kind: file}
"""
PLAIN = 'address: "https://{node}-bmc", user: ops, password_file: bmc.password'

PLAIN_REDFISH = f"redfish: {{{PLAIN}, manager_id: a/b}}"


def cluster_file(directory: Path, redfish: str, *, commands: str = "inspect: [ssh, '{node}']") -> Path:
    for name in ("bmc.password", "bmc-ca.pem"):
        (directory / name).write_text("hunter2\n", encoding="utf-8")
    (directory / "policy.yaml").write_text("mode: observe\n", encoding="utf-8")
    path = directory / "cluster.yaml"
    path.write_text(f"{MINIMAL}fleet: {{kind: commands, {commands}, redfish: {{{redfish}}}}}\n", encoding="utf-8")
    return path


def test_redfish_stands_beside_the_commands(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, f"{PLAIN}, ca_file: bmc-ca.pem, system_id: DGX, authentication: session,"
                                  " addresses: {gpu002: 'https://10.0.0.2/'}")  # fmt: skip

    fleet = read_cluster(path).fleet

    assert fleet.commands == {"inspect": ("ssh", "{node}")}
    assert fleet.redfish is not None
    assert (fleet.redfish.address, fleet.redfish.user) == ("https://{node}-bmc", "ops")
    assert fleet.redfish.addresses == {NodeName("gpu002"): "https://10.0.0.2"}
    assert fleet.redfish.password_file == tmp_path / "bmc.password"
    assert fleet.redfish.ca_file == tmp_path / "bmc-ca.pem"
    assert (fleet.redfish.system_id, fleet.redfish.authentication) == ("DGX", Authentication.SESSION)
    assert fleet.redfish.is_certificate_checked
    assert "hunter2" not in repr(fleet)


def test_cluster_with_redfish_has_a_fleet_that_asks_the_bmc_for_power(tmp_path: Path) -> None:
    fleet = assemble(read_cluster(cluster_file(tmp_path, PLAIN)), SystemClock()).fleet
    (tmp_path / "bmc.password").unlink()

    with pytest.raises(SourceError, match=r"bmc\.password"):
        fleet.power_state(NodeName("gpu001"))


@pytest.mark.parametrize("act", ["power_off", "power_on", "power_state"])
def test_command_and_redfish_for_the_same_act_are_a_fault(tmp_path: Path, act: str) -> None:
    path = cluster_file(tmp_path, PLAIN, commands=f"{act}: [ipmitool, '{{node}}']")

    with pytest.raises(ConfigError, match=rf"line 10: fleet\.{act}: redfish does this already"):
        read_cluster(path)


@pytest.mark.parametrize(
    ("redfish", "message"),
    [
        ("user: ops, password_file: bmc.password", r"fleet\.redfish\.address: no BMC is named"),
        ('address: "https://{node}", password_file: bmc.password', r"redfish\.user: this key is missing"),
        ('address: "https://{node}", user: ops', r"redfish\.password_file: this key is missing"),
        (f"{PLAIN}, password: hunter2", r"redfish\.password: unknown key; did you mean password_file"),
        (PLAIN.replace("bmc.password", "gone"), r"redfish\.password_file: there is no file .*gone"),
        (f"{PLAIN}, ca_file: gone", r"redfish\.ca_file: there is no file .*gone"),
        (f"{PLAIN}, ca_file: bmc-ca.pem, verify: false", r"redfish\.ca_file: is of no use"),
        (PLAIN.replace("https", "http"), r"redfish\.address: is http: .* in the clear"),
        (PLAIN.replace("//", "//ops:hunter2@"), r"redfish\.address: must be https"),
        (PLAIN.replace("{node}-", ""), r"redfish\.address: must have \{node\}"),
        (f"{PLAIN}, addresses: {{gpu003: 'https://10.0.0.3'}}", r"addresses\.gpu003: is not a node of the cluster"),
        (f"{PLAIN}, addresses: {{gpu001: 'https://a', gpu002: 'https://a'}}", r"two nodes share a BMC"),
        (f"{PLAIN}, addresses: {{gpu001: 'https://gpu002-bmc:443'}}", r"share a BMC, gpu001 and gpu002"),
        (f"{PLAIN}, system_id: a/b", r"redfish\.system_id: found 'a/b'"),
        (f"{PLAIN}, authentication: none", r"redfish\.authentication: found 'none'"),
    ],
)
def test_faults_name_key_and_remedy_and_show_no_password(tmp_path: Path, redfish: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_cluster(cluster_file(tmp_path, redfish))

    assert not re.search(r"ops:hunter2", str(caught.value))


def test_unchecked_certificate_is_a_warning_of_check_config(tmp_path: Path) -> None:
    checked = read_cluster(cluster_file(tmp_path, PLAIN)).fleet.redfish
    path = cluster_file(tmp_path, f"{PLAIN}, verify: false")

    answer = CliRunner().invoke(cli.app, ["check-config", "--offline", "--cluster", str(path)])

    assert answer.exit_code == cli.ExitCode.OK
    assert "warning: fleet.redfish.verify is false" in " ".join(answer.stderr.split())
    assert find_weaknesses(checked) == find_weaknesses(None) == ()


def test_check_config_asks_a_power_switch_and_for_versions(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, PLAIN)
    path.write_text(MINIMAL + "fleet: {kind: simulator}\n", encoding="utf-8")

    answers = call_the_roll(assemble(read_cluster(path), SystemClock()))

    (said,) = [each.said for each in answers if each.system == "fleet"]
    assert said.startswith("answers: gpu001 was inspected; its power switch says on; it reports the versions of ")
    assert ", driver, " in said


def test_check_config_is_silent_of_versions_where_the_site_offers_no_command(tmp_path: Path) -> None:
    told = """'{"node": "gpu001", "boot_id": "b", "booted_at": "2026-11-21T07:00:00Z", "gpus": [], "failures": []}'"""
    path = fleet_file(tmp_path, f"inspect: [printf, '%.0s%s', '{{node}}', {told}]")

    answers = call_the_roll(assemble(read_cluster(path), SystemClock()))

    (said,) = [each.said for each in answers if each.system == "fleet"]
    assert said.startswith("answers: gpu001 was inspected; its power switch does not say: no command is configured")
    assert "version" not in said


def fleet_file(directory: Path, fleet: str, *, scheduler: str = "simulator") -> Path:
    (directory / "policy.yaml").write_text("mode: observe\n", encoding="utf-8")
    path = directory / "cluster.yaml"
    top = MINIMAL.replace("scheduler: {kind: simulator}", f"scheduler: {{kind: {scheduler}}}")
    path.write_text(f"{top}fleet: {{kind: commands, {fleet}}}\n", encoding="utf-8")
    return path


PAIR = (
    "start_install: [ssh, '{node}', ops-pipelines, node-install, start, '{key}', '{order}'], "
    "read_install: [ssh, '{node}', ops-pipelines, node-install, result, '{key}']"
)
READ = "read_versions: [ssh, '{node}', ops-pipelines, node-versions]"


def test_installations_and_playbooks_stand_beside_the_commands(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    path = fleet_file(tmp_path, f"{PAIR}, {READ}, ansible: {{playbooks: playbooks, limit_seconds: 600}}")

    fleet = read_cluster(path).fleet

    assert fleet.commands.keys() == {"start_install", "read_install", "read_versions"}
    assert fleet.ansible == AnsibleSettings(playbooks=tmp_path / "playbooks", limit=timedelta(minutes=10))
    assert fleet.reboot_by is RebootBy.COMMAND


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        (PAIR.partition(", read_install")[0], r"fleet\.start_install: is of no use without read_install"),
        (PAIR.rpartition("], ")[2], r"fleet\.read_install: is of no use without start_install"),
        ("ansible: {playbooks: gone}", r"fleet\.ansible\.playbooks: there is no directory .*gone"),
        ("ansible: {}", r"ansible\.playbooks: this key is missing"),
        ("ansible: {playbooks: ., limit_seconds: 0}", r"ansible\.limit_seconds: found 0"),
        ("reboot_by: slurm", r"fleet\.reboot_by: is slurm, and the scheduler is simulator"),
        ("reboot_by: slurm, reboot: [x, '{node}']", r"fleet\.reboot: reboot_by: slurm does this already"),
        ("reboot_by: magic", r"fleet\.reboot_by: found 'magic'"),
        (f"{PLAIN_REDFISH}", r"redfish\.manager_id: found 'a/b'"),
    ],
)
def test_faults_of_installations_name_key_and_remedy(tmp_path: Path, fleet: str, message: str) -> None:
    (tmp_path / "bmc.password").write_text("hunter2\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=message):
        read_cluster(fleet_file(tmp_path, fleet))


def test_slurm_reboots_where_the_site_says_so(tmp_path: Path) -> None:
    path = fleet_file(tmp_path, "reboot_by: slurm", scheduler="slurm")

    assert read_cluster(path).fleet.reboot_by is RebootBy.SLURM


def test_check_config_warns_of_installations_that_nobody_would_verify(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    path = fleet_file(tmp_path, f"{PAIR}, ansible: {{playbooks: playbooks}}")

    answer = CliRunner().invoke(cli.app, ["check-config", "--offline", "--cluster", str(path)])

    said = " ".join(answer.stderr.split())
    assert answer.exit_code == cli.ExitCode.OK
    assert "warning: fleet.start_install and fleet.ansible installs, but fleet.read_versions is not set" in said


@pytest.mark.parametrize(
    ("commands", "missing", "gaps"),
    [
        ({"start_install": ("x",), "read_versions": ("x",)}, "", ()),
        ({}, "", ("fleet.ansible installs, but fleet.read_versions is not set",)),
        ({"read_versions": ("x",)}, "install it", ("fleet.ansible: install it",)),
    ],
)
def test_what_would_fail_a_rollout_is_told(
    commands: dict[str, tuple[str, ...]], missing: str, gaps: tuple[str, ...]
) -> None:
    found = find_install_gaps(commands, AnsibleSettings(playbooks=Path("/p")), missing=missing)

    assert len(found) == len(gaps)
    assert all(text.startswith(gap) for text, gap in zip(found, gaps, strict=True))


def test_a_site_that_installs_nothing_lacks_nothing() -> None:
    assert find_install_gaps({}, None, missing="") == ()


def test_a_site_without_a_means_is_told_which_key_to_set(tmp_path: Path) -> None:
    fleet = assemble(read_cluster(fleet_file(tmp_path, READ)), SystemClock()).fleet

    with pytest.raises(SourceRefused, match=r"set fleet\.start_install and fleet\.read_install"):
        fleet.start_install(NODE, order(change()), key=KEY)


def test_redfish_of_the_shipped_sketch_can_be_read(tmp_path: Path) -> None:
    """With the marks of a comment taken off, and the commands for power left out."""
    lines = (ROOT / "cluster.yaml").read_text(encoding="utf-8").splitlines()
    sketch = [line.removeprefix("#   # ") for line in lines if line.startswith("#   # ")]
    begin = next(number for number, line in enumerate(sketch) if line.startswith("redfish:"))
    section = [line for line in sketch[begin:] if line.startswith(("redfish:", "  "))]
    path = cluster_file(tmp_path, PLAIN)
    path.write_text(
        MINIMAL + "fleet:\n  kind: commands\n" + "\n".join(f"  {line}" for line in section), encoding="utf-8"
    )

    redfish = read_cluster(path).fleet.redfish

    assert redfish is not None
    assert (redfish.address, redfish.system_id) == ("https://{node}-bmc", "DGX")


def test_sushy_is_not_imported_before_a_bmc_is_asked() -> None:
    program = (
        "import sys; import ops_pipelines.resources.fleet.redfish_update, ops_pipelines.resources.config.cluster_file;"
        "sys.exit(bool({'sushy', 'requests'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
