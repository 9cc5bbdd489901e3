"""One line, judged with the shipped tables."""

from ops_pipelines.observe.logs.classify import LineVerdict, classify_lines
from ops_pipelines.observe.logs.matching import shared_matcher
from ops_pipelines.resources.catalogue_files import read_explaining_catalogue


def judge(line: str | bytes) -> LineVerdict:
    text = line.encode() if isinstance(line, str) else line
    (verdict,) = judge_all([text])
    return verdict


def judge_all(lines: list[bytes]) -> list[LineVerdict]:
    numbered = enumerate(lines, start=1)
    return list(
        classify_lines(numbered, catalogue=read_explaining_catalogue(), matcher=shared_matcher(with_meanings=True))
    )
