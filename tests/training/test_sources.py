"""Entries of data.train → pairs: the rules for small objects, excluded images and listed pairs."""

from pathlib import Path

import pytest
import torch
from conftest import coco_file
from PIL import Image

from transformatcher.config import DataConfig, PairSource, run_config
from transformatcher.data.coco_pairs import CocoPairs
from transformatcher.data.loader import build_image_cache
from transformatcher.errors import InputError
from transformatcher.training.sources import load_source

CPU = torch.device("cpu")


class TestSource:
    @staticmethod
    def source(root: Path, **options) -> CocoPairs:
        item = PairSource("coco", root.name, weight=2.0)
        source = load_source(item, DataConfig((item,), (item,), str(root.parent), pairs_per_epoch=9, **options), seed=3)
        assert source.weight == 2.0
        assert isinstance(source.pairs, CocoPairs)
        return source.pairs

    def test_small_objects_are_left_out(self, tmp_path: Path):
        """Boxes of 40, 32, 16 pixels in images of 80 × 60; a fourth object has no box."""
        boxes = [[1, 2, 40, 10], [1, 2, 10, 32], [1, 2, 16, 16], None]
        notes = [
            {"id": i, "image_id": 1 + i % 3, "category_id": 1, "bbox": box, "keypoints": [9, 9, 2] * 4}
            for i, box in enumerate(boxes)
        ]
        coco_file(tmp_path / "coco", annotations=notes)
        for least, kept in ((0.0, "0123"), (0.2, "0123"), (0.39, "013"), (0.41, "03"), (0.5, "03")):
            if kept == "03":  # both lie in one image
                with pytest.raises(InputError, match="no two of the 2 annotated objects"):
                    self.source(tmp_path / "coco", min_object_scale=least)
            else:
                objects = self.source(tmp_path / "coco", min_object_scale=least).objects
                assert "".join(item.id for item in objects) == kept

    def test_the_rules_arrive(self, coco_root: Path):
        pairs = self.source(coco_root, p_flip_target=0.25, balance_categories=False, min_shared=2, min_overlap=0.5)
        assert (pairs.seed, pairs.mirror, pairs.balanced) == (3, 0.25, False)
        assert {pairs[i].name.removesuffix("-mirrored") for i in range(9)} == {"1-2-cat", "2-1-cat"}
        with pytest.raises(InputError, match="4 keypoints in common"):
            self.source(coco_root, min_shared=4)

    def test_a_list_of_pairs(self, spair_root: Path):
        item = PairSource("spair", spair_root.name, split="val", weight=0.5)
        source = load_source(item, DataConfig((item,), (item,), root=str(spair_root.parent)), seed=0)
        assert (len(source.pairs), source.weight) == (2, 0.5)

    def test_photos_that_are_left_out(self, pascal_root: Path, coco_root: Path):
        """The list has a–b; then c–d as well, of which only those stay that no named set shows."""
        mat = (pascal_root / "Annotations" / "cat" / "b.mat").read_bytes()
        for name in "cd":
            (pascal_root / "Annotations" / "cat" / f"{name}.mat").write_bytes(mat)
        with (pascal_root / "trn_pairs.csv").open("a") as file:
            file.write("JPEGImages/c.jpg,JPEGImages/d.jpg,8,0\n")
        listed, test = (PairSource("pfpascal", pascal_root.name, split=split) for split in ("trn", "test"))
        coco = PairSource("coco", coco_root.name)

        def names(item: PairSource, *excluded: PairSource) -> list[str]:
            data = DataConfig((item,), (item,), str(pascal_root.parent), exclude_images_of=excluded, pairs_per_epoch=9)
            pairs = load_source(item, data, seed=0).pairs
            return [thing.id for thing in pairs.objects] if item is coco else [pair.name for pair in pairs]

        assert names(listed) == ["0000-a-b-cat", "0001-c-d-cat"]
        assert names(listed, test) == ["0001-c-d-cat"]
        with pytest.raises(InputError, match=r"pairs: all 2 show images that data\.exclude_images_of names"):
            names(listed, test, listed)
        assert len(names(coco)) == 4
        assert names(coco, test) == names(coco)  # other photos
        with pytest.raises(InputError, match="objects: all 4 show images"):
            names(coco, coco)
        with pytest.raises(InputError, match=r"data\.exclude_images_of: .*elsewhere"):
            names(listed, PairSource("pfpascal", "elsewhere", split="test"))


class TestSelfPairs:
    def test_objects_of_a_list_are_oriented_as_their_pairs(self, spair_root: Path):
        """SPair's keypoints are in pixels of the stored file, whatever its EXIF tag."""
        path = spair_root / "JPEGImages" / "cat" / "a.jpg"
        exif = Image.Exif()
        exif[0x0112] = 6  # a quarter turn
        Image.open(path).save(path, exif=exif)
        item = {"benchmark": "spair", "folder": spair_root.name, "split": "val", "self_pairs": True}
        tables = {"data": {"root": str(spair_root.parent), "train": [item], "validate": [item]}}
        with pytest.raises(InputError, match=r"data\.pairs_per_epoch: must be given, because a source with coco"):
            run_config(tables)
        tables["data"]["pairs_per_epoch"] = 8
        data = run_config(tables).data
        source = load_source(data.train[0], data, seed=0)
        cache = build_image_cache([source], (48, 48), CPU, "host", threads=1)
        assert [orient for _, orient in source.images()] == [False, False]
        assert cache.original_sizes == [(60, 80), (60, 80)]
