"""What a run has read and not stored yet, on disk instead of in memory: a day of a large cluster fits in no memory."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar, cast

Value = TypeVar("Value")


class Spool(Mapping[str, Value], Generic[Value]):
    """Values by key, each kept in a file of its own until the directory goes. One is in memory at a time."""

    def __init__(self, directory: Path) -> None:
        """`directory` is new and this run's alone: what is read back is what was put in."""
        directory.mkdir()
        self._directory = directory
        self._numbers: dict[str, int] = {}

    def put(self, key: str, value: Value) -> None:
        """Keep a value; a key is put in once."""
        if key in self._numbers:
            raise ValueError(f"{key} is in the spool already")
        self._numbers[key] = len(self._numbers)
        with self._file(key).open("wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)

    def __getitem__(self, key: str) -> Value:
        with self._file(key).open("rb") as file:
            return cast("Value", pickle.load(file))  # noqa: S301 -- our own file, in a directory of this run

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _file(self, key: str) -> Path:
        return self._directory / f"{self._numbers[key]}.pickle"
