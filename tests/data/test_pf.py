"""PF-PASCAL and PF-WILLOW: what the loaders read, and the error for what they cannot read."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from transformatcher.data.pairs import load_pair
from transformatcher.data.pf import load_pfpascal, load_pfwillow
from transformatcher.errors import InputError


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
