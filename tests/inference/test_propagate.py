"""Annotated photos → keypoints for others: the file, and a run that is stopped and continued."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo, note_of
from helpers.two_passes import two_pass_matcher
from PIL import ImageOps

import transformatcher.inference.propagate as module
from transformatcher.data.coco_keypoints import AnnotatedObject, load_coco, load_coco_objects
from transformatcher.errors import InputError
from transformatcher.images import image_size
from transformatcher.inference.calibration import Calibration, Calibrations
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.matched_pair import MatchedPoints
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate import propagate


class TestFile:
    def test_round_trip(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        out = tmp_path / "new" / "out.json"
        result = propagate(matcher, notes, [photos], out)
        data, before = json.loads(out.read_text()), json.loads(notes.read_text())
        assert data["categories"] == before["categories"]
        assert data["annotations"][:3] == before["annotations"]
        assert [image["id"] for image in data["images"]] == [10, 11, 12, 13, 14, 15]
        assert [image["file_name"] for image in data["images"]] == [
            *(f"annotated/images/{name}.png" for name in "abcd"), "photos/deep/like_b.jpg", "photos/like_a.png",
        ]  # fmt: skip
        assert [(image["width"], image["height"]) for image in data["images"]][4:] == [(200, 120), (400, 240)]
        assert [note["id"] for note in data["annotations"]] == [21, 22, 23, 24, 25, 26, 27]
        assert [note.get("predicted", False) for note in data["annotations"]] == 3 * [False] + 4 * [True]
        root = out.parent / data["info"]["images_root"]
        objects = load_coco_objects(out, root)
        assert len(load_coco_objects(out, root, predictions=False)) == len(load_coco(out)) == 3
        assert [(item.category, item.image.name) for item in objects[3:]] == [
            ("thing", "like_b.jpg"), ("other", "like_b.jpg"), ("thing", "like_a.png"), ("other", "like_a.png"),
        ]  # fmt: skip
        for item in objects[3:]:
            assert item.visible.all()
            assert image_size(item.image) == item.image_size
            assert item.bbox_px is not None
            assert ((item.kps_px >= item.bbox_px[:2]) & (item.kps_px <= item.bbox_px[2:])).all()
        assert (result.images, result.annotations, result.keypoints, result.no_match) == (2, 4, 10, 0)
        assert not out.with_name("out.json.partial").exists()

    def test_each_photo_is_matched_with_the_reference_that_it_resembles(
        self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path
    ):
        propagate(matcher, notes, [photos], tmp_path / "out.json", category="thing")
        like_a, like_b = (note_of(tmp_path / "out.json", name) for name in ("like_a.png", "deep/like_b.jpg"))
        assert (like_a["reference"], like_b["reference"]) == (21, 22)
        assert like_b["keypoint_references"] == [22, 22, 21]  # 22 does not show the third
        want = np.array(list(POINTS.values()), dtype=float)
        for note, scale, n in ((like_a, 2, 3), (like_b, 1, 2)):
            found = np.array(note["keypoints"]).reshape(-1, 3)[:n, :2]
            np.testing.assert_allclose(found, scale * want[:n], atol=25 * scale)
        assert like_a["score"] == pytest.approx(np.mean(like_a["keypoint_scores"]), abs=1e-4)

    def test_images_known_to_the_file_keep_their_ids(self, matcher: Matcher, notes: Path, tmp_path: Path):
        propagate(matcher, notes, [notes.parent / "images"], tmp_path / "out.json")
        *others, image = json.loads((tmp_path / "out.json").read_text())["images"]
        assert others == json.loads(notes.read_text())["images"][:3]
        assert image.pop("predicted").keys() == {"thing", "other"}
        assert image == {"id": 13, "file_name": "d.png", "width": 200, "height": 120}

    def test_a_folder_that_cannot_be_read(
        self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        real = os.scandir

        def scandir(path: Any) -> Any:  # root may read everything, so permissions would show nothing
            if Path(os.fsdecode(path)).name == "deep":
                raise PermissionError(13, "Permission denied", path)
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        with pytest.raises(InputError, match=r"deep: this folder cannot be read \(Permission denied\); its photos"):
            propagate(matcher, notes, [photos], tmp_path / "out.json")

    def test_another_process_may_have_finished_meanwhile(
        self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        out = tmp_path / "out.json"
        first = module._check_out

        def check_out(*args: Any, **options: Any) -> Path:
            partial = first(*args, **options)
            out.write_text("[]")
            return partial

        monkeypatch.setattr(module, "_check_out", check_out)
        with pytest.raises(InputError, match=r"out\.json: exists already"):
            propagate(matcher, notes, [photos], out)
        assert out.read_text() == "[]"

    def test_killed_after_it_has_finished(
        self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def killed(_: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module.shutil, "rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                propagate(matcher, notes, [photos], tmp_path / "out.json")
        written = json.loads((tmp_path / "out.json").read_text())
        assert (tmp_path / "out.json.partial").is_dir()
        result = propagate(matcher, notes, [photos], tmp_path / "out.json")
        assert (result.images, result.kept) in {(2, 0), (0, 2)}
        assert not (tmp_path / "out.json.partial").exists()
        assert json.loads((tmp_path / "out.json").read_text())["annotations"] == written["annotations"]

    def test_large_photos_are_reduced_before_they_wait_in_memory(
        self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        propagate(matcher, notes, [photos], tmp_path / "whole.json", category="thing")
        monkeypatch.setattr(module, "LARGE", 30_000)  # pixels; one photo has more, the other fewer
        monkeypatch.setattr(module, "DETAIL", 2)
        large = module._decode(photos / "like_a.png", (96, 96))
        assert isinstance(large, module._DecodedPhoto)
        assert (large.size, large.pixels.shape) == ((240, 400), (115, 192, 3))
        propagate(matcher, notes, [photos], tmp_path / "reduced.json", category="thing")
        for name in ("like_a.png", "deep/like_b.jpg"):
            whole, reduced = (note_of(tmp_path / f"{way}.json", name) for way in ("whole", "reduced"))
            np.testing.assert_allclose(whole["keypoints"], reduced["keypoints"], atol=3)
        assert whole == reduced  # the smaller photo

    def test_no_match(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        unsure = Matcher(
            matcher.model, matcher.config, "cpu", Calibrations(Calibration(0.0, 1.0, 0.0))
        )  # peak / (1 + peak)
        propagate(unsure, notes, [photos], tmp_path / "all.json", threshold=0.0)
        scores = note_of(tmp_path / "all.json", "like_a.png")["keypoint_scores"]
        between = sum(sorted(scores)[:2]) / 2
        result = propagate(unsure, notes, [photos], tmp_path / "some.json", threshold=between)
        note = note_of(tmp_path / "some.json", "like_a.png")
        lost = int(np.argmin(scores))
        assert note["num_keypoints"] == 2
        assert note["keypoints"][3 * lost : 3 * lost + 3] == [0, 0, 0]
        assert note["keypoint_references"][lost] is None
        assert note["keypoint_scores"] == scores
        assert note["score"] == pytest.approx(np.mean(np.delete(scores, lost)), abs=1e-4)
        assert result.keypoints + result.no_match == 10
        nothing = propagate(unsure, notes, [photos], tmp_path / "none.json", threshold=1.0)
        assert (nothing.images, nothing.annotations, nothing.no_match) == (2, 0, 10)
        assert len(load_coco_objects(tmp_path / "none.json", photos)) == 3  # the references


def test_only_the_most_similar_references_are_matched(
    matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the category thing there are two references, of which the first shows all keypoints."""
    used: list[str] = []
    match_many = matcher.match_many
    monkeypatch.setattr(
        matcher, "match_many", lambda src, *rest, **options: used.append(src.name) or match_many(src, *rest, **options)
    )
    names = {number: tmp_path / f"{number}.json" for number in (1, 2)}
    for number, out in names.items():
        used.clear()
        propagate(matcher, notes, [photos / "like_a.png"], out, category="thing", most_references=number)
        assert len(used) == number
    everything = tmp_path / "all.json"
    propagate(matcher, notes, [photos / "like_a.png"], everything, category="thing", most_references=None)
    results = [json.loads(out.read_text()) for out in (everything, names[2])]
    assert results[0]["annotations"] == results[1]["annotations"]


