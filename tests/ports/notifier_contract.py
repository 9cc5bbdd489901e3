"""What every notifier must do: one suite, run on the file and on Apprise with a real HTTP receiver.

A subclass provides the `world` fixture and nothing else. What only one adapter does is in its own tests.
"""

from dataclasses import replace
from typing import Protocol

import pytest

from ops_pipelines.core.notes import Audience, Message, Notifier
from ops_pipelines.core.sources import SourceUnavailable

MESSAGE = Message(
    audience=Audience.ON_CALL, recipient="on-call", thread="INC-7", title="gpu003 drained", body="Xid 79\nsecond line"
)


class NotifierWorld(Protocol):
    """A channel to test on."""

    @property
    def notifier(self) -> Notifier: ...

    def received(self) -> tuple[str, ...]:
        """Return every message that arrived, as text that holds title and body."""
        ...

    def break_channel(self) -> None:
        """Let no message through from now on."""
        ...


class NotifierContract:
    """Subclass as `class TestX(NotifierContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> NotifierWorld:
        raise NotImplementedError("a subclass of NotifierContract provides the fixture `world`")

    def test_message_arrives_once_with_title_and_every_line_of_its_body(self, world: NotifierWorld) -> None:
        world.notifier.send(MESSAGE)

        (text,) = world.received()
        assert all(part in text for part in ("gpu003 drained", "Xid 79", "second line"))

    def test_receipt_says_something(self, world: NotifierWorld) -> None:
        assert world.notifier.send(MESSAGE).strip()

    def test_the_same_message_twice_arrives_twice(self, world: NotifierWorld) -> None:
        world.notifier.send(MESSAGE)
        world.notifier.send(MESSAGE)

        assert len(world.received()) == 2

    def test_hostile_text_arrives_as_text(self, world: NotifierWorld) -> None:
        world.notifier.send(replace(MESSAGE, title="$(reboot)", body="'; DROP TABLE entries; --"))

        (text,) = world.received()
        assert "$(reboot)" in text
        assert "DROP TABLE entries" in text

    def test_message_that_no_channel_takes_is_an_error(self, world: NotifierWorld) -> None:
        world.break_channel()

        with pytest.raises(SourceUnavailable):
            world.notifier.send(MESSAGE)
