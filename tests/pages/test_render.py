"""What every page makes of a text that somebody else wrote: it is seen, and it is text."""

import pytest

from ops_pipelines.report.html import render


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("' onload=\"x", "&#39; onload=&#34;x"),
        ("{{ 7 * 7 }}{% raw %}", "{{ 7 * 7 }}{% raw %}"),
        ("gpu\u202e100", "gpu\ufffd100"),
        ("a\u200bb\x1b[2J\x00", "a\ufffdb\ufffd[2J\ufffd"),
        ("lone \ud800", "lone \ufffd"),
        ("two\nlines\u00a0wide", "two\nlines\u00a0wide"),
    ],
)
def test_text_of_strangers_is_text_and_nothing_in_it_is_hidden(words: str, shown: str) -> None:
    page = render("trouble.html", {"title": "Trouble", "words": words})

    assert f"<p>{shown}</p>" in page
    page.encode()
