"""The simulated machines of the lab, as a program: what the fleet's commands and a tester run.

A node's slurmd and processes are the throw-away Slurm's, its GPUs and boots the twin's; here both move together.
`python -m ops_pipelines_lab.drills.lab_hardware inspect LAB gpu003`. Exit codes: see `resources.fleet.command_fleet`.
With `serve LAB` instead it stays, and does for `ask_hardware` what it is asked: a real node costs this machine nothing
either, and a new interpreter for each look would.
"""

import argparse
import io
import json
import socketserver
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey, NodeName, parse_node_name, parse_pci_address
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.command_fleet import EXIT_NO_RESULT, EXIT_REFUSED
from ops_pipelines.resources.fleet.documents import check_to_json
from ops_pipelines.resources.nvml import to_json
from ops_pipelines_lab.drills.ask_hardware import NO_ANSWER
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster, open_cluster
from ops_pipelines_lab.simulator.adapters import SimulatedFleet
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.twin import Twin

SLURM_DIRECTORY, TWIN_DIRECTORY = "slurm", "twin"
_BOOT_SECONDS = 20.0
"""Four times what a boot takes here."""
_SOCKET = "hardware.sock"
SERVE = "serve"


def main(argv: Sequence[str] | None = None) -> int:
    """Do one act on one node; return 0, 77 (refused) or 255 (no answer)."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [SERVE]:
        return _serve(Path(words[1]))
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = ("inspect", "reset_gpu", "reboot", "reboot_now", "power_off", "power_on", "power_state", "break_gpu")
    parser.add_argument("verb", choices=(*verbs, "start_check", "read_check"))
    parser.add_argument("lab", type=Path)
    parser.add_argument("node", type=parse_node_name)
    parser.add_argument(
        "words", nargs="*", help="PCI address for reset_gpu; index for break_gpu; key (and suite, tests) for checks"
    )
    options = parser.parse_args(words)
    twin = Twin.attach(options.lab / TWIN_DIRECTORY, SystemClock())
    slurm = open_cluster(options.lab / SLURM_DIRECTORY)
    try:
        answer = _act(options.verb, options.lab, options.node, options.words, twin, slurm)
    except _NoResultYet:
        print("running")
        return EXIT_NO_RESULT
    except SourceRefused as refusal:
        print(refusal, file=sys.stderr)
        return EXIT_REFUSED
    except SourceUnavailable as silence:
        print(silence, file=sys.stderr)
        return NO_ANSWER
    if answer:
        print(answer)
    return 0


def socket_of(lab: Path) -> Path:
    """Return where the hardware of a lab answers while it is served."""
    return lab / _SOCKET


class _Asked(socketserver.StreamRequestHandler):
    """One act, in a process of its own: what it opens or breaks is gone with it."""

    def handle(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = main(json.load(self.rfile))
            except SystemExit as end:  # argparse's word to the one who asked for what there is not
                code = end.code if isinstance(end.code, int) else 1
        answer = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
        self.wfile.write(json.dumps(answer).encode())


class _Hardware(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 128


def _serve(lab: Path) -> int:
    path = socket_of(lab)
    path.unlink(missing_ok=True)
    with _Hardware(str(path), _Asked) as server:
        server.serve_forever()
    return 0


class _NoResultYet(Exception):
    """The tests asked for are not over, or were never started."""


def _act(verb: str, lab: Path, node: NodeName, words: Sequence[str], twin: Twin, slurm: SlurmCluster) -> str:
    fleet = SimulatedFleet(twin)
    match verb, words:
        case "inspect", []:
            return to_json(fleet.inspect(node))
        case "reset_gpu", [gpu]:
            fleet.reset_gpu(node, parse_pci_address(gpu))
        case "break_gpu", [gpu]:
            twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=int(gpu))
        case "start_check", [key, suite, tests]:
            fleet.start_check(node, suite=suite, tests=tests.split(","), key=ActionKey(key))
        case "read_check", [key]:
            check = fleet.read_check(node, key=ActionKey(key))
            if check is None:
                raise _NoResultYet
            return check_to_json(check)
        case "reboot", []:
            fleet.inspect(node)  # A node that does not answer cannot be ordered to reboot.
            # Accepted means: it will happen. The caller does not wait for a boot.
            subprocess.Popen(
                [sys.executable, "-m", __spec__.name, "reboot_now", str(lab), node],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        case "reboot_now", []:
            fleet.reboot(node, reason="instructed to")
            slurm.power_off_node(node)
            if _comes_up(node, fleet):
                slurm.power_on_node(node)
        case "power_off", []:
            slurm.power_off_node(node)
            fleet.power_off(node)
        case "power_on", []:
            fleet.power_on(node)
            slurm.power_on_node(node)
        case "power_state", []:
            # The switch alone is no witness: a node is off when none of its processes is left.
            return PowerState.ON.value if slurm.find_processes_of(node) else fleet.power_state(node).value
        case _:
            raise SourceRefused(f"{verb} cannot be done with {' '.join(words) or 'nothing more said'}")
    return ""


def _comes_up(node: NodeName, fleet: SimulatedFleet) -> bool:
    """Wait for a boot; return False of one that hangs: its slurmd must not run either."""
    deadline = time.monotonic() + _BOOT_SECONDS
    while time.monotonic() < deadline:
        try:
            fleet.inspect(node)
        except SourceUnavailable:
            time.sleep(0.2)
        else:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
