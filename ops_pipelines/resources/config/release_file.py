"""Reads a file of `releases/`: a release as a domain value, or every fault of the file with its line and its remedy.

Every key is described in docs/RELEASES.md. Whether versions fit one another and the fleet is judged by
`rollouts.compatibility`. Whether files are what a release says they are is looked at here, by their sha256,
before anything is planned; only those that lie on this machine: a path may name a file of the nodes, where it is looked
at once more before it is installed.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic import ValidationInfo as Reading
from pydantic_core import PydanticCustomError

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import Artifact, Change, Claims, Component, Means, Release, Reversibility
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.catalogue_files import read_suites
from ops_pipelines.resources.commands import find_word_faults, shells_in
from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Section,
    dict_of,
    given_with,
    keys_of,
    list_of,
    section_of,
)
from ops_pipelines.resources.config.yaml_file import YamlFile
from ops_pipelines.resources.fleet.installs import VALUES
from ops_pipelines.rollouts.versions import VersionError, check_version

SUFFIX = ".yaml"
ReadArtifact = Callable[[str], Iterable[bytes] | None]
"""Location -> the content in pieces; None if it does not lie here."""
_PLAYBOOK = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]*\.ya?ml")
_VARIABLE = re.compile(r"[a-z_][a-z0-9_]*=.*")
_MISSPELT = re.compile(r"\{(?![a-z]+\})\w*\}")
"""What looks like a placeholder and is spelt another way: it would reach the machine as it is."""
_PIECE_BYTES = 1 << 20
# Assumption: no release has more parts than a machine has; more is a slip.
_MOST = 100


def release_names(directory: Path) -> tuple[str, ...]:
    """Return the names of the releases in a directory, readable or not, in order; none where there is no directory."""
    return tuple(sorted(each.stem for each in directory.glob(f"*{SUFFIX}") if each.is_file()))


def find_release(directory: Path, name: str) -> Release:
    """Return the release of that name; raise PolicyError with every fault of its file, or the names that there are."""
    names = release_names(directory)
    if name not in names:
        raise PolicyError(f"{directory} has no release {name[:80]!r}; expected one of {', '.join(names) or 'none yet'}")
    return read_release(directory / f"{name}{SUFFIX}")


def read_release(path: Path) -> Release:
    """Return the release that a file describes; raise ConfigError with every fault found in it."""
    file = YamlFile(path)
    release = file.read(RELEASE, file.values, at=(), stem=path.stem)
    file.finish()
    assert release is not None, "a file that could not be read leaves a fault"
    return release


# -- whether the files are what the release says they are --


def hash_artifacts(release: Release, read: ReadArtifact) -> None:
    """Return if every file that lies here has the content that the release names; raise PolicyError if not.

    The image of a BMC is sent from here, so it must lie here. Raises PolicyError with every fault.
    """
    faults = [fault for what, artifact, is_sent in _local_artifacts(release)
              for fault in _faults_of_artifact(what, artifact, read, is_sent=is_sent)]  # fmt: skip
    if faults:
        raise PolicyError(f"{release.name}: {'; '.join(faults)}")


def read_here(location: str) -> Iterable[bytes] | None:
    """Return the content of a file of this machine; None if there is none."""
    path = Path(location)
    return _pieces(path) if path.is_file() else None


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _local_artifacts(release: Release) -> Iterator[tuple[str, Artifact, bool]]:
    for change in release.changes:
        named = [] if change.artifact is None else [("artifact", change.artifact)]
        named += [(f"rollback_artifacts.{version}", each) for version, each in change.rollback_artifacts.items()]
        for key, artifact in named:
            if artifact.location.startswith("/"):
                yield f"{change.component.value}.{key}", artifact, change.means is Means.REDFISH


def _faults_of_artifact(what: str, artifact: Artifact, read: ReadArtifact, *, is_sent: bool) -> Iterator[str]:
    digest = hashlib.sha256()
    try:
        pieces = read(artifact.location)
        if pieces is None:
            if is_sent:
                yield f"{what}: {artifact.location} does not lie here, from where it is sent to the BMC"
            return
        for piece in pieces:
            digest.update(piece)
    except OSError as problem:
        yield f"{what}: {artifact.location} cannot be read ({problem.strerror}); check its owner and mode"
        return
    if digest.hexdigest() != artifact.sha256:
        yield (
            f"{what}: {artifact.location} has the sha256 {digest.hexdigest()}, not {artifact.sha256}; "
            "it is another file, or a damaged one"
        )


# -- one change of a release --


def _change(
    *,
    component: Component,
    version: str,
    starts_from: str = "",
    means: Means = Means.COMMAND,
    install: tuple[str, ...] = (),
    rollback: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
    artifact: Artifact | None = None,
    rollback_artifacts: Mapping[str, Artifact] | None = None,
    **others: object,
) -> Change:
    """Return the change; what its versions and its words lack is reported beside what `Change` itself refuses."""
    back = rollback_artifacts or {}
    faults = list(_version_faults(component, version=version, starts_from=starts_from, back=back))
    if means is not Means.REDFISH and targets:
        faults.append((("targets",), "only Redfish has targets; leave them out, or say means: redfish"))
    for key, words, where in (
        ("install", install, "" if artifact is not None else "artifact"),
        ("rollback", rollback, "" if back else "rollback_artifacts"),
    ):
        faults += [((key,), fault) for fault in (_word_faults(words, means) if words else ())]
        if where and any("{artifact}" in word for word in words):
            faults.append(((key,), f"has {{artifact}}, which is filled with nothing; name the file under {where}"))
    try:
        change = Change(
            component=component,
            version=version,
            starts_from=starts_from,
            means=means,
            install=install,
            rollback=rollback,
            targets=targets,
            artifact=artifact,
            rollback_artifacts=back,
            **others,  # type: ignore[arg-type]  # each was read as its field
        )
    except PolicyError as problem:
        faults.append(((), str(problem)))
    if faults:
        raise FaultsFound(*faults)
    return change


def _version_faults(component: Component, *, version: str, starts_from: str, back: Iterable[str]) -> Iterator[Fault]:
    told: list[Fault] = [(("version",), version)]
    told += [(("starts_from",), starts_from)] if starts_from else []
    told += [(("rollback_artifacts", each), each) for each in back]
    for at, text in told:
        try:
            check_version(component, text)
        except VersionError as problem:
            yield at, str(problem)


def _word_faults(words: Sequence[str], means: Means) -> list[str]:
    """Return what is wrong with the words of a command, or of a playbook with its variables."""
    if means is Means.REDFISH:
        return ["is for nobody: Redfish installs the image that artifact names; leave it out"]
    faults = find_word_faults(words, needed=(), optional=VALUES)
    odd = {each for word in words for each in _MISSPELT.findall(word)}
    faults += [f"has {each}, which is filled with nothing" for each in sorted(odd)]
    if means is Means.ANSIBLE:
        if not _PLAYBOOK.fullmatch(words[0]):
            faults.append(f"starts with {words[0]!r}; expected a playbook below the directory of playbooks: driver.yml")
        faults += [
            f"has {word!r}; expected a variable: name=value" for word in words[1:] if not _VARIABLE.fullmatch(word)
        ]
        return faults
    return faults + [
        f"hands its words to {word}, which is a shell; name the program itself" for word in shells_in(words)
    ]


# -- its parts --


def _artifact(*, name: str, sha256: str, location: str) -> Artifact:
    try:
        return Artifact(name=name, sha256=sha256, location=location)
    except PolicyError as problem:
        raise FaultsFound((("sha256",), str(problem))) from problem


def _claims(**stated: object) -> Claims:
    """Return the claims; of what is null, the usual ones."""
    return Claims(**{name: value for name, value in stated.items() if value is not None})  # type: ignore[arg-type]  # as above


def _without_dots(location: str) -> str:
    if any(part in (".", "..") for part in location.split("/")):
        raise PydanticCustomError("location", "expected a path without . and ..")
    return location


def _component(name: str) -> Component:
    try:
        return Component(name)
    except ValueError as problem:
        raise _expected(f"one of {', '.join(each.value for each in Component)}") from problem


def _reversibility(value: object) -> Reversibility:
    """Return what the file says; YAML reads a bare `yes` and `no` as true and false."""
    if isinstance(value, bool):
        return Reversibility.YES if value else Reversibility.NO
    if value == Reversibility.WITH_CONDITIONS.value:
        return Reversibility.WITH_CONDITIONS
    raise _expected("yes, no or with_conditions")


def _suite(name: str) -> str:
    known = [suite.name for suite in read_suites()]
    if name not in known:
        raise _expected(f"one of {', '.join(known)}")
    return name


def _own_name(name: str, reading: Reading) -> str:
    stem = given_with(reading).values["stem"]
    if name != stem:
        raise _expected(f"the name of the file, {stem!r}")
    return name


def _expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "expected {what}", {"what": what})


def _nodes(lists: list[tuple[str, ...]]) -> frozenset[str]:
    return frozenset(node for nodes in lists for node in nodes)


def _or_nothing(text: str | None) -> str:
    return text or ""


_Line = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_Word = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_Location = Annotated[
    str,
    Field(max_length=1000, pattern=r"^(/[A-Za-z0-9._+~%@=,:-]+)+$|^https://[A-Za-z0-9.:-]+(/[A-Za-z0-9._+~%=,:-]+)+$"),
    AfterValidator(_without_dots),
]
"""A path from the root, or an https URL without user, query and fragment."""
_Suite = Annotated[str, AfterValidator(_suite)]
_WORDS = list_of(_Word, most=_MOST)
ARTIFACT = Section(_artifact, keys_of(Artifact, shapes={"name": _Line, "location": _Location}))
CHANGE = Section(
    _change,
    keys_of(
        Change,
        names={"reversibility": "reversible"},
        shapes={
            "component": Annotated[str, AfterValidator(_component)],
            "install": _WORDS,
            "rollback": _WORDS,
            "targets": list_of(Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")], most=_MOST),
            "artifact": ARTIFACT,
            "rollback_artifacts": dict_of(str, ARTIFACT),
            "reversibility": Annotated[object, BeforeValidator(_reversibility)],
            "conditions": Annotated[_Line | None, AfterValidator(_or_nothing)],
            "starts_from": Annotated[str | None, AfterValidator(_or_nothing)],
            "bundle": Annotated[
                Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] | None, AfterValidator(_or_nothing)
            ],
        },
        required=("activation", "reversibility"),
    ),
)
CLAIMS = Section(
    _claims,
    keys_of(
        Claims,
        names={"slowest_failure": "slowest_failure_hours"},
        shapes=dict.fromkeys(("event_rate_ratio", "slowdown_ratio", "slowest_failure"), float | None),
    ),
)
RELEASE = section_of(
    Release,
    shapes={
        "name": Annotated[str, AfterValidator(_own_name)],
        "about": _Line,
        "models": list_of(Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], most=_MOST),
        "changes": list_of(CHANGE, most=_MOST),
        "gate_suite": _Suite,
        "canary_suite": _Suite,
        "claims": CLAIMS,
        "opted_out": Annotated[
            list[Annotated[_Line, AfterValidator(expand_host_list)]], Field(max_length=10_000), AfterValidator(_nodes)
        ],
    },
)
"""One file of `releases/`."""
