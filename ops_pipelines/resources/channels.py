"""The files of channels: whose messages go to which Apprise URL. URLs hold secrets and are shown nowhere.

A line is `URL`, a channel of everybody of that audience, or `NAME URL`, that of one user, team or person on call.
Read at each message: they are rotated.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ops_pipelines.core.notes import Audience
from ops_pipelines.core.sources import SourceUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One line of a file."""

    name: str
    """Whose it is; empty: everybody's."""
    url: str = field(repr=False)


def read_channels(path: Path, audience: Audience) -> tuple[Channel, ...]:
    """Return every channel of an audience; raise SourceUnavailable if the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceUnavailable(
            f"the channels of {audience.value} cannot be read from {path} ({type(exc).__name__}); check the file"
        ) from None
    stripped = (line.strip() for line in lines)
    return tuple(_channel(line) for line in stripped if line and not line.startswith("#"))


def channels_for(channels: tuple[Channel, ...], audience: Audience, recipient: str) -> tuple[Channel, ...]:
    """Return the channels that a message goes to: those of everybody, and those of its recipient.

    Whoever is named among the on-call is on call: their recipient is a role, and all of them get it.
    """
    is_role = audience is Audience.ON_CALL
    return tuple(each for each in channels if not each.name or is_role or each.name == recipient)


def _channel(line: str) -> Channel:
    first, _, rest = line.partition(" ")
    if "://" in first or not rest.strip():
        return Channel(name="", url=line)
    return Channel(name=first, url=rest.strip())
