"""A bench for tests of a node: tools that answer as they are notified, and a node whose files are a directory."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress
from ops_pipelines.core.node_tests import TestResult, TestRun
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from ops_pipelines.resources.commands import ToolAnswer, ToolEnd
from ops_pipelines.resources.node.tool_tests import Bench, NvmlReading

NOW = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
NODE = NodeName("gpu003")
ABSENT = ToolAnswer(end=ToolEnd.ABSENT)
HANGS = ToolAnswer(end=ToolEnd.DID_NOT_END)


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float) -> None:
        return


def says(stdout: str = "", *, returncode: int = 0, stderr: str = "") -> ToolAnswer:
    return ToolAnswer(end=ToolEnd.ENDED, returncode=returncode, stdout=stdout, stderr=stderr)


class Tools:
    """Answers by the name of the program; what is not named is not installed. Remembers what was run."""

    def __init__(self, answers: Mapping[str, ToolAnswer]) -> None:
        self.answers = dict(answers)
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        self.ran.append(tuple(argv))
        return self.answers.get(argv[0], ABSENT)

    def pair(self, server: Sequence[str], client: Sequence[str], *, limit_seconds: float) -> ToolAnswer:
        self.ran += [tuple(server), tuple(client)]
        return self.answers.get(server[0], ABSENT)


def nvml_reading(gpu_count: int = 8, *, driver: str = "570.172.08") -> NvmlReading:
    gpus = tuple(
        GpuInspection(
            gpu=PciAddress(f"0000:{0x10 + number:02x}:00"),
            gpu_uuid=GpuUuid(f"GPU-{number}"),
            recovery_action=RecoveryAction.NONE,
            uncorrectable_ecc_count=0,
            is_row_remap_pending=False,
            model="NVIDIA H200",
        )
        for number in range(gpu_count)
    )
    return NvmlReading(
        run=TestRun(test="nvml", result=TestResult.PASSED, said="fine"),
        inspection=NodeInspection(node=NODE, inspected_at=NOW, boot_id="b-1", booted_at=NOW, gpus=gpus, failures=()),
        driver_version=driver,
        library_version=driver,
        gpu_models=("NVIDIA H200",),
        is_persistent=(True,) * gpu_count,
    )


NO_NVML = NvmlReading(run=TestRun(test="nvml", result=TestResult.NOT_RUN, said="no library"), inspection=None)


def bench(
    tools: Mapping[str, ToolAnswer] | Tools, *, nvml: NvmlReading | None = None, root: Path = Path("/nonexistent")
) -> Bench:
    run = tools if isinstance(tools, Tools) else Tools(tools)
    return Bench(
        run=run,
        run_pair=run.pair,
        clock=StoppedClock(),
        nvml=nvml if nvml is not None else nvml_reading(),
        uptime_seconds=1000.0,
        proc=root / "proc",
        sys=root / "sys",
    )
