"""Reads a file of `releases/`: a release as a domain value, or every fault of the file with its line and its remedy.

How YAML is read strictly is `strict_yaml`'s, the shape of the file `release_models`'. Whether versions fit one another
and the fleet is judged by `rollouts.versions.compatibility`; whether files are what they are said to be, by
`release_artifacts`.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.release import (
    Activation,
    Artifact,
    Change,
    Claims,
    Component,
    Means,
    Release,
    ReleaseName,
    Reversibility,
)
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.catalogue_files import read_suites
from ops_pipelines.resources.commands import find_word_faults, shells_in
from ops_pipelines.resources.config.release_models import ArtifactModel, ChangeModel, ClaimsModel, ReleaseModel
from ops_pipelines.resources.config.strict_yaml import ConfigError, KeyPath, YamlFile
from ops_pipelines.resources.fleet.installs import VALUES
from ops_pipelines.rollouts.versions.comparing import VersionError, check_version

SUFFIX = ".yaml"
_PLAYBOOK = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]*\.ya?ml")
_VARIABLE = re.compile(r"[a-z_][a-z0-9_]*=.*")
_MISSPELT = re.compile(r"\{(?![a-z]+\})\w*\}")
"""What looks like a placeholder and is spelt another way: it would reach the machine as it stands."""


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
    top = file.check(ReleaseModel, file.values, at=())
    file.finish()
    assert top is not None, "a file that could not be read leaves a fault"
    if top.name != path.stem:
        file.add_fault(("name",), f"found {top.name[:80]!r}; expected the name of the file, {path.stem!r}")
    _check_suites(file, top)
    changes = [_read_change(file, change, at=("changes", number)) for number, change in enumerate(top.changes)]
    opted_out = _read_opted_out(file, top.opted_out)
    claims = _read_claims(file, top.claims)
    file.finish()
    try:
        return Release(
            name=ReleaseName(top.name),
            about=top.about,
            models=frozenset(top.models),
            changes=tuple(change for change in changes if change is not None),
            gate_suite=top.gate_suite,
            canary_suite=top.canary_suite,
            claims=claims,
            opted_out=opted_out,
        )
    except PolicyError as problem:
        raise ConfigError(f"{path}: {problem}") from problem


def _check_suites(file: YamlFile, top: ReleaseModel) -> None:
    known = [suite.name for suite in read_suites()]
    for key, name in (("gate_suite", top.gate_suite), ("canary_suite", top.canary_suite)):
        if name not in known:
            file.add_fault((key,), f"found {name[:80]!r}; expected one of {', '.join(known)}")


def _read_change(file: YamlFile, section: ChangeModel, *, at: KeyPath) -> Change | None:
    try:
        component = Component(section.component)
    except ValueError:
        known = ", ".join(each.value for each in Component)
        file.add_fault((*at, "component"), f"found {section.component[:80]!r}; expected one of {known}")
        return None
    _check_versions(file, section, component, at=at)
    _check_words(file, section, at=at)
    artifact = None if section.artifact is None else _read_artifact(file, section.artifact, at=(*at, "artifact"))
    back = {
        version: _read_artifact(file, each, at=(*at, "rollback_artifacts", version))
        for version, each in section.rollback_artifacts.items()
    }
    try:
        return Change(
            component=component,
            version=section.version,
            means=Means(section.means),
            install=tuple(section.install),
            rollback=tuple(section.rollback),
            targets=tuple(section.targets),
            artifact=artifact,
            rollback_artifacts={version: each for version, each in back.items() if each is not None},
            activation=Activation(section.activation),
            reversibility=_reversibility(section.reversible),
            conditions=section.conditions or "",
            starts_from=section.starts_from or "",
            bundle=section.bundle or "",
        )
    except PolicyError as problem:
        file.add_fault(at, str(problem))
        return None


def _reversibility(value: bool | str) -> Reversibility:
    if value is True:
        return Reversibility.YES
    return Reversibility.NO if value is False else Reversibility.WITH_CONDITIONS


def _check_versions(file: YamlFile, section: ChangeModel, component: Component, *, at: KeyPath) -> None:
    told = {"version": section.version, **({"starts_from": section.starts_from} if section.starts_from else {})}
    for key, text in told.items():
        try:
            check_version(component, text)
        except VersionError as problem:
            file.add_fault((*at, key), str(problem))
    for text in section.rollback_artifacts:
        try:
            check_version(component, text)
        except VersionError as problem:
            file.add_fault((*at, "rollback_artifacts", text), str(problem))


def _check_words(file: YamlFile, section: ChangeModel, *, at: KeyPath) -> None:
    if section.means != "redfish" and section.targets:
        file.add_fault((*at, "targets"), "only Redfish has targets; leave them out, or say means: redfish")
    for key, words, has_artifact in (
        ("install", section.install, section.artifact is not None),
        ("rollback", section.rollback, bool(section.rollback_artifacts)),
    ):
        if not words:
            continue
        for fault in _faults_of(words, section.means):
            file.add_fault((*at, key), fault)
        if not has_artifact and any("{artifact}" in word for word in words):
            where = "artifact" if key == "install" else "rollback_artifacts"
            file.add_fault((*at, key), f"has {{artifact}}, which is filled with nothing; name the file under {where}")


def _faults_of(words: Sequence[str], means: str) -> list[str]:
    """Return what is wrong with the words of a command, or of a playbook with its variables."""
    if means == "redfish":
        return ["is for nobody: Redfish installs the image that artifact names; leave it out"]
    faults = find_word_faults(words, needed=(), optional=VALUES)
    odd = {each for word in words for each in _MISSPELT.findall(word)}
    faults += [f"has {each}, which is filled with nothing" for each in sorted(odd)]
    if means == "ansible":
        if not _PLAYBOOK.fullmatch(words[0]):
            faults.append(f"starts with {words[0]!r}; expected a playbook below the directory of playbooks: driver.yml")
        faults += [
            f"has {word!r}; expected a variable: name=value" for word in words[1:] if not _VARIABLE.fullmatch(word)
        ]
        return faults
    return faults + [
        f"hands its words to {word}, which is a shell; name the program itself" for word in shells_in(words)
    ]


def _read_artifact(file: YamlFile, section: ArtifactModel, *, at: KeyPath) -> Artifact | None:
    if any(part in (".", "..") for part in section.location.split("/")):
        file.add_fault((*at, "location"), f"found {section.location!r}; expected a path without . and ..")
        return None
    try:
        return Artifact(name=section.name, sha256=section.sha256, location=section.location)
    except PolicyError as problem:
        file.add_fault((*at, "sha256"), str(problem))
        return None


def _read_opted_out(file: YamlFile, entries: Sequence[str]) -> frozenset[str]:
    names: set[str] = set()
    for number, entry in enumerate(entries):
        try:
            names.update(expand_host_list(entry))
        except ValueError as problem:
            file.add_fault(("opted_out", number), str(problem))
    return frozenset(names)


def _read_claims(file: YamlFile, section: ClaimsModel) -> Claims:
    usual = Claims()
    hours = section.slowest_failure_hours
    try:
        slowest = usual.slowest_failure if hours is None else timedelta(hours=hours)
        return Claims(
            event_rate_ratio=usual.event_rate_ratio if section.event_rate_ratio is None else section.event_rate_ratio,
            slowdown_ratio=usual.slowdown_ratio if section.slowdown_ratio is None else section.slowdown_ratio,
            slowest_failure=slowest,
        )
    except (PolicyError, OverflowError) as problem:
        file.add_fault(("claims",), str(problem))
        return usual
