"""What the NVML of a pretended node says when it is asked: the same for the fleet's `inspect` and for its own check."""

from datetime import datetime

from ops_pipelines.core.node_tests import Serial
from ops_pipelines.core.observation import GpuInspection, NodeInspection
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator.hardware import Hardware, Node


def inspect(hardware: Hardware, node: Node, *, now: datetime) -> NodeInspection:
    """Return what a node that answers tells of its boot and of the GPUs that its driver lists."""
    visible = [gpu for gpu in node.gpus if gpu.is_visible]
    failures = []
    if len(visible) < len(node.gpus):
        failures.append(f"nvidia-smi lists {len(visible)} of {len(node.gpus)} GPUs")
    failures.extend(f"GPU {gpu.address} has a row remap pending" for gpu in visible if gpu.is_row_remap_pending)
    return NodeInspection(
        node=node.name,
        inspected_at=now,
        boot_id=node.boot_id,
        booted_at=node.booted_at,
        gpus=tuple(
            GpuInspection(
                gpu=gpu.address,
                gpu_uuid=gpu.uuid,
                recovery_action=gpu.recovery_action,
                uncorrectable_ecc_count=gpu.uncorrectable_ecc_count,
                is_row_remap_pending=gpu.is_row_remap_pending,
                model=hardware.gpu_model,
                serial=hardware.serial_of(node, gpu),
            )
            for gpu in visible
        ),
        failures=tuple(failures),
        chassis_serial=hardware.serial_of(node, None),
    )


def versions_told(node: Node) -> dict[Component, str]:
    """Return which versions run, of what answers now: without its driver nobody asks a GPU for anything."""
    by_driver = (Component.DRIVER, Component.FABRIC_MANAGER, Component.GPU_VBIOS)
    return {
        component: version
        for component, version in node.versions.items()
        if not (node.is_driver_loading and component in by_driver)
    }


def serials_of(hardware: Hardware, inspection: NodeInspection, node: Node) -> tuple[Serial, ...]:
    """Return what is printed on the chassis and on the GPUs that the driver lists."""
    chassis = Serial(part="chassis", serial=hardware.serial_of(node, None), model="HGX H100 8-GPU")
    return (chassis, *(Serial(part=f"gpu {gpu.gpu}", serial=gpu.serial, model=gpu.model) for gpu in inspection.gpus))
