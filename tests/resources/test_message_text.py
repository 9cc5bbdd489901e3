"""Texts of strangers in every chat: wide letters, mixed case and bare hosts become no mention and no link either."""

import pytest

from ops_pipelines.resources.notifier import disarm, is_address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\uff1c!channel\uff1e", "\u2039!channel\u203a"),
        ("\ufe6beverybody \uff20here", "(at)everybody (at)here"),
        ("Www.evil.example", "Www[.]evil.example"),
        ("see evil.example/login", "see evil[.]example/login"),
        ("gpu001.cluster.local: step 1.5/2", "gpu001.cluster.local: step 1.5/2"),
        ("[a]\u200b(http://x)", "[a] (http[:]//x)"),
    ],
)
def test_no_service_makes_more_of_a_text_than_text(text: str, shown: str) -> None:
    assert disarm(text) == shown


@pytest.mark.parametrize("url", ["https://o/\x0b", "https://o/\x00", "https://o/a b", "ftp://o/", "https://\u00f6/"])
def test_address_that_ends_early_somewhere_is_none(url: str) -> None:
    assert not is_address(url)
