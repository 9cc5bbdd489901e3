"""Small PNG files of few colours, by zlib and struct alone. Knows pixels, not what they mean."""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
_LARGE_BYTES = 16_384
"""Of packed pixels: a picture that opens in place is smaller, and each byte of it counts. The hardest squeezing of a
larger one costs six times the CPU for a tenth of its bytes (measured)."""


def encode_png(pixels: NDArray[np.uint8], *, palette: Sequence[Colour]) -> bytes:
    """Return a PNG of `pixels` (rows x columns, numbers of palette colours, at most 16), as small as we can make it.

    Raises ValueError if a pixel has no colour.
    """
    if pixels.size == 0 or not 0 < len(palette) <= 16 or int(pixels.max()) >= len(palette):
        raise ValueError(f"{pixels.shape} pixels up to {pixels.max(initial=0)} do not fit {len(palette)} colours")
    height, width = pixels.shape
    depth = 1 if len(palette) <= 2 else 2 if len(palette) <= 4 else 4
    packed = _pack(pixels, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, 3, 0, 0, 0)
    colours = bytes(part for colour in palette for part in colour)
    body = min((_deflate(raw) for raw in _filtered(packed)), key=len)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(name, content)
        for name, content in ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", body), (b"IEND", b""))
    )


def _pack(pixels: NDArray[np.uint8], depth: int) -> NDArray[np.uint8]:
    each = 8 // depth
    padded = np.pad(pixels, ((0, 0), (0, -pixels.shape[1] % each)))
    packed = np.zeros((padded.shape[0], padded.shape[1] // each), dtype=np.uint8)
    for place in range(each):
        packed |= padded[:, place::each] << np.uint8(8 - depth * (place + 1))
    return packed


def _filtered(packed: NDArray[np.uint8]) -> list[bytes]:
    """Return the rows under filters that suit blocks: none; up for rows that repeat, else none; else left."""
    up = np.vstack([packed[:1], packed[1:] - packed[:-1]])
    left = packed.copy()
    left[:, 1:] -= packed[:, :-1]
    repeats = np.zeros(len(packed), dtype=np.bool_)
    repeats[1:] = (packed[1:] == packed[:-1]).all(axis=1)
    none_rows = np.zeros(len(packed), dtype=np.uint8)
    choices = [
        (none_rows, packed),
        (none_rows + 2, up),
        (np.where(repeats, 2, 0).astype(np.uint8), np.where(repeats[:, None], up, packed)),
        (np.where(repeats, 2, 1).astype(np.uint8), np.where(repeats[:, None], up, left)),
    ]
    return [np.hstack([kind[:, None], rows]).tobytes() for kind, rows in choices]


def _deflate(raw: bytes) -> bytes:
    tried = []
    level = 6 if len(raw) > _LARGE_BYTES else 9
    for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_RLE):
        squeezer = zlib.compressobj(level, zlib.DEFLATED, 15, 9, strategy)
        tried.append(squeezer.compress(raw) + squeezer.flush())
    return min(tried, key=len)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
