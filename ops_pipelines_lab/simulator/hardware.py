"""The machines: power, boots, GPUs, the processes that run on them, and what faults and repairs do to all that.

Knows nothing of jobs beyond the attempt that a process belongs to: a node that the scheduler gave up may well
still compute. Timing (how long a boot takes) and judging commands are `world`'s business.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import GpuUuid, JobAttempt, JobId, NodeName, PciAddress
from ops_pipelines.core.observation import RecoveryAction
from ops_pipelines.core.release import Activation, Component
from ops_pipelines_lab.simulator import kernel_lines
from ops_pipelines_lab.simulator.kernel_lines import KernelLine
from ops_pipelines_lab.simulator.load import Load, Meter
from ops_pipelines_lab.simulator.scenario import Scenario, SimulatedNode

PCI_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
"""Where the eight GPUs of an HGX H100 board usually stand."""


def slot_address(index: int) -> PciAddress:
    """Return the PCI address of the GPU at `index`; of no GPU at all, if there is no such index."""
    return PciAddress(f"0000:{PCI_BUSES[index]}:00" if 0 <= index < len(PCI_BUSES) else f"index {index}")


@dataclass(slots=True)
class Gpu:
    """One GPU. Volatile counts are since the driver was loaded or the GPU was reset."""

    index: int
    address: PciAddress
    uuid: GpuUuid
    meter: Meter
    correctable_ecc_count: int
    is_on_bus: bool = True
    is_resetting: bool = False
    uncorrectable_ecc_count: int = 0
    is_row_remap_pending: bool = False
    remapped_row_count: int = 0
    """Rows replaced for good because of uncorrectable errors; survives everything but a replacement."""
    board_number: int = 1
    """Boards that were ever in this slot."""
    recovery_action: RecoveryAction = RecoveryAction.NONE
    last_xid: int = 0
    """What DCGM shows: the last code, kept until the driver is loaded again; 0 before the first.

    Assumption: 154 counts as a code like any other. Some codes are known never to be shown (DCGM issue 235); a
    recording of a real fault with its metrics would settle it.
    """

    @property
    def is_visible(self) -> bool:
        """Whether the driver lists it: not fallen off the bus, not in the middle of a reset."""
        return self.is_on_bus and not self.is_resetting

    @property
    def can_compute(self) -> bool:
        return self.is_visible and self.uncorrectable_ecc_count == 0

    @property
    def is_healthy(self) -> bool:
        return self.can_compute and not self.is_row_remap_pending and self.recovery_action is RecoveryAction.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The processes of one attempt on one node, one per GPU with consecutive pids."""

    attempt: JobAttempt
    gpus: tuple[int, ...]
    """Indices of the GPUs that they hold open."""
    first_pid: int
    name: str
    load: Load
    is_stopped: bool = False
    """It makes nothing any more, and does not end either."""
    is_unkillable: bool = False
    """It waits in the kernel: no signal ends it."""


@dataclass(slots=True)
class Node:
    """One machine."""

    name: NodeName
    rack: str
    leaf_switch: str
    gpus: tuple[Gpu, ...]
    boot_id: str
    booted_at: datetime
    is_powered: bool = True
    is_up: bool = True
    """Its kernel runs. False while off, booting or rebooting."""
    is_wedged: bool = False
    """It computes on but answers nobody, until its power is cut."""
    cut_off_until: datetime | None = None
    """End of the network partition that it is in; None if in none."""
    boot_count: int = 1
    """Boots that were finished."""
    boot_number: int = 1
    """Boots that were started."""
    cut_off_count: int = 0
    """Network partitions since the boot."""
    links_down_until: datetime | None = None
    """End of the fault of its leaf switch; None while its fabric ports are up."""
    links_down_count: int = 0
    """How often its fabric ports went down since the boot."""
    processes: dict[JobAttempt, Process] = field(default_factory=dict)
    unsent_lines: list[KernelLine] = field(default_factory=list)
    """Log lines written while the network was away; sent when it is back, lost with the power."""
    image_number: int = 1
    """Installations of the node: what lay on its disk is gone with each."""
    versions: dict[Component, str] = field(default_factory=dict)
    """What runs."""
    staged: dict[Component, tuple[str, Activation]] = field(default_factory=dict)
    """What was installed and waits for a restart, and for which at least."""
    is_driver_loading: bool = False

    @property
    def answers(self) -> bool:
        """Whether anything outside the node can talk to it."""
        return self.is_up and not self.is_wedged and self.cut_off_until is None

    @property
    def is_healthy(self) -> bool:
        return self.answers and all(gpu.is_healthy for gpu in self.gpus)

    def gpu_at(self, address: str) -> Gpu | None:
        """Return the GPU with this PCI address, or None if the node has no such slot."""
        return next((gpu for gpu in self.gpus if gpu.address == address), None)

    def user_of(self, gpu: Gpu) -> Process | None:
        """Return the process that holds the GPU open, or None."""
        return next((process for process in self.processes.values() if gpu.index in process.gpus), None)


