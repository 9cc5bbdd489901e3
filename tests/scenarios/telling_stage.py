"""A small autopilot that also notifies people, by day, after every pass; its notifier keeps what it is given."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.notes import Audience, Message, TellRules
from ops_pipelines.core.policy import Policy
from ops_pipelines.people.compose import tell
from ops_pipelines.people.delivery import Delivered, deliver
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

BY_DAY = TellRules(quiet_from=None)
PAGES = "https://ops.example.org/gpu"


class TellingAutopilot(SmallAutopilot):
    """Reports within each pass between deciding and acting, and after it, as a sensor of its own does."""

    def __init__(
        self,
        directory: Path,
        *jobs: JobSpec,
        node_count: int = 5,
        policy: Policy = POLICY,
        rules: TellRules = BY_DAY,
        gpus_per_node: int = 8,
    ) -> None:
        super().__init__(directory, *jobs, node_count=node_count, gpus_per_node=gpus_per_node, policy=policy)
        self.cluster = replace(
            self.cluster,
            outbox=self.cluster.ledger,  # type: ignore[arg-type]  # SqlLedger is both
            tell_rules=rules,
            pages_url=PAGES,
        )
        self.let_pass(15)

    def run_once(self) -> None:
        super().run_once()
        self.tell()

    def tell(self) -> Delivered:
        tell(self.cluster)
        return self.deliver()

    def deliver(self) -> Delivered:
        return deliver(self.cluster, stop_at=self.clock.now() + timedelta(seconds=3))

    def wait_for_digest(self) -> None:
        """Let a day pass in which nothing happens, with a look each hour."""
        for _ in range(25):
            self.let_pass(3600)
            self.tell()

    def told(self) -> list[tuple[str, str, str]]:
        """Return audience, severity and title of everything that people got."""
        return [(each.audience.value, each.severity.value, each.title) for each in self.messages.messages]

    def to(self, audience: Audience) -> list[Message]:
        return [each for each in self.messages.messages if each.audience is audience]
