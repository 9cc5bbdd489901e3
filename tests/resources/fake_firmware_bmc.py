"""A BMC that takes firmware: what sushy-tools cannot (tasks that last, an inventory, images that are sent to it).

Its documents have the shape of recorded ones (NVIDIA's BlueField BMC, Dell's iDRAC), cut down to what is asked for.
"""

import email
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message

from tests.resources.fake_bmc import ROOT, SESSIONS, SYSTEMS, Answer, FakeBmc, answer, extended_error

SERVICE = "/redfish/v1/UpdateService"
INVENTORY = f"{SERVICE}/FirmwareInventory"
SIMPLE_UPDATE = f"{SERVICE}/Actions/UpdateService.SimpleUpdate"
PUSH = f"{SERVICE}/update-multipart"
TASK_SERVICE = "/redfish/v1/TaskService"
TASKS = f"{TASK_SERVICE}/Tasks"
MANAGERS = "/redfish/v1/Managers"
MANAGER_RESET = f"{MANAGERS}/BMC/Actions/Manager.Reset"
DGX_FIRMWARE = {
    "HostBMC_0": "25.05.01",
    "HostBIOS_0": "1.05.03",
    "CPLDMB_0": "0.2.1.6",
    "CPLDMID_0": "0.2.0.7",
    "EROT_BMC_0": "00.04.0018.0000_n00",
    "HGX_FW_BMC_0": "HGX-22.10-1-rc1",
    "HGX_FW_FPGA_0": "2.0A",
    **{f"HGX_FW_GPU_SXM_{number}": "96.00.70.00.01" for number in range(1, 9)},
    **{f"HGX_FW_NVSwitch_{number}": "96.00.3F.00.01" for number in range(4)},
}


