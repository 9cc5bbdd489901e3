"""Tokens of approval links: made by us exactly so, or worth nothing; keys that others could read are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.web_access import KeyFileSeal, read_link_key
from tests.ports.ledger_samples import drain, plan

SAYS = {"person": "ada", "plan": "PLAN-0123456789ab"}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."


def key_file(directory: Path, key: bytes = b"k" * 32, *, mode: int = 0o600, name: str = "key") -> Path:
    path = directory / name
    path.write_bytes(key)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def seal(tmp_path_factory: pytest.TempPathFactory) -> KeyFileSeal:
    return KeyFileSeal(key_file(tmp_path_factory.mktemp("keys")))


@given(says=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5))
def test_token_says_what_was_sealed_and_fits_into_a_url(seal: KeyFileSeal, says: dict[str, str]) -> None:
    clean = {key: value for key, value in says.items() if all(ord(c) < 0xD800 or ord(c) > 0xDFFF for c in key + value)}

    token = seal.seal(clean)

    assert seal.open(token) == clean
    assert set(token) <= set(ALPHABET)
    assert token[0] == "1"
    assert token[-1] not in "-_."


@given(data=st.data())
def test_no_changed_token_opens(seal: KeyFileSeal, data: st.DataObject) -> None:
    token = seal.seal(SAYS)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from(sorted(set(ALPHABET) - {token[at]})))

    assert seal.open(token[:at] + other + token[at + 1 :]) is None


@given(token=st.text(max_size=300))
def test_no_text_of_others_opens(seal: KeyFileSeal, token: str) -> None:
    assert seal.open(token) is None


def test_token_has_one_spelling(seal: KeyFileSeal) -> None:
    """The last letter of Base64 carries two bits that mean nothing."""
    token = seal.seal(SAYS)

    assert [letter for letter in ALPHABET if seal.open(token[:-1] + letter) is not None] == [token[-1]]
    assert seal.open(token + "=") is None
    assert seal.open(token + "\n") is None


def test_token_of_another_key_opens_nothing_and_a_new_key_ends_old_links(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    seal = KeyFileSeal(path)
    token = seal.seal(SAYS)

    path.write_bytes(b"n" * 32)

    assert seal.open(token) is None


def test_digest_of_a_plan_covers_every_word(seal: KeyFileSeal) -> None:
    of_one = plan(1, drain(1))

    assert seal.digest(of_one) == seal.digest(plan(1, drain(1)))
    assert seal.digest(of_one) != seal.digest(replace(of_one, effects=("one job more is lost",)))


@pytest.mark.parametrize(
    ("key", "mode", "said"),
    [
        (b"k" * 32, 0o600, None),
        (b"k" * 32 + b"\n", 0o640, None),
        (b"k" * 32, 0o400, None),
        (b"k" * 31, 0o600, "holds 31 bytes; expected 32"),
        (b"k" * 31 + b"\n\n", 0o600, "holds 31 bytes"),
        (b"", 0o600, "holds 0 bytes"),
        (b"k" * 4096, 0o600, None),
        (b"k" * 4097, 0o600, "expected 32 to 4096"),
        (b"k" * 32, 0o604, "mode 0604"),
        (b"k" * 32, 0o644, "mode 0644"),
        (b"k" * 32, 0o620, "mode 0620"),
        (b"k" * 32, 0o602, "mode 0602"),
    ],
)
def test_key_that_is_short_or_open_to_others_is_refused(
    tmp_path: Path, key: bytes, mode: int, said: str | None
) -> None:
    path = key_file(tmp_path, key, mode=mode)

    if said is None:
        assert read_link_key(path) == key.rstrip()
        return
    with pytest.raises(PolicyError, match=said) as refused:
        read_link_key(path)
    assert "kkkk" not in str(refused.value)


def test_missing_key_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(PolicyError, match="cannot be read"):
            read_link_key(path)


def test_key_is_in_no_repr(tmp_path: Path) -> None:
    assert "kkkk" not in repr(KeyFileSeal(key_file(tmp_path)))
