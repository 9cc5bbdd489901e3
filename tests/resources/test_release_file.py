"""Files of releases: what they become, how every fault is reported, and that the shipped examples stand up."""

import re
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from ops_pipelines.core.identity import NodeName, Place
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
from ops_pipelines.resources.config.release_file import (
    ARTIFACT,
    CHANGE,
    CLAIMS,
    RELEASE,
    find_release,
    hash_artifacts,
    read_here,
    read_release,
    release_names,
)
from ops_pipelines.resources.release_files import read_tables
from ops_pipelines.rollouts.compatibility import contradictions
from ops_pipelines.rollouts.fleet import FleetNode

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "releases"
SHA = "ab" * 32
GOOD = f"""
name: a-release
about: For a test.
models: [hgx-h100]
changes:
  - component: driver
    version: "580.95.05"
    install: [install, "driver={{version}}", "{{artifact}}"]
    rollback: [install, "driver={{version}}", "{{artifact}}"]
    artifact: {{name: driver, sha256: {SHA}, location: /srv/driver.run}}
    rollback_artifacts:
      "570.172.08": {{name: old driver, sha256: {SHA}, location: "https://mirror.example/driver.run"}}
    activation: reboot
    reversible: yes
    starts_from: "535.54.03"
    bundle: gpu
  - component: slurm
    version: "25.11.2"
    means: ansible
    install: [slurm/slurmd.yml, "version={{version}}"]
    activation: live
    reversible: no
  - component: bmc
    version: "25.06.27"
    means: redfish
    targets: [HostBMC_0]
    artifact: {{name: bmc, sha256: {SHA}, location: /srv/bmc.fwpkg}}
    activation: live
    reversible: with_conditions
    conditions: ForceUpdate.
gate_suite: system
claims: {{slowdown_ratio: 0.03, slowest_failure_hours: 12.0}}
opted_out: ["gpu[001-002]", gpu009]
"""


def write(directory: Path, text: str, name: str = "a-release") -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


def test_every_key_becomes_what_it_says(tmp_path: Path) -> None:
    found = read_release(write(tmp_path, GOOD))

    driver, slurm, bmc = found.changes
    assert (found.name, found.about, found.models) == ("a-release", "For a test.", frozenset({"hgx-h100"}))
    assert driver == Change(
        component=Component.DRIVER,
        version="580.95.05",
        install=("install", "driver={version}", "{artifact}"),
        rollback=("install", "driver={version}", "{artifact}"),
        artifact=Artifact(name="driver", sha256=SHA, location="/srv/driver.run"),
        rollback_artifacts={
            "570.172.08": Artifact(name="old driver", sha256=SHA, location="https://mirror.example/driver.run")
        },
        activation=Activation.REBOOT,
        starts_from="535.54.03",
        bundle="gpu",
    )
    assert (slurm.means, slurm.reversibility, slurm.rollback) == (Means.ANSIBLE, Reversibility.NO, ())
    assert (bmc.means, bmc.targets, bmc.reversibility) == (
        Means.REDFISH,
        ("HostBMC_0",),
        Reversibility.WITH_CONDITIONS,
    )
    assert (found.gate_suite, found.canary_suite) == ("system", "release_canary")
    assert found.claims == Claims(slowdown_ratio=0.03, slowest_failure=timedelta(hours=12))
    assert found.opted_out == {"gpu001", "gpu002", "gpu009"}


def replaced(found: str, given: str) -> str:
    assert found in GOOD
    return GOOD.replace(found, given, 1)


