"""Configured commands become acts on machines; what reaches a command line is a word, never a shell's text."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey, NodeName, PciAddress
from ops_pipelines.core.node_tests import Measurement, NodeCheck, Serial, TestResult, TestRun
from ops_pipelines.core.observation import PowerState, RecoveryAction
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.command_fleet import CommandFleet
from ops_pipelines.resources.fleet.documents import check_to_json
from tests.resources.patience import run_patiently

NODE = NodeName("gpu003")
GPU = PciAddress("0000:1b:00")
GPU_DOCUMENT: Mapping[str, object] = {
    "pci_address": "00000000:1B:00.0",
    "uuid": "GPU-1",
    "recovery_action": 1,
    "uncorrectable_ecc_count": 3,
    "is_row_remap_pending": True,
}
INSPECTION: Mapping[str, object] = {
    "node": "gpu003",
    "boot_id": "5d2c9a0e",
    "booted_at": "2026-11-21T09:00:00+02:00",
    "failures": ["/scratch is read-only"],
    "gpus": [GPU_DOCUMENT],
}


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def fleet(**commands: Sequence[str]) -> CommandFleet:
    return CommandFleet(commands, clock=SystemClock(), run=run_patiently)


def inspecting(text: str) -> CommandFleet:
    """A fleet whose inspect prints `text`, which may hold braces: they stand in the program, as character codes."""
    codes = list(text.encode())
    return fleet(inspect=python(f"import sys; sys.stdout.buffer.write(bytes({codes}))", "{node}"))


def test_inspection_is_read_from_json() -> None:
    inspection = inspecting(json.dumps({**INSPECTION, "kernel": "ignored"})).inspect(NODE)

    (gpu,) = inspection.gpus
    assert (inspection.node, inspection.boot_id) == (NODE, "5d2c9a0e")
    assert inspection.booted_at == datetime(2026, 11, 21, 7, tzinfo=UTC)
    assert inspection.failures == ("/scratch is read-only",)
    assert (gpu.gpu, gpu.gpu_uuid, gpu.recovery_action) == (GPU, "GPU-1", RecoveryAction.RESET_GPU)
    assert (gpu.uncorrectable_ecc_count, gpu.is_row_remap_pending) == (3, True)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"node": "gpu004"}, id="another node answered"),
        pytest.param({"boot_id": ""}, id="no boot id"),
        pytest.param({"booted_at": "2026-11-21T09:00:00"}, id="local time"),
        pytest.param({"booted_at": None}, id="no time"),
        pytest.param({"gpus": None}, id="no list of GPUs"),
        pytest.param({"gpus": [{}]}, id="a GPU without anything"),
        pytest.param({"failures": "none"}, id="failures are no list"),
    ],
)
def test_inspection_that_makes_no_sense_is_nonsense(changes: Mapping[str, object]) -> None:
    with pytest.raises(SourceNonsense):
        inspecting(json.dumps({**INSPECTION, **changes})).inspect(NODE)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pci_address": "1b"}, id="address"),
        pytest.param({"recovery_action": 99}, id="unknown recovery action"),
        pytest.param({"recovery_action": "1"}, id="action is text"),
        pytest.param({"uncorrectable_ecc_count": -1}, id="negative count"),
        pytest.param({"is_row_remap_pending": "no"}, id="truth is text"),
    ],
)
def test_gpu_that_makes_no_sense_makes_the_inspection_nonsense(changes: Mapping[str, object]) -> None:
    with pytest.raises(SourceNonsense):
        inspecting(json.dumps({**INSPECTION, "gpus": [{**GPU_DOCUMENT, **changes}]})).inspect(NODE)


def test_gpu_listed_twice_is_nonsense() -> None:
    with pytest.raises(SourceNonsense, match="twice"):
        inspecting(json.dumps({**INSPECTION, "gpus": [GPU_DOCUMENT] * 2})).inspect(NODE)


@pytest.mark.parametrize("text", ["", "no json", "[]", "null"])
def test_inspection_that_is_no_json_object_is_nonsense(text: str) -> None:
    with pytest.raises(SourceNonsense):
        inspecting(text).inspect(NODE)


def test_reason_is_one_word_whatever_it_holds() -> None:
    reason = "$(reboot); {gpu} {node} | 'x' \"y\"\n"
    program = f"import sys; sys.exit(0 if sys.argv[2:] == [bytes({list(reason.encode())}).decode()] else 77)"

    fleet(reboot=python(program, "{node}", "{reason}")).reboot(NODE, reason=reason)


def test_braces_of_a_json_body_stand_for_themselves() -> None:
    program = """import sys; sys.exit(0 if sys.argv[2] == '{"ResetType": "On"}' else 77)"""

    fleet(power_on=python(program, "{node}", '{"ResetType": "On"}')).power_on(NODE)


def test_gpu_and_node_are_filled_in_within_words() -> None:
    program = "import sys; sys.exit(0 if sys.argv[1:] == ['root@gpu003', '--id=0000:1b:00'] else 77)"

    fleet(reset_gpu=python(program, "root@{node}", "--id={gpu}")).reset_gpu(NODE, GPU)


@pytest.mark.parametrize("name", ["gpu003;reboot", "-oProxyCommand=x", "", "$(reboot)", "a b"])
def test_name_that_is_no_node_name_reaches_no_command(name: str) -> None:
    with pytest.raises(ValueError, match="is not a node name"):
        fleet(power_off=python("raise SystemExit(0)", "{node}")).power_off(NodeName(name))


@pytest.mark.parametrize(
    ("returncode", "error"),
    [
        pytest.param(77, SourceRefused, id="refused"),
        pytest.param(1, SourceUnavailable, id="failed: effect unknown"),
        pytest.param(255, SourceUnavailable, id="ssh got no answer"),
    ],
)
def test_only_exit_code_77_is_a_clear_no(returncode: int, error: type[Exception]) -> None:
    program = f"import sys; print('reported so', file=sys.stderr); sys.exit({returncode})"

    with pytest.raises(error, match="reported so"):
        fleet(power_on=python(program, "{node}")).power_on(NODE)


def test_missing_program_leaves_the_effect_unknown() -> None:
    with pytest.raises(SourceUnavailable, match="could not be started"):
        fleet(power_on=["no-such-program", "{node}"]).power_on(NODE)


def test_act_without_a_command_is_refused() -> None:
    with pytest.raises(SourceRefused, match="no command is configured"):
        fleet().power_off(NODE)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("on\n", PowerState.ON),
        ("OFF", PowerState.OFF),
        ("unknown", PowerState.UNKNOWN),
        ("Chassis Power is off\n", PowerState.OFF),
    ],
)
def test_power_state_is_what_the_switch_says(text: str, state: PowerState) -> None:
    assert fleet(power_state=python(f"print({text!r})", "{node}")).power_state(NODE) is state


@pytest.mark.parametrize("text", ["", "of", "on off", "PoweringOn"])
def test_power_state_without_sense_is_nonsense(text: str) -> None:
    with pytest.raises(SourceNonsense):
        fleet(power_state=python(f"print({text!r})", "{node}")).power_state(NODE)


@pytest.mark.parametrize(
    ("commands", "fault"),
    [
        pytest.param({"explode": ["x", "{node}"]}, "no act", id="unknown act"),
        pytest.param({"reboot": []}, "list of words", id="empty"),
        pytest.param({"reboot": "reboot {node}"}, "list of words", id="a shell line"),
        pytest.param({"reboot": ["reboot"]}, "must name {node}", id="no target"),
        pytest.param({"reset_gpu": ["reset", "{node}"]}, "must name {gpu}", id="no GPU"),
        pytest.param({"reboot": ["{node}"]}, "must be fixed", id="program is filled in"),
        pytest.param({"reboot": ["x", "{node}", "{cause}"]}, "filled with nothing", id="unknown placeholder"),
        pytest.param({"power_off": ["x", "{node}", "{reason}"]}, "filled with nothing", id="no reason there"),
        pytest.param({"reboot": ["x", "{node}", "why={reason}"]}, "word alone", id="reason inside a word"),
        pytest.param({"reboot": ["/usr/bin/ssh", "{node}", "{reason}"]}, "shell", id="reason to a remote shell"),
        pytest.param({"reimage": ["ssh", "{node}", "{reason}"]}, "shell", id="reason to a remote shell, again"),
        pytest.param({"reboot": ["sudo", "ssh", "{node}", "{reason}"]}, "to ssh, which", id="behind sudo"),
        pytest.param({"reboot": ["timeout", "5", "/bin/Bash", "{node}", "{reason}"]}, "shell", id="behind a limit"),
        pytest.param({"reboot": ["env", "-S", "rsh x", "{node}", "{reason}"]}, "to rsh, which", id="in one word"),
        pytest.param({"reboot": ["mosh", "{node}", "{reason}"]}, "shell", id="reason to another remote shell"),
        pytest.param({"reimage": ["x"]}, "must name {node}", id="again, and no target"),
        pytest.param({"start_check": ["x", "{node}", "{suite}"]}, "must name {key}", id="tests without a key"),
        pytest.param({"start_check": ["x", "{node}", "{key}"]}, "{suite} or {tests}", id="no tests named"),
        pytest.param({"start_check": ["x", "{node}", "{key}", "{suite}", "{reason}"]}, "filled with nothing", id="why"),
        pytest.param({"read_check": ["x", "{node}"]}, "must name {key}", id="any result"),
        pytest.param({"read_check": ["x", "{node}", "{key}", "{suite}"]}, "filled with nothing", id="a result's suite"),
    ],
)
def test_command_that_could_hit_the_wrong_target_is_refused_at_start(
    commands: Mapping[str, Sequence[str]], fault: str
) -> None:
    with pytest.raises(PolicyError, match=fault):
        CommandFleet(commands, clock=SystemClock())


def test_documented_commands_are_valid_and_reboot_past_slurm() -> None:
    shown = Path("cluster.yaml").read_text(encoding="utf-8")
    documented = {
        act: yaml.safe_load(words) for act, words in re.findall(r"^# +(reset_gpu|reboot): (\[.*\])$", shown, re.M)
    }

    CommandFleet(documented, clock=SystemClock())

    assert documented.keys() == {"reset_gpu", "reboot"}
    assert "scontrol" not in documented["reboot"]


# -- tests on the node --

KEY = ActionKey("0123456789abcdef" * 2)
NOW = datetime(2026, 11, 22, 3, tzinfo=UTC)
CHECK = NodeCheck(
    key=KEY,
    node=NODE,
    suite="nvlink",
    started_at=NOW,
    finished_at=NOW,
    tests=(
        TestRun(
            test="nccl_loopback",
            result=TestResult.PASSED,
            said="<b>`$(reboot)`</b>",
            seconds=31.5,
            measurements=(
                Measurement(name="busbw", value=479.5, unit="GB/s"),
                Measurement(name="temperature", value=40.0, unit="celsius", gpu=GPU),
            ),
        ),
        TestRun(test="host", result=TestResult.NOT_RUN, said="not root"),
    ),
    gpu_models=("NVIDIA H200",),
    serials=(Serial(part="gpu 0000:1b:00", serial="FICTION-1", model="NVIDIA H200", firmware="96.00"),),
)


def printing(text: str, returncode: int = 0) -> list[str]:
    """A command for read_check that prints `text`, which may hold braces, and ends with `returncode`."""
    program = f"import sys; sys.stdout.buffer.write(bytes({list(text.encode())})); sys.exit({returncode})"
    return python(program, "{node}", "{key}")


def test_what_the_node_printed_is_what_is_read() -> None:
    found = fleet(read_check=printing(check_to_json(CHECK))).read_check(NODE, key=KEY)

    assert found == CHECK


def test_check_with_nvml_is_an_inspection_as_well() -> None:
    document = {**json.loads(check_to_json(CHECK)), **INSPECTION}

    found = fleet(read_check=printing(json.dumps(document))).read_check(NODE, key=KEY)

    assert found is not None
    assert found.inspection is not None
    assert (found.inspection.boot_id, found.inspection.gpus[0].gpu) == ("5d2c9a0e", GPU)
    assert inspecting(json.dumps(document)).inspect(NODE).gpus == found.inspection.gpus


@pytest.mark.parametrize("text", ["running\n", "none"])
def test_tests_that_run_or_were_not_started_have_no_result(text: str) -> None:
    assert fleet(read_check=printing(text, 4)).read_check(NODE, key=KEY) is None


@pytest.mark.parametrize(
    ("text", "returncode", "error"),
    [
        pytest.param("running", 0, SourceNonsense, id="running, and all is well"),
        pytest.param("perhaps", 4, SourceUnavailable, id="another word"),
        pytest.param("running", 255, SourceUnavailable, id="ssh got no answer"),
        pytest.param("", 0, SourceNonsense, id="nothing"),
        pytest.param("", 77, SourceRefused, id="refused"),
    ],
)
def test_answer_that_is_no_result_is_not_taken_for_one(text: str, returncode: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        fleet(read_check=printing(text, returncode)).read_check(NODE, key=KEY)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"node": "gpu004"}, id="of another node"),
        pytest.param({"key": "f" * 32}, id="of an earlier run"),
        pytest.param({"finished_at": "2026-11-22T02:59:59+00:00"}, id="ended before it began"),
        pytest.param({"started_at": "2026-11-22T03:00:00"}, id="local time"),
        pytest.param({"tests": [{"test": "nvml", "result": "splendid", "said": ""}]}, id="an unknown result"),
        pytest.param({"tests": [{"test": "nvml", "result": "passed", "said": ""}] * 2}, id="a test twice"),
        pytest.param({"tests": None}, id="no tests"),
        pytest.param({"boot_id": "b-1"}, id="half an inspection"),
    ],
)
def test_check_that_makes_no_sense_is_nonsense(changes: Mapping[str, object]) -> None:
    document = {**json.loads(check_to_json(CHECK)), **changes}

    with pytest.raises(SourceNonsense, match="Run the command by hand"):
        fleet(read_check=printing(json.dumps(document))).read_check(NODE, key=KEY)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"479"', "true", "null"])
def test_number_that_is_none_is_nonsense(value: str) -> None:
    text = check_to_json(CHECK).replace("479.5", value)

    with pytest.raises(SourceNonsense):
        fleet(read_check=printing(text)).read_check(NODE, key=KEY)


def test_tests_are_named_word_by_word() -> None:
    program = f"import sys; sys.exit(0 if sys.argv[1:] == ['gpu003', 'nvlink', 'nvml,host', '{KEY}'] else 77)"

    fleet(start_check=python(program, "{node}", "{suite}", "{tests}", "{key}")).start_check(
        NODE, suite="nvlink", tests=("nvml", "host"), key=KEY
    )


@pytest.mark.parametrize(
    ("suite", "tests", "key"),
    [
        ("nvlink; reboot", ("nvml",), KEY),
        ("--start", ("nvml",), KEY),
        ("nvlink", ("nvml;reboot",), KEY),
        ("nvlink", ("magic",), KEY),
        ("nvlink", ("nvml",), ActionKey("../../x")),
        ("nvlink", ("nvml",), ActionKey("$(reboot)")),
    ],
)
def test_hostile_words_reach_no_command(suite: str, tests: tuple[str, ...], key: ActionKey) -> None:
    runs = fleet(start_check=python("raise SystemExit(0)", "{node}", "{suite}", "{key}"))

    with pytest.raises(ValueError, match=r"is no|is not"):
        runs.start_check(NODE, suite=suite, tests=tests, key=key)


def test_no_tests_are_never_all_tests() -> None:
    with pytest.raises(SourceRefused, match="empty never means all"):
        fleet(start_check=python("raise SystemExit(0)", "{node}", "{tests}", "{key}")).start_check(
            NODE, suite="nvlink", tests=(), key=KEY
        )


def test_tests_and_installing_anew_are_refused_where_no_command_is_configured() -> None:
    with pytest.raises(SourceRefused, match="start_check"):
        fleet().start_check(NODE, suite="nvlink", tests=("nvml",), key=KEY)
    with pytest.raises(SourceRefused, match="read_check"):
        fleet().read_check(NODE, key=KEY)
    with pytest.raises(SourceRefused, match="reimage"):
        fleet().reimage(NODE, reason="INC-7")


def test_installing_anew_is_handed_its_reason_as_one_word() -> None:
    program = "import sys; sys.exit(0 if sys.argv[1:] == ['gpu003', '$(reboot) x'] else 77)"

    fleet(reimage=python(program, "{node}", "{reason}")).reimage(NODE, reason="$(reboot) x")
