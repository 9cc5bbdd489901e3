"""Looks whether the files of a release are what it says they are, by their sha256, before anything is planned.

Only those that lie on this machine: a path may name a file of the nodes, where it is looked at once more before it is
installed. What a release says of them is read by `release_file`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import Artifact, Means, Release

ReadArtifact = Callable[[str], Iterable[bytes] | None]
"""Location -> the content in pieces; None if it does not lie here."""
_PIECE_BYTES = 1 << 20


def hash_artifacts(release: Release, read: ReadArtifact) -> None:
    """Return if every file that lies here has the content that the release names; raise PolicyError if not.

    The image of a BMC is sent from here, so it must lie here. Raises PolicyError with every fault.
    """
    faults = [fault for what, artifact, is_sent in _local_artifacts(release)
              for fault in _faults_of(what, artifact, read, is_sent=is_sent)]  # fmt: skip
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


def _faults_of(what: str, artifact: Artifact, read: ReadArtifact, *, is_sent: bool) -> Iterator[str]:
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