DRIVER_INSTALL = 'install: [install, "driver={version}", "{artifact}"]'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (replaced("about:", "aboot:"), "line 3: aboot: unknown key; did you mean about?"),
        (replaced("    bundle: gpu", "    bundel: gpu"), "changes[0].bundel: unknown key; did you mean bundle?"),
        (replaced("    bundle: gpu", "    version: '1'"), "changes[0].version: this key was given before, on line 7"),
        (
            replaced('version: "580.95.05"', "version: 580.95"),
            "changes[0].version: found 580.95; input should be a valid s",
        ),
        (replaced("models: [hgx-h100]", "models: []"), "models is empty; empty never means all"),
        (replaced("models: [hgx-h100]", "models: all"), "models: found 'all'"),
        (replaced("name: a-release", "name: other"), "name: found 'other'; expected the name of the file, 'a-release'"),
        (
            replaced("component: driver", "component: cuda_driver"),
            "found 'cuda_driver'; expected one of driver, fabric_",
        ),
        (
            replaced("component: slurm", "component: driver"),
            "a-release lists driver twice; a component has one version",
        ),
        (replaced('"580.95.05"', "latest"), "changes[0].version: driver is 'latest'; expected numbers and dots"),
        (replaced("535.54.03", "R535"), "changes[0].starts_from: driver is 'R535'; expected numbers and dots"),
        (replaced("570.172.08", "old"), "changes[0].rollback_artifacts.old: driver is 'old'"),
        (replaced(SHA, SHA[1:]), "expected 64 digits 0-9a-f"),
        (replaced(SHA, SHA.upper()), "expected 64 digits 0-9a-f"),
        (replaced("/srv/driver.run", "driver.run"), "changes[0].artifact.location: found 'driver.run'"),
        (replaced("/srv/driver.run", "/srv/../driver.run"), "expected a path without . and .."),
        (replaced("/srv/driver.run", "/srv/$(id)"), "changes[0].artifact.location"),
        (
            replaced("old driver, sha256", "old driver, sha: x, sha256"),
            "changes[0].rollback_artifacts.570.172.08.sha: unknown key; did you mean sha256?",
        ),
        (replaced("https://mirror", "http://mirror"), "changes[0].rollback_artifacts.570.172.08.location"),
        (replaced("https://mirror", "https://user:hunter2@mirror"), "a URL with credentials (not shown"),
        (replaced("activation: reboot", "activation: restart"), "changes[0].activation: found 'restart'"),
        (replaced("    activation: reboot\n", ""), "changes[0].activation: this key is missing and has no default"),
        (replaced("reversible: yes", "reversible: maybe"), "changes[0].reversible"),
        (replaced("    conditions: ForceUpdate.\n", ""), "needs the conditions in words"),
        (replaced("    reversible: no", "    reversible: yes"), "rollback is empty; name it, or say reversible: no"),
        (replaced("    reversible: no", "    reversible: no\n    bundle: gpu"), "alone in its wave"),
        (replaced("gate_suite: system", "gate_suite: magic"), "gate_suite: found 'magic'; expected one of general"),
        (
            replaced("slowdown_ratio: 0.03", "slowdown_ratio: 3"),
            "claims.slowdown_ratio is 3; it must lie in 0.005..0.5",
        ),
        (replaced("slowest_failure_hours: 12.0", "slowest_failure_hours: 1.0e+300"), "claims: "),
        (replaced("slowdown_ratio: 0.03", "slowdown_ratio: .nan"), "claims.slowdown_ratio"),
        (replaced("gpu[001-002]", "gpu[001"), "opted_out[0]"),
        (replaced(DRIVER_INSTALL, "install: []"), "install is empty; empty never means whatever is newest"),
        (replaced(DRIVER_INSTALL, "install: ['{version}', x]"), "starts with '{version}'; the program must be fixed"),
        (replaced(DRIVER_INSTALL, "install: [x, '{model}']"), "has {model}, which is filled with nothing"),
        (replaced(DRIVER_INSTALL, "install: [x, '{Version}']"), "has {Version}, which is filled with nothing"),
        (replaced(DRIVER_INSTALL, "install: [x, '{}']"), "has {}, which is filled with nothing"),
        (replaced(DRIVER_INSTALL, "install: [bash, -c, 'x']"), "hands its words to bash, which is a shell"),
        (replaced(DRIVER_INSTALL, "install: [sudo, /bin/sh, x]"), "hands its words to /bin/sh, which is a shell"),
        (replaced(DRIVER_INSTALL, "install: [env, -S, 'a bash -c']"), "hands its words to bash, which is a shell"),
        (replaced(DRIVER_INSTALL, 'install: [x, "a\\nb"]'), "changes[0].install[1]"),
        (replaced(DRIVER_INSTALL, 'install: [x, ""]'), "changes[0].install[1]"),
        (replaced(DRIVER_INSTALL, "install: install it"), "changes[0].install: found 'install it'"),
        (replaced("[slurm/slurmd.yml", "[slurm/slurmd"), "expected a playbook below the directory of playbooks"),
        (replaced("[slurm/slurmd.yml", "[../slurmd.yml"), "expected a playbook below the directory of playbooks"),
        (replaced("[slurm/slurmd.yml", "[/etc/slurmd.yml"), "expected a playbook below the directory of playbooks"),
        (replaced('"version={version}"', "--become"), "has '--become'; expected a variable: name=value"),
        (replaced("    targets: [HostBMC_0]", "    install: [x]"), "is for nobody: Redfish installs the image"),
        (replaced("    targets: [HostBMC_0]", "    targets: [../x]"), "changes[2].targets[0]"),
        (replaced("    bundle: gpu", "    targets: [HGX_0]"), "only Redfish has targets"),
        ("changes: [", "is not YAML"),
        ("", "name: this key is missing"),
        ("- a\n- b", "must be a mapping of keys"),
    ],
)
def test_every_fault_is_told_with_its_key_and_its_remedy(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(fault)) as raised:
        read_release(write(tmp_path, text))

    assert str(tmp_path / "a-release.yaml") in str(raised.value)
    assert "hunter2" not in str(raised.value)


