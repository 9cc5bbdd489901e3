"""The section `fleet` of cluster.yaml where power is a matter of Redfish."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.clock import SystemClock
from ops_pipelines.domain.identity import NodeName
from ops_pipelines.resources.config.files import read_cluster
from ops_pipelines.resources.config.redfish_settings import Authentication, find_weaknesses
from ops_pipelines.resources.config.strict_yaml import ConfigError
from ops_pipelines.resources.fleet.redfish_power import RedfishFleet
from ops_pipelines.terminal.roll_call import call_the_roll
from ops_pipelines.wiring import assemble

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


def test_cluster_with_redfish_has_a_fleet_that_uses_it(tmp_path: Path) -> None:
    cluster = assemble(read_cluster(cluster_file(tmp_path, PLAIN)), SystemClock())

    assert isinstance(cluster.fleet, RedfishFleet)


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


def test_check_config_asks_a_power_switch(tmp_path: Path) -> None:
    path = cluster_file(tmp_path, PLAIN)
    path.write_text(MINIMAL + "fleet: {kind: simulator}\n", encoding="utf-8")

    answers = call_the_roll(assemble(read_cluster(path), SystemClock()))

    assert [each.said for each in answers if each.system == "fleet"] == [
        "answers: gpu001 was inspected; its power switch says on"
    ]


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
        "import sys; import ops_pipelines.resources.fleet.redfish_power, ops_pipelines.resources.config.files;"
        "sys.exit(bool({'sushy', 'requests'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
