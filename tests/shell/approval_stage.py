"""A cluster whose drains need nobody and whose reboots need an approval, its links, and its pages over real HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import requests
import uvicorn

from ops_pipelines.core.entries import Approval
from ops_pipelines.core.identity import PlanId
from ops_pipelines.people.orders import link_for
from ops_pipelines.resources.http_process import listen
from ops_pipelines.server import build_app
from tests.shell.desk import Desk

ASKING = "mode: approve\ndrain_budget: {min_in_service_ratio: 0.5}\n"
BASE_URL = "https://ops.example.org/gpu"


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The served application and who asks it."""

    desk: Desk
    address: str
    plan: PlanId

    def link(self, *, person: str = "ada", minutes: float = 60) -> str:
        """Return the path of a new link."""
        link = link_for(self.plan, self.desk.cluster, person=person, valid_for=timedelta(minutes=minutes))
        assert link is not None
        return urlsplit(link).path.removeprefix("/gpu")

    def ask(
        self,
        method: str,
        path: str,
        *,
        confirm: str | None = None,
        body: str | bytes | None = None,
        content_type: str = "application/x-www-form-urlencoded",
        **headers: str,
    ) -> requests.Response:
        data = body if confirm is None else f"confirm={confirm}"
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            sent["Content-Type"] = content_type
        return requests.request(method, self.address + path, data=data, headers=sent, timeout=10, allow_redirects=False)

    def approve(self, path: str) -> requests.Response:
        return self.ask("POST", path, confirm=self.plan)

    def approvals(self) -> tuple[Approval, ...]:
        return self.desk.cluster.ledger.read_state(self.desk.clock.now()).approvals


def desk_with_links(directory: Path, *, policy: str = ASKING) -> Desk:
    key = directory / "link.key"
    key.write_bytes(b"k" * 48)
    key.chmod(0o600)
    desk = Desk(directory, policy=policy)
    desk.cluster_file.write_text(
        desk.cluster_file.read_text(encoding="utf-8") + f"serve: {{base_url: '{BASE_URL}', link_key_file: link.key}}\n",
        encoding="utf-8",
    )
    desk.reopen()
    return desk


@contextmanager
def served(desk: Desk, plan: PlanId) -> Iterator[Pages]:
    """Serve the pages from a thread on a free port of the loopback."""
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(build_app(lambda: desk.cluster), log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Pages(desk=desk, address=f"http://127.0.0.1:{listening.getsockname()[1]}", plan=plan)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
