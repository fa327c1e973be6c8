"""Markers that skip with a reason, and small benchmark folders on disk."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.io import savemat
from torch import nn

from transformatcher.config import model_config
from transformatcher.inference.matcher import Matcher
from transformatcher.models.build import build_matcher
from transformatcher.models.fused import precision

DATA = Path(os.environ.get("TRANSFORMATCHER_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    reasons = {
        "gpu": "no CUDA device" if not torch.cuda.is_available() else "",
        "triton": "" if torch.cuda.is_available() or interpreted else "runs on a GPU and in the interpreted process",
        "data": "no benchmark folders; TRANSFORMATCHER_DATA says where they are" if not DATA.is_dir() else "",
        "slow": "slow; run with --run-slow" if not config.getoption("--run-slow") else "",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def float32_by_default() -> Iterator[None]:
    """Numbers are compared in float32 on every CPU; tests that mean bfloat16 ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "check_bfloat16", lambda: "tests compare numbers in float32")
        yield


class Patches(nn.Module):
    """Images → their own patches as features: what a cell looks like, and nothing that was learned or drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))  # so that the network has a type and a place

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        b, _, h, w = images.shape
        patches = F.unfold(self.gain * images, kernel_size=16, stride=8, padding=4).reshape(b, -1, h // 8, w // 8)
        patches = patches - patches.mean(dim=(2, 3), keepdim=True)  # of the places of one image
        return [torch.cat([patches.relu(), (-patches).relu()], dim=1)]


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    """Small, quick and always the same, and it finds a photo in itself."""
    settings = {"variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96], "temperature": 0.02}
    config = model_config(settings)
    matcher = Matcher(build_matcher(config), config, "cpu")
    matcher.model.backbone = Patches()
    return matcher


@pytest.fixture
def data_root() -> Path:
    return DATA


def write_image(path: Path, size: tuple[int, int] = (60, 80), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


SPAIR_NOTE = {
    "category": "cat",
    "src_imname": "a.jpg",
    "trg_imname": "b.jpg",
    "src_bndbox": [5, 5, 60, 50],
    "trg_bndbox": [10, 10, 50, 55],
    "viewpoint_variation": 0,
    "scale_variation": 1,
    "truncation": 2,
    "occlusion": 0,
    "src_kps": [[10, 10], [20, 30]],
    "trg_kps": [[15, 12], [40, 50]],
}


@pytest.fixture
def spair_root(tmp_path: Path) -> Path:
    """Two pairs of one category."""
    root = tmp_path / "SPair-71k"
    (root / "Layout" / "large").mkdir(parents=True)
    (root / "PairAnnotation" / "val").mkdir(parents=True)
    names = ["000000-a-b:cat", "000001-b-a:cat"]
    (root / "Layout" / "large" / "val.txt").write_text("\n".join(names) + "\n")
    for name in names:
        (root / "PairAnnotation" / "val" / f"{name}.json").write_text(json.dumps(SPAIR_NOTE))
    write_image(root / "JPEGImages" / "cat" / "a.jpg", seed=1)
    write_image(root / "JPEGImages" / "cat" / "b.jpg", seed=2)
    return root


@pytest.fixture
def pascal_root(tmp_path: Path) -> Path:
    """trn: one mirrored pair with keypoints in .mat files; test: one pair whose csv carries its own keypoints."""
    root = tmp_path / "PF-PASCAL"
    for seed, name in enumerate(("a", "b")):
        write_image(root / "JPEGImages" / f"{name}.jpg", seed=seed)
        kps = np.array([[10.0, 20.0], [np.nan, np.nan], [30.0 + seed, 40.0]])
        if name == "b":
            kps = np.vstack([kps[:1], [[5.0, 6.0]], kps[2:]])
        mat = root / "Annotations" / "cat" / f"{name}.mat"
        mat.parent.mkdir(parents=True, exist_ok=True)
        savemat(mat, {"kps": kps, "bbox": np.array([[1.0, 2.0, 41.0, 52.0]])})
    (root / "trn_pairs.csv").write_text("source_image,target_image,class,flip\nJPEGImages/a.jpg,JPEGImages/b.jpg,8,1\n")
    (root / "test_pairs.csv").write_text(
        "source_image,target_image,class,XA,YA,XB,YB\nJPEGImages/a.jpg,JPEGImages/b.jpg,8,1;2,3;4,5;6,7;8\n"
    )
    return root


@pytest.fixture
def willow_root(tmp_path: Path) -> Path:
    """One pair of ten keypoints."""
    root = tmp_path / "PF-WILLOW"
    for seed, name in enumerate(("a", "b")):
        write_image(root / "car(G)" / f"{name}.png", seed=seed)
    numbers = {f"{axis}{side}{i}": str(4 * i + (side == "B")) for axis in "XY" for side in "AB" for i in range(1, 11)}
    row = {"imageA": "car(G)/a.png", "imageB": "car(G)/b.png", **numbers}
    with (root / "test_pairs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    return root


def coco_file(root: Path, **changes: object) -> Path:
    """Four objects in three images: two cats that share keypoints, a third that shares too few, and a lonely dog."""

    def note(number: int, image: int, category: int, flags: str) -> dict[str, object]:
        points = [value for i, v in enumerate(flags) for value in (5 * i + image, 7 * i + 1, int(v))]
        return {
            "id": number, "image_id": image, "category_id": category, "bbox": [1, 2, 30, 40], "keypoints": points,
        }  # fmt: skip

    data = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 80, "height": 60} for i in (1, 2, 3)],
        "categories": [
            {"id": 1, "name": "cat", "keypoints": ["a", "b", "c", "d"]},
            {"id": 2, "name": "dog", "keypoints": ["a", "b"]},
        ],
        "annotations": [note(1, 1, 1, "2222"), note(2, 2, 1, "2221"), note(3, 3, 1, "0002"), note(4, 3, 2, "22")],
    } | changes
    for i in (1, 2, 3):
        write_image(root / "images" / f"{i}.jpg", seed=i)
    path = root / "annotations.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def coco_root(tmp_path: Path) -> Path:
    coco_file(tmp_path / "coco")
    return tmp_path / "coco"
