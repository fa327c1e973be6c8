"""Files by path and URL; folders that are written file by file; names that stay inside a root."""

from pathlib import Path

import fsspec
import numpy as np
import pytest
from conftest import write_image

from transformatcher.errors import InputError
from transformatcher.images import read_image
from transformatcher.inference.photos import photo_name, to_pixels
from transformatcher.schema import ImageFile
from transformatcher.storage import Folder, ImageRoot, file_bytes, is_url, read_bytes


@pytest.fixture(autouse=True)
def memory():
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    return fs


def folders(tmp_path: Path) -> list[Folder]:
    return [Folder(str(tmp_path / "a" / "b")), Folder("memory://a/b"), Folder(f"file://{tmp_path}/c")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s3://bucket/a.jpg", True), ("https://host/a.jpg", True), ("memory://a", True),
        ("zip://a.jpg::s3://b/c.zip", True),
        ("a.jpg", False), ("/a/b.jpg", False), ("C:\\photos\\a.jpg", False), ("C:/a.jpg", False), ("a:b.jpg", False),
        (Path("s3://bucket"), False),
    ],
)  # fmt: skip
def test_what_is_a_url(name, expected: bool):
    assert is_url(name) == expected


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_folder(number: int, tmp_path: Path):
    folder = folders(tmp_path)[number]
    assert folder.names() == set()
    folder.write("one.txt", b"1")
    folder.write("two.txt", b"2")
    folder.write("one.txt", b"11")
    assert folder.names() == {"one.txt", "two.txt"}
    assert folder.read("one.txt") == b"11"
    folder.remove("one.txt")
    assert folder.names() == {"two.txt"}
    assert file_bytes(folder.path("two.txt")) == 1
    with pytest.raises(InputError, match=r"one\.txt: no such file"):
        folder.read("one.txt")
    with folder.lock():
        folder.write("three.txt", b"3")


def test_what_was_cut_off_is_not_there(memory, monkeypatch):
    """An upload that fails leaves nothing under the name, and nothing else."""
    folder = Folder("memory://out")
    folder.write("part.parquet", b"old")

    def fail(*_args, **_options):
        raise ConnectionResetError("the other side is gone")

    monkeypatch.setattr(type(memory), "mv", fail)
    with pytest.raises(InputError, match=r"memory://out/part\.parquet: cannot be written \(the other side is gone\)"):
        folder.write("part.parquet", b"new")
    assert folder.read("part.parquet") == b"old"
    assert [name for name in memory.store if "new" in name] == []


def test_a_file_system_that_is_not_there():
    with pytest.raises(InputError, match=r"frob://a/b: cannot be read \(Protocol not known: frob\)"):
        read_bytes("frob://a/b")
    with pytest.raises(InputError, match=r"frob://a: cannot be read"):
        Folder("frob://a").names()
    with pytest.raises(InputError, match="nowhere: no such file"):
        read_bytes("nowhere")


def test_photos_at_urls(memory, tmp_path: Path):
    write_image(tmp_path / "photo.png", (20, 30), 0)
    data = (tmp_path / "photo.png").read_bytes()
    memory.pipe_file("/photos/photo.png", data)
    memory.pipe_file("/photos/empty.png", b"")
    memory.pipe_file("/photos/bad.png", b"no photo")
    expected = read_image(tmp_path / "photo.png")
    np.testing.assert_array_equal(to_pixels("memory://photos/photo.png"), expected)
    np.testing.assert_array_equal(to_pixels(ImageFile("photo.png", data)), expected)
    assert photo_name("memory://photos/photo.png") == photo_name(ImageFile("a/photo.png", data)) == "photo.png"
    with pytest.raises(InputError, match=r"memory://photos/none\.png: no such file"):
        to_pixels("memory://photos/none.png")
    with pytest.raises(InputError, match=r"empty\.png: the file is empty"):
        to_pixels("memory://photos/empty.png")
    with pytest.raises(InputError, match=r"memory://photos/bad\.png: not an image"):
        to_pixels("memory://photos/bad.png")


def test_names_in_a_root(tmp_path: Path):
    root = ImageRoot(str(tmp_path))
    assert root.locate("a/b.png") == str(tmp_path / "a" / "b.png")
    assert ImageRoot("s3://bucket/photos/").locate("a/b.png") == "s3://bucket/photos/a/b.png"
    assert ImageRoot("s3://bucket").locate("s3://bucket/b.png") == "s3://bucket/b.png"
    for base, name in [
        (str(tmp_path), "../a.png"), (str(tmp_path), "/etc/passwd"), (str(tmp_path), "https://host/a.png"),
        ("s3://bucket/photos", "../a.png"), ("s3://bucket/photos", "s3://bucket/photos2/a.png"),
        ("s3://bucket/photos", "s3://bucket/photos/../a.png"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=r"lies outside .*choose another --root, or give --allow-outside"):
            ImageRoot(base).locate(name)
        assert ImageRoot(base, anywhere=True).locate(name).endswith(name)
