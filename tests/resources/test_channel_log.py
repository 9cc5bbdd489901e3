"""What is logged of a message at any level: which kind of service failed and how, and no channel's secret."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.config.cluster_config import NotifierConfig, NotifierKind
from ops_pipelines.resources.notifier import AppriseNotifier, FileNotifier, hide_secrets

# As in test_notifier: apprise 2.2.0 imports imghdr.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
CHANNELS = """
json://user:hunter2@127.0.0.1:1/hunter2?+X-Key=hunter2
nonsense://hunter2/x
slack://hunter2
ada discord://hunter2
no url hunter2
"""


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(1), caplog.at_level(1, "apprise"), caplog.at_level(1, "urllib3.connectionpool"):
        yield caplog


def test_secret_of_a_channel_is_in_no_line_at_any_level(tmp_path: Path, loud: pytest.LogCaptureFixture) -> None:
    (tmp_path / "team").write_text(CHANNELS)
    notifier = AppriseNotifier(
        NotifierConfig(kind=NotifierKind.APPRISE, team_urls_file=tmp_path / "team"),
        fallback=FileNotifier(tmp_path / "kept", clock=SystemClock()),
    )

    with pytest.raises(SourceUnavailable) as caught:
        notifier.send(Message(audience=Audience.TEAM, recipient="nlp", thread="INC-1", title="t", body="b"))

    assert "hunter2" not in loud.text + str(caught.value)
    assert "A Connection error occurred sending JSON" in loud.text


def test_answer_of_a_strange_server_is_not_logged(loud: pytest.LogCaptureFixture) -> None:
    hide_secrets()

    logging.getLogger("apprise").warning("Failed to send Slack: error=500\x1b[2J\n%s", "hunter2")
    logging.getLogger("urllib3.connectionpool").debug("POST /services/hunter2")

    assert [each.getMessage() for each in loud.records] == ["Failed to send Slack: error=500\\x1b[2J"]


def test_messages_kept_in_a_file_are_for_the_owner_alone(tmp_path: Path) -> None:
    message = Message(audience=Audience.TEAM, recipient="nlp", thread="INC-1", title="t", body="b")

    FileNotifier(tmp_path / "kept", clock=SystemClock()).send(message)

    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0
