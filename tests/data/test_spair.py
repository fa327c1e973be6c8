"""SPair-71k: what the loader reads, and the error for what it cannot read."""

import json
from pathlib import Path

import pytest
from conftest import SPAIR_NOTE

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.spair import TWINS, load_spair, load_spair_u
from transformatcher.errors import InputError


def test_everything_is_read(spair_root: Path):
    first, second = load_spair(spair_root, "val")
    assert (first.name, first.category) == ("000000-a-b:cat", "cat")
    assert first.src_image == spair_root / "JPEGImages" / "cat" / "a.jpg"
    assert first.src_kps_px.tolist() == [[10, 10], [20, 30]]
    assert first.trg_bbox_px is not None
    assert first.trg_bbox_px.tolist() == [10, 10, 50, 55]
    assert first.difficulty == {"viewpoint": 0, "scale": 1, "truncation": 2, "occlusion": 0}
    assert second.visible.all()


def test_what_only_other_pairs_list_is_absent_here(spair_root: Path):
    more = {"trg_imname": "c.jpg", "src_kps": [[20, 30], [33, 44]]}  # of the same source
    (spair_root / "PairAnnotation" / "val" / "000001-b-a:cat.json").write_text(json.dumps(SPAIR_NOTE | more))
    first, second = load_spair(spair_root, "val")
    assert first.absent_px.tolist() == [[33, 44]]
    assert second.absent_px.tolist() == [[10, 10]]
    assert first.src_kps_px.tolist() == [[10, 10], [20, 30]]


def test_one_pair_alone_does_not_tell(spair_root: Path):
    assert [pair.absent_px.shape for pair in load_spair(spair_root, "val")] == [(0, 2), (0, 2)]


def test_file_names_without_colon(spair_root: Path):
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
def test_malformed_annotation_is_named(spair_root: Path, change, message):
    path = spair_root / "PairAnnotation" / "val" / "000000-a-b:cat.json"
    path.write_text(json.dumps(SPAIR_NOTE | change))
    with pytest.raises(InputError, match=rf"000000-a-b:cat\.json: .*{message}"):
        load_spair(spair_root, "val")
    problems: list[str] = []
    assert len(load_spair(spair_root, "val", on_problem=problems.append)) == 1
    assert len(problems) == 1


def test_missing_key_folder_split_and_empty_list(spair_root: Path):
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


def test_twins_by_the_numbers_of_their_keypoints(spair_root: Path):
    """Of a cat, 2 and 3 are ears; 8 has no twin, and the twin of 4 is not in this pair."""
    points = [[1, 2], [3, 4], [5, 6], [7, 8]]
    change = {"src_kps": points, "trg_kps": points, "kps_ids": ["2", "3", "4", "8"]}
    path = spair_root / "PairAnnotation" / "val" / "000000-a-b:cat.json"
    path.write_text(json.dumps(SPAIR_NOTE | change))
    first, second = load_spair(spair_root, "val")
    assert first.twins == (1, 0, -1, -1)
    assert second.twins == ()  # this file has no numbers
    path.write_text(json.dumps(SPAIR_NOTE | change | {"kps_ids": ["2"]}))
    with pytest.raises(InputError, match="1 kps_ids of 4 keypoints"):
        load_spair(spair_root, "val")


def test_every_category_has_twins_and_no_keypoint_two():
    assert len(TWINS) == 18
    for couples in TWINS.values():
        numbers = couples.replace("-", " ").split()
        assert len(numbers) == len(set(numbers)) > 0


@pytest.mark.parametrize("layout", ["beside", "inside", "extra"])
def test_spair_u_in_its_three_places(spair_root: Path, layout):
    root = spair_root if layout == "extra" else spair_root.parent / "SPair-U"
    folder = root / ("ExtraPairAnnotation" if layout == "extra" else "PairAnnotation") / "test"
    folder.mkdir(parents=True)
    (folder / "000000-a-b:cat.json").write_text(json.dumps(SPAIR_NOTE | {"src_kps": [[1, 1]], "trg_kps": [[2, 2]]}))
    if layout == "inside":
        (spair_root / "JPEGImages").rename(root / "JPEGImages")
    (pair,) = load_benchmark("spair-u", root, "test")
    assert (pair.name, pair.src_kps_px.tolist()) == ("000000-a-b:cat", [[1, 1]])
    assert pair.trg_image.is_file()


def test_spair_u_names_what_it_lacks(spair_root: Path):
    lonely = spair_root.parent / "elsewhere" / "SPair-U"
    (lonely / "PairAnnotation" / "test").mkdir(parents=True)
    with pytest.raises(InputError, match="SPair-U comes without photos"):
        load_spair_u(lonely)
    with pytest.raises(InputError, match="has a test split only"):
        load_spair_u(lonely, "val")
    with pytest.raises(InputError, match="neither ExtraPairAnnotation/test nor PairAnnotation/test"):
        load_spair_u(spair_root)
