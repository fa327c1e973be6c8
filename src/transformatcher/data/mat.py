"""MAT-file of level 5 → its arrays of real numbers by name; other content is skipped.

scipy's reader is written in C for trusted files: a damaged file can crash the process. This reader raises ValueError.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import Float

MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC_CLASSES = range(6, 16)  # double, single, and whole numbers of 8 to 64 bits
COMPLEX = 0x0800
MAX_BYTES = 100_000_000  # of a compressed array after decompression


def read_mat(path: Path) -> dict[str, Float[np.ndarray, "..."]]:
    """The arrays of a file, as float64.

    Raises:
        ValueError: if the file does not follow the format.
    """
    data = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("not a MAT-file of level 5; MATLAB writes one with save -v7")
    found = {}
    for kind, content in _elements(data[128:], order):
        if kind == COMPRESSED:
            kind, content = next(_elements(_decompress(content), order), (0, b""))
        if kind == MATRIX:
            name, array = _array(content, order)
            if array is not None:
                found[name] = array
    return found


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """The (type, content) of each element of a sequence."""
    start = 0
    while start < len(data):
        kind, size = struct.unpack(f"{order}II", data[start : start + 8].ljust(8, b"\0"))
        if kind >> 16:  # a small element: type and size in four bytes, the content in the next four
            kind, size, begin = kind & 0xFFFF, kind >> 16, start + 4
            start += 8
            if size > 4:
                raise ValueError(f"a small element of {size} bytes, more than 4")
        else:
            begin = start + 8
            start = begin + size + (0 if kind == COMPRESSED else -size % 8)
        if begin + size > len(data):
            raise ValueError(f"truncated: {max(len(data) - begin, 0)} of the {size} bytes of an element are there")
        yield kind, data[begin : begin + size]


def _decompress(content: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"a compressed array is damaged ({error})") from error
    if decompressor.unconsumed_tail:
        raise ValueError(f"a compressed array of more than {MAX_BYTES} bytes")
    return data


def _array(content: bytes, order: str) -> tuple[str, Float[np.ndarray, "..."] | None]:
    """The name of a matrix and its numbers; None instead of numbers for other content, such as text."""
    parts = _elements(content, order)
    try:
        (_, flags), (_, shape_bytes), (_, name) = next(parts), next(parts), next(parts)
        flag = int(np.frombuffer(flags, f"{order}u4")[0])
        if flag & 0xFF not in NUMERIC_CLASSES or flag & COMPLEX:
            return name.decode("latin-1"), None
        kind, values = next(parts)
    except (StopIteration, IndexError) as error:
        raise ValueError("an incomplete array") from error
    shape = tuple(np.frombuffer(shape_bytes, f"{order}i4").tolist())
    if kind not in NUMBERS:
        raise ValueError(f"numbers of the unknown type {kind}")
    numbers = np.frombuffer(values, f"{order}{NUMBERS[kind]}").astype(np.float64)
    if min(shape, default=-1) < 0 or prod(shape) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers for an array of shape {shape}")
    return name.decode("latin-1"), numbers.reshape(shape, order="F")  # MATLAB stores columns first