ALIASES = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 20)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 20)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(f"{ALIASES}about: *i", "about: found [[[", id="aliases of aliases"),
        pytest.param(MERGES, "<< takes in one section", id="merged lists of merged lists"),
        pytest.param("a: &a {k: 1}\nb:\n  <<: *a\n  <<: *a", "<< takes in one section", id="merged twice"),
        pytest.param("about: " + "[" * 5_000 + "]" * 5_000, "nested too deeply", id="deep"),
        pytest.param("about: " + "x" * 5_000_000, "longer than 5000000 bytes", id="long"),
        pytest.param('about: "a \\x9b31m"', "string should match pattern", id="a terminal's control"),
    ],
)
def test_a_hostile_file_is_refused_in_words(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(fault)):
        read_release(write(tmp_path, text))


def test_a_file_is_told_all_its_faults_at_once(tmp_path: Path) -> None:
    text = replaced('"580.95.05"', "latest").replace("25.11.2", "new").replace("gate_suite: system", "gate_suite: x")

    with pytest.raises(PolicyError, match="3 faults"):
        read_release(write(tmp_path, text))


def test_a_file_that_no_artifact_names_is_filled_with_nothing(tmp_path: Path) -> None:
    lines = [line for line in GOOD.splitlines() if "/srv/driver.run" not in line]

    with pytest.raises(PolicyError, match=r"changes\[0\].install: has {artifact}.*name the file under artifact"):
        read_release(write(tmp_path, "\n".join(lines)))


def test_a_release_is_found_by_its_name_and_others_are_named(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, "broken", name="b")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "catalogue").mkdir()

    assert release_names(tmp_path) == ("a-release", "b")
    assert find_release(tmp_path, "a-release").name == "a-release"
    for name in ("../a-release", "c", ""):
        with pytest.raises(PolicyError, match="expected one of a-release, b"):
            find_release(tmp_path, name)
    with pytest.raises(PolicyError, match="none yet"):
        find_release(tmp_path / "nowhere", "a-release")


CONTENT = b"the driver"
DIGEST = sha256(CONTENT).hexdigest()


