"""Find points of one photo on another with an exported model: onnxruntime, NumPy and Pillow, no torch.

transformatcher export --out model.onnx
python examples/onnx_match.py model.onnx cat_a.jpg cat_b.jpg 168,115 262,241

The file holds one pass over whole photos, so the numbers are those of
transformatcher match --set coarse_to_fine.passes=1.
"""

import argparse
import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A photo → its pixels (1, h, w, 3), resized to the model's (h, w), and its own (width, height)."""
    with Image.open(path) as file:
        photo = ImageOps.exif_transpose(file).convert("RGB")
    height, width = size
    return np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR))[None], np.array(photo.size)


def match(model: str, source: str, target: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 2) in pixels of the source → points (n, 2) in pixels of the target, and their confidence (n,)."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    size = json.loads(session.get_modelmeta().custom_metadata_map["image_size"])
    (src, src_size), (trg, trg_size) = read(source, size), read(target, size)
    keypoints0 = (2 * points / src_size - 1)[None].astype(np.float32)  # pixels → [-1, 1]
    inputs = {"src": src, "trg": trg, "keypoints0": keypoints0}
    keypoints1, confidence = session.run(["keypoints1", "confidence"], inputs)
    return (keypoints1[0] + 1) / 2 * trg_size, confidence[0]


def point(text: str) -> tuple[float, float]:
    """The text ``x,y`` → two numbers."""
    x, y = map(float, text.split(","))
    return x, y


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Find points of one photo on another with an exported model.")
    parser.add_argument("model", help="made by transformatcher export --out model.onnx")
    parser.add_argument("source", help="the photo that the points are on")
    parser.add_argument("target", help="the photo to find them on")
    parser.add_argument("points", nargs="+", type=point, metavar="X,Y", help="in pixels of the source")
    args = parser.parse_args()
    found = match(args.model, args.source, args.target, np.array(args.points))
    for (x0, y0), (x1, y1), confidence in zip(args.points, *found, strict=True):
        print(f"{x0:g},{y0:g} -> {x1:.1f},{y1:.1f} confidence {confidence:.3f}")
