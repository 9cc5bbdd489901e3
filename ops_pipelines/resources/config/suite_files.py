"""Reads the files in which a site says what it expects of its tables. What they mean is `lake.quality.site_suites`."""

from pathlib import Path

from ops_pipelines.core.lake import SuiteFile

_BYTES_AT_MOST = 1_000_000


def read_suite_files(directory: Path) -> tuple[SuiteFile, ...]:
    """Return the suites of a directory, a file `TABLE.json` each; none where there is none. Never raises."""
    return tuple(_read(path) for path in sorted(directory.glob("*.json")))


def _read(path: Path) -> SuiteFile:
    try:
        if path.stat().st_size > _BYTES_AT_MOST:
            return SuiteFile(path=str(path), table=path.stem, problem=f"larger than {_BYTES_AT_MOST:,} bytes")
        return SuiteFile(path=str(path), table=path.stem, text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return SuiteFile(path=str(path), table=path.stem, problem=f"cannot be read: {error}")
