"""PF-PASCAL and VOC-Keypoints → a COCO-keypoint file of photos that the model in the package was not trained on.

Usage: python docs/make/unseen_photos.py DATA OUT. DATA holds both folders. They are the photos of PF-PASCAL's lists val
and test that are neither in its training list nor in VOC-Keypoints, with the one object that PF-PASCAL annotates. OUT
gets annotations.json and images/.
"""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from transformatcher.data.benchmarks import load_benchmark
from transformatcher.data.coco_keypoints import load_coco
from transformatcher.data.mat import read_mat
from transformatcher.images import image_size


def main(data: Path, out: Path) -> None:
    """Write OUT and print the number of photos of each category."""
    pascal, voc = data / "PF-PASCAL", load_coco(data / "VOC-Keypoints")
    trained = {image.stem for image in _images(pascal, "trn")} | {item.image.stem for item in voc}
    unseen = _images(pascal, "val") | _images(pascal, "test")
    # PF-PASCAL numbers its keypoints, in the order of VOC-Keypoints: on photos that both have, they lie at one place.
    names = {item.category: item.kp_names for item in voc}
    (out / "images").mkdir(parents=True, exist_ok=True)
    images, notes = [], []
    categories = [{"id": i, "name": name, "keypoints": names[name]} for i, name in enumerate(sorted(names), 1)]
    for category in categories:
        for image in sorted(i for i, found in unseen.items() if found == category["name"] and i.stem not in trained):
            file = pascal / "Annotations" / str(category["name"]) / f"{image.stem}.mat"
            if not file.is_file():  # of a few photos the list has the keypoints of pairs alone
                continue
            mat = read_mat(file)
            triples = [[x, y, 2] if np.isfinite([x, y]).all() else [0, 0, 0] for x, y in mat["kps"].tolist()]
            x0, y0, x1, y1 = mat["bbox"].reshape(-1).tolist()
            h, w = image_size(image)
            shutil.copyfile(image, out / "images" / image.name)
            images.append({"id": len(images) + 1, "file_name": image.name, "width": w, "height": h})
            notes.append({
                "id": len(notes) + 1, "image_id": len(images), "category_id": category["id"],
                "bbox": [x0, y0, x1 - x0, y1 - y0], "keypoints": [value for triple in triples for value in triple],
            })  # fmt: skip
    content = {"images": images, "annotations": notes, "categories": categories}
    (out / "annotations.json").write_text(json.dumps(content), encoding="utf-8")
    counts = Counter(note["category_id"] for note in notes)
    print({category["name"]: counts[category["id"]] for category in categories})


def _images(pascal: Path, split: str) -> dict[Path, str]:
    """The photos of a list of pairs, with their categories."""
    pairs = load_benchmark("pfpascal", pascal, split)
    return {Path(str(image)): pair.category for pair in pairs for image in (pair.src_image, pair.trg_image)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
