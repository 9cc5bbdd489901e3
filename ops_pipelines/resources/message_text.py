"""Untrusted text made plain for every chat, mail and pager: nobody is mentioned, nothing is a link, nothing is markup.

Services differ in what they make of `@all`, `<!channel>`, `<at>`, `[text](url)` and a bare address. What none of them
takes for a command is sent to all of them, changed visibly so that a reader sees what stood there.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence

from ops_pipelines.core.notes import Link

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
