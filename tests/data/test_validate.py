"""``data check`` finds every problem, and none in intact folders."""

import json
from pathlib import Path

import pytest
from conftest import SPAIR_NOTE, coco_file

from transformatcher.data.validate import check_benchmark
from transformatcher.errors import InputError


def test_intact_folders(spair_root: Path, pascal_root: Path, willow_root: Path, coco_root: Path):
    report = check_benchmark("spair", spair_root)
    assert report.problems == []
    assert report.counts == {"val pairs": 2, "keypoints": 8, "images": 2}
    assert report.per_category == {"cat": 2}
    assert check_benchmark("pfpascal", pascal_root).counts["trn pairs"] == 1
    assert check_benchmark("pfwillow", willow_root).problems == []
    assert check_benchmark("coco", coco_root).counts == {"objects": 4, "keypoints": 10, "images": 3}


def test_every_problem_is_named(spair_root: Path):
    notes = spair_root / "PairAnnotation" / "val"
    (notes / "000000-a-b:cat.json").write_text("{")
    (notes / "000001-b-a:cat.json").write_text(json.dumps(SPAIR_NOTE | {"trg_kps": [[15, 12], [81, 50]]}))
    (spair_root / "JPEGImages" / "cat" / "a.jpg").unlink()
    problems = check_benchmark("spair", spair_root, "val").problems
    assert len(problems) == 3
    malformed, missing, outside = problems
    assert "000000-a-b:cat.json: malformed" in malformed
    assert "a.jpg: no such image file" in missing
    assert "keypoint (81.0, 50.0) lies outside 80 × 60" in outside


def test_unreadable_image(willow_root: Path):
    (willow_root / "car(G)" / "a.png").write_bytes(b"garbage")
    (problem,) = check_benchmark("pfwillow", willow_root).problems
    assert "a.png: not an image that can be decoded" in problem


def test_problems_of_coco_files(tmp_path: Path):
    images = [{"id": 1, "file_name": "1.jpg", "width": 99, "height": 60}]
    note = {"id": 7, "image_id": 1, "category_id": 2, "bbox": [0, 0, 9, 9], "keypoints": [90, 1, 2, 5, 5, 2]}
    coco_file(tmp_path, images=images, annotations=[note])
    wrong_size, outside = check_benchmark("coco", tmp_path).problems
    assert "is 80 × 60, annotation 7 says 99 × 60" in wrong_size
    assert "annotation 7: keypoint (90.0, 1.0) lies outside 80 × 60" in outside


def test_missing_folder(tmp_path: Path):
    with pytest.raises(InputError, match="no such folder"):
        check_benchmark("spair", tmp_path / "nowhere")
