"""A BMC that speaks Redfish over HTTP or HTTPS, on the loopback: service root, systems, resets, sessions.

Its documents have the shape of recorded ones (Dell's iDRAC names the allowed resets in the action, NVIDIA's BMC in an
ActionInfo), cut down to what is asked for.
"""

import base64
import json
import ssl
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "ops", "röm-1"
ROOT = "/redfish/v1/"
SYSTEMS = "/redfish/v1/Systems"
SESSIONS = "/redfish/v1/SessionService/Sessions"
TOKEN = "8f6a0c"
DELL_RESETS = ("On", "ForceOff", "ForceRestart", "GracefulShutdown", "PushPowerButton", "Nmi", "PowerCycle")
Answer = tuple[int, Mapping[str, str], bytes]
JSON = {"Content-Type": "application/json; charset=utf-8"}


def answer(document: object, status: int = 200, **headers: str) -> Answer:
    return status, {**JSON, **headers}, json.dumps(document).encode()


def extended_error(status: int, *messages: str) -> Answer:
    told = [{"MessageId": "Base.1.8.GeneralError", "Message": each, "Severity": "Critical"} for each in messages]
    return answer(
        {"error": {"code": "Base.1.8.GeneralError", "message": "See below", "@Message.ExtendedInfo": told}}, status
    )


@dataclass
class FakeBmc:
    """Systems by id with their power states, and what was asked of them."""

    url: str = ""
    states: dict[str, str | None] = field(default_factory=lambda: {"System.Embedded.1": "On"})
    resets: tuple[str, ...] | None = DELL_RESETS
    """None: the allowed resets stand in an ActionInfo."""
    action_info: tuple[str, ...] = ("On", "ForceOff", "GracefulShutdown")
    takes_basic: bool = True
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    """(method, path) -> what is answered instead."""
    held: set[tuple[str, str]] = field(default_factory=set)
    """(method, path) that get no answer before the server stops."""
    stalled: set[tuple[str, str]] = field(default_factory=set)
    """(method, path) whose answer stops before its end, and stays open."""
    dropped: set[tuple[str, str]] = field(default_factory=set)
    """(method, path) on which the connection is closed without an answer."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    received: list[tuple[str, str]] = field(default_factory=list)
    """(system, reset type) of each reset, in the order of their arrival."""
    open_sessions: int = 0
    on_reset: Callable[[str, str], None] = lambda *_: None
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def reset_path(self) -> str:
        return f"{SYSTEMS}/{next(iter(self.states))}/Actions/ComputerSystem.Reset"

    def serve(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.asked.append((method, path))
        if (method, path) in self.held:
            self.stopping.wait()
        if (method, path) in self.answers:
            return self.answers[method, path]
        if (method, path) == ("GET", ROOT):
            return answer(
                {
                    "@odata.id": ROOT,
                    "Id": "RootService",
                    "RedfishVersion": "1.11.0",
                    "Systems": {"@odata.id": SYSTEMS},
                    "Links": {"Sessions": {"@odata.id": SESSIONS}},
                }
            )
        if (method, path) == ("POST", SESSIONS):
            if json.loads(body) != {"UserName": USER, "Password": PASSWORD}:
                return extended_error(401, "the password was wrong")
            self.open_sessions += 1
            return answer({}, 201, **{"X-Auth-Token": TOKEN, "Location": f"{SESSIONS}/1"})
        if not self._is_known(headers):
            return extended_error(401, "unable to log in with these credentials")
        if (method, path) == ("DELETE", f"{SESSIONS}/1"):
            self.open_sessions -= 1
            return 204, {}, b""
        if (method, path) == ("GET", SYSTEMS):
            return answer({"Members": [{"@odata.id": f"{SYSTEMS}/{each}"} for each in self.states]})
        for system, state in self.states.items():
            if path.startswith(f"{SYSTEMS}/{system}"):
                return self._serve_system(method, path.removeprefix(f"{SYSTEMS}/{system}"), system, state, body)
        return extended_error(404, f"{path} was not found")

    def _serve_system(self, method: str, rest: str, system: str, state: str | None, body: bytes) -> Answer:
        at = f"{SYSTEMS}/{system}"
        if (method, rest) == ("GET", ""):
            reset = {"target": f"{at}/Actions/ComputerSystem.Reset"}
            allowed = (
                {"@Redfish.ActionInfo": f"{at}/ResetActionInfo"}
                if self.resets is None
                else {"ResetType@Redfish.AllowableValues": list(self.resets)}
            )
            document = {"@odata.id": at, "Id": system, "Actions": {"#ComputerSystem.Reset": {**reset, **allowed}}}
            return answer(document if state is None else {**document, "PowerState": state})
        if (method, rest) == ("GET", "/ResetActionInfo"):
            parameter = {"Name": "ResetType", "DataType": "String", "AllowableValues": list(self.action_info)}
            return answer({"Id": "ResetActionInfo", "Parameters": [parameter]})
        if (method, rest) == ("POST", "/Actions/ComputerSystem.Reset"):
            kind = json.loads(body)["ResetType"]
            self.received.append((system, kind))
            self.states[system] = "Off" if kind == "ForceOff" else "On"
            self.on_reset(system, kind)
            return 204, {}, b""
        return extended_error(405, f"{method} is not allowed")

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if headers.get("X-Auth-Token") == TOKEN:
            return self.open_sessions > 0
        return self.takes_basic and headers.get("Authorization") == basic


@contextmanager
def serve_bmc(bmc: FakeBmc | None = None, *, certificate: Path | None = None) -> Iterator[FakeBmc]:
    """Run a BMC until the block ends; with `certificate` (a file with its key too) it speaks HTTPS."""
    fake = bmc or FakeBmc()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = fake.serve(self.command, self.path, dict(self.headers.items()), body)
            if (self.command, self.path) in fake.dropped:
                return
            missing = 100 if (self.command, self.path) in fake.stalled else 0
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content) + missing), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                if missing:
                    fake.stopping.wait()
            except OSError:
                pass  # the client went away while it was held

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    fake.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        fake.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


def recorded_answers(archive: Path) -> dict[tuple[str, str], Answer]:
    """Return every document of a recorded tree, `redfish/v1/Systems/index.json` at `/redfish/v1/Systems`."""
    with tarfile.open(archive) as tree:
        found = {}
        for member in tree:
            path = "/" + member.name.removesuffix("/index.json")
            is_asked_for = path == "/redfish/v1" or path.startswith(SYSTEMS)
            content = tree.extractfile(member) if member.name.endswith("/index.json") and is_asked_for else None
            if content is not None:
                found["GET", ROOT if path == "/redfish/v1" else path] = (200, JSON, content.read())
        return found
