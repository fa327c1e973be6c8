"""MAT-files: as scipy writes and reads them, and what is no such file."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from transformatcher.data.mat import read_mat
from transformatcher.errors import InputError

ARRAYS = {
    "kps": np.array([[1.5, np.nan], [3.0, 4.0], [-5.25, 1e300]]),
    "bbox": np.array([[1.0, 2.0, 41.0, 52.0]]),
    "small": np.array([[1, 2, 3]], dtype=np.uint8),
    "long_name_of_whole_numbers": np.arange(6, dtype=np.int32).reshape(2, 3),
    "single": np.arange(4, dtype=np.float32)[None],
    "cube": np.arange(24.0).reshape(2, 3, 4),
    "nothing": np.zeros((0, 2)),
}


def written(path: Path, content: dict[str, object], *, compressed: bool = False) -> Path:
    savemat(path, content, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_as_scipy_reads_it(tmp_path: Path, compressed):
    path = written(tmp_path / "x.mat", ARRAYS, compressed=compressed)
    theirs, ours = loadmat(path), read_mat(path)
    assert list(ours) == list(ARRAYS)
    for name, array in ours.items():
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, theirs[name])


def test_what_is_no_array_of_real_numbers_is_skipped(tmp_path: Path):
    others = {"text": "words", "struct": {"a": 1}, "cell": np.array([1, "x"], dtype=object), "z": np.array([1 + 2j])}
    path = written(tmp_path / "x.mat", others | {"kps": np.ones((2, 2))})
    assert list(read_mat(path)) == ["kps"]


@pytest.mark.data
def test_real_annotations(data_root: Path):
    for path in sorted((data_root / "PF-PASCAL").rglob("*.mat"))[::40]:
        for name, array in read_mat(path).items():
            np.testing.assert_array_equal(array, loadmat(path)[name])


def plain(content: dict[str, object]) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, content)
    return buffer.getvalue()


GOOD = plain({"kps": np.ones((3, 2))})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a MAT-file of level 5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "not a MAT-file of level 5"),
        (GOOD[:-9], "truncated: "),
        (GOOD[:140], "truncated"),
        (GOOD[:128] + struct.pack("<II", 15, 4) + b"oops", "a compressed array is damaged"),
        (GOOD[:128] + struct.pack("<II", 14, 0), "an incomplete array"),
        (GOOD[:128] + struct.pack("<I", 9 << 16 | 1) + bytes(4), "a small element of 9 bytes, more than 4"),
        (GOOD.replace(struct.pack("<ii", 3, 2), struct.pack("<ii", 3, 9)), r"6 numbers for an array of shape \(3, 9\)"),
        (GOOD.replace(struct.pack("<ii", 3, 2), struct.pack("<ii", -3, -2)), r"shape \(-3, -2\)"),
        (GOOD.replace(struct.pack("<II", 9, 48), struct.pack("<II", 77, 48)), "unknown type 77"),
    ],
)
def test_damage_is_named(tmp_path: Path, content, message):
    (tmp_path / "x.mat").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_mat(tmp_path / "x.mat")


def test_a_file_that_unfolds_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformatcher.data.mat.MAX_BYTES", 1000)
    path = written(tmp_path / "x.mat", {"kps": np.zeros((500, 2))}, compressed=True)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        read_mat(path)


def test_a_file_on_which_scipys_reader_crashes(pascal_root: Path):
    """It ended the whole process; found by tests/fuzz."""
    from transformatcher.data.pf import load_pfpascal

    mat = (
        GOOD[:128] + struct.pack("<14I", 14, 0xFFFFFFC8, 0xFFFFFFF9, 8, 10, 0, 5, 8, 2, 2, 0x30001, 0, 0, 0) + bytes(90)
    )
    (pascal_root / "Annotations" / "cat" / "a.mat").write_bytes(mat)
    with pytest.raises(InputError, match=r"a\.mat: not a readable \.mat file \(truncated"):
        load_pfpascal(pascal_root, "trn")
