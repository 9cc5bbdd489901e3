"""What is needed around a message, whatever sends it: the files that say whose messages go to which Apprise URL,
untrusted text made plain, and no secret of a channel in any log.

Sending is `notifier`'s; what a kind of service makes of a thread is `threads`'. Nothing here imports Apprise.

Files: a line is `URL`, a channel of everybody of that audience, or `NAME URL`, that of one user, team or person on
call. Read at each message: they are rotated. URLs hold secrets and are shown nowhere.

Text: nobody is mentioned, nothing is a link, nothing is markup. Services differ in what they make of `@all`,
`<!channel>`, `<at>`, `[text](url)` and a bare address. What none of them takes for a command is sent to all of them,
changed visibly so that a reader sees what stood there.

Logs, whatever level somebody sets: Apprise writes a URL that it cannot load into an error as it stands, the address
that it posts to at DEBUG, and what the other side answered at WARNING; urllib3 writes the path of each request at
DEBUG. For chats that path is the secret. What is left says which kind of service failed and how.
"""

import html
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops_pipelines.core.notes import Audience, Link
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.lake.quantities import readable

# -- files of channels --


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


# -- untrusted text made plain --


_DISARMED = str.maketrans(
    dict.fromkeys("<\uff1c\ufe64", "\u2039")
    | dict.fromkeys(">\uff1e\ufe65", "\u203a")
    | dict.fromkeys("@\uff20\ufe6b", "(at)")
)
"""Angle brackets become single guillemets: Slack's and Teams' commands, and HTML, need the real ones. So do their wide
and small forms, which a service that normalises text would make real again."""
_KEPT_CONTROLS = frozenset("\n\t")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, direction marks, zero-width characters, surrogates, private use: what a reader cannot see."""
_SPLIT = (("://", "[:]//"), ("](", "] ("))
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)
_DOMAIN = re.compile(r"\b([a-z0-9-]{1,63})\.([a-z]{2,24})/", re.IGNORECASE)
"""A host and a path: some services make a link of that without `http`."""
_LONGEST_LINE = 200
_ENDS_A_LINK = frozenset(" <>\"'`\\|")


def disarm(text: str) -> str:
    """Return `text` such that no service sees a mention, a link, markup or an invisible character in it."""
    seen = "".join(
        each for each in text if each in _KEPT_CONTROLS or unicodedata.category(each) not in _HIDDEN_CATEGORIES
    )
    plain = seen.translate(_DISARMED)
    for sign, instead in _SPLIT:
        plain = plain.replace(sign, instead)
    return _DOMAIN.sub(r"\1[.]\2/", _WWW.sub(r"\1[.]", plain))


def one_line(text: str) -> str:
    """Return `text` disarmed on one line of at most 200 characters: a line break in a subject would begin a header."""
    return disarm(" ".join(text.split()))[:_LONGEST_LINE]


def is_address(url: str) -> bool:
    """Return whether an address of ours may be shown: http(s), ASCII, nothing in it that ends a link or a line."""
    return (
        url.startswith(("https://", "http://")) and url.isascii() and url.isprintable() and _ENDS_A_LINK.isdisjoint(url)
    )


def as_text(body: str, links: Sequence[Link], footer: Iterable[str]) -> str:
    """Return the whole body as plain text; only `links` are clickable."""
    shown = [f"{one_line(link.label)}: {link.url}" for link in links if is_address(link.url)]
    return "\n\n".join(part for part in (disarm(body), "\n".join(shown), "\n".join(footer)) if part)


def as_html(body: str, links: Sequence[Link], footer: Iterable[str]) -> str:
    """Return the same as HTML, for services that know no plain text and make their own markup of it."""
    shown = [
        f'<a href="{html.escape(link.url)}">{html.escape(one_line(link.label))}</a>'
        for link in links
        if is_address(link.url)
    ]
    lines = [html.escape(line) for line in disarm(body).splitlines()]
    return "<br/>".join([*lines, *shown, *(html.escape(line) for line in footer)])


# -- no secret in a log --


_TOLD = ("Failed to send ", "A Connection error occurred ")
"""How the lines of Apprise 2.2 begin that say why a service did not take a message; they name no address."""


def hide_secrets() -> None:
    """Filter both logs of this process; again changes nothing."""
    logging.getLogger("apprise").addFilter(_shown)
    logging.getLogger("urllib3.connectionpool").addFilter(_is_trouble)


def _shown(record: logging.LogRecord) -> bool:
    """Return whether a line of Apprise's may be shown, of which the first line is kept: the next is a stranger's."""
    said = record.getMessage()
    if record.levelno < logging.WARNING or not said.startswith(_TOLD):
        return False
    record.msg, record.args = readable(said.splitlines()[0]), None
    return True


def _is_trouble(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
