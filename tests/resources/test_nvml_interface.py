"""NVML's C interface through the real pynvml: H100 and H200 as published, well and in every way in which they break."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.node_tests import TestResult
from ops_pipelines.core.observation import RecoveryAction
from ops_pipelines.resources.commands import ToolAnswer, ToolEnd
from ops_pipelines.resources.node.nvml import read_nvml
from ops_pipelines.resources.node.tool_tests import NvmlReading
from tests.resources.stub_nvml import H100, H200, build_stub, read_variants

NODE = NodeName("gpu003")
VARIANTS = {
    "h100": H100,
    "h200": H200,
    "one GPU missing": H100 + "count 7\n",
    "no GPU": H100 + "count 0\n",
    "uncorrectable": H100 + "gpu5.ecc_uncorrectable 1\n",
    "remap pending": H100 + "gpu2.rows_pending 1\n",
    "remap failed": H100 + "gpu2.rows_failed 1\n",
    "wants a reset": H100 + "gpu1.recovery_action 1\n",
    "wants a reboot": H100 + "gpu1.recovery_action 2\n",
    "old driver": "".join(line for line in H100.splitlines(keepends=True) if "recovery_action" not in line),
    "lost": H100 + "gpu6.lost 1\n",
    "mismatch": H100 + "init 18\n",
    "no driver": H100 + "init 9\n",
    "narrow": H100 + "gpu0.pcie_width 8\n",
    "links down": H100 + "gpu4.nvlinks_up 17\n",
    "no bridge": H100 + "gpu.nvlinks_up 0\n",
    "no ECC": "".join(line for line in H100.splitlines(keepends=True) if "ecc_" not in line),
    "brake": H100 + "gpu7.clock_event_reasons 0x88\n",
    "capped": H100 + "gpu7.clock_event_reasons 0x4\n",
    "one below its limit": H100 + "gpu7.temperature 86\n",
    "at its limit": H100 + "gpu7.temperature 87\n",
}


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return read_variants(build_stub(tmp_path_factory.mktemp("nvml")), VARIANTS)


def reading(told: dict[str, dict[str, Any]], variant: str) -> NvmlReading:
    def run(argv: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        return ToolAnswer(end=ToolEnd.ENDED, stdout=json.dumps(told[variant]["check"]))

    return read_nvml(NODE, run, limit_seconds=60)


@pytest.mark.parametrize(
    ("variant", "model", "serial"),
    [("h100", "NVIDIA H100 80GB HBM3", "FICTION-100-0"), ("h200", "NVIDIA H200", "FICTION-200-0")],
)
def test_eight_healthy_gpus_pass_with_what_is_printed_on_them(
    told: dict[str, dict[str, Any]], variant: str, model: str, serial: str
) -> None:
    found = reading(told, variant)

    assert found.run.result is TestResult.PASSED
    assert found.inspection is not None
    assert [gpu.gpu for gpu in found.inspection.gpus][:2] == ["0000:1b:00", "0000:43:00"]
    assert (found.gpu_models, found.gpu_count) == ((model,), 8)
    assert (found.driver_version, found.library_version) == ("570.172.08", "570.172.08")
    assert (found.serials[0].part, found.serials[0].serial) == ("gpu 0000:1b:00", serial)
    numbers = {(each.name, each.value) for each in found.run.measurements}
    assert {("pcie_width", 16.0), ("pcie_generation", 5.0), ("nvlinks_active", 18.0)} <= numbers


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("no GPU", "counts no GPU"),
        ("uncorrectable", "0000:c3:00 has 1 uncorrectable ECC errors"),
        ("remap pending", "0000:52:00 waits for a reset to remap a row"),
        ("remap failed", "0000:52:00 could not remap a row"),
        ("wants a reset", "0000:43:00 asks for reset_gpu"),
        ("wants a reboot", "0000:43:00 asks for reboot_node"),
        ("lost", "GPU 6 is lost"),
        ("mismatch", "NVML/RM version mismatch"),
        ("no driver", "Driver Not Loaded"),
        ("narrow", "0000:1b:00 has 8 of 16 PCIe lanes"),
        ("links down", "0000:9d:00 has 17 NVLinks up, its neighbours 18"),
        ("brake", "slowed by the power brake"),
        ("at its limit", "is at 87 °C"),
    ],
)
def test_a_gpu_that_is_not_well_fails_the_test(told: dict[str, dict[str, Any]], variant: str, said: str) -> None:
    found = reading(told, variant)

    assert found.run.result is TestResult.FAILED
    assert said in found.run.said


@pytest.mark.parametrize("variant", ["old driver", "no bridge", "no ECC", "capped", "one below its limit"])
def test_what_a_gpu_does_not_have_or_may_do_fails_nothing(told: dict[str, dict[str, Any]], variant: str) -> None:
    found = reading(told, variant)

    assert found.run.result is TestResult.PASSED
    assert found.inspection is not None
    assert {gpu.recovery_action for gpu in found.inspection.gpus} == {RecoveryAction.NONE}


def test_a_missing_gpu_is_seen_by_its_absence_alone(told: dict[str, dict[str, Any]]) -> None:
    assert reading(told, "one GPU missing").gpu_count == 7


def test_a_lost_gpu_leaves_the_others_to_be_read(told: dict[str, dict[str, Any]]) -> None:
    found = reading(told, "lost")

    assert found.gpu_count == 7
    assert "0000:d1:00" not in {each.gpu for each in found.run.measurements}


@pytest.mark.parametrize(("variant", "total"), [("h100", 85520809984), ("h200", 150754820096)])
def test_the_metrics_read_the_same_gpus_by_the_second_version_of_the_memory(
    told: dict[str, dict[str, Any]], variant: str, total: int
) -> None:
    page = told[variant]["page"]

    totals = [line for line in page.splitlines() if line.startswith("nvmlDeviceGetMemoryInfo_total{")]
    assert len(totals) == 8
    assert {line.rsplit(" ", 1)[1] for line in totals} == {str(total)}
    assert "nvmlDeviceGetMemoryInfo_reserved{" in page
    assert 'nvmlDeviceGetTotalEnergyConsumption{gpu="0"' in page
    assert "nvmlDeviceGetFanSpeed" not in page
    assert told[variant]["notes"] == []


def test_the_metrics_tell_of_a_lost_gpu_and_of_a_driver_that_does_not_start(told: dict[str, dict[str, Any]]) -> None:
    assert told["lost"]["notes"] == ["GPU 6 is lost: it fell off the bus or can no longer be reached"]
    assert "NVML/RM version mismatch" in told["mismatch"]["notes"][0]


def test_a_machine_without_the_library_runs_nothing(tmp_path: Path) -> None:
    told = {"here": {"check": {"trouble": "NVML Shared Library Not Found", "is_absent": True}}}

    assert reading(told, "here").run.result is TestResult.NOT_RUN


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ToolAnswer(end=ToolEnd.DID_NOT_END), "did not end within 60 s"),
        (ToolAnswer(end=ToolEnd.ENDED, returncode=1, stderr="Traceback"), "ended with 1"),
        (ToolAnswer(end=ToolEnd.ENDED, stdout="{}"), "KeyError"),
        (ToolAnswer(end=ToolEnd.ENDED, stdout="[]"), "TypeError"),
    ],
)
def test_a_reading_that_hangs_or_makes_no_sense_proves_nothing(answer: ToolAnswer, said: str) -> None:
    def run(argv: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        return answer

    found = read_nvml(NODE, run, limit_seconds=60)

    assert (found.run.result, found.inspection) == (TestResult.NOT_RUN, None)
    assert said in found.run.said