def with_artifact(location: str, digest: str = DIGEST, *, means: Means = Means.COMMAND) -> Release:
    return Release(
        name=ReleaseName("a-release"),
        about="for a test",
        models=frozenset({"hgx-h100"}),
        changes=(
            Change(
                component=Component.BMC,
                version="1.0",
                means=means,
                install=("install", "{artifact}"),
                rollback=("install", "{artifact}"),
                artifact=Artifact(name="image", sha256=digest, location=location),
                rollback_artifacts={"0.9": Artifact(name="old image", sha256=digest, location=location)},
            ),
        ),
    )


def test_a_file_that_is_what_the_release_says_is_taken(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(CONTENT)

    hash_artifacts(with_artifact(str(tmp_path / "image")), read_here)


def test_a_file_that_is_another_one_is_refused_by_both_ways(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(CONTENT + b".")

    with pytest.raises(PolicyError, match=rf"bmc.artifact: .*not {DIGEST}; .*; bmc.rollback_artifacts.0.9: "):
        hash_artifacts(with_artifact(str(tmp_path / "image")), read_here)


def test_a_file_of_the_nodes_is_left_to_them_and_an_image_of_the_bmc_must_lie_here(tmp_path: Path) -> None:
    location = str(tmp_path / "image")

    hash_artifacts(with_artifact(location), read_here)
    hash_artifacts(with_artifact("https://mirror.example/image"), read_here)
    with pytest.raises(PolicyError, match="does not lie here, from where it is sent to the BMC"):
        hash_artifacts(with_artifact(location, means=Means.REDFISH), read_here)


def test_a_file_that_cannot_be_read_is_refused() -> None:
    def deny(location: str) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PolicyError, match="cannot be read \\(Permission denied\\); check its owner and mode"):
        hash_artifacts(with_artifact("/srv/image"), deny)


def test_content_comes_in_pieces() -> None:
    hash_artifacts(with_artifact("/srv/image"), lambda _: iter((CONTENT[:3], b"", CONTENT[3:])))


RUNS = {
    Component.DRIVER: "570.172.08",
    Component.FABRIC_MANAGER: "570.172.08",
    Component.IMEX: "570.172.08",
    Component.CUDA: "12.8.1",
    Component.BMC: "24.09.17",
    Component.BIOS: "1.05.03",
    Component.GPU_VBIOS: "96.00.99.00.01",
    Component.KERNEL: "6.8.0-1024-nvidia",
    Component.OS_SECURITY: "2026.08.15",
    Component.SLURM: "24.11.5",
}


@pytest.mark.parametrize("name", release_names(EXAMPLES))
def test_the_shipped_examples_contradict_nothing(name: str) -> None:
    release = find_release(EXAMPLES, name)
    other = Component.FABRIC_MANAGER if name.endswith("nvl72") else Component.IMEX
    fleet = [
        FleetNode(
            node=NodeName(f"gpu-{model}"),
            model=model,
            place=Place(rack="r1", nvlink_domain=model, leaf_switch="leaf1"),
            gpu_count=8,
            versions={each: version for each, version in RUNS.items() if each is not other},
            is_in_service=True,
        )
        for model in sorted(release.models)
    ]

    found = contradictions(release, fleet, read_tables(), today=date(2026, 11, 22), controller_version="25.11.2")

    assert found == ()


def test_the_examples_show_every_means_and_every_way_back() -> None:
    changes = [change for name in release_names(EXAMPLES) for change in find_release(EXAMPLES, name).changes]

    assert {change.means for change in changes} == set(Means)
    assert {change.reversibility for change in changes} == set(Reversibility)


def test_the_docs_tell_every_key() -> None:
    told = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "RELEASES.md").read_text()))
    keys = {key for section in (RELEASE, CHANGE, ARTIFACT, CLAIMS) for key in section.keys}

    assert keys <= told
    assert all(each.value in (ROOT / "docs" / "RELEASES.md").read_text() for each in Component)
