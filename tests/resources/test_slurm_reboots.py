"""Reboots through Slurm on recorded answers: what is sent, and what is refused before it is."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import SourceNonsense, SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.client import SlurmReboots

DATA = Path(__file__).parents[1] / "data" / "slurm"
NODE = NodeName("gpu001")
CONFIG = """\
JobRequeue              = 1
ReturnToService         = {returns}
SlurmdTimeout           = 300 sec
MessageTimeout          = 10 sec
"""
IDLE_AND_DRAINED: Mapping[str, object] = {
    "name": NODE,
    "state": "idle",
    "state_flags": ["DRAIN"],
    "alloc_cpus": 0,
    "gres_used": "gpu:h100:0(IDX:N/A)",
}


class OneNode:
    """A Slurm with one node; keeps the commands."""

    def __init__(self, *, returns: int = 0, answer: CommandAnswer | None = None, **changes: object) -> None:
        recorded = json.loads((DATA / "sinfo-22.05-mixed-down-drained-fail.json").read_text(errors="replace"))
        self._nodes = {**recorded, "nodes": [{**recorded["nodes"][0], **IDLE_AND_DRAINED, **changes}]}
        self._config = CONFIG.format(returns=returns)
        self._answer = answer or CommandAnswer(returncode=0, stdout="", stderr="")
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        if argv[1] == "--version":
            return CommandAnswer(returncode=0, stdout="slurm-wlm 22.05.8\n", stderr="")
        if "--json" in argv:
            return CommandAnswer(returncode=0, stdout=json.dumps(self._nodes), stderr="")
        if tuple(argv[1:]) == ("show", "config"):
            return CommandAnswer(returncode=0, stdout=self._config, stderr="")
        self.commands.append(tuple(argv))
        return self._answer


def test_drained_idle_node_gets_the_plain_form_without_a_reason() -> None:
    slurm = OneNode()

    SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == [("scontrol", "reboot", "gpu001")]


def test_node_that_is_down_and_drained_is_rebooted_too() -> None:
    slurm = OneNode(state="down")

    SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == [("scontrol", "reboot", "gpu001")]


def test_reason_of_a_drain_is_written_anew_before_a_second_reboot() -> None:
    slurm = OneNode(reason="ops_pipelines ROLL-0001: wave 1 : reboot issued")

    SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == [
        ("scontrol", "update", "NodeName=gpu001", "State=DRAIN", 'Reason="ops_pipelines ROLL-0001: wave 1"'),
        ("scontrol", "reboot", "gpu001"),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"state_flags": []}, id="in service"),
        pytest.param({"state": "down", "state_flags": []}, id="down and not drained"),
        pytest.param({"state": "mixed", "alloc_cpus": 8, "gres_used": "gpu:h100:1(IDX:0)"}, id="at work"),
        pytest.param({"state": "allocated"}, id="allocated"),
        pytest.param({"state": "planned"}, id="in a state that is not known"),
        pytest.param({"name": "gpu002"}, id="unknown to Slurm"),
    ],
)
def test_what_slurm_would_return_or_let_work_on_is_refused_and_nothing_is_sent(changes: dict[str, object]) -> None:
    slurm = OneNode(**changes)  # type: ignore[arg-type]  # keys of a row

    with pytest.raises(SourceRefused):
        SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == []


@pytest.mark.parametrize(("returns", "is_sent"), [(0, True), (1, True), (2, False)])
def test_slurm_that_returns_every_node_by_itself_reboots_none(returns: int, is_sent: bool) -> None:
    slurm = OneNode(returns=returns)

    with nullcontext() if is_sent else pytest.raises(SourceRefused, match="ReturnToService"):
        SlurmReboots(run=slurm).reboot(NODE)

    assert bool(slurm.commands) is is_sent


def test_silent_node_is_not_rebooted_by_slurm() -> None:
    slurm = OneNode(state_flags=["DRAIN", "NOT_RESPONDING"])

    with pytest.raises(SourceUnavailable):
        SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == []


def test_slurm_without_a_program_that_reboots_refuses() -> None:
    said = "scontrol_reboot_nodes error: Requested operation is presently disabled\n"
    slurm = OneNode(answer=CommandAnswer(returncode=1, stdout="", stderr=said))

    with pytest.raises(SourceRefused):
        SlurmReboots(run=slurm).reboot(NODE)


def test_row_that_cannot_be_believed_reboots_nothing() -> None:
    slurm = OneNode(state=7)

    with pytest.raises((SourceRefused, SourceNonsense)):
        SlurmReboots(run=slurm).reboot(NODE)

    assert slurm.commands == []
