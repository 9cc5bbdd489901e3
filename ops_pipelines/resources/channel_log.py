"""Keeps what Apprise and urllib3 log of a message from showing a channel's secret, whatever level somebody sets.

Apprise writes a URL that it cannot load into an error as it stands, the address that it posts to at DEBUG, and what the
other side answered at WARNING; urllib3 writes the path of each request at DEBUG. For chats that path is the secret.
What is left says which kind of service failed and how.
"""

import logging

from ops_pipelines.lake.quantities import readable

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
