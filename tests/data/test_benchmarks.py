"""Loaders: what they read, and what they say of what they cannot read."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import SPAIR_NOTE
from scipy.io import savemat

from transformatcher.data.benchmarks import load_benchmark
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


class TestBatches:
    def test_collate_masks_what_it_fills(self, spair_root: Path, willow_root: Path):
        pairs = load_spair(spair_root, "val")[:1] + load_pfwillow(willow_root)
        batch = collate([load_pair(pair, (32, 48)) for pair in pairs])
        assert batch.src.shape == (2, 3, 32, 48)
        assert batch.visible.sum(dim=1).tolist() == [2, 10]
        np.testing.assert_allclose(batch.src_kps_norm[0, 0], [10 * 2 / 80 - 1, 10 * 2 / 60 - 1], atol=1e-6)
        np.testing.assert_allclose(batch.trg_kps_norm[0, 0], [15 * 2 / 80 - 1, 12 * 2 / 60 - 1], atol=1e-6)

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
