"""The pure part: whose word counts, what has to be matched, names, expiry, and the COCO file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transformatcher.data.coco_keypoints import load_coco_objects
from transformatcher.errors import InputError
from transformatcher.inference.matcher import EncodedPhoto, MatchedPair
from transformatcher.inference.propagate import vote_keypoints
from transformatcher.web.coco import from_coco, to_coco
from transformatcher.web.refusal import RefusedError
from transformatcher.web.session import XY, Limits, Photo, Placement, Session, Store, vote


class FakePair(MatchedPair):
    """Moves every point by ``by`` in the kept copies, with one confidence for all."""

    def __init__(self, by: float, confidence: float, *, found: bool = True) -> None:
        self.by, self.confidence, self.found = by, confidence, found

    def points(self, points: np.ndarray) -> Any:
        n = len(points)
        return SimpleNamespace(
            keypoints1=points + self.by, confidence=np.full(n, self.confidence), is_match=np.full(n, self.found)
        )

    def heatmap(self, point: np.ndarray) -> np.ndarray:
        heat = np.zeros((5, 5))
        heat[int(point[1]) % 5, int(point[0]) % 5] = 0.5
        return heat


def photo(name: str, size: tuple[int, int] = (100, 200), kept: tuple[int, int] = (50, 100)) -> Photo:
    return Photo(name.split(".")[0], name, size, EncodedPhoto(np.zeros((*kept, 3), np.uint8), []), b"")


@pytest.fixture
def session() -> Session:
    """A source of 200 × 100 pixels, kept at half size, and two targets."""
    session = Session()
    for name in ("src.jpg", "one.jpg", "two.jpg"):
        session.add_photo(photo(name), as_source=name == "src.jpg")
    session.pairs["src", "one"] = FakePair(1, 0.6)
    session.pairs["src", "two"] = FakePair(2, 0.4)
    session.add_point(XY(20, 30), "nose")
    return session


class TestWhoseWordCounts:
    def test_the_most_confident_the_first_of_equals(self):
        a, b, c = (Placement(XY(x, x), sure, found=True) for x, sure in ((0, 0.3), (45, 0.8), (90, 0.8)))
        assert vote([{1: a}, {1: b}, {1: c}], (100, 100))[1] is b
        assert vote([{1: Placement(XY(5, 5), 0.0, found=False)}, {}], (100, 100))[1].at == XY(5, 5)
        assert vote([], (100, 100)) == {}

    def test_two_that_agree_beat_one_that_is_a_little_surer(self):
        lone, *agreeing = (Placement(at, sure, found=True) for at, sure in ((XY(90, 90), 0.7), (XY(10, 10), 0.6),
                                                                            (XY(12, 10), 0.65)))  # fmt: skip
        assert vote([{1: lone}, {1: agreeing[0]}, {1: agreeing[1]}], (100, 100))[1] is agreeing[1]

    def test_the_vote_is_that_of_propagate(self):
        rng = np.random.default_rng(0)
        for _ in range(20):
            kps_px, confidence = rng.uniform(0, 100, (4, 6, 2)), rng.uniform(0.1, 1, (4, 6))
            confidence[rng.random((4, 6)) < 0.3] = 0  # not shown by that reference
            said = [
                {column: Placement(XY(*kps_px[row, column]), confidence[row, column], found=True)
                 for column in range(6) if confidence[row, column]}
                for row in range(4)
            ]  # fmt: skip
            guess = vote_keypoints(kps_px, confidence, 100)
            elected = vote(said, (80, 100))
            assert elected.keys() == {column for column in range(6) if confidence[:, column].any()}
            for column, placement in elected.items():
                assert placement.at == XY(*guess.kps_px[column])
                assert placement.confidence == guess.confidence[column]

    def test_predictions_are_in_pixels_of_the_original(self, session: Session):
        on = session.placements()[1]
        assert on["one"].at == XY(22, 32)  # one pixel of a copy at half size
        assert on["two"].at == XY(24, 34)
        assert on["one"].reference == "src"

    def test_a_corrected_target_becomes_a_reference(self, session: Session):
        session.pin(1, "one", XY(50, 60))
        assert [target.id for target in session.missing()["one"]] == ["two"]
        session.pairs["one", "two"] = FakePair(3, 0.9)
        on = session.placements()[1]
        assert (on["one"].at, on["one"].pinned, on["one"].confidence) == (XY(50, 60), True, 1.0)
        assert (on["two"].at, on["two"].reference) == (XY(56, 66), "one")
        session.pairs["one", "two"] = FakePair(3, 0.1)
        assert session.placements()[1]["two"].reference == "src"  # it knows better

    def test_it_speaks_only_for_points_pinned_there(self, session: Session):
        session.add_point(XY(5, 5), "ear")
        session.pin(1, "one", XY(50, 60))
        session.pairs["one", "two"] = FakePair(3, 0.9)
        placed = session.placements()
        assert placed[1]["two"].reference == "one"
        assert placed[2]["two"].reference == "src"

    def test_a_point_that_is_not_there_is_no_reference(self, session: Session):
        session.pin(1, "one", None)
        assert session.missing() == {}
        placement = session.placements()[1]["one"]
        assert (placement.at, placement.found, placement.pinned) == (None, False, True)

    def test_nothing_is_matched_that_helps_nobody(self, session: Session):
        session.pin(1, "one", XY(50, 60))
        session.pin(1, "two", XY(51, 61))
        assert session.missing() == {}
        session.unpin(1, "two")
        assert list(session.missing()) == ["one"]

    def test_heat_is_seen_from_the_reference(self, session: Session):
        session.pin(1, "one", XY(4, 2))
        session.pairs["one", "two"] = FakePair(0, 0.9)
        heat = session.heat_of(1)
        assert heat["two"][1, 2] == 255  # (4, 2) of the original is (2, 1) of the copy
        assert heat["one"][15 % 5, 10 % 5] == 255
        assert session.heat(XY(4, 2))["one"][1, 2] == 255


class TestPhotosAndPoints:
    def test_names_stay_apart(self, session: Session):
        session.add_photo(photo("x.jpg", kept=(10, 20)), as_source=False)
        session.add_photo(Photo("y", "x.jpg", (9, 9), session.source.encoded, b""), as_source=False)
        assert [p.name for p in session.targets] == ["one.jpg", "two.jpg", "x.jpg", "x (2).jpg"]
        session.add_point(XY(1, 1))
        assert session.add_point(XY(1, 1), "point 3").name == "point 3"
        assert session.add_point(XY(1, 1)).name == "point 4"
        session.remove_point(2)
        assert session.add_point(XY(1, 1)).name == "point 4 (2)"

    def test_mistakes(self, session: Session):
        session.add_point(XY(1, 1), "ear")
        for act, message in (
            (lambda: session.add_point(XY(1, 1), "ear"), "another point called “ear”"),
            (lambda: session.change_point(1, name="ear"), "another point called “ear”"),
            (lambda: session.change_point(1, name="  "), "1 to 80 letters"),
            (lambda: session.add_point(XY(201, 1)), "lies outside the image of 200 × 100 pixels"),
            (lambda: session.pin(1, "one", XY(0, -1)), "lies outside"),
            (lambda: session.pin(1, "src", XY(0, 0)), "That photo is the source"),
            (lambda: Session().add_point(XY(0, 0)), "no source photo yet"),
        ):
            with pytest.raises(InputError, match=message):
                act()
        for gone in (lambda: session.point(9), lambda: session.pin(1, "nine", None)):
            with pytest.raises(RefusedError, match="not here any more"):
                gone()
        assert session.points[1].name == "nose"

    def test_a_new_source_begins_anew(self, session: Session):
        session.pin(1, "one", XY(1, 1))
        session.add_photo(photo("new.jpg"), as_source=True)
        assert "src" not in session.photos
        assert (session.points, session.pins, session.pairs) == ({}, {}, {})
        assert [p.id for p in session.missing()["new"]] == ["one", "two"]

    def test_a_removed_target_is_forgotten(self, session: Session):
        session.pin(1, "one", XY(1, 1))
        session.remove_photo("one")
        assert session.pins == {}
        assert list(session.pairs) == [("src", "two")]

    def test_room(self):
        session = Session(Limits(photos=2, points=1))
        session.add_photo(photo("src.jpg"), as_source=True)
        session.add_photo(photo("one.jpg"), as_source=False)
        with pytest.raises(InputError, match="2 photos are all that fit in"):
            session.add_photo(photo("two.jpg"), as_source=False)
        session.add_photo(photo("new.jpg"), as_source=True)  # in the place of the old one
        session.add_point(XY(0, 0))
        with pytest.raises(InputError, match="1 points are all"):
            session.add_point(XY(0, 0))


class TestStore:
    def test_the_least_recently_used_goes_first(self):
        store = Store(Limits(sessions=2))
        a, b = store.create(), store.create()
        store.get(a.id)
        c = store.create()
        assert len(store) == 2
        assert store.get(a.id) is a
        assert store.get(c.id) is c
        with pytest.raises(RefusedError, match="This session is over"):
            store.get(b.id)

    def test_the_idle_go(self):
        now = [0.0]
        store = Store(Limits(idle_s=100.0), clock=lambda: now[0])
        a, b = store.create(), store.create()
        now[0] = 90
        store.get(a.id)
        now[0] = 150
        store.sweep()
        assert len(store) == 1
        with pytest.raises(RefusedError):
            store.get(b.id)
        store.close(a.id)
        store.close(a.id)  # twice does no harm
        assert len(store) == 0

    def test_ids_cannot_be_guessed(self):
        assert len({Session().id for _ in range(100)}) == 100
        assert len(Session().id) >= 24


class TestCoco:
    @pytest.fixture
    def annotated(self, session: Session) -> Session:
        session.add_point(XY(150, 80), "left ear")
        session.add_point(XY(7.25, 9), "tail")
        session.pin(1, "one", XY(50, 60))
        session.pin(3, "one", None)
        session.pairs["src", "two"] = FakePair(2, 0.4, found=False)
        session.pairs["one", "two"] = FakePair(3, 0.9)
        return session

    def test_our_loader_reads_it(self, annotated: Session, tmp_path: Path):
        path = tmp_path / "keypoints.json"
        path.write_text(json.dumps(to_coco(annotated, "cat")))
        source, one, two = load_coco_objects(path, tmp_path)
        assert source.kp_names == ("nose", "left ear", "tail")
        assert (source.category, source.image, source.image_size) == ("cat", tmp_path / "src.jpg", (100, 200))
        np.testing.assert_allclose(source.kps_px, [[20, 30], [150, 80], [7.25, 9]])
        assert one.visible.tolist() == [True, True, False]
        np.testing.assert_allclose(one.kps_px, [[50, 60], [152, 82], [0, 0]])
        assert two.visible.tolist() == [True, False, False]  # the others have no match
        note = json.loads(path.read_text())["annotations"][2]
        assert note["keypoint_scores"] == [0.9, 0.4, 0.4]
        assert (note["score"], note["num_keypoints"], note["pinned"]) == (0.9, 1, [False, False, False])

    def test_round_trip(self, annotated: Session):
        points, pins = [(p.name, p.at) for p in annotated.points.values()], dict(annotated.pins)
        data = json.loads(json.dumps(to_coco(annotated, "cat")))
        annotated.add_point(XY(1, 1), "other")
        assert from_coco(data, annotated, "file.json") == []
        assert [(p.name, p.at) for p in annotated.points.values()] == points
        assert annotated.pins == pins
        assert annotated.add_point(XY(1, 1)).id == 4

    def test_what_other_tools_wrote_is_all_by_a_person(self, annotated: Session):
        data = to_coco(annotated, "cat")
        for note in data["annotations"]:
            del note["pinned"]
        from_coco(data, annotated, "file.json")
        assert annotated.pins == {(1, "one"): XY(50, 60), (2, "one"): XY(152, 82), (1, "two"): XY(56, 66)}

    def test_what_is_left_out_is_said(self, annotated: Session):
        data = to_coco(annotated, "cat")
        data["images"][1]["file_name"] = "folder/elsewhere.jpg"
        data["annotations"][0]["keypoints"][5] = 0
        data["annotations"].append({**data["annotations"][2], "id": 9})
        remarks = from_coco(data, annotated, "file.json")
        assert [p.name for p in annotated.points.values()] == ["nose", "tail"]
        assert "elsewhere.jpg, not among the photos here" in remarks[0]
        assert "src.jpg does not show it: left ear" in remarks[1]
        assert "1 further object(s)" in remarks[2]

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda d: d.pop("images"), "not a COCO-keypoint file"),
            (lambda d: d["images"][0].update(file_name="x.jpg"), "no keypoints for the source photo, src.jpg"),
            (lambda d: d["images"][0].update(width=20, height=20), "no keypoints for the source|has 20 × 20 pixels"),
            (lambda d: d["images"][1].update(width=400), "there one.jpg has 400 × 100 pixels, here 200 × 100"),
            (lambda d: d["annotations"][1].update(pinned=[True]), "'pinned' of annotation 2"),
            (lambda d: d["annotations"][0].update(keypoints=[1, 2]), "not a list of x, y, v"),
            (lambda d: d["annotations"][0].update(keypoints=[10**400, 2, 2] * 3), "malformed"),
            (lambda d: d["categories"][0].update(keypoints=["a", "a", "b"]), "another point called “a”"),
            (lambda d: d["annotations"].__setitem__(0, 7), "malformed"),
        ],
    )
    def test_an_unusable_file_changes_nothing(self, annotated: Session, spoil, message):
        data = json.loads(json.dumps(to_coco(annotated, "cat")))
        spoil(data)
        points, pins = dict(annotated.points), dict(annotated.pins)
        with pytest.raises(InputError, match=message):
            from_coco(data, annotated, "file.json")
        assert (annotated.points, annotated.pins) == (points, pins)

    def test_nothing_to_export(self):
        with pytest.raises(InputError, match="no point to export"):
            to_coco(Session(), "cat")
