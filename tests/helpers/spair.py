"""A small SPair-71k in its own layout: all categories, every key of its annotations, every level of difficulty."""

import json
from pathlib import Path

from PIL import Image

from transformatcher.data.spair import TWINS
from transformatcher.data.synthetic import synthetic_pair

CATEGORIES = tuple(TWINS)
SIZE = (48, 64)  # (h, w)
POSES = ("Frontal", "Left", "Rear", "Right", "Unspecified")
N_POINTS = 6


def write_spair(root: Path, splits: tuple[str, ...] = ("trn", "val", "test")) -> Path:
    """One pair of each category in each split, related by a known homography."""
    for number, split in enumerate(splits):
        names = []
        for index, category in enumerate(CATEGORIES):
            names.append(_write_pair(root, split, category, 100 * number + index))
        for layout in ("large", "small"):
            path = root / "Layout" / layout / f"{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(names) + "\n")
    return root


def _write_pair(root: Path, split: str, category: str, seed: int) -> str:
    pair, _ = synthetic_pair(seed, size=SIZE, n_points=N_POINTS)
    h, w = SIZE
    stems = [f"2008_{seed:05d}{side}" for side in "12"]
    ids = [str(number) for number in range(N_POINTS)]
    box = [1, 1, w - 1, h - 1]
    sides = ((stems[0], pair.src_image, pair.src_kps_px), (stems[1], pair.trg_image, pair.trg_kps_px))
    for stem, pixels, kps in sides:
        image = root / "JPEGImages" / category / f"{stem}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(image, quality=95)
        note = {
            "filename": f"{stem}.jpg", "src_database": "PASCAL VOC 2012", "src_annotation": "PASCAL VOC 2012",
            "src_image": "flickr", "image_width": w, "image_height": h, "image_depth": 3, "category": category,
            "pose": POSES[seed % 5], "truncated": seed % 2, "occluded": seed % 2, "difficult": 0, "bndbox": box,
            "kps": {str(i): kps[i].round().astype(int).tolist() if i < N_POINTS else None for i in range(30)},
            "azimuth_id": seed % 8,
        }  # fmt: skip
        path = root / "ImageAnnotation" / category / f"{stem}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(note))
    name = f"{seed:06d}-{stems[0]}-{stems[1]}:{category}"
    level = seed % 3
    note = {
        "filename": name, "src_imname": f"{stems[0]}.jpg", "trg_imname": f"{stems[1]}.jpg", "src_imsize": [w, h, 3],
        "trg_imsize": [w, h, 3], "src_bndbox": box, "trg_bndbox": box, "category": category,
        "src_pose": POSES[seed % 5], "trg_pose": POSES[(seed + 1) % 5], "viewpoint_variation": level,
        "scale_variation": (level + 1) % 3, "truncation": (level + 2) % 3, "occlusion": level, "pair_id": seed,
        "mirror": 0, "src_kps": pair.src_kps_px.round(2).tolist(), "trg_kps": pair.trg_kps_px.round(2).tolist(),
        "kps_ids": ids,
    }  # fmt: skip
    path = root / "PairAnnotation" / split / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(note))
    return name


def tiny_options(data: Path, **settings: object) -> list[str]:
    """Options that make a recipe quick: a smaller network and input, few pairs in a batch."""
    chosen = {
        "data.root": data, "train.backbone_weights": data / "resnet50.safetensors", "model.backbone": "resnet50",
        "model.stages": "[2]", "model.image_size": 48, "model.sampler": "bilinear", "model.match2match.depth": 1,
        "train.batch_size": 6, "train.epochs": 3, "train.lr": 3e-3, "train.warmup_steps": 0, "data.workers": 0,
        "data.threads": 1, "data.cache_size": 48, **settings,
    }  # fmt: skip
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
