"""AP-10K in the layout that its users' notebook writes: pairs, visibility, and the error for what cannot be read."""

import json
from pathlib import Path

import pytest
from conftest import write_image

from transformatcher.data.ap10k import KEYPOINTS, load_ap10k
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.validate import check_benchmark
from transformatcher.errors import InputError

SPLITS = {"test": "antelope", "test_cross_species": "Bovidae", "test_cross_family": "all"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An antelope with all keypoints, and one without its right eye and back paws; one pair in each list."""
    root = tmp_path / "ap-10k"
    for seed, hidden in enumerate([(), (1, 13, 16)]):
        stem = f"00000000{seed}"
        name = f"Bovidae/antelope/{stem}"
        write_image(root / "JPEGImages" / f"{name}.jpg", seed=seed)
        points = [v for i in range(17) for v in ((0, 0, 0) if i in hidden else (3 * i + 5, 2 * i + seed + 1, 2))]
        note = {
            "id": seed + 1, "image_id": seed, "category_id": 1, "bbox": [2, 1, 60, 50], "area": 3000, "iscrowd": 0,
            "num_keypoints": 17 - len(hidden), "keypoints": points, "width": 80, "height": 60,
            "license": 1, "file_name": f"{stem}.jpg", "name": "antelope", "supercategory": "Bovidae",
        }  # fmt: skip
        path = root / "ImageAnnotation" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(note))
    for split, category in SPLITS.items():
        folder = root / "PairAnnotation" / split
        folder.mkdir(parents=True)
        paths = [f"data/ap-10k/ImageAnnotation/Bovidae/antelope/00000000{i}.json" for i in (0, 1)]
        text = json.dumps({"src_json_path": paths[0], "trg_json_path": paths[1]})
        (folder / f"0-000000000-000000001:{category}.json").write_text(text)
    return root


@pytest.mark.parametrize(
    ("subset", "category"),
    [("intra-species", "antelope"), ("cross-species", "Bovidae"), ("cross-family", "all")],
)
def test_each_list_of_pairs(root: Path, subset, category):
    (pair,) = load_benchmark(f"ap10k-{subset}", root, "test")
    assert (pair.name, pair.category) == (f"0-000000000-000000001:{category}", category)
    assert pair.src_image == root / "JPEGImages" / "Bovidae" / "antelope" / "000000000.jpg"
    assert pair.kp_names == KEYPOINTS
    assert [i for i, seen in enumerate(pair.visible) if not seen] == [1, 13, 16]
    assert pair.trg_kps_px[2].tolist() == [11, 6]
    assert pair.trg_bbox_px is not None
    assert pair.trg_bbox_px.tolist() == [2, 1, 62, 51]
    assert pair.twins[:9] == (1, 0, -1, -1, -1, 8, 9, 10, 5)
    assert len(pair.absent_px) == 3
    assert not pair.orient


def test_twins_are_numbered_as_its_users_do():
    """0 1 eyes, 5 8 shoulders, 6 9 elbows, 7 10 front paws, 11 14 hips, 12 15 knees, 13 16 back paws."""
    from transformatcher.data.coco_pairs import twin_indices

    couples = {(own, twin) for own, twin in enumerate(twin_indices(KEYPOINTS)) if own < twin}
    assert couples == {(0, 1), (5, 8), (6, 9), (7, 10), (11, 14), (12, 15), (13, 16)}


def test_data_check_knows_it(root: Path):
    report = check_benchmark("ap10k-cross-species", root)
    assert (report.counts["test pairs"], report.counts["images"], report.problems) == (1, 2, [])


def test_what_cannot_be_read_is_named(root: Path):
    pair = root / "PairAnnotation" / "test" / "0-000000000-000000001:antelope.json"
    good = pair.read_text()
    for text, message in [
        ("{}", "src_json_path does not lead into ImageAnnotation"),
        ("[]", "src_json_path does not lead"),
        (good.replace("antelope/000000001", "../../../secret"), "trg_json_path does not lead"),
        (good.replace("000000001", "000000009"), r"000000009\.json: no such file"),
    ]:
        pair.write_text(text)
        with pytest.raises(InputError, match=message):
            load_ap10k(root, "test")
    problems: list[str] = []
    assert load_ap10k(root, "test", on_problem=problems.append) == []
    assert len(problems) == 1
    with pytest.raises(InputError, match="no such folder"):
        load_ap10k(root, "trn")


def test_an_animal_without_a_box_is_named(root: Path):
    path = root / "ImageAnnotation" / "Bovidae" / "antelope" / "000000001.json"
    note = json.loads(path.read_text())
    del note["bbox"]
    path.write_text(json.dumps(note))
    with pytest.raises(InputError, match=r"000000001\.json: malformed annotation, no object with a box"):
        load_ap10k(root, "test")
