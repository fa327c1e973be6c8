"""A finished file that is continued: photos added, predictions corrected, accepted or removed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.propagation import make_photo, note_of

import transformatcher.inference.propagate as module
from transformatcher.data.coco_keypoints import load_coco
from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate import PropagationSummary

Run = Callable[..., PropagationSummary]


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The names of the photos predicted from now on, each with its categories."""
    seen: list[tuple[str, list[str]]] = []
    record = module.to_record

    def counted(name: str, size: Any, estimates: Any, *rest: Any) -> dict[str, Any]:
        seen.append((Path(name).name, list(estimates)))
        return record(name, size, estimates, *rest)

    monkeypatch.setattr(module, "to_record", counted)
    return seen


@pytest.fixture
def run(matcher: Matcher, notes: Path, photos: Path, tmp_path: Path) -> Iterator[Run]:
    """``propagate`` from notes.json, or from another file, into all.json."""

    def call(annotations: Path = notes, **options: Any) -> PropagationSummary:
        return module.propagate(matcher, annotations, [photos], tmp_path / "all.json", **options)

    yield call
    assert not (tmp_path / "all.json.partial").exists()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "all.json"


def edit(file: Path, name: str, category: int = 3, **changes: Any) -> None:
    """Change keys of an annotation, as a person does in an annotation tool."""
    data, wanted = json.loads(file.read_text()), note_of(file, name, category)["id"]
    for note in data["annotations"]:
        if note["id"] == wanted:
            note.update(changes)
    file.write_text(json.dumps(data))


def moved(note: dict[str, Any]) -> list[float]:
    """The keypoints of an annotation, with one moved."""
    return [note["keypoints"][0] + 7, *note["keypoints"][1:]]


BOTH = ["thing", "other"]


class TestPhotosAdded:
    @pytest.mark.parametrize("again_from", ["notes.json", "all.json"])
    def test_only_these_are_predicted(self, run: Run, out: Path, notes: Path, photos: Path, predicted, again_from: str):
        source = notes if again_from == "notes.json" else out
        run()
        before = json.loads(out.read_text())
        assert predicted == [("like_b.jpg", BOTH), ("like_a.png", BOTH)]
        predicted.clear()
        make_photo(4).save(photos / "added.png")
        summary = run(source)
        assert predicted == [("added.png", BOTH)]
        assert (summary.images, summary.annotations, summary.kept) == (1, 2, 2)
        after = json.loads(out.read_text())
        for key in ("images", "annotations", "categories"):
            assert after[key][: len(before[key])] == before[key]
        assert after["images"][-1]["file_name"] == "photos/added.png"
        assert [note["id"] for note in after["annotations"]] == list(range(21, 30))

    def test_nothing_to_do_changes_nothing(self, run: Run, out: Path, predicted):
        run()
        before = out.read_bytes()
        predicted.clear()
        assert run(out).kept == run().kept == 2
        assert predicted == []
        assert out.read_bytes() == before

    def test_other_references_or_settings_predict_anew(self, run: Run, out: Path, predicted):
        run(category="thing")
        run(out)  # all categories: the other is missing
        assert predicted[2:] == [("like_b.jpg", ["other"]), ("like_a.png", ["other"])]
        assert [note["id"] for note in json.loads(out.read_text())["annotations"]] == list(range(21, 28))
        predicted.clear()
        run(out, most_references=1)
        assert predicted == [("like_b.jpg", BOTH), ("like_a.png", BOTH)]
        assert sorted(note["id"] for note in json.loads(out.read_text())["annotations"]) == list(range(21, 28))

    def test_a_photo_that_could_not_be_read_before(self, run: Run, out: Path, photos: Path, predicted):
        (photos / "broken.png").write_bytes(b"garbage")
        assert list(run().failed) == ["photos/broken.png"]
        make_photo(4).save(photos / "broken.png")
        predicted.clear()
        assert run(out).failed == {}
        assert predicted == [("broken.png", BOTH)]
        assert json.loads(out.read_text())["info"]["propagate"]["failed"] == []


