"""Loaders: what they read, and what they say of what they cannot read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SPAIR_NOTE, coco_file
from scipy.io import savemat

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.coco_keypoints import (
    AnnotatedObject,
    CocoPairs,
    SelfPairs,
    find_coco,
    load_coco_objects,
    mirror_object,
    mirrored_names,
)
from transformatcher.data.pairs import collate, load_pair
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError


class TestSPair:
    def test_everything_is_read(self, spair_root: Path):
        first, second = load_spair(spair_root, "val")
        assert (first.name, first.category) == ("000000-a-b:cat", "cat")
        assert first.src_image == spair_root / "JPEGImages" / "cat" / "a.jpg"
        assert first.src_kps_px.tolist() == [[10, 10], [20, 30]]
        assert first.trg_bbox_px is not None
        assert first.trg_bbox_px.tolist() == [10, 10, 50, 55]
        assert first.difficulty == {"viewpoint": 0, "scale": 1, "truncation": 2, "occlusion": 0}
        assert second.visible.all()

    def test_what_only_other_pairs_list_is_absent_here(self, spair_root: Path):
        more = {"trg_imname": "c.jpg", "src_kps": [[20, 30], [33, 44]]}  # of the same source
        (spair_root / "PairAnnotation" / "val" / "000001-b-a:cat.json").write_text(json.dumps(SPAIR_NOTE | more))
        first, second = load_spair(spair_root, "val")
        assert first.absent_px.tolist() == [[33, 44]]
        assert second.absent_px.tolist() == [[10, 10]]
        assert first.src_kps_px.tolist() == [[10, 10], [20, 30]]

    def test_one_pair_alone_does_not_tell(self, spair_root: Path):
        assert [pair.absent_px.shape for pair in load_spair(spair_root, "val")] == [(0, 2), (0, 2)]

    def test_file_names_without_colon(self, spair_root: Path):
        for path in (spair_root / "PairAnnotation" / "val").iterdir():
            path.rename(path.with_name(path.name.replace(":", "_")))
        assert len(load_spair(spair_root, "validation")) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"trg_kps": [[1, 2]]}, "2 source and 1 target keypoints"),
            ({"src_kps": [[1, 2], [float("nan"), 3]]}, "a keypoint is NaN"),
            ({"src_kps": [[1, 2, 2], [3, 4, 2]]}, r"expected n points \[x, y\], found numbers of shape \(2, 3\)"),
            ({"src_bndbox": [1, 2, 3]}, r"box \[1.0, 2.0, 3.0\] is not"),
            ({"trg_bndbox": [1, 2, float("nan"), 4]}, "is not x0 < x1"),
            ({"viewpoint_variation": 9}, "viewpoint_variation is 9, not 0, 1 or 2"),
            ({"category": None, "trg_kps": "x"}, "expected points"),
        ],
    )
    def test_malformed_annotation_is_named(self, spair_root: Path, change, message):
        path = spair_root / "PairAnnotation" / "val" / "000000-a-b:cat.json"
        path.write_text(json.dumps(SPAIR_NOTE | change))
        with pytest.raises(InputError, match=rf"000000-a-b:cat\.json: .*{message}"):
            load_spair(spair_root, "val")
        problems: list[str] = []
        assert len(load_spair(spair_root, "val", on_problem=problems.append)) == 1
        assert len(problems) == 1

    def test_missing_key_folder_split_and_empty_list(self, spair_root: Path):
        path = spair_root / "PairAnnotation" / "val" / "000000-a-b:cat.json"
        path.write_text("{}")
        with pytest.raises(InputError, match="key 'src_kps' is missing"):
            load_spair(spair_root, "val")
        with pytest.raises(InputError, match="no such folder"):
            load_spair(spair_root / "nowhere", "val")
        with pytest.raises(InputError, match=r"test\.txt: no such list of pairs"):
            load_spair(spair_root, "test")
        with pytest.raises(InputError, match="split 'tst' is none of trn, val, test"):
            load_spair(spair_root, "tst")
        (spair_root / "Layout" / "large" / "val.txt").write_text("\n")
        with pytest.raises(InputError, match="holds no pair at all"):
            load_spair(spair_root, "val")


class TestPascal:
    def test_mat_files_and_flip(self, pascal_root: Path):
        (pair,) = load_pfpascal(pascal_root, "trn")
        assert pair.category == "cat"
        assert pair.visible.tolist() == [True, False, True]
        assert np.isfinite(pair.src_kps_px).all()
        assert pair.trg_kps_px[2].tolist() == [31, 40]
        assert pair.src_flip
        assert pair.trg_flip

    def test_what_is_nan_on_the_target_alone_is_absent(self, pascal_root: Path):
        (pascal_root / "trn_pairs.csv").write_text(
            "source_image,target_image,class,flip\nb.jpg,a.jpg,8,0\nb.jpg,a.jpg,8,1\na.jpg,b.jpg,8,0\n"
        )
        straight, mirrored, other_way = load_pfpascal(pascal_root, "trn")
        assert straight.absent_px.tolist() == [[5, 6]]
        assert other_way.absent_px.shape == (0, 2)
        assert load_pair(mirrored, (60, 80)).absent_px.tolist() == [[80 - 5, 6]]
        (pascal_root / "test_pairs.csv").write_text(
            "source_image,target_image,class,XA,YA,XB,YB\nb.jpg,a.jpg,8,1;2,3;4,5;6,7;8\n"
        )
        assert load_pfpascal(pascal_root, "test")[0].absent_px.tolist() == [[5, 6]]

    def test_flip_moves_pixels_and_annotations_alike(self, pascal_root: Path):
        (pair,) = load_pfpascal(pascal_root, "trn")
        loaded = load_pair(pair, (60, 80))
        straight = load_pair(type(pair)(**{**vars(pair), "src_flip": False, "trg_flip": False}), (60, 80))
        np.testing.assert_allclose(loaded.src, straight.src.flip(2), atol=1e-6)
        assert loaded.src_kps_px[0].tolist() == [80 - 10, 20]
        assert loaded.trg_bbox_px is not None
        assert loaded.trg_bbox_px.tolist() == [39, 2, 79, 52]

    def test_keypoints_of_the_csv_win(self, pascal_root: Path):
        (pair,) = load_pfpascal(pascal_root, "test")
        assert pair.src_kps_px.tolist() == [[1, 3], [2, 4]]
        assert pair.trg_kps_px.tolist() == [[5, 7], [6, 8]]
        assert pair.trg_bbox_px is not None

    def test_csv_keypoints_need_no_mat_file(self, pascal_root: Path):
        for path in (pascal_root / "Annotations" / "cat").iterdir():
            path.unlink()
        (pair,) = load_pfpascal(pascal_root, "test")
        assert pair.trg_bbox_px is None
        with pytest.raises(InputError, match=r"a\.mat: no such annotation"):
            load_pfpascal(pascal_root, "trn")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("source_image,class\nx,1\n", r"column 'target_image' is missing; the first line has source_image, class"),
            ("source_image,target_image,class\n", "holds no pair at all"),
            ("source_image,target_image,class\na.jpg,b.jpg,21\n", r"line 2: class '21' is not a number from 1 to 20"),
            (
                "source_image,target_image,class,XA,YA,XB,YB\na.jpg,b.jpg,8,1;2,3;4,5;6,7\n",
                "XA, YA, XB, YB hold 2, 2, 2, 1 numbers",
            ),
            ("source_image,target_image,class,XA,YA,XB,YB\na.jpg,b.jpg,8,1;nan,3;4,5;6,7;8\n", "a keypoint is NaN"),
            ("source_image,target_image,class,XA,YA,XB,YB\na.jpg,b.jpg,8,1;x,3;4,5;6,7;8\n", "malformed keypoint"),
            ("source_image,target_image,class,XA,XB,YB\na.jpg,b.jpg,8,1;2,5;6,7;8\n", "only XA, XB, YB are filled"),
            (
                "source_image,target_image,class,flip\nJPEGImages/a.jpg,b.jpg,8,maybe\n",
                "flip 'maybe' is neither 0 nor 1",
            ),
        ],
    )
    def test_bad_csv(self, pascal_root: Path, text, message):
        (pascal_root / "test_pairs.csv").write_text(text)
        with pytest.raises(InputError, match=message):
            load_pfpascal(pascal_root, "test")

    def test_bad_mat(self, pascal_root: Path):
        path = pascal_root / "Annotations" / "cat" / "a.mat"
        savemat(path, {"kps": np.full((3, 2), np.nan)})
        with pytest.raises(InputError, match="no keypoint is visible in both images"):
            load_pfpascal(pascal_root, "trn")
        savemat(path, {"kps": np.zeros((3, 3))})
        with pytest.raises(InputError, match=r"expected 'kps' of n × 2 numbers, found \(3, 3\)"):
            load_pfpascal(pascal_root, "trn")
        path.write_bytes(b"garbage")
        with pytest.raises(InputError, match=r"a\.mat: not a readable \.mat file"):
            load_pfpascal(pascal_root, "trn")


class TestWillow:
    def test_everything_is_read(self, willow_root: Path):
        (pair,) = load_pfwillow(willow_root)
        assert pair.category == "car(G)"
        assert pair.src_kps_px[0].tolist() == [4, 4]
        assert pair.trg_kps_px[9].tolist() == [41, 41]
        assert pair.trg_bbox_px is None

    def test_images_in_a_folder_of_their_own(self, willow_root: Path):
        (willow_root / "PF-dataset").mkdir()
        (willow_root / "car(G)").rename(willow_root / "PF-dataset" / "car(G)")
        (pair,) = load_pfwillow(willow_root)
        assert load_pair(pair, (32, 32)).src_size == (60, 80)

    def test_other_splits_and_columns(self, willow_root: Path):
        with pytest.raises(InputError, match="test split only"):
            load_pfwillow(willow_root, "val")
        (willow_root / "test_pairs.csv").write_text("imageA,imageB,XA1\n")
        with pytest.raises(InputError, match="column 'XA2' and 38 more is missing"):
            load_pfwillow(willow_root)


class TestCoco:
    def test_objects(self, coco_root: Path):
        objects = load_coco_objects(*find_coco(coco_root, "trn"))
        assert [item.category for item in objects] == ["cat", "cat", "cat", "dog"]
        assert objects[0].bbox_px.tolist() == [1, 2, 31, 42]
        assert objects[1].visible.tolist() == [True, True, True, False]
        assert load_coco_objects(*find_coco(coco_root, "trn"), occluded=True)[1].visible.all()
        assert objects[0].kp_names == ("a", "b", "c", "d")

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

    def test_keypoints_outside_are_not_visible(self, tmp_path: Path):
        note = {"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [-3, 5, 2, 7, 8, 2]}
        coco_file(tmp_path, annotations=[note])
        assert load_coco_objects(*find_coco(tmp_path, "trn"))[0].visible.tolist() == [False, True]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"keypoints": [1, 2, 2]}, "annotation 9: 1 keypoints, its category 'dog' names 2"),
            ({"keypoints": [1, 2, 2, float("nan"), 1, 2]}, "annotation 9: a keypoint is NaN"),
            ({"image_id": "1"}, "no image has the id '1'"),
            ({"category_id": 5}, "no category has the id 5"),
            ({"bbox": [1, 2]}, "annotation 9: malformed"),
            ({"bbox": [1, 2, -3, 4]}, "is not x0 < x1"),
            ({"keypoints": None}, "'keypoints' is not a list of x, y, v"),
        ],
    )
    def test_malformed_annotation(self, tmp_path: Path, change, message):
        good = {"id": 9, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [1, 1, 2, 2, 2, 2]}
        path = coco_file(tmp_path, annotations=[good | change])
        with pytest.raises(InputError, match=message):
            load_coco_objects(path, tmp_path / "images")

    def test_ids_are_labels_and_must_differ(self, tmp_path: Path):
        note = {"id": "ann", "image_id": 1, "category_id": 2, "keypoints": [1, 1, 2, 2, 2, 2]}
        path = coco_file(tmp_path, annotations=[note, note])
        with pytest.raises(InputError, match="annotation ann: its id stands twice"):
            load_coco_objects(path, tmp_path / "images")
        problems: list[str] = []
        path = coco_file(tmp_path, annotations=[note], images=[{"id": 1, "file_name": "1.jpg"}] * 2 + [{}])
        (item,) = load_coco_objects(path, tmp_path / "images", on_problem=problems.append)
        assert (item.id, item.bbox_px) == ("ann", None)
        assert ["id 1 stands twice" in problems[0], "no usable id" in problems[1]] == [True, True]

    def test_bad_files(self, tmp_path: Path):
        path = tmp_path / "annotations.json"
        with pytest.raises(InputError, match=r"neither annotations\.json nor"):
            find_coco(tmp_path, "val")
        path.write_text("{")
        with pytest.raises(InputError, match="not valid JSON"):
            load_coco_objects(path, tmp_path)
        path.write_text('{"images": []}')
        with pytest.raises(InputError, match="it has no list 'annotations'"):
            load_coco_objects(path, tmp_path)
        with pytest.raises(InputError, match="no two of the 0 annotated objects"):
            CocoPairs([])

    def test_official_layout(self, tmp_path: Path):
        coco_file(tmp_path)
        (tmp_path / "annotations").mkdir()
        (tmp_path / "annotations.json").rename(tmp_path / "annotations" / "person_keypoints_val2017.json")
        (tmp_path / "images").rename(tmp_path / "val2017")
        annotations, images = find_coco(tmp_path, "val")
        assert (annotations.name, images.name) == ("person_keypoints_val2017.json", "val2017")


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


class TestBatches:
    def test_collate_masks_what_it_fills(self, spair_root: Path, willow_root: Path):
        pairs = load_spair(spair_root, "val")[:1] + load_pfwillow(willow_root)
        batch = collate([load_pair(pair, (32, 48)) for pair in pairs])
        assert batch.src.shape == (2, 3, 32, 48)
        assert batch.visible.sum(dim=1).tolist() == [2, 10]
        np.testing.assert_allclose(batch.src_kps_norm[0, 0], [10 * 2 / 80 - 1, 10 * 2 / 60 - 1], atol=1e-6)
        assert batch.trg_sizes.tolist() == [[60, 80], [60, 80]]

    def test_by_name(self, spair_root: Path, coco_root: Path):
        assert len(load_benchmark("spair", spair_root, "val")) == 2
        assert len(load_benchmark("coco", coco_root, "trn", n_pairs=1)) == 1
        drawn = load_benchmark("coco", coco_root, "trn", n_pairs=5)
        assert sorted(pair.name for pair in drawn) == ["1-2-cat", "2-1-cat"]  # there are no others


@pytest.mark.data
@pytest.mark.parametrize(
    ("benchmark", "folder", "split", "n_pairs", "n_points"),
    [
        ("pfpascal", "PF-PASCAL", "trn", 2928, None),
        ("pfpascal", "PF-PASCAL", "val", 307, None),
        ("pfpascal", "PF-PASCAL", "test", 299, 2414),
        ("pfwillow", "PF-WILLOW", "test", 900, 9000),
        ("spair", "SPair-71k", "val", 360, 2615),
    ],
)
def test_real_benchmarks(data_root: Path, benchmark, folder, split, n_pairs, n_points):
    pairs = load_benchmark(benchmark, data_root / folder, split)
    assert len(pairs) == n_pairs
    assert len({pair.name for pair in pairs}) == n_pairs
    assert all(pair.visible.any() for pair in pairs)
    if n_points is not None:
        assert sum(int(pair.visible.sum()) for pair in pairs) == n_points