class TestMirrored:
    """The mirror image of a reference is matched mirrored."""

    @pytest.fixture
    def mirrors(self, tmp_path: Path) -> Path:
        folder = tmp_path / "mirrors"
        folder.mkdir()
        make_photo(0).save(folder / "same.png")
        ImageOps.mirror(make_photo(0)).save(folder / "mirrored.png")
        return folder

    @pytest.mark.parametrize(
        ("names", "order"),
        [
            (("left eye", "right eye", "nose"), (1, 0, 2)),
            (("left eye", "nose", "left ear"), (None, 1, None)),  # without the right ones
            (("one", "two", "three"), (0, 1, 2)),
        ],
    )
    def test_sides_are_exchanged(self, notes: Path, mirrors: Path, tmp_path: Path, names, order):
        data = json.loads(notes.read_text())
        data["categories"][0]["keypoints"] = names
        data["annotations"] = [n for n in data["annotations"] if n["id"] == 21]
        notes.write_text(json.dumps(data))
        out = tmp_path / "out.json"
        propagate(two_pass_matcher(), notes, [mirrors], out, category="thing")
        same, mirrored = (note_of(out, name) for name in ("same.png", "mirrored.png"))
        assert (same["mirrored"], mirrored["mirrored"]) == (False, True)
        want = np.array(list(POINTS.values()), dtype=float)
        np.testing.assert_allclose(np.reshape(same["keypoints"], (-1, 3))[:, :2], want, atol=8)
        found = np.reshape(mirrored["keypoints"], (-1, 3))
        assert found[:, 2].tolist() == [0 if source is None else 2 for source in order]
        for (x, y, _), source, score in zip(found, order, mirrored["keypoint_scores"], strict=True):
            if source is None:
                assert (x, y, score) == (0, 0, 0)
            else:
                np.testing.assert_allclose((x, y), (200 - want[source, 0], want[source, 1]), atol=8)

    def test_each_reference_by_itself(self, matcher: Matcher, monkeypatch: pytest.MonkeyPatch):
        """Of two references only the first is matched mirrored; it shows no right eye, the other all."""
        names = ("left eye", "right eye", "nose")
        found = {
            "a": ([[10.0, 10], [20, 20]], [0.9, 0.8], True),
            "b": ([[60.0, 60], [70, 70], [80, 80]], [0.5] * 3, False),
        }
        group = [
            AnnotatedObject(i, Path(i), None, "cat", np.ones((3, 2)), np.array(visible), None, names)
            for i, visible in (("a", (True, False, True)), ("b", (True, True, True)))
        ]

        def match_many(src: Any, targets: Any, _points: Any, batch: int) -> Iterator[Any]:
            assert len(targets) == batch
            kps, confidence, mirrored = found[src.name]
            for _ in targets:
                values = {"keypoints1": np.array(kps), "confidence": np.array(confidence), "mirrored": mirrored}
                yield Mock(spec=MatchedPoints, same_kind=0.9, **values)

        monkeypatch.setattr(
            matcher,
            "encode",
            lambda photos, **_: [EncodedPhoto(np.zeros((90, 90, 3), np.uint8), [], str(p)) for p in photos],
        )
        monkeypatch.setattr(matcher, "match_many", match_many)
        (estimates,) = module.KeypointPropagator(matcher, {"cat": group})([np.zeros((90, 90, 3), np.uint8)])
        estimate = estimates["cat"]
        assert estimate.kps_px.tolist() == [[60, 60], [10, 10], [20, 20]]
        assert estimate.chosen.tolist() == [1, 0, 0]
        assert list(estimate.mirrored) == [0]


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images predicted from now on."""
    names: list[str] = []
    record = module.to_record

    def counted(name: str, *rest: Any) -> dict[str, Any]:
        names.append(name)
        return record(name, *rest)

    monkeypatch.setattr(module, "to_record", counted)
    return names


def stop_after(n: int) -> Callable[[int, int], None]:
    def track(done: int, _total: int) -> None:
        if done == n:
            raise KeyboardInterrupt

    return track


class TestResume:
    @pytest.fixture
    def many(self, photos: Path) -> Path:
        for seed in range(4, 7):
            make_photo(seed).save(photos / f"{seed}.png")
        return photos

    def test_goes_on_after_a_kill_mid_line(self, matcher: Matcher, notes: Path, many: Path, tmp_path: Path, predicted):
        whole, out = tmp_path / "whole.json", tmp_path / "out.json"
        propagate(matcher, notes, [many], whole, batch=1)
        assert predicted == sorted(predicted)
        predicted.clear()
        with pytest.raises(KeyboardInterrupt):
            propagate(matcher, notes, [many], out, batch=1, track=stop_after(3))
        partial = tmp_path / "out.json.partial"
        records = partial / "records.jsonl"
        assert not out.exists()
        assert len(records.read_text().splitlines()) == 3
        records.write_bytes(records.read_bytes()[:-40])
        assert predicted == ["photos/4.png", "photos/5.png", "photos/6.png"]
        predicted.clear()
        propagate(matcher, notes, [many], out, batch=1)
        assert predicted == ["photos/6.png", "photos/deep/like_b.jpg", "photos/like_a.png"]
        assert out.read_bytes() == whole.read_bytes()
        assert not partial.exists()

    def test_a_batch_gives_what_single_images_give(self, matcher: Matcher, notes: Path, many: Path, tmp_path: Path):
        for batch in (1, 4):
            propagate(matcher, notes, [many], tmp_path / f"{batch}.json", batch=batch)
        one, four = (json.loads((tmp_path / f"{batch}.json").read_text())["annotations"] for batch in (1, 4))
        for a, b in zip(one, four, strict=True):
            np.testing.assert_allclose(a["keypoints"], b["keypoints"], atol=0.05)

    def test_another_run_is_refused(self, matcher: Matcher, notes: Path, many: Path, tmp_path: Path, predicted):
        out = tmp_path / "out.json"
        with pytest.raises(KeyboardInterrupt):
            propagate(matcher, notes, [many], out, track=stop_after(4))
        with pytest.raises(InputError, match=r'differs in .*category \(null there, "thing" here\); give the same'):
            propagate(matcher, notes, [many], out, category="thing")
        notes.write_text(notes.read_text().replace("150", "151"))
        with pytest.raises(InputError, match=r"which differs in annotations \(.* there, .* here\); give the same"):
            propagate(matcher, notes, [many], out)
        predicted.clear()
        propagate(matcher, notes, [many], out, overwrite=True)
        assert len(predicted) == 5

    def test_what_is_there_is_not_overwritten(
        self, matcher: Matcher, notes: Path, many: Path, tmp_path: Path, predicted
    ):
        out = tmp_path / "out.json"
        out.write_text("corrected by hand")
        with pytest.raises(InputError, match="exists already; choose another --out"):
            propagate(matcher, notes, [many], out)
        with pytest.raises(KeyboardInterrupt):
            propagate(matcher, notes, [many], out, batch=1, overwrite=True, track=stop_after(2))
        assert out.read_text() == "corrected by hand"
        predicted.clear()
        propagate(matcher, notes, [many], out, batch=1)  # to replace it was allowed before
        assert len(predicted) == 3
        assert len(json.loads(out.read_text())["images"]) == 4 + 5

    @pytest.mark.parametrize("line", ["[1]", '{"file_name": 1}', "garbage"])
    def test_a_damaged_record(self, matcher: Matcher, notes: Path, many: Path, tmp_path: Path, line: str):
        out = tmp_path / "out.json"
        with pytest.raises(KeyboardInterrupt):
            propagate(matcher, notes, [many], out, batch=1, track=stop_after(2))
        with (tmp_path / "out.json.partial" / "records.jsonl").open("a") as file:
            file.write(line + "\n")
        with pytest.raises(InputError, match=r"records\.jsonl, line 3: not the record of an image .*--overwrite"):
            propagate(matcher, notes, [many], out)

    def test_a_folder_of_something_else(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        partial = tmp_path / "out.json.partial"
        partial.mkdir()
        (partial / "records.jsonl").write_text("")
        with pytest.raises(InputError, match=r"out\.json\.partial: holds results, but no valid run\.json"):
            propagate(matcher, notes, [photos], tmp_path / "out.json")


class TestFaults:
    def test_a_bad_image_is_listed_and_the_rest_done(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        (photos / "broken.jpg").write_bytes(b"garbage")
        (photos / "cut.png").write_bytes((photos / "like_a.png").read_bytes()[:5000])
        out = tmp_path / "out.json"
        result = propagate(matcher, notes, [photos], out, batch=2)
        assert result.images == 2
        assert sorted(result.failed) == ["photos/broken.jpg", "photos/cut.png"]
        faults = json.loads(out.read_text())["info"]["propagate"]["failed"]
        assert [fault["file_name"] for fault in faults] == ["photos/broken.jpg", "photos/cut.png"]
        assert "not an image that can be decoded" in faults[0]["error"]

    @pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
    def test_a_name_that_is_no_text(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        name = os.fsdecode(b"caf\xe9.png")
        make_photo(4).save(photos / name)
        out = tmp_path / "out.json"
        assert propagate(matcher, notes, [photos], out).failed == {}
        assert f"photos/{name}" in [entry["file_name"] for entry in json.loads(out.read_text())["images"]]

    def test_an_image_put_right_meanwhile(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        (photos / "broken.jpg").write_bytes(b"garbage")
        with pytest.raises(KeyboardInterrupt):
            propagate(matcher, notes, [photos], tmp_path / "out.json", batch=1, track=stop_after(2))
        make_photo(4).save(photos / "broken.jpg")
        result = propagate(matcher, notes, [photos], tmp_path / "out.json", batch=1)
        assert (result.images, result.failed) == (3, {})

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                '"width": 200',
                '"width": 120',
                r"made for 120 × 120 pixels, but the image \(turned upright\) has 200 × 12",
            ),
            ('"a.png"', '"gone.png"', "gone.png: no such file"),
            ('"other"', '"thing"', "two categories are called 'thing'"),
            (" 2,", " 1,", r"no annotated object with a visible keypoint \(v = 2\)"),
            ('"images"', '"pictures"', "not a COCO-keypoint file"),
            ('"image_id": 10', '"image_id": 99', "no image has the id 99"),
            ('"name": "other"', '"title": "other"', "the entry of id 5 in 'categories' has no string 'name'"),
            ('"a.png"', "null", "the entry of id 10 in 'images' has no string 'file_name'"),
        ],
    )
    def test_annotations(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path, old, new, message):
        text = notes.read_text()
        if old == " 2,":
            text = text.replace("2]", "1]").replace("]]", "2]]")
        assert old in text
        notes.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=message):
            propagate(matcher, notes, [photos], tmp_path / "out.json")
        assert not list(tmp_path.glob("out.json*"))

    def test_arguments(self, matcher: Matcher, notes: Path, photos: Path, tmp_path: Path):
        out = tmp_path / "out.json"
        with pytest.raises(InputError, match="no category is called 'cat'; it has thing, other"):
            propagate(matcher, notes, [photos], out, category="cat")
        with pytest.raises(InputError, match="confidence is not calibrated"):
            propagate(matcher, notes, [photos], out, threshold=0.5)
        calibrated = Matcher(matcher.model, matcher.config, "cpu", Calibrations(Calibration(0.0, 1.0, 0.0)))
        with pytest.raises(InputError, match="--threshold 2: a confidence lies between 0 and 1"):
            propagate(calibrated, notes, [photos], out, threshold=2.0)
        with pytest.raises(InputError, match="a folder; name the file itself"):
            propagate(matcher, notes, [photos], tmp_path)
        assert not list(tmp_path.glob("*.json*"))


def test_the_shipped_model_on_cats(tmp_path: Path):
    """Eyes and nose within a fifth of the distance between the eyes, so that no eye is taken for the other."""
    folder = Path(str(files("transformatcher") / "examples"))
    points = json.loads((folder / "cat_a.json").read_text(encoding="utf-8"))
    h, w = image_size(folder / "cat_a.jpg")
    note = {"id": 1, "image_id": 1, "category_id": 1, "keypoints": [v for p in points.values() for v in (*p, 2)]}
    data = {
        "images": [{"id": 1, "file_name": "cat_a.jpg", "width": w, "height": h}],
        "categories": [{"id": 1, "name": "cat", "keypoints": list(points)}],
        "annotations": [note],
    }
    (tmp_path / "cats.json").write_text(json.dumps(data))
    out = tmp_path / "out.json"
    matcher = Matcher.from_pretrained(device="cpu")
    propagate(matcher, tmp_path / "cats.json", [folder], out, images_root=folder)
    objects = {item.image.name: item for item in load_coco_objects(out, folder)[1:]}
    marked = {  # by hand
        "cat_b.jpg": [(212, 312), (372, 298), (291, 412)],
        "cat_c.jpg": [(225, 130), (428, 135), (338, 282)],
    }
    assert objects.keys() == marked.keys()
    for name, true in marked.items():
        item = objects[name]
        assert item.kp_names[:3] == ("left eye", "right eye", "nose")
        errors = np.linalg.norm(item.kps_px[:3] - np.array(true), axis=1)
        assert (errors < np.linalg.norm(np.subtract(*true[:2])) / 5).all()
