"""What every logs adapter must do: one suite, run on the simulator and on real log files.

A subclass provides the `world` fixture and nothing else. What only one adapter does (rotation, torn files) is in
its own tests.
"""

from datetime import UTC
from typing import Protocol

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.sources import LogLine, Logs, SourceNonsense

MANY = 1000


class LogsWorld(Protocol):
    """A log to read. Each test finds it without lines, or with lines that were there before."""

    @property
    def logs(self) -> Logs: ...

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """At least two nodes that can write lines."""
        ...

    def write(self, node: NodeName) -> str:
        """Make the node write exactly one line; return a text in it that no other line has."""
        ...


class LogsContract:
    """Subclass as `class TestX(LogsContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> LogsWorld:
        raise NotImplementedError("a subclass of LogsContract provides the fixture `world`")

    def test_source_has_a_stable_name(self, world: LogsWorld) -> None:
        assert world.logs.source
        assert world.logs.source == world.logs.source.strip()

    def test_new_lines_come_in_order_with_node_and_time(self, world: LogsWorld) -> None:
        cursor = _end(world)
        first_node, second_node = world.node_names[:2]
        texts = [world.write(first_node), world.write(second_node), world.write(first_node)]

        lines = world.logs.read_new(cursor, max_lines=MANY).lines

        assert [text in line.text for text, line in zip(texts, lines, strict=True)] == [True, True, True]
        assert [line.node for line in lines] == [first_node, second_node, first_node]
        assert all(line.written_at is not None and line.written_at.tzinfo is UTC for line in lines)

    def test_no_cursor_means_from_the_beginning(self, world: LogsWorld) -> None:
        text = world.write(world.node_names[0])

        lines = world.logs.read_new(None, max_lines=MANY).lines

        assert text in lines[-1].text

    @pytest.mark.parametrize("max_lines", [1, 2, 3, 7])
    def test_batches_of_any_size_lose_and_repeat_nothing(self, world: LogsWorld, max_lines: int) -> None:
        cursor = _end(world)
        texts = [world.write(world.node_names[number % 2]) for number in range(5)]

        lines: list[LogLine] = []
        while (batch := world.logs.read_new(cursor, max_lines=max_lines)).lines:
            assert len(batch.lines) <= max_lines
            lines.extend(batch.lines)
            cursor = batch.cursor

        assert [text in line.text for text, line in zip(texts, lines, strict=True)] == [True] * 5

    def test_the_same_cursor_gives_the_same_lines_again(self, world: LogsWorld) -> None:
        cursor = _end(world)
        world.write(world.node_names[0])
        first = world.logs.read_new(cursor, max_lines=MANY)

        assert world.logs.read_new(cursor, max_lines=MANY) == first

    def test_line_keeps_its_position_when_more_follow(self, world: LogsWorld) -> None:
        cursor = _end(world)
        world.write(world.node_names[0])
        (line,) = world.logs.read_new(cursor, max_lines=MANY).lines

        world.write(world.node_names[1])

        assert world.logs.read_new(cursor, max_lines=MANY).lines[0] == line

    def test_positions_are_unique(self, world: LogsWorld) -> None:
        for number in range(4):
            world.write(world.node_names[number % 2])

        positions = [line.position for line in world.logs.read_new(None, max_lines=MANY).lines]

        assert len(set(positions)) == len(positions)

    def test_nothing_new_is_an_empty_batch_and_loses_no_later_line(self, world: LogsWorld) -> None:
        empty = world.logs.read_new(_end(world), max_lines=MANY)
        text = world.write(world.node_names[0])

        (line,) = world.logs.read_new(empty.cursor, max_lines=MANY).lines

        assert empty.lines == ()
        assert text in line.text

    @pytest.mark.parametrize("cursor", [pytest.param("", id="empty"), pytest.param("not a cursor \x00", id="nonsense")])
    def test_unreadable_cursor_is_nonsense(self, world: LogsWorld, cursor: str) -> None:
        with pytest.raises(SourceNonsense):
            world.logs.read_new(cursor, max_lines=MANY)


def _end(world: LogsWorld) -> str:
    """Return the cursor behind the last line there is now."""
    batch = world.logs.read_new(None, max_lines=MANY)
    while batch.lines:
        batch = world.logs.read_new(batch.cursor, max_lines=MANY)
    return batch.cursor
