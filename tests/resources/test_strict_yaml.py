"""What is in a YAML file and was not meant: each is a fault of the file, and none ends in a traceback."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops_pipelines.resources.config.binding import section_of
from ops_pipelines.resources.config.in_force import read_kept
from ops_pipelines.resources.config.yaml_file import ConfigError, YamlFile, expand_home


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    gpus: float


SECTION = section_of(Machine)


def gpus_in(path: Path) -> float:
    file = YamlFile(path)
    section = file.read(SECTION, file.values, at=())
    file.finish()
    assert section is not None
    return section.gpus


def refusal_of(directory: Path, text: str) -> str:
    path = directory / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        gpus_in(path)
    return str(refused.value)


@pytest.mark.parametrize("value", ["!!bool maybe", '!!int ""', '!!float ""', "!!int x", "!!timestamp []", "!!null []"])
def test_a_value_that_its_tag_does_not_fit_is_refused(tmp_path: Path, value: str) -> None:
    assert "file.yaml" in refusal_of(tmp_path, f"gpus: {value}")


@pytest.mark.parametrize("number", ["010", "-010", "0_10", "00"])
def test_a_number_to_the_base_of_8_is_never_taken_for_another(tmp_path: Path, number: str) -> None:
    assert f"line 1: gpus: {number} is a number to the base of 8 in YAML" in refusal_of(tmp_path, f"gpus: {number}")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("10", 10), ("0x10", 16), ("1_000", 1000), ("1.0e+3", 1000)])
def test_other_numbers_are_what_they_are(tmp_path: Path, text: str, number: float) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"gpus: {text}")

    assert gpus_in(path) == number


@pytest.mark.parametrize("number", ["1e3", "5e-324", "1.5e3", "-1E3"])
def test_an_exponent_that_yaml_does_not_know_is_told_with_its_remedy(tmp_path: Path, number: str) -> None:
    said = refusal_of(tmp_path, f"gpus: {number}")

    assert f"line 1: gpus: found '{number}', a text in YAML; expected a number: with a point and a signed" in said


def test_a_number_that_never_ends_is_told_with_its_line(tmp_path: Path) -> None:
    assert "line 2: gpus: found a number with 5000 digits" in refusal_of(tmp_path, f"# so many\ngpus: {'9' * 5000}")


def test_a_day_is_shown_as_it_was_written(tmp_path: Path) -> None:
    assert "gpus: found 2027-01-01T00:00:00+00:00;" in refusal_of(tmp_path, "gpus: 2027-01-01T00:00:00Z")
    assert "gpus: found 2027-01-01;" in refusal_of(tmp_path, "gpus: 2027-01-01")


@pytest.mark.parametrize(("count", "told"), [(99, 99), (100, 100), (101, 101), (5000, 101)])
def test_a_hundred_faults_are_told_and_the_others_counted(tmp_path: Path, count: int, told: int) -> None:
    lines = refusal_of(tmp_path, "gpus: 1\n" + "".join(f"k{number}: 1\n" for number in range(count))).splitlines()

    assert (f"{count} faults" in lines[0], len(lines) - 1) == (True, told)
    assert ("more; they are shown once these are gone" in lines[-1]) is (count > 100)


def test_a_fault_is_never_endless(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("gpus: 1")
    file = YamlFile(path)
    file.add_fault(("gpus",), "x" * 10_000)

    with pytest.raises(ConfigError) as refused:
        file.finish()

    assert len(str(refused.value)) < 1_000 + len(str(path)) + 100


def test_far_more_values_than_a_configuration_has_are_refused(tmp_path: Path) -> None:
    assert "more than 100000 keys and values" in refusal_of(tmp_path, f"gpus: [{'5,' * 100_000}]")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe, kept = tmp_path / "pipe.yaml", tmp_path / "kept.yaml"
    os.mkfifo(pipe)

    with pytest.raises(ConfigError, match="is no file but a pipe"):
        gpus_in(pipe)
    with pytest.raises(ConfigError, match="is no file but a pipe"):
        read_kept(pipe, kept=kept, read=gpus_in)

    assert not kept.exists()


def test_a_directory_a_loop_and_nothing_are_told_as_what_they_are(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)

    for path, why in ((tmp_path, "Is a directory"), (loop, "symbolic links"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=why):
            gpus_in(path)


def test_a_file_that_became_endless_leaves_what_was_kept(tmp_path: Path) -> None:
    path, kept = tmp_path / "file.yaml", tmp_path / "kept.yaml"
    path.write_text("gpus: 8")
    read_kept(path, kept=kept, read=gpus_in)
    path.write_bytes(b"#" * 5_000_001)

    told = read_kept(path, kept=kept, read=gpus_in)

    assert (told.content, kept.read_text()) == (8, "gpus: 8")
    assert "what it reported before is in force" in told.trouble


def test_a_character_nul_in_a_text_is_told_and_never_reaches_a_path(tmp_path: Path) -> None:
    assert r"line 1: gpus: found 'a\x00b'; expected a text without the character NUL" in refusal_of(
        tmp_path, r'gpus: "a\0b"'
    )


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="begins with the home of nobody known here; write the whole path"):
        expand_home("~nobody-of-that-name/capacity.yaml")