class TestPersons:
    def test_a_correction_is_a_reference(self, run: Run, out: Path, predicted):
        run()
        corrected = moved(note_of(out, "like_b.jpg"))
        edit(out, "like_b.jpg", keypoints=corrected)
        predicted.clear()
        run(out)
        assert predicted == [("like_a.png", ["thing"])]  # of the other, the references are the same
        note = note_of(out, "like_b.jpg")
        assert (note["keypoints"], note["predicted"]) == (corrected, False)
        assert note_of(out, "like_b.jpg", 5)["predicted"] is True
        assert [item.image.name for item in load_coco(out)] == ["a.png", "b.png", "c.png", "like_b.jpg"]
        predicted.clear()
        run(out)
        assert predicted == []

    def test_the_same_command_as_before_honours_corrections_too(self, run: Run, out: Path):
        run()
        corrected = moved(note_of(out, "like_b.jpg"))
        edit(out, "like_b.jpg", keypoints=corrected)
        run()
        assert note_of(out, "like_b.jpg")["keypoints"] == corrected
        run(again=True)
        assert note_of(out, "like_b.jpg")["keypoints"] == corrected
        run(overwrite=True)  # from the annotations alone
        assert note_of(out, "like_b.jpg")["keypoints"] != corrected

    def test_rounded_coordinates_are_no_correction(self, run: Run, out: Path, predicted):
        run()
        edit(out, "like_b.jpg", keypoints=[round(value) for value in note_of(out, "like_b.jpg")["keypoints"]])
        predicted.clear()
        run(out)
        assert predicted == []

    def test_an_accepted_prediction_is_a_reference(self, run: Run, out: Path, predicted):
        run()
        edit(out, "like_b.jpg", predicted=False)
        predicted.clear()
        run(out)
        assert predicted == [("like_a.png", ["thing"])]

    def test_what_a_person_removed_does_not_come_back(self, run: Run, out: Path, predicted):
        run()
        edit(out, "like_b.jpg", keypoints=[0] * 9)  # nothing of it is there
        data = json.loads(out.read_text())
        gone = note_of(out, "like_a.png", 5)["id"]
        data["annotations"] = [note for note in data["annotations"] if note["id"] != gone]
        out.write_text(json.dumps(data))
        predicted.clear()
        run(out, most_references=1)
        assert predicted == [("like_b.jpg", ["other"]), ("like_a.png", ["thing"])]
        assert note_of(out, "like_b.jpg")["keypoints"] == [0] * 9
        predicted.clear()
        run(out, again=True)
        assert predicted == [("like_b.jpg", ["other"]), ("like_a.png", BOTH)]

    def test_a_correction_made_while_it_runs(self, run: Run, out: Path, photos: Path, predicted):
        run()
        corrected = moved(note_of(out, "like_b.jpg"))
        make_photo(4).save(photos / "added.png")

        def correct(done: int, total: int) -> None:
            if done == total and note_of(out, "like_b.jpg")["keypoints"] != corrected:
                edit(out, "like_b.jpg", keypoints=corrected)

        run(out, again=True, track=correct)
        assert note_of(out, "like_b.jpg")["keypoints"] == corrected
        assert note_of(out, "added.png")["predicted"] is True
        predicted.clear()
        run(out)
        assert sorted(predicted) == [("added.png", ["thing"]), ("like_a.png", ["thing"])]

    def test_all_that_a_person_wrote_is_kept(self, notes: Path, matcher: Matcher, photos: Path):
        """Predictions go into the file of the annotations itself, whose names stay relative to its own photos."""
        data = json.loads(notes.read_text())
        data["info"], data["licenses"] = {"description": "my cats", "contributor": "é"}, [{"id": 1}]
        data["annotations"].append({"id": "x", "image_id": 13, "category_id": 3, "iscrowd": 1, "note": "many"})
        data["images"][3]["flickr_url"] = "somewhere"
        notes.write_text(json.dumps(data))
        module.propagate(matcher, notes, [photos, notes.parent / "images"], notes)
        after = json.loads(notes.read_text())
        assert after["annotations"][:4] == data["annotations"]
        assert after["images"][:3] == data["images"][:3]
        assert data["images"][3].items() <= after["images"][3].items()
        assert data["info"].items() <= after["info"].items()
        assert after["info"]["images_root"] == "images"
        assert (after["licenses"], after["categories"]) == (data["licenses"], data["categories"])
        assert after["images"][4]["file_name"] == "../../photos/deep/like_b.jpg"
        assert [item.image.name for item in load_coco(notes)] == ["a.png", "b.png", "c.png"]

    def test_a_file_of_something_else_is_refused(self, run: Run, out: Path, notes: Path):
        out.write_text(notes.read_text())  # a person's own file, though the same as the annotations
        with pytest.raises(InputError, match=r"all\.json: exists already; choose another --out, or give --overwrite"):
            run()
        out.unlink()
        run()
        corrected = moved(note_of(out, "like_b.jpg"))
        edit(out, "like_b.jpg", keypoints=corrected)
        notes.write_text(notes.read_text().replace("150", "151"))
        with pytest.raises(InputError, match=r"exists already; to continue it, with all .* give it as the annotations"):
            run()
        assert note_of(out, "like_b.jpg")["keypoints"] == corrected

    def test_all_photos_are_annotated(self, matcher: Matcher, notes: Path, tmp_path: Path):
        image = notes.parent / "images" / "a.png"
        with pytest.raises(InputError, match=r"a\.png: all 1 images there are annotated already"):
            module.propagate(matcher, notes, [image], tmp_path / "all.json")


def test_a_continued_run_that_was_interrupted(run: Run, out: Path, photos: Path, predicted):
    run()
    before = out.read_bytes()
    for seed in (4, 5, 6):
        make_photo(seed).save(photos / f"{seed}.png")

    def stop(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, batch=1, track=stop)
    assert out.read_bytes() == before
    predicted.clear()
    summary = run(out, batch=1)
    assert predicted == [("6.png", BOTH)]
    assert (summary.images, summary.kept) == (3, 2)


def test_results_of_earlier_versions_have_no_reference(run: Run, out: Path):
    """They did not say which annotations were predicted, but had keys by which to tell."""
    run()
    data = json.loads(out.read_text())
    for note in data["annotations"]:
        note.pop("predicted", None)
        note.pop("predicted_keypoints", None)
    out.write_text(json.dumps(data))
    assert [item.image.name for item in load_coco(out)] == ["a.png", "b.png", "c.png"]
