"""Which images are annotated next."""

from pathlib import Path

import pytest

from transformatcher.errors import InputError
from transformatcher.inference.propagate_inputs import find_targets


def test_files_and_folders(photos: Path, notes: Path):
    annotated = {notes.parent / "images" / name for name in ("a.png", "b.png")}
    root, names = find_targets([photos / "deep", notes.parent, photos / "deep" / "like_b.jpg"], annotated)
    assert root == photos.parent
    assert names == ["annotated/images/c.png", "annotated/images/d.png", "photos/deep/like_b.jpg"]


def test_a_folder_that_may_not_be_read(photos: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"photos: this folder cannot be read \(Permission denied\)"):
        find_targets([photos], set())


def test_nothing_to_do(notes: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nowhere: no such image or folder"):
        find_targets([tmp_path / "nowhere"], set())
    with pytest.raises(InputError, match="empty: no image there"):
        find_targets([tmp_path / "empty"], set())
    image = notes.parent / "images" / "a.png"
    with pytest.raises(InputError, match="all 1 images there are annotated already"):
        find_targets([image], {notes.parent / "images" / ".." / "images" / "a.png"})