@dataclass
class FirmwareBmc(FakeBmc):
    """Firmware by id of the inventory, tasks by number, and every image that it was asked to take."""

    firmware: dict[str, str | None] = field(default_factory=lambda: dict(DGX_FIRMWARE))
    states_of_firmware: dict[str, str] = field(default_factory=dict)
    """Id -> Status.State."""
    tasks: dict[str, dict[str, object]] = field(default_factory=dict)
    next_task: int = 0
    begins: str = "2026-11-22T08:00:00+00:00"
    """When its next task begins, by its own clock."""
    expands: bool = False
    apply_times: tuple[str, ...] = ()
    protocols: object = field(default_factory=lambda: ["HTTPS"])
    names_task_by: str = "document"
    """How its answer to an image names the task: `document`, `location`, `monitor`, or `nothing` (it is done)."""
    fetched: list[dict[str, object]] = field(default_factory=list)
    """The body of each SimpleUpdate."""
    sent: list[tuple[dict[str, object], bytes]] = field(default_factory=list)
    """Parameters and content of each image that was sent."""
    resets_received: list[str] = field(default_factory=list)
    on_manager_reset: Callable[[], None] = lambda: None

    @property
    def image_count(self) -> int:
        return len(self.fetched) + len(self.sent)

    def tell(self, number: str, state: str, percent: int | None = None, **more: object) -> None:
        """Let a task be in this state."""
        self.tasks[number].update({"TaskState": state, "PercentComplete": percent, **more})

    def restart(self) -> None:
        """Forget the tasks, and count them again."""
        self.tasks.clear()
        self.next_task = 0

    def serve(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self._lower = {name.lower(): value for name, value in headers.items()}
        is_ours = path == ROOT or path.startswith((SERVICE, TASK_SERVICE, MANAGERS))
        if not is_ours or (method, path) in self.answers:
            return super().serve(method, path, headers, body)
        self.asked.append((method, path))
        if (method, path) in self.held:
            self.stopping.wait()
        if path == ROOT:
            return answer(self._root())
        if not self._is_known(headers):
            return extended_error(401, "unable to log in with these credentials")
        return self._serve_firmware(method, path, body)

    def _root(self) -> dict[str, object]:
        query = (
            {"ProtocolFeaturesSupported": {"ExpandQuery": {"NoLinks": True, "Levels": True}}} if self.expands else {}
        )
        return {
            "@odata.id": ROOT,
            "Id": "RootService",
            "RedfishVersion": "1.17.0",
            "Systems": {"@odata.id": SYSTEMS},
            "Managers": {"@odata.id": MANAGERS},
            "UpdateService": {"@odata.id": SERVICE},
            "Tasks": {"@odata.id": TASK_SERVICE},
            "Links": {"Sessions": {"@odata.id": SESSIONS}},
            **query,
        }

    def _serve_firmware(self, method: str, path: str, body: bytes) -> Answer:
        plain, _, query = path.partition("?")
        if method == "POST":
            return self._take(plain, body)
        if plain == SERVICE:
            return answer(self._service())
        if plain == TASK_SERVICE:
            return answer({"Id": "TaskService", "Tasks": {"@odata.id": TASKS}})
        if plain == MANAGERS:
            return answer({"Members": [{"@odata.id": f"{MANAGERS}/BMC"}]})
        if plain == f"{MANAGERS}/BMC":
            reset = {"target": MANAGER_RESET, "ResetType@Redfish.AllowableValues": ["ForceRestart", "GracefulRestart"]}
            version = self.firmware.get("HostBMC_0")
            return answer({"Id": "BMC", "FirmwareVersion": version, "Actions": {"#Manager.Reset": reset}})
        for collection, found in ((INVENTORY, self._inventory()), (TASKS, self._tasks())):
            if plain == collection:
                links = [{"@odata.id": each} for each in found]
                return answer({"Members": list(found.values()) if query and self.expands else links})
            if plain in found:
                return answer(found[plain])
        if plain.endswith("/Monitor") and plain.removesuffix("/Monitor") in self._tasks():
            task = self._tasks()[plain.removesuffix("/Monitor")]
            return (200, {}, b"") if task["TaskState"] == "Completed" else answer({}, 202)
        return extended_error(404, f"{path} was not found")

    def _service(self) -> dict[str, object]:
        support = {"SupportedValues": list(self.apply_times)}
        simple = {
            "target": SIMPLE_UPDATE,
            "TransferProtocol@Redfish.AllowableValues": self.protocols,
            "@Redfish.OperationApplyTimeSupport": support,
        }
        return {
            "Id": "UpdateService",
            "ServiceEnabled": True,
            "Actions": {"#UpdateService.SimpleUpdate": simple},
            "FirmwareInventory": {"@odata.id": INVENTORY},
            "MultipartHttpPushUri": PUSH,
            "MultipartHttpPushUri@Redfish.OperationApplyTimeSupport": support,
            "MaxImageSizeBytes": 200 << 20,
        }

    def _inventory(self) -> dict[str, dict[str, object]]:
        return {
            f"{INVENTORY}/{each}": {
                "@odata.id": f"{INVENTORY}/{each}",
                "Id": each,
                "Version": version,
                "Status": {"State": self.states_of_firmware.get(each, "Enabled")},
            }
            for each, version in self.firmware.items()
        }

    def _tasks(self) -> dict[str, dict[str, object]]:
        return {f"{TASKS}/{number}": task for number, task in self.tasks.items()}

    def _take(self, path: str, body: bytes) -> Answer:
        if path == MANAGER_RESET:
            self.resets_received.append(json.loads(body)["ResetType"])
            self.on_manager_reset()
            return 204, {}, b""
        if path == SIMPLE_UPDATE:
            self.fetched.append(json.loads(body))
        elif path == PUSH:
            self.sent.append(_parts_of(body, self._lower["content-type"]))
        else:
            return extended_error(405, "not here")
        return self.accept()

    def accept(self) -> Answer:
        """Begin a task, as for an image."""
        number = str(self.next_task)
        self.next_task += 1
        at = f"{TASKS}/{number}"
        if self.names_task_by == "nothing":
            return 204, {}, b""
        self.tasks[number] = {
            "@odata.id": at,
            "@odata.type": "#Task.v1_4_3.Task",
            "Id": number,
            "TaskState": "Running",
            "TaskStatus": "OK",
            "StartTime": self.begins,
            "Payload": {"TargetUri": SERVICE},
            "Messages": [],
        }
        if self.names_task_by == "document":
            return answer(self.tasks[number], 202, Location=f"{at}/Monitor")
        return 202, {"Location": at if self.names_task_by == "location" else f"{at}/Monitor"}, b""


def _parts_of(body: bytes, content_type: str) -> tuple[dict[str, object], bytes]:
    message: Message = email.message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts = {str(part.get_param("name", header="content-disposition")): part for part in message.get_payload()}
    parameters, image = (parts[name].get_payload(decode=True) for name in ("UpdateParameters", "UpdateFile"))
    return json.loads(parameters), image
