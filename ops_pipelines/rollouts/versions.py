"""Which of two versions is the older one, and whether each node runs what it should.

What a version needs, and who may run it, is `compatibility`'s. What a node should run is stated by the newest rollout
that updated it, then by cluster.yaml, then by nearly all others of its model. What nobody states is no drift; what a
node does not report is not known to fit.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode

# -- which of two versions of a component is the older one --


_WORDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]{0,127}")
"""Longer ones are no versions: what nodes say of themselves is not believed."""
_DOTTED = re.compile(r"[0-9]+(\.[0-9]+)*")
_HEX_DOTTED = re.compile(r"[0-9A-Fa-f]+(\.[0-9A-Fa-f]+)+")
_EPOCH = re.compile(r"([0-9]+):")
_FLAVOR = re.compile(r"-([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
_PIECE = re.compile(r"([^0-9]*)([0-9]*)")

Rank = tuple[tuple[int, ...], ...]


class VersionError(ValueError):
    """Versions that cannot be compared. The message says what was found and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A version taken apart."""

    line: str
    """Whose versions it belongs to: a flavor of kernels, a generation of network cards. Others cannot be compared."""
    ranks: tuple[Rank, ...]


def compare_versions(component: Component, one: str, other: str) -> int:
    """Return -1 if `one` is older than `other`, 1 if it is newer, 0 if neither is.

    One that continues where the other ends is the newer one (`1.2` before `1.2.0`), unless it continues with `~`, which
    comes before everything, as in Debian. Leading zeros of a number count for nothing. Raises VersionError.
    """
    left, right = _read(component, one), _read(component, other)
    if left.line != right.line:
        raise VersionError(
            f"{component.value} {one} and {other} cannot be compared: "
            f"{left.line or 'a number'} and {right.line or 'a number'} are no versions of the same thing"
        )
    return (left.ranks > right.ranks) - (left.ranks < right.ranks)


def is_older(component: Component, one: str, other: str) -> bool:
    """Return whether `one` is older than `other`; raise VersionError where nobody can say."""
    return compare_versions(component, one, other) < 0


def check_version(component: Component, text: str) -> None:
    """Return if `text` can be a version of the component; raise VersionError if not."""
    _read(component, text)


def first_number(component: Component, text: str) -> int:
    """Return the number that a version begins with: a driver's branch, the family of a CUDA version."""
    check_version(component, text)
    match = re.match(r"[0-9]+", text)
    if match is None:
        raise VersionError(f"{component.value} is {text[:80]!r}; expected a version that begins with a number")
    return int(match[0])


def slurm_major(text: str) -> str:
    """Return the major release of a version of Slurm: `23.11` of `23.11.4-2`; raise VersionError on all else."""
    match = re.match(r"(?:[0-9]+:)?([0-9]{2}\.[0-9]{2})(?![0-9])", text)
    if match is None:
        raise VersionError(f"slurm is {text[:80]!r}; expected year and month and a number, such as 23.11.4")
    return match[1]


def _read(component: Component, text: str) -> _Version:
    if not _WORDS.fullmatch(text):
        raise VersionError(
            f"{component.value} is {text[:80]!r}; expected a version: at most 128 letters, digits and . + : ~ _ -"
        )
    return _READERS.get(component, _read_package)(component, text)


def _read_dotted(component: Component, text: str) -> _Version:
    if not _DOTTED.fullmatch(text):
        raise VersionError(f"{component.value} is {text[:80]!r}; expected numbers and dots, such as 580.95.05")
    return _Version(line="", ranks=(tuple((int(each),) for each in text.split(".")),))


def _read_card(component: Component, text: str) -> _Version:
    """Firmware of network cards begins with the generation of the card: 28 is a ConnectX-7, 32 a BlueField-3."""
    known = _read_dotted(component, text)
    return _Version(line=f"generation {int(text.split('.')[0])}", ranks=known.ranks)


def _read_hex(component: Component, text: str) -> _Version:
    if not _HEX_DOTTED.fullmatch(text):
        raise VersionError(f"{component.value} is {text[:80]!r}; expected hex fields and dots, such as 96.00.A5.00.01")
    fields = text.split(".")
    # The first field is the generation of the chip: no version of one was ever meant for another.
    return _Version(line=f"generation {fields[0].upper()}", ranks=(tuple((int(each, 16),) for each in fields),))


def _read_kernel(component: Component, text: str) -> _Version:
    """A kernel ends with its flavor: `generic` and `nvidia` are built and counted apart."""
    match = _FLAVOR.search(text)
    known = _read_package(component, text[: match.start()] if match else text)
    return _Version(line=match[1] if match else known.line, ranks=known.ranks)


def _read_slurm(component: Component, text: str) -> _Version:
    slurm_major(text)
    return _read_package(component, text)


def _read_package(component: Component, text: str) -> _Version:
    """As Debian orders packages: epoch, version of the program, revision of the package behind the last hyphen."""
    plain = text[1:] if re.match(r"v[0-9]", text) else text
    epoch = _EPOCH.match(plain)
    rest = plain[epoch.end() :] if epoch else plain
    program, hyphen, revision = rest.rpartition("-")
    if not hyphen:
        program, revision = rest, ""
    line = re.match(r"[A-Za-z]*", program)
    return _Version(
        line=line[0] if line else "",
        ranks=(((int(epoch[1]) if epoch else 0,),), _rank(program), _rank(revision) if hyphen else ()),
    )


