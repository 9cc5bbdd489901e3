"""Power over Redfish, on a BMC that speaks it over real sockets: what is sent, how often, and what an answer means."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Fleet
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.rollout import InstallOrder
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.config.redfish_settings import Authentication, RedfishSettings
from ops_pipelines.resources.fleet.redfish_line import MAX_ANSWER_BYTES
from ops_pipelines.resources.fleet.redfish_update import RedfishFleet, RedfishPower
from tests.frames.formats.hardware_invariants import PUBLIC
from tests.ports.fleet_contract import FleetContract, FleetWorld
from tests.resources.fake_bmc import (
    JSON,
    PASSWORD,
    ROOT,
    SESSIONS,
    SYSTEMS,
    Answer,
    FakeBmc,
    answer,
    extended_error,
    recorded_answers,
    serve_bmc,
)
from tests.resources.patience import LIMIT_SECONDS

NODE = NodeName("gpu003")
SYSTEM = f"{SYSTEMS}/System.Embedded.1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
SHORT_SECONDS = 0.15
"""For BMCs that never answer in time; nothing else waits for it."""

Act = Callable[[RedfishPower], object]
OFF: Act = lambda power: power.power_off(NODE)  # noqa: E731
STATE: Act = lambda power: power.power_state(NODE)  # noqa: E731


@pytest.fixture
def bmc() -> Iterator[FakeBmc]:
    with serve_bmc() as fake:
        yield fake


@pytest.fixture
def settings(bmc: FakeBmc, tmp_path: Path) -> RedfishSettings:
    return settings_for(bmc.url, tmp_path)


@pytest.fixture
def power(settings: RedfishSettings) -> RedfishPower:
    return power_for(settings)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that signed itself, for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed; it makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "bmc.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bmc"
    made = subprocess.run(
        ["openssl", *words.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"],
        capture_output=True,
        check=True,
    )
    path.write_bytes(made.stdout)
    return path


def settings_for(url: str, directory: Path) -> RedfishSettings:
    password_file = directory / "bmc.password"
    password_file.write_text(PASSWORD + "\n", encoding="utf-8")
    return RedfishSettings(
        user="ops",
        password_file=password_file,
        addresses={NODE: url},
        is_certificate_checked=url.startswith("https"),
    )


def power_for(settings: RedfishSettings) -> RedfishPower:
    return RedfishPower(settings, limit_seconds=LIMIT_SECONDS)


# -- what is sent --


def test_power_that_is_cut_and_given_again_is_witnessed(bmc: FakeBmc, power: RedfishPower) -> None:
    seen = [power.power_state(NODE)]
    power.power_off(NODE)
    seen.append(power.power_state(NODE))
    power.power_on(NODE)
    seen.append(power.power_state(NODE))

    assert seen == [PowerState.ON, PowerState.OFF, PowerState.ON]
    assert bmc.received == [("System.Embedded.1", "ForceOff"), ("System.Embedded.1", "On")]


@pytest.mark.parametrize(
    ("state", "off_sends", "on_sends", "told"),
    [
        pytest.param("On", ["ForceOff"], [], PowerState.ON),
        pytest.param("Off", [], ["On"], PowerState.OFF),
        pytest.param("PoweringOff", ["ForceOff"], ["On"], PowerState.UNKNOWN),
        pytest.param("PoweringOn", ["ForceOff"], [], PowerState.UNKNOWN),
        pytest.param("Paused", ["ForceOff"], ["On"], PowerState.UNKNOWN),
        pytest.param("Asleep", ["ForceOff"], ["On"], PowerState.UNKNOWN),
        pytest.param(None, ["ForceOff"], ["On"], PowerState.UNKNOWN, id="not reported"),
    ],
)
def test_command_is_sent_once_and_only_where_the_state_calls_for_it(
    bmc: FakeBmc, power: RedfishPower, state: str | None, off_sends: list[str], on_sends: list[str], told: PowerState
) -> None:
    bmc.states = {"System.Embedded.1": state}
    assert power.power_state(NODE) is told

    power.power_off(NODE)
    off_received = [kind for _, kind in bmc.received]
    bmc.states = {"System.Embedded.1": state}
    power.power_on(NODE)

    assert off_received == off_sends
    assert [kind for _, kind in bmc.received] == off_sends + on_sends


def test_allowed_resets_are_read_from_an_action_info(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.resets = None

    power.power_off(NODE)

    assert bmc.received == [("System.Embedded.1", "ForceOff")]
    assert ("GET", f"{SYSTEM}/ResetActionInfo") in bmc.asked


@pytest.mark.parametrize("resets", [None, ("On", "GracefulShutdown")], ids=["in an ActionInfo", "in the action"])
def test_bmc_that_does_not_offer_the_reset_is_sent_nothing(
    bmc: FakeBmc, power: RedfishPower, resets: tuple[str, ...] | None
) -> None:
    bmc.resets, bmc.action_info = resets, ("On", "GracefulShutdown")

    with pytest.raises(SourceRefused, match="GRACEFUL_SHUTDOWN"):
        power.power_off(NODE)

    assert bmc.received == []


def test_system_without_a_reset_is_refused(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.answers["GET", SYSTEM] = answer({"Id": "System.Embedded.1", "PowerState": "On"})

    with pytest.raises(SourceRefused, match=r"ComputerSystem\.Reset is missing"):
        power.power_off(NODE)


def test_path_that_is_sent_on_to_the_one_with_its_last_slash_is_followed(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.answers["GET", f"{SYSTEM}/"] = answer({"Id": "1", "PowerState": "Off"})
    bmc.answers["GET", SYSTEM] = (308, {"Location": f"{SYSTEM}/"}, b"")

    assert power.power_state(NODE) is PowerState.OFF


# -- several systems --


@pytest.mark.parametrize(
    ("system_id", "expected"),
    [("HGX_Baseboard_0", "HGX_Baseboard_0"), ("DGX", "DGX"), ("{node}", "gpu003")],
)
def test_system_that_is_named_is_the_one_whose_power_is_cut(
    bmc: FakeBmc, settings: RedfishSettings, system_id: str, expected: str
) -> None:
    bmc.states = {"DGX": "On", "HGX_Baseboard_0": "On", "gpu003": "On"}

    power_for(replace(settings, system_id=system_id)).power_off(NODE)

    assert bmc.received == [(expected, "ForceOff")]


@pytest.mark.parametrize(
    ("states", "system_id", "message"),
    [
        pytest.param({"DGX": "On", "HGX": "On"}, None, r"2 systems .*'DGX', 'HGX'.*system_id", id="two, none named"),
        pytest.param({"DGX": "On", "HGX": "On"}, "DG", r"no system DG is .*'DGX', 'HGX'", id="two, another named"),
        pytest.param({"1": "On"}, "2", r"no system 2 is behind the BMC, but '1'", id="one, another named"),
        pytest.param({}, None, r"0 systems are behind the BMC \(none\)", id="none"),
    ],
)
def test_system_that_cannot_be_told_is_left_alone(
    bmc: FakeBmc, settings: RedfishSettings, states: dict[str, str | None], system_id: str | None, message: str
) -> None:
    bmc.states = states

    with pytest.raises(SourceRefused, match=message):
        power_for(replace(settings, system_id=system_id)).power_off(NODE)

    assert bmc.received == []


# -- answers that are none --


@pytest.mark.parametrize("path", [ROOT, SYSTEMS, SYSTEM])
def test_bmc_that_is_too_slow_is_not_waited_for_and_gets_no_command(
    bmc: FakeBmc, settings: RedfishSettings, path: str
) -> None:
    bmc.held.add(("GET", path))

    with pytest.raises(SourceUnavailable):
        RedfishPower(settings, limit_seconds=SHORT_SECONDS).power_off(NODE)

    bmc.stopping.set()
    assert bmc.received == []


def test_command_without_an_answer_is_sent_once_and_its_effect_unknown(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.dropped.add(("POST", RESET))

    with pytest.raises(SourceUnavailable, match="gave no answer to POST"):
        power.power_off(NODE)

    assert bmc.received == [("System.Embedded.1", "ForceOff")]


def test_answer_that_never_ends_is_not_waited_for(bmc: FakeBmc, settings: RedfishSettings) -> None:
    bmc.stalled.add(("GET", SYSTEM))

    with pytest.raises(SourceUnavailable):
        RedfishPower(settings, limit_seconds=SHORT_SECONDS).power_off(NODE)

    assert bmc.received == []


def test_bmc_that_is_not_there_gives_no_answer(settings: RedfishSettings) -> None:
    with serve_bmc() as gone:
        pass

    with pytest.raises(SourceUnavailable, match="gave no answer to GET"):
        power_for(replace(settings, addresses={NODE: gone.url})).power_off(NODE)


def test_name_of_a_bmc_that_nobody_knows_gives_no_answer(settings: RedfishSettings) -> None:
    elsewhere = replace(settings, addresses={}, address="https://{node}.invalid", is_certificate_checked=True)
    power = RedfishPower(elsewhere, limit_seconds=SHORT_SECONDS)

    with pytest.raises(SourceUnavailable):
        power.power_state(NODE)


def test_node_without_a_bmc_is_refused(power: RedfishPower) -> None:
    with pytest.raises(SourceRefused, match="no BMC of gpu004 is named"):
        power.power_off(NodeName("gpu004"))


@pytest.mark.parametrize("name", ["gpu003/../x", "gpu003@evil", "gpu003:1", "", "gpu 3", "gpu003\n", "{node}"])
def test_what_is_no_node_name_reaches_no_address(settings: RedfishSettings, name: str) -> None:
    with pytest.raises(ValueError, match="is not a node name"):
        power_for(replace(settings, address="http://{node}")).power_off(NodeName(name))


# -- answers that say no, nothing, or nonsense --


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, SourceRefused),
        (401, SourceRefused),
        (403, SourceRefused),
        (404, SourceRefused),
        (405, SourceRefused),
        (406, SourceRefused),
        (408, SourceUnavailable),
        (409, SourceRefused),
        (429, SourceUnavailable),
        (500, SourceUnavailable),
        (501, SourceRefused),
        (503, SourceUnavailable),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", SYSTEM), ("POST", RESET)])
def test_refusal_is_told_from_an_error_that_says_nothing(
    bmc: FakeBmc, power: RedfishPower, method: str, path: str, status: int, error: type[SourceError]
) -> None:
    bmc.answers[method, path] = extended_error(
        status, "SYS518: iDRAC is not ready", "iLO.InvalidOperationForSystemState"
    )

    with pytest.raises(SourceError) as caught:
        power.power_off(NODE)

    assert type(caught.value) is error
    assert bmc.asked.count(("POST", RESET)) == (method == "POST")


def test_what_the_bmc_says_of_its_error_is_told_on_one_line(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.answers["POST", RESET] = extended_error(500, "The fans\nare \x1b[31mgone.", "Look at slot 3." + "!" * 500)

    with pytest.raises(SourceUnavailable, match=r"HTTP 500: The fans are  \[31mgone\. / Look at slot 3\.") as caught:
        power.power_off(NODE)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_wrong_password_is_refused_and_stands_in_no_message(
    bmc: FakeBmc, settings: RedfishSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    settings.password_file.write_text("hunter2", encoding="utf-8")
    told = []

    for authentication in Authentication:
        with pytest.raises(SourceRefused, match=r"HTTP 401.*check fleet\.redfish\.user") as caught:
            power_for(replace(settings, authentication=authentication)).power_off(NODE)
        told.append(str(caught.value))

    assert "hunter2" not in "".join([*told, *capfd.readouterr(), repr(settings)])
    assert bmc.received == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        pytest.param(SYSTEM, (200, {"Content-Type": "text/html"}, b"<html>login</html>"), id="a page"),
        pytest.param(SYSTEM, (200, JSON, b'{"Id": "System.Embedded.1", "PowerSt'), id="cut off"),
        pytest.param(SYSTEM, (200, JSON, b""), id="empty"),
        pytest.param(SYSTEM, (200, JSON, b"[1, 2]"), id="a list"),
        pytest.param(SYSTEM, (200, JSON, b"\xff\xfe\x00"), id="no text"),
        pytest.param(SYSTEM, (200, JSON, b"[" * 100_000), id="nested without end"),
        pytest.param(SYSTEM, (200, JSON, b" " * (MAX_ANSWER_BYTES + 1)), id="too long"),
        pytest.param(SYSTEM, answer({"Id": "1", "Actions": {"#ComputerSystem.Reset": "yes"}}), id="action is a word"),
        pytest.param(ROOT, answer({"Id": "RootService"}), id="no systems"),
        pytest.param(ROOT, answer({"Id": "RootService", "Systems": None}), id="systems are null"),
        pytest.param(SYSTEMS, answer({"Members": "all"}), id="members are a word"),
        pytest.param(SYSTEMS, answer({"Members": [{"@odata.id": 7}]}), id="path is a number"),
        pytest.param(SYSTEM, (302, {"Location": SYSTEM}, b""), id="sent round in a circle"),
    ],
)
def test_answer_that_makes_no_sense_is_nonsense_and_nothing_is_sent(
    bmc: FakeBmc, power: RedfishPower, path: str, wrong: Answer
) -> None:
    bmc.answers["GET", path] = wrong

    with pytest.raises(SourceNonsense) as caught:
        power.power_off(NODE)

    assert str(caught.value).isprintable()
    assert bmc.received == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_password_goes_to_no_other_host(bmc: FakeBmc, power: RedfishPower, tmp_path: Path, status: int) -> None:
    with serve_bmc() as other:
        elsewhere = f"{other.url}{SYSTEM}"
        for path, wrong in (
            (SYSTEM, (status, {"Location": elsewhere}, b"")),
            (SYSTEMS, answer({"Members": [{"@odata.id": elsewhere}]})),
            (SYSTEMS, answer({"Members": [{"@odata.id": elsewhere.replace("http:", "https:")}]})),
        ):
            bmc.answers = {("GET", path): wrong}
            with pytest.raises(SourceRefused, match="points to another host"):
                power.power_off(NODE)

        assert other.asked == []


@pytest.mark.parametrize("path", ["//evil.example/redfish", "ftp://evil.example", "http://[", "http://127.0.0.1:x/"])
def test_path_that_is_no_path_of_the_bmc_is_not_asked(bmc: FakeBmc, power: RedfishPower, path: str) -> None:
    bmc.answers["GET", SYSTEMS] = answer({"Members": [{"@odata.id": path}]})

    with pytest.raises(SourceNonsense):
        power.power_off(NODE)


def test_command_that_is_sent_elsewhere_is_not_sent_after(bmc: FakeBmc, power: RedfishPower) -> None:
    bmc.answers["POST", RESET] = (302, {"Location": SYSTEM}, b"")

    with pytest.raises(SourceRefused, match="sends POST elsewhere"):
        power.power_off(NODE)


# -- sessions and certificates --


def test_session_is_closed_after_each_call(bmc: FakeBmc, settings: RedfishSettings) -> None:
    bmc.takes_basic = False
    power = power_for(replace(settings, authentication=Authentication.SESSION))

    power.power_off(NODE)

    assert bmc.received == [("System.Embedded.1", "ForceOff")]
    assert bmc.asked.count(("POST", SESSIONS)) == bmc.asked.count(("DELETE", f"{SESSIONS}/1")) == 1
    assert bmc.open_sessions == 0


def test_session_is_closed_after_a_refusal_too(bmc: FakeBmc, settings: RedfishSettings) -> None:
    bmc.answers["POST", RESET] = extended_error(409, "the system is being serviced")

    with pytest.raises(SourceRefused, match="the system is being serviced"):
        power_for(replace(settings, authentication=Authentication.SESSION)).power_off(NODE)

    assert bmc.open_sessions == 0


def test_session_that_cannot_be_closed_undoes_nothing(bmc: FakeBmc, settings: RedfishSettings) -> None:
    bmc.answers["DELETE", f"{SESSIONS}/1"] = extended_error(500, "no")

    power_for(replace(settings, authentication=Authentication.SESSION)).power_off(NODE)

    assert bmc.states == {"System.Embedded.1": "Off"}


def test_certificate_that_signed_itself_is_refused_until_it_is_named(certificate: Path, tmp_path: Path) -> None:
    with serve_bmc(certificate=certificate) as bmc:
        settings = settings_for(bmc.url, tmp_path)

        with pytest.raises(SourceUnavailable, match=r"certificate .* not trusted .*self.signed.*ca_file"):
            power_for(settings).power_off(NODE)
        assert bmc.asked == []

        power_for(replace(settings, ca_file=certificate)).power_off(NODE)
        power_for(replace(settings, is_certificate_checked=False)).power_on(NODE)

    assert [kind for _, kind in bmc.received] == ["ForceOff", "On"]


def test_certificate_of_another_name_is_refused(certificate: Path, tmp_path: Path) -> None:
    with serve_bmc(certificate=certificate) as bmc:
        settings = settings_for(bmc.url.replace("127.0.0.1", "localhost"), tmp_path)

        with pytest.raises(SourceUnavailable, match="not trusted"):
            power_for(replace(settings, ca_file=certificate)).power_off(NODE)


@pytest.mark.parametrize("which", ["ca_file", "password_file"])
def test_file_that_cannot_be_read_is_named(settings: RedfishSettings, tmp_path: Path, which: str) -> None:
    changes = {which: tmp_path / "gone", "addresses": {NODE: "https://127.0.0.1:1"}, "is_certificate_checked": True}

    with pytest.raises(SourceUnavailable, match="gone"):
        power_for(replace(settings, **changes)).power_state(NODE)


# -- recorded BMCs --


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")
@pytest.mark.parametrize(
    ("archive", "system"), [("dell_poweredge_r750", "System.Embedded.1"), ("nvidia_dpu", "Bluefield")]
)
def test_recorded_bmc_is_understood(bmc: FakeBmc, power: RedfishPower, archive: str, system: str) -> None:
    bmc.answers = recorded_answers(PUBLIC / "redfish" / f"{archive}.tar.gz")
    bmc.states = {system: "On"}

    told = power.power_state(NODE)
    power.power_off(NODE)

    assert told is PowerState.ON
    assert bmc.received == [(system, "ForceOff")]


# -- settings --


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"addresses": {}}, "no BMC is named"),
        ({"address": "https://bmc"}, r"must have \{node\} in its host"),
        ({"address": "http://{node}"}, "in the clear"),
        ({"address": "https://{node}/redfish"}, "without user, password or path"),
        ({"address": "https://ops:hunter2@{node}"}, "without user, password or path"),
        ({"address": "https://bmc:{node}"}, "must be https"),
        ({"address": "ftp://{node}"}, "must be https"),
        ({"address": "{node}-bmc"}, "must be https"),
        ({"addresses": {NODE: "https://b", NodeName("gpu004"): "https://B"}}, "two nodes share a BMC"),
        ({"addresses": {NODE: "https://b", NodeName("gpu004"): "https://b:443"}}, "two nodes share a BMC"),
        ({"addresses": {NODE: "https://b.", NodeName("gpu004"): "https://B"}}, "two nodes share a BMC"),
        (
            {"address": "https://{node}", "addresses": {NODE: "https://x", NodeName("gpu004"): "https://X:0443"}},
            "two nodes share a BMC, gpu003 and gpu004",
        ),
        ({"user": "ops:x"}, "without a colon"),
        ({"is_certificate_checked": False, "ca_file": Path("ca.pem")}, "keep one of them"),
    ],
)
def test_settings_that_could_not_work_are_a_fault_of_the_operator(
    tmp_path: Path, changes: Mapping[str, object], message: str
) -> None:
    settings = settings_for("https://bmc", tmp_path)

    with pytest.raises(PolicyError, match=message) as caught:
        power_for(replace(settings, **changes))

    assert "hunter2" not in str(caught.value)


def test_command_and_redfish_for_the_same_act_are_refused(power: RedfishPower) -> None:
    with pytest.raises(PolicyError, match="power_off: a command and redfish are both named"):
        RedfishFleet({"power_off": ["ipmitool", "{node}"]}, power=power, clock=SystemClock())


# -- the contract of the port --


class RedfishWorld:
    """Two machines of one enclosure whose BMC shows both; `inspect` is answered by those that have power."""

    def __init__(self, bmc: FakeBmc, settings: RedfishSettings) -> None:
        self.node_names = (NodeName("gpu001"), NodeName("gpu002"))
        self.gpus_per_node = 0
        self._boots = dict.fromkeys(self.node_names, 1)
        self._silent: set[str] = set()
        self._bmc = bmc
        bmc.states = dict.fromkeys(self.node_names, "On")
        bmc.on_reset = self._after_reset
        enclosure = replace(settings, addresses=dict.fromkeys(self.node_names, bmc.url), system_id="{node}")
        inspect = {"inspect": ["ssh", "{node}"]}
        self.fleet: Fleet = RedfishFleet(inspect, power=power_for(enclosure), clock=SystemClock(), run=self._run)

    def occupy(self, node: NodeName) -> None:
        pytest.skip("power does not ask who works")

    def silence(self, node: NodeName) -> None:
        self._silent.add(node)

    def order(self) -> InstallOrder:
        pytest.skip("power installs nothing")

    failing_order = order

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        if not predicate():
            raise TimeoutError("a machine that obeys at once did not")

    def _after_reset(self, system: str, kind: str) -> None:
        self._boots[NodeName(system)] += kind == "On"

    def _run(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        node = NodeName(argv[1])
        if self._bmc.states.get(node) != "On" or node in self._silent:
            return CommandAnswer(returncode=255, stdout="", stderr="no route to host")
        booted_at = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(hours=self._boots[node])
        told = {"node": node, "boot_id": f"boot-{self._boots[node]}", "booted_at": booted_at.isoformat()}
        return CommandAnswer(returncode=0, stdout=json.dumps({**told, "gpus": [], "failures": []}), stderr="")


class TestRedfishPowerKeepsTheContract:
    """Of the fleet's contract what is about power."""

    @pytest.fixture
    def world(self, bmc: FakeBmc, settings: RedfishSettings) -> FleetWorld:
        return RedfishWorld(bmc, settings)

    test_node_without_power_reads_off_and_answers_nobody = (
        FleetContract.test_node_without_power_reads_off_and_answers_nobody
    )
    test_silent_node_cannot_be_inspected_but_has_power = (
        FleetContract.test_silent_node_cannot_be_inspected_but_has_power
    )
    test_power_can_be_cut_from_a_silent_node = FleetContract.test_power_can_be_cut_from_a_silent_node
    test_power_cycle_is_a_new_boot = FleetContract.test_power_cycle_is_a_new_boot
    test_giving_power_to_a_node_that_is_on_does_not_boot_it = (
        FleetContract.test_giving_power_to_a_node_that_is_on_does_not_boot_it
    )
    test_cutting_power_twice_leaves_it_off = FleetContract.test_cutting_power_twice_leaves_it_off
    test_unknown_node_is_an_error_of_the_source = FleetContract.test_unknown_node_is_an_error_of_the_source
