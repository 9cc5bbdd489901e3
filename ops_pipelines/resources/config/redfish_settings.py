"""How the power switches (BMCs) are asked over Redfish: the values of `fleet.redfish`, and what is wrong with them.

Asking is `redfish_update`; here nothing is opened or read.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from ops_pipelines.core.identity import NodeName

NODE = "{node}"
"""Represents the node's name in an address or a system's id."""
POWER_ACTS = ("power_off", "power_on", "power_state")


class Authentication(Enum):
    """How we show who we are."""

    BASIC = "basic"
    """User and password with each request: fewest requests, and nothing is left behind on the BMC."""
    SESSION = "session"
    """A session that is opened and closed for each call, for BMCs that refuse basic authentication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishSettings:
    """Where the BMCs are, and how they are asked."""

    user: str
    password_file: Path
    """Read at each call, so that a changed password is picked up."""
    address: str | None = None
    """`https://host[:port]` with `{node}` in it; None: only the nodes in `addresses` have a BMC."""
    addresses: Mapping[NodeName, str] = field(default_factory=dict)
    """Node -> `https://host[:port]`; goes before `address`."""
    system_id: str | None = None
    """The system behind the BMC that is the node, as the last part of its path; `{node}` means the node's name.
    None: the only one."""
    manager_id: str | None = None
    """The manager that is the BMC itself, as the last part of its path: it is reset to run its new firmware.
    None: the only one."""
    ca_file: Path | None = None
    """Certificates that are trusted; None: those that the operating system trusts."""
    is_certificate_checked: bool = True
    authentication: Authentication = Authentication.BASIC

    def address_of(self, node: NodeName) -> str | None:
        """Return where the BMC of a node is; None if none is named."""
        return self.addresses.get(node) or (self.address or "").replace(NODE, node) or None


def find_faults(settings: RedfishSettings, *, nodes: Collection[NodeName] = ()) -> Iterator[tuple[str, str]]:
    """Yield each fault as the key it belongs to and a sentence.

    `nodes`: those of the cluster as far as they are known, besides those in `addresses`.
    """
    if settings.address is None and not settings.addresses:
        yield "address", "no BMC is named; give address, with {node} in its host, or addresses"
    if settings.address is not None:
        if NODE not in settings.address:
            yield "address", f"must have {NODE} in its host: one BMC for all nodes would cut the power of the wrong one"
        yield from (("address", fault) for fault in _faults_of_address(settings.address.replace(NODE, "n"), settings))
    for node, address in settings.addresses.items():
        yield from (("addresses", f"{node}: {fault}") for fault in _faults_of_address(address, settings))
    if settings.system_id is None or NODE not in settings.system_id:
        for first, second in _sharing_nodes(settings, nodes):
            yield (
                "addresses",
                f"two nodes share a BMC, {first} and {second}: one would cut the other's power; give each its own, or "
                f"a system_id with {NODE} in it",
            )
    if not settings.user.isprintable() or ":" in settings.user:
        yield "user", "must be a name without a colon"
    if settings.ca_file is not None and not settings.is_certificate_checked:
        yield "ca_file", "is of no use with verify: false; keep one of them"


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port, as they are connected to; raise ValueError if the port is none."""
    parts = urlsplit(url)
    port = parts.port
    return parts.scheme, parts.hostname or "", (443 if parts.scheme == "https" else 80) if port is None else port


def _sharing_nodes(settings: RedfishSettings, nodes: Collection[NodeName]) -> Iterator[tuple[NodeName, NodeName]]:
    """Yield the nodes whose addresses lead to one host and port, however they are written.

    Two schemes of one host are one BMC as well; that two names lead to one host is not seen here.
    """
    found: dict[str, NodeName] = {}
    for node in sorted({*settings.addresses, *nodes}):
        try:
            scheme, host, port = origin_of(settings.address_of(node) or "")
        except ValueError:
            continue  # reported as a fault of its own
        place = host.rstrip(".") if port in (80, 443) else f"{host.rstrip('.')}:{port}"
        if scheme and place in found:
            yield found[place], node
        elif scheme:
            found[place] = node


def find_weaknesses(settings: RedfishSettings | None) -> tuple[str, ...]:
    """Return what works but ought not to stay so, in words for the operator."""
    if settings is None or settings.is_certificate_checked:
        return ()
    return (
        "fleet.redfish.verify is false: anyone who answers at a BMC's address gets the password that cuts power; "
        "name the certificates in ca_file instead",
    )


def _faults_of_address(address: str, settings: RedfishSettings) -> Iterator[str]:
    """Yield what is wrong; the address is not shown, it may hold a password."""
    try:
        parts = urlsplit(address)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_plain = False
    if not is_plain or "@" in address or parts.path.strip("/") or parts.query or parts.fragment:
        yield "must be https://host[:port], without user, password or path"
    elif parts.scheme == "http" and settings.is_certificate_checked:
        yield "is http: the password would go over the network in the clear; use https, or say verify: false"