class Hardware:
    """All machines, and the log lines that reached the outside, in the order of their arrival."""

    def __init__(self, scenario: Scenario, *, seed: int, began_at: datetime) -> None:
        self._seed = seed
        self.gpu_model = scenario.gpu_model
        self.work_begins: Callable[[Node, JobAttempt, datetime], None] = _nobody_listens
        """Called at each process that starts."""
        self.nodes = {node.name: _new_node(scenario, node, seed=seed, began_at=began_at) for node in scenario.nodes}
        self.lines: list[KernelLine] = []

    # -- what happens by itself --

    def drop_gpu_off_bus(self, node: Node, gpu: Gpu, at: datetime) -> None:
        gpu.meter.switch(Load.IDLE, at)
        gpu.is_on_bus = False
        gpu.recovery_action = RecoveryAction.REBOOT_NODE
        gpu.last_xid = 154
        self._log(node, at, kernel_lines.off_bus(gpu.address), kernel_lines.reboot_required(gpu.address))

    def damage_memory(self, node: Node, gpu: Gpu, at: datetime) -> None:
        gpu.uncorrectable_ecc_count += 1
        gpu.is_row_remap_pending = True
        gpu.recovery_action = RecoveryAction.RESET_GPU
        gpu.last_xid = 154
        row = self._bad_row(node, gpu)
        self._log(
            node,
            at,
            kernel_lines.double_bit_error(gpu.address, row),
            kernel_lines.row_remap(gpu.address, row),
            kernel_lines.reset_required(gpu.address),
        )

    def note_bad_row(self, node: Node, gpu: Gpu, at: datetime) -> None:
        """Let a row of memory be put out of use: what runs on the GPU runs on, until a reset replaces the row."""
        gpu.is_row_remap_pending = True
        gpu.recovery_action = RecoveryAction.DRAIN_AND_RESET
        gpu.last_xid = 154
        row = self._bad_row(node, gpu)
        self._log(node, at, kernel_lines.row_remap(gpu.address, row), kernel_lines.drain_and_reset(gpu.address))

    def _bad_row(self, node: Node, gpu: Gpu) -> int:
        return random.Random(f"{self._seed}:row:{node.name}:{gpu.index}:{gpu.remapped_row_count}").randrange(1 << 36)

    def fault_in_application(self, node: Node, gpu: Gpu, process: Process, at: datetime) -> None:
        gpu.last_xid = 31
        pid = process.first_pid + process.gpus.index(gpu.index)
        self._log(node, at, kernel_lines.mmu_fault(gpu.address, pid=pid, name=process.name))

    def time_out_gsp(self, node: Node, gpu: Gpu, process: Process, at: datetime) -> None:
        """Let the GPU's own processor answer no more: the driver asks for a reset of the GPU."""
        gpu.recovery_action = RecoveryAction.RESET_GPU
        gpu.last_xid = 154
        pid = process.first_pid + process.gpus.index(gpu.index)
        line = kernel_lines.gsp_timeout(gpu.address, index=gpu.index, pid=pid, name=process.name)
        self._log(node, at, line, kernel_lines.reset_required(gpu.address))

    def mutter(self, node: Node, text: str, at: datetime) -> None:
        """Write a line that means nothing."""
        if node.is_up:
            self._log(node, at, text)

    def wedge(self, node: Node) -> None:
        node.is_wedged = True

    def cut_off(self, node: Node, *, until: datetime) -> None:
        node.cut_off_until = until
        node.cut_off_count += 1

    def reconnect(self, node: Node) -> None:
        node.cut_off_until = None
        if node.answers:
            self.lines.extend(node.unsent_lines)
            node.unsent_lines.clear()

    def lose_links(self, node: Node, at: datetime, *, until: datetime) -> None:
        node.links_down_until = until
        node.links_down_count += 1
        self._log(node, at, *kernel_lines.links(len(node.gpus), is_up=False))

    def regain_links(self, node: Node, at: datetime) -> None:
        node.links_down_until = None
        if node.is_up:
            self._log(node, at, *kernel_lines.links(len(node.gpus), is_up=True))

    def stop_process(self, node: Node, process: Process, at: datetime) -> None:
        """Let a process stand still with all it holds."""
        node.processes[process.attempt] = replace(process, is_stopped=True)
        self.set_load(node, process.attempt, Load.STOPPED, at)

    def make_unkillable(self, node: Node, process: Process) -> None:
        """Let a process wait in the kernel until the node goes down."""
        node.processes[process.attempt] = replace(process, is_unkillable=True)

    # -- power, boots, resets --

    def go_down(self, node: Node, at: datetime, *, keeps_power: bool) -> None:
        """Stop the kernel: nothing of what ran is left. The network partition, if any, is not the node's own."""
        node.is_up = False
        node.is_powered = keeps_power
        node.is_wedged = False
        node.processes.clear()
        node.unsent_lines.clear()
        for gpu in node.gpus:
            gpu.meter.switch(Load.IDLE, at)
            gpu.is_resetting = False

    def come_up(self, node: Node, at: datetime) -> None:
        """Finish a boot: a new boot id, and drivers that know nothing of what was before."""
        node.is_up = True
        node.boot_count += 1
        node.boot_id = _boot_id(self._seed, node.name, node.boot_count)
        node.booted_at = at
        node.cut_off_count = 0
        node.links_down_count = 0
        for gpu in node.gpus:
            gpu.is_on_bus = True
            gpu.last_xid = 0
            gpu.correctable_ecc_count = 0
            gpu.meter.restart(at)
            _clear_damage(gpu)
        node.is_driver_loading = False
        driver = node.versions.get(Component.DRIVER, "")
        self._log(node, at, *kernel_lines.boot(tuple(gpu.address for gpu in node.gpus), driver))

    def unload_driver(self, node: Node) -> None:
        """Take the driver out: it lists no GPU until it is loaded again."""
        node.is_driver_loading = True
        for gpu in node.gpus:
            gpu.is_resetting = True

    def load_driver(self, node: Node, at: datetime) -> None:
        """Finish a new start of the driver: each GPU that is on the bus is initialised, as by a reset."""
        node.is_driver_loading = False
        for gpu in node.gpus:
            if gpu.is_on_bus:
                self.finish_reset(gpu)
            gpu.is_resetting = False
            gpu.last_xid = 0
        self._log(node, at, kernel_lines.driver_loading(node.versions.get(Component.DRIVER, "")))

    def install_anew(self, node: Node) -> None:
        node.image_number += 1

    def give_power(self, node: Node) -> None:
        node.is_powered = True

    def begin_reset(self, gpu: Gpu) -> None:
        gpu.is_resetting = True

    def finish_reset(self, gpu: Gpu) -> None:
        gpu.is_resetting = False
        gpu.correctable_ecc_count = 0
        _clear_damage(gpu)

    def replace_board(self, node: Node, gpu: Gpu) -> None:
        """Put another GPU into the slot: another UUID and serial number, and no history."""
        gpu.board_number += 1
        rng = random.Random(f"{self._seed}:board:{node.name}:{gpu.index}:{gpu.board_number}")
        gpu.uuid = _new_uuid(rng)
        gpu.remapped_row_count = 0
        gpu.is_row_remap_pending = False

    def serial_of(self, node: Node, gpu: Gpu | None) -> str:
        """Return what is printed on the GPU in a slot, or on the chassis."""
        part = "chassis" if gpu is None else f"{gpu.index}:{gpu.board_number}"
        # 13 digits, as nvidia-smi shows the serial number of an HGX board.
        return str(random.Random(f"{self._seed}:serial:{node.name}:{part}").randrange(165 * 10**10, 166 * 10**10))

    # -- processes --

    def start_process(
        self, node: Node, attempt: JobAttempt, *, gpus: tuple[int, ...], load: Load, at: datetime
    ) -> None:
        rng = random.Random(f"{self._seed}:pid:{node.name}:{attempt.job}:{attempt.started_at.isoformat()}")
        node.processes[attempt] = Process(
            attempt=attempt, gpus=gpus, first_pid=rng.randrange(20_000, 4_000_000), name="python3", load=load
        )
        self.set_load(node, attempt, load, at)
        self.work_begins(node, attempt, at)

    def kill_process(self, node: Node, attempt: JobAttempt, at: datetime) -> None:
        """Kill what can be killed; look into `processes` for whether it is gone."""
        if attempt in node.processes:
            self.set_load(node, attempt, Load.IDLE, at)
            if not node.processes[attempt].is_unkillable:
                del node.processes[attempt]

    def set_load(self, node: Node, attempt: JobAttempt, load: Load, at: datetime) -> None:
        process = node.processes.get(attempt)
        for index in () if process is None else process.gpus:
            if node.gpus[index].is_visible:
                node.gpus[index].meter.switch(load, at)

    def writers_of(self, job: JobId) -> frozenset[JobAttempt]:
        """Return the attempts of the job that still have a process somewhere: each may write its checkpoint."""
        return frozenset(attempt for node in self.nodes.values() for attempt in node.processes if attempt.job == job)

    def _log(self, node: Node, at: datetime, *messages: str) -> None:
        # Lines of one event are a few microseconds apart, as in a real kernel log.
        lines = [
            KernelLine(
                node=node.name,
                written_at=at + timedelta(microseconds=7 * position),
                booted_at=node.booted_at,
                message=text,
            )
            for position, text in enumerate(messages)
        ]
        (self.lines if node.answers else node.unsent_lines).extend(lines)


