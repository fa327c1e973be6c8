"""Annotated objects → pairs drawn from them."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import coco_file

from transformatcher.data.coco_keypoints import AnnotatedObject, find_coco, load_coco_objects
from transformatcher.data.coco_pairs import (
    CocoPairs,
    SelfPairs,
    draw_facing_pairs,
    draw_pairs,
    mirror_object,
    mirrored_names,
)
from transformatcher.errors import InputError


class TestCocoPairs:
    def test_pairs_share_keypoints_category_and_not_the_image(self, coco_root: Path):
        pairs = CocoPairs(load_coco_objects(*find_coco(coco_root, "trn")), min_shared=3)
        drawn = [pairs[i] for i in range(20)]
        assert {pair.name for pair in drawn} == {"1-2-cat", "2-1-cat"}
        assert all(pair.visible.tolist() == [True, True, True, False] for pair in drawn)
        assert all((pair.src_kps_px[3] == 0).all() for pair in drawn)
        absent = {pair.name: pair.absent_px.tolist() for pair in drawn}
        assert absent == {"1-2-cat": [[16, 22]], "2-1-cat": []}  # the second cat's fourth keypoint is hidden (v = 1)

    def test_the_sequence_depends_on_seed_and_index_alone(self, coco_root: Path):
        objects = load_coco_objects(*find_coco(coco_root, "trn"))
        pairs = CocoPairs(objects, seed=3, min_shared=1)
        forwards = [pairs[i].name for i in range(30)]
        again = CocoPairs(objects, seed=3, min_shared=1)
        assert [again[i].name for i in reversed(range(30))] == forwards[::-1]
        assert [CocoPairs(objects, seed=4, min_shared=1)[i].name for i in range(30)] != forwards

    def test_balanced_draws_categories_alike(self, tmp_path: Path):
        cat, dog = ({"id": n, "name": c, "keypoints": ["a"]} for n, c in ((1, "cat"), (2, "dog")))
        notes = [
            {
                "id": i,
                "image_id": 1 + i % 3,
                "category_id": 2 if i < 3 else 1,
                "bbox": [0, 0, 9, 9],
                "keypoints": [1, 1, 2],
            }
            for i in range(60)
        ]
        coco_file(tmp_path, categories=[cat, dog], annotations=notes)
        objects = load_coco_objects(*find_coco(tmp_path, "trn"))
        share = {
            balanced: np.mean(
                [CocoPairs(objects, min_shared=1, balanced=balanced)[i].category == "dog" for i in range(200)]
            )
            for balanced in (True, False)
        }
        assert 0.35 < share[True] < 0.65
        assert share[False] < 0.15

    def test_nothing_to_draw_from(self):
        with pytest.raises(InputError, match="no two of the 0 annotated objects"):
            CocoPairs([])


SIDED = ("left_eye", "right_eye", "nose", "left_paw")  # one keypoint has no mirror image


def sided(number: int, flags: str) -> AnnotatedObject:
    kps = np.arange(8.0).reshape(4, 2) + 10 * number
    visible = np.array([flag == "1" for flag in flags])
    return AnnotatedObject(str(number), Path(f"{number}.jpg"), (60, 80), "cat", kps, visible, None, SIDED)


class TestSelfPairs:
    def test_points_anywhere_on_the_object_and_the_same_on_both_sides(self, coco_root: Path):
        objects = load_coco_objects(*find_coco(coco_root, "trn"))
        pairs = SelfPairs(objects, seed=1, n_points=30)
        for index in range(10):
            pair = pairs[index]
            assert pair.src_image == pair.trg_image
            np.testing.assert_array_equal(pair.src_kps_px, pair.trg_kps_px)
            low, high = np.split(pair.src_bbox_px, 2)
            assert ((pair.src_kps_px >= low) & (pair.src_kps_px <= high)).all()
            assert pair.visible.all()
        np.testing.assert_array_equal(pairs[3].src_kps_px, SelfPairs(objects, seed=1, n_points=30)[3].src_kps_px)
        assert not np.array_equal(pairs[3].src_kps_px, pairs[4].src_kps_px)

    def test_without_boxes(self, coco_root: Path):
        objects = [replace(item, bbox_px=None) for item in load_coco_objects(*find_coco(coco_root, "trn"))]
        with pytest.raises(InputError, match="none of the 4 annotated objects has a box"):
            SelfPairs(objects)


class TestPoses:
    def test_overlap_of_what_is_visible(self):
        """Of the four keypoints, 1 and 2 share two among three, 1 and 3 two among four, 2 and 3 one among four."""
        objects = [sided(1, "1110"), sided(2, "1100"), sided(3, "0111")]

        def drawn(**rules):
            pairs = CocoPairs(objects, **rules)
            return {tuple(sorted(pairs[i].name.split("-")[:2])) for i in range(60)}

        assert drawn(min_shared=1) == {("1", "2"), ("1", "3"), ("2", "3")}
        assert drawn(min_shared=2) == {("1", "2"), ("1", "3")}
        assert drawn(min_shared=1, min_overlap=0.5) == {("1", "2"), ("1", "3")}
        assert drawn(min_shared=1, min_overlap=0.6) == {("1", "2")}
        with pytest.raises(
            InputError, match=r"no two of the 3 .* 1 keypoints in common, 0\.9 of those visible in either"
        ):
            CocoPairs(objects, min_shared=1, min_overlap=0.9)

    def test_mirroring_shares_what_the_mirror_shows(self):
        """Object 1 shows its left eye, 2 its right one: only a mirror makes them a pair, once each has another."""
        objects = [sided(1, "1010"), sided(2, "0110"), sided(3, "1010"), sided(4, "0110")]
        straight, mirrored = (CocoPairs(objects, min_shared=2, mirror=p) for p in (0.0, 1.0))
        for i in range(30):
            src, trg, *_ = straight[i].name.split("-")
            assert {src, trg} in ({"1", "3"}, {"2", "4"})
            pair = mirrored[i]
            src, trg, _, word = pair.name.split("-")
            assert {src, trg} not in ({"1", "3"}, {"2", "4"})
            assert (word, pair.trg_flip, pair.src_flip) == ("mirrored", True, False)
            assert pair.visible.tolist() == objects[int(src) - 1].visible.tolist()

    def test_without_a_mirrored_partner_the_target_stays(self):
        pairs = CocoPairs([sided(1, "1011"), sided(2, "1011")], min_shared=3, mirror=1.0)
        assert not any(pairs[i].trg_flip for i in range(10))

    def test_mirror_is_drawn_as_often_as_it_is_said(self):
        pairs = CocoPairs([sided(1, "1110"), sided(2, "1110")], mirror=0.3)
        assert 0.2 < np.mean([pairs[i].trg_flip for i in range(300)]) < 0.4

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (("L_Eye", "R_Eye", "Nose"), [1, 0, 2]),
            (("left ear", "nose", "right ear"), [2, 1, 0]),
            (("eyeLeft", "eyeRight", "LEar", "REar"), [1, 0, 3, 2]),
            (("Top_Left_Back", "Top_Right_Back", "Top_Left_Front"), [1, 0, -1]),
            (("L_F_Paw1", "R_F_Paw1", "L_F_Paw2", "R_F_Paw2"), [1, 0, 3, 2]),
            (("LEFT_EYE", "right_eye", "bright", "cleft"), [1, 0, 2, 3]),  # sides are whole words
            (("нос", "хвост", "1", "2"), [0, 1, 2, 3]),
            ((), []),
        ],
    )
    def test_sides_are_words_of_names(self, names, expected):
        assert mirrored_names(names).tolist() == expected

    def test_a_mirrored_object(self):
        item = sided(0, "1011")
        mirrored = mirror_object(item)
        # what the mirror calls the right eye is the left one; the paw would be a right one, which has no name
        assert mirrored.visible.tolist() == [False, True, True, False]
        assert mirrored.kps_px.tolist() == [[0, 0], item.kps_px[0].tolist(), item.kps_px[2].tolist(), [0, 0]]
        both = sided(0, "1110")
        again = mirror_object(mirror_object(both))
        np.testing.assert_array_equal(again.kps_px[:3], both.kps_px[:3])


class TestFacing:
    NAMES = tuple(f"{side}_{part}" for side in "LR" for part in ("Wheel", "Lamp", "Door", "Mirror", "Roof"))

    def car(self, number: int, *, left: bool) -> AnnotatedObject:
        visible = np.array([left] * 5 + [not left] * 5)
        kps_px = np.where(visible[:, None], np.arange(20.0).reshape(10, 2) + number, 0)
        return replace(sided(number, "1111"), kps_px=kps_px, visible=visible, kp_names=self.NAMES)

    def test_cars_that_show_the_same_side_or_opposite_ones(self):
        cars = [self.car(1, left=True), self.car(2, left=True), self.car(3, left=False)]
        same = {pair.name for pair in draw_facing_pairs(cars, 10, "same")}
        assert {tuple(name.split("-")[:2]) for name in same} == {("1", "2"), ("2", "1")}
        opposite = draw_facing_pairs(cars, 10, "opposite", seed=1)
        assert {tuple(pair.name.split("-")[:2]) for pair in opposite} == {
            ("1", "3"),
            ("3", "1"),
            ("2", "3"),
            ("3", "2"),
        }
        for pair in opposite:  # the right wheel of one is where the left one of its mirror image would be
            src, trg = (cars[int(number) - 1] for number in pair.name.split("-")[:2])
            assert not pair.trg_flip
            np.testing.assert_array_equal(pair.visible, src.visible)
            np.testing.assert_array_equal(pair.trg_kps_px[pair.visible], trg.kps_px[trg.visible])
        assert len(draw_facing_pairs(cars, 3, "opposite")) == 3

    def test_names_that_tell_no_sides(self):
        objects = [replace(sided(n, "1111"), kp_names=("a", "b", "c", "d")) for n in (1, 2)]
        assert len(draw_pairs(objects, 2)) == 2
        with pytest.raises(InputError, match="no two of the 2 annotated objects show opposite sides"):
            draw_facing_pairs(objects, 2, "opposite")


def test_more_than_there_are_is_found_out_soon(coco_root: Path):
    objects = load_coco_objects(*find_coco(coco_root, "trn"))
    start = time.monotonic()
    names = {pair.name for pair in draw_pairs(objects, 10_000_000)}
    assert time.monotonic() - start < 10
    assert names == {pair.name for pair in draw_pairs(objects, 2)}
