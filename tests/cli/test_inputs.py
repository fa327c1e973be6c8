"""Paths, points and threads, as they are typed."""

import os
from pathlib import Path

import pytest
import torch

from transformatcher.cli.inputs import check_picture, named_folder, picture_names, read_points, set_threads
from transformatcher.cli.main import main
from transformatcher.errors import InputError


class TestPictures:
    def test_one_target_has_the_picture_that_is_named(self):
        assert picture_names("--out", "x/p.png", "a.jpg", ["b.jpg"]) == [[Path("x/p.png")]]
        assert picture_names("--out", None, "a.jpg", ["b.jpg", "c.jpg"]) == [[], []]

    def test_several_are_numbered(self):
        numbered = [[Path("x/p-1.png"), Path("x/p-2.png")]]
        assert picture_names("--heatmap", "x/p.png", "a.jpg", ["b.jpg"], "-heatmap", 2) == numbered

    def test_several_targets_have_a_folder(self):
        names = picture_names("--flow", "out", "d/a.jpg", ["b.jpg", "e/c.png", "b.png"], "-flow")
        assert names == [[Path(f"out/{stem}-flow.png")] for stem in ("a-b", "a-c", "a-b (2)")]

    @pytest.mark.parametrize("name", ["p.txt", "p", ""])
    def test_names_that_are_no_picture(self, name):
        with pytest.raises(InputError):
            check_picture(name)

    def test_photos_are_not_replaced(self, tmp_path: Path):
        photo, folder = tmp_path / "a.jpg", tmp_path / "photos"
        photo.touch()
        folder.mkdir()
        with pytest.raises(InputError, match=r"a\.jpg: one of the photos, which would be lost"):
            picture_names("--out", str(photo), "b.jpg", [str(photo)])
        with pytest.raises(InputError, match=r"sheet\.png: lies among the photos of"):
            check_picture(str(folder / "sub" / "sheet.png"), [str(folder)])
        check_picture(str(tmp_path / "sheet.png"), [str(photo), str(folder)])

    def test_a_folder_that_cannot_be_written_to(self, tmp_path: Path):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match="is not a folder that can be written to"):
            check_picture(str(tmp_path / "file" / "p.png"))
        check_picture(str(tmp_path / "new" / "folder" / "p.png"))
        assert not (tmp_path / "new").exists()


def test_an_empty_folder_name():
    assert named_folder("x") == Path("x")
    with pytest.raises(InputError, match="--out is empty"):
        named_folder("")


class TestPoints:
    def test_text(self):
        assert read_points("1,2; 3.5,4 ;") == {"1": [1.0, 2.0], "2": [3.5, 4.0]}

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [("[[1, 2], [3, 4]]", {"1": [1, 2], "2": [3, 4]}), ('{"nose": [1.5, 2]}', {"nose": [1.5, 2]})],
    )
    def test_file(self, text, wanted, tmp_path: Path):
        (tmp_path / "points.json").write_text(text)
        assert read_points(str(tmp_path / "points.json")) == wanted

    @pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", "1,2;3"])
    def test_what_is_no_list_of_points(self, text):
        with pytest.raises(InputError, match="expected 'x,y;x,y'"):
            read_points(text)


def test_threads():
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
        set_threads(None)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("command", [
    ["match", "a.jpg", "b.jpg", "--out", "p.png/"],
    ["propagate", "a.json", "b", "--out", "r.json/"],
    ["export", "--out", "m.onnx/"],
    ["report", "x", "--out", "p.html/"],
    ["analyse", "attention", "a", "b", "--out", "p.png/"],
])  # fmt: skip
def test_a_file_is_not_named_as_a_folder(command, capsys):
    assert main(command) == 2
    assert "the name of a folder; name the file itself" in capsys.readouterr().err


def test_no_more_threads_than_cores():
    before = torch.get_num_threads()
    try:
        set_threads(1000)
        assert torch.get_num_threads() == os.cpu_count()
        set_threads(None)
        assert torch.get_num_threads() == os.cpu_count()
    finally:
        torch.set_num_threads(before)