def _rank(text: str) -> Rank:
    """Return letters and numbers in turn, so that tuples are ordered as Debian orders what they are for."""
    ranks: list[tuple[int, ...]] = []
    for letters, digits in _PIECE.findall(text):
        if not letters and not digits:
            break
        ranks.append((*(_rank_of_letter(each) for each in letters), 0))
        ranks.append((int(digits) if digits else -1,))
    return (*ranks, (0,))


def _rank_of_letter(letter: str) -> int:
    """`~` is before the end of a word, which is 0; letters stand before all other signs."""
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256


_READERS: Mapping[Component, Callable[[Component, str], _Version]] = {
    Component.DRIVER: _read_dotted,
    Component.FABRIC_MANAGER: _read_dotted,
    Component.IMEX: _read_dotted,
    Component.CUDA: _read_dotted,
    Component.GPU_VBIOS: _read_hex,
    Component.NVSWITCH: _read_hex,
    Component.NIC_FIRMWARE: _read_card,
    Component.KERNEL: _read_kernel,
    Component.SLURM: _read_slurm,
}
"""Of what is not here: as packages are ordered, which fits whatever counts upwards in numbers."""


# -- which version each node should run, who says so --


LEAST_PEERS = 4
"""# Assumption: of fewer nodes nobody knows what is usual."""
FEW_RATIO = 0.1
"""# Assumption: who is apart is one alone, or a tenth of its model at most; more are a rollout."""
Spot = tuple[NodeName, Component]


class Fit(Enum):
    FITS = "fits"
    DRIFTS = "drifts"
    UNKNOWN = "unknown"
    """It should run a known version, and does not tell which it runs."""
    FREE = "free"
    """Nobody says what it should run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVersion:
    """One version as it was seen."""

    version: str
    seen_at: datetime
    is_live: bool
    """The node reported it just now; else the newest inventory has it, for the node did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedVersion:
    version: str
    said_by: str
    """In words: a rollout, cluster.yaml, or nearly all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """One component of one node."""

    node: NodeName
    model: str
    component: Component
    seen: SeenVersion | None
    """None: neither the node nor an inventory reports."""
    wanted: ExpectedVersion | None
    fit: Fit


def given_by_rollouts(
    rollouts: Iterable[tuple[Rollout, Release, Sequence[RolloutNode]]],
) -> Mapping[Spot, ExpectedVersion]:
    """Return what rollouts gave to nodes, oldest first: the newest one holds. Who rolled back was given its old ones.

    A node in hand, or one that was left broken, was given nothing yet.
    """
    given: dict[Spot, ExpectedVersion] = {}
    for rollout, release, nodes in rollouts:
        for each in nodes:
            is_updated = each.direction is Direction.FORWARD and each.stage in (NodeStage.SOAKING, NodeStage.UPDATED)
            if is_updated:
                said = f"{rollout.rollout} ({release.name})"
                for change in release.changes:
                    given[each.node, change.component] = ExpectedVersion(version=change.version, said_by=said)
            elif each.stage is NodeStage.BACK:
                said = f"{rollout.rollout} (rolled back)"
                for component, version in each.versions_before.items():
                    given[each.node, component] = ExpectedVersion(version=version, said_by=said)
    return given


def judge_versions(
    seen: Mapping[Spot, SeenVersion],
    *,
    models: Mapping[NodeName, str],
    given: Mapping[Spot, ExpectedVersion],
    declared: Mapping[Spot, ExpectedVersion],
) -> tuple[VersionLine, ...]:
    """Return a line for each node of `models` and each component that is seen or requested anywhere, by node."""
    components = sorted({component for _, component in (*seen, *given)}, key=list(Component).index)
    usual = _usual(seen, models)
    lines = []
    for node in sorted(models):
        for component in components:
            spot = (node, component)
            wanted = given.get(spot) or declared.get(spot) or usual.get((models[node], component))
            found = seen.get(spot)
            lines.append(
                VersionLine(
                    node=node,
                    model=models[node],
                    component=component,
                    seen=found,
                    wanted=wanted,
                    fit=_fit(component, found, wanted),
                )
            )
    return tuple(lines)


def _fit(component: Component, seen: SeenVersion | None, wanted: ExpectedVersion | None) -> Fit:
    if wanted is None:
        return Fit.FREE
    if seen is None:
        return Fit.UNKNOWN
    return Fit.FITS if is_same(component, seen.version, wanted.version) else Fit.DRIFTS


def is_same(component: Component, one: str, other: str) -> bool:
    """Return whether two words name the same version; words that cannot be compared are the same if they are equal."""
    try:
        return compare_versions(component, one, other) == 0
    except VersionError:
        return one == other


def _usual(
    seen: Mapping[Spot, SeenVersion], models: Mapping[NodeName, str]
) -> Mapping[tuple[str, Component], ExpectedVersion]:
    counts: defaultdict[tuple[str, Component], Counter[str]] = defaultdict(Counter)
    for (node, component), each in seen.items():
        if node in models:
            counts[models[node], component][each.version] += 1
    usual = {}
    for key, count in counts.items():
        (version, most), total = count.most_common(1)[0], count.total()
        if total >= LEAST_PEERS and total - most <= max(1, FEW_RATIO * total):
            usual[key] = ExpectedVersion(version=version, said_by=f"{most} of {total} of its model")
    return usual
