"""What an annotation file says, and which images are given."""

import json
from pathlib import Path

import pytest

from transformatcher.errors import InputError
from transformatcher.inference.propagate_inputs import find_images, name_in, read_annotations


def test_files_and_folders(photos: Path, notes: Path):
    root, names = find_images([photos / "deep", notes.parent, photos / "deep" / "like_b.jpg"])
    assert root == photos.parent
    annotated = [f"annotated/images/{name}.png" for name in "abcd"]
    assert names == [*annotated, "photos/deep/like_b.jpg"]


def test_names_are_relative_to_a_folder_around_all_that_the_file_lists(photos: Path, notes: Path):
    assert find_images([photos / "deep"]) == (photos / "deep", ["like_b.jpg"])
    assert find_images([photos / "deep"], [photos / "x.png"]) == (photos, ["deep/like_b.jpg"])
    assert find_images([photos / "deep"], [notes]) == (photos.parent, ["photos/deep/like_b.jpg"])


def test_names_relative_to_a_folder_that_is_given(photos: Path, notes: Path, tmp_path: Path):
    root = notes.parent / "images"
    assert find_images([photos / "deep", root / "a.png"], root=root) == (
        root,
        ["../../photos/deep/like_b.jpg", "a.png"],
    )
    (tmp_path / "far" / "away").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far" / "away")
    assert name_in(link, photos / "like_a.png") == (photos / "like_a.png").as_posix()  # link/.. is not tmp_path


def test_a_folder_that_may_not_be_read(photos: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"photos: this folder cannot be read \(Permission denied\)"):
        find_images([photos])


def test_no_image(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nowhere: no such image or folder"):
        find_images([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="empty: no image there"):
        find_images([tmp_path / "empty"])


class TestAnnotations:
    def test_points_outside_their_photos_are_named_and_not_used(self, notes: Path):
        data = json.loads(notes.read_text())
        data["annotations"][0]["keypoints"][:2] = [40, -1]
        data["annotations"][2]["keypoints"] = [201, 5, 2, 5, 121, 2]
        notes.write_text(json.dumps(data))
        source = read_annotations(notes, None, None)
        assert source.outside == [
            "one of a.png (annotation 21)",
            "one of c.png (annotation 23)",
            "two of c.png (annotation 23)",
        ]
        assert [item.visible.tolist() for item in source.references["thing"]] == [
            [False, True, True],
            [True, True, False],
        ]
        assert "other" not in source.references
        assert read_annotations(notes, None, "thing").outside == ["one of a.png (annotation 21)"]

    def test_predictions_are_no_references(self, notes: Path):
        data = json.loads(notes.read_text())
        for note in data["annotations"]:
            note["predicted"] = True
        notes.write_text(json.dumps(data))
        with pytest.raises(InputError, match="nothing to propagate; the 3 annotations that were predicted are no refe"):
            read_annotations(notes, None, None)

    def test_what_a_person_says_about_an_image(self, notes: Path):
        """a: marked; b: a prediction; c: a prediction that was corrected to show nothing; d: hidden points alone."""
        data = json.loads(notes.read_text())
        a, b, c = data["annotations"]
        c["predicted_keypoints"], c["keypoints"] = c["keypoints"], [0] * 6
        b["predicted"] = c["predicted"] = True
        d = {**a, "id": 24, "image_id": 13, "keypoints": [1, 1, 1, *[0] * 6]}
        boxed = {**a, "id": 25, "image_id": 11, "category_id": 5, "keypoints": [0] * 6, "bbox": [1, 1, 9, 9]}
        data["annotations"] += [d, boxed]
        data["images"][1]["predicted"] = {"thing": {"references": "0", "found": True}}
        data["images"][2]["predicted"] = True  # as other programs may write it
        notes.write_text(json.dumps(data))
        states = {path.name: state for path, state in read_annotations(notes, None, None).states().items()}
        assert {name: state.marked for name, state in states.items()} == {
            "a.png": {"thing"}, "b.png": set(), "c.png": {"other"}, "d.png": {"thing"},
        }  # fmt: skip
        assert states["b.png"].annotated == {"thing", "other"}
        assert states["b.png"].predicted.keys() == {"thing"}
        assert states["c.png"].predicted == {}

    def test_the_folder_that_a_result_names(self, notes: Path, tmp_path: Path):
        data = json.loads(notes.read_text())
        moved = tmp_path / "elsewhere" / "notes.json"
        moved.parent.mkdir()
        for named, root in (("../annotated/images", notes.parent / "images"), ("../gone", moved.parent)):
            moved.write_text(json.dumps({"info": {"images_root": named}, **data}))
            assert read_annotations(moved, None, None).root.resolve() == root
        assert read_annotations(moved, tmp_path, None).root == tmp_path
        with pytest.raises(InputError, match=r"no such file; the annotated photos of .*notes\.json are looked for in"):
            read_annotations(moved, tmp_path, None).check_photos()