def _clear_damage(gpu: Gpu) -> None:
    # A pending remap is carried out when the GPU is initialised: the row is then replaced for good.
    gpu.remapped_row_count += gpu.is_row_remap_pending
    gpu.is_row_remap_pending = False
    gpu.uncorrectable_ecc_count = 0
    gpu.recovery_action = RecoveryAction.NONE


def _new_node(scenario: Scenario, told: SimulatedNode, *, seed: int, began_at: datetime) -> Node:
    name = told.name
    rng = random.Random(f"{seed}:node:{name}")
    # Up for 3 to 40 days: a fleet is not booted on the same morning.
    booted_at = began_at - timedelta(seconds=rng.randrange(3 * 86_400, 40 * 86_400))
    gpus = tuple(
        Gpu(
            index=index,
            address=slot_address(index),
            uuid=_new_uuid(rng),
            meter=Meter(phase=rng.random(), since=began_at),
            correctable_ecc_count=int(rng.expovariate(2.0)),
        )
        for index in range(scenario.gpus_per_node)
    )
    return Node(
        name=name,
        rack=told.rack,
        leaf_switch=told.leaf_switch,
        gpus=gpus,
        boot_id=_boot_id(seed, name, 1),
        booted_at=booted_at,
        versions=scenario.versions_of(told),
    )


def _nobody_listens(_node: Node, _attempt: JobAttempt, _at: datetime) -> None:
    """Do nothing: hardware alone has no work that could hurt it."""


def _new_uuid(rng: random.Random) -> GpuUuid:
    return GpuUuid(f"GPU-{uuid.UUID(int=rng.getrandbits(128), version=4)}")


def _boot_id(seed: int, name: NodeName, boot_count: int) -> str:
    bits = random.Random(f"{seed}:boot:{name}:{boot_count}").getrandbits(128)
    return str(uuid.UUID(int=bits, version=4))
