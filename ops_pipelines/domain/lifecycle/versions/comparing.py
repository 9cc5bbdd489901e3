"""Which of two versions of a component is the older one; what cannot be compared is refused, never guessed.

Orders words only. What a version needs, and who may run it, is `compatibility`'s.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ops_pipelines.core.release import Component

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

    One that goes on where the other ends is the newer one (`1.2` before `1.2.0`), unless it goes on with `~`, which
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
    """Return letters and numbers in turn, so that tuples are ordered as Debian orders what they stand for."""
    ranks: list[tuple[int, ...]] = []
    for letters, digits in _PIECE.findall(text):
        if not letters and not digits:
            break
        ranks.append((*(_rank_of_letter(each) for each in letters), 0))
        ranks.append((int(digits) if digits else -1,))
    return (*ranks, (0,))


def _rank_of_letter(letter: str) -> int:
    """`~` stands before the end of a word, which is 0; letters stand before all other signs."""
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
