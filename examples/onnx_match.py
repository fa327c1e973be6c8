"""Find points of one photo on another with an exported model: onnxruntime, numpy and pillow, no torch.

transformatcher export --out model.onnx
python examples/onnx_match.py model.onnx cat_a.jpg cat_b.jpg 168,115 262,241
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str, size: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int]]:
    """A photo → its pixels (1, h, w, 3) at the model's size, and its own (width, height)."""
    with Image.open(path) as file:
        photo = ImageOps.exif_transpose(file).convert("RGB")
    height, width = size
    return np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR))[None], photo.size


def sample(field: np.ndarray, x: float, y: float) -> np.ndarray:
    """A field (h, w, c) at (x, y) in [0, 1]², between its cells; the outer cells lie on the photo's borders."""
    column, row = x * (field.shape[1] - 1), y * (field.shape[0] - 1)
    j, i = min(int(column), field.shape[1] - 2), min(int(row), field.shape[0] - 2)
    right, down = column - j, row - i
    upper = (1 - right) * field[i, j] + right * field[i, j + 1]
    lower = (1 - right) * field[i + 1, j] + right * field[i + 1, j + 1]
    return (1 - down) * upper + down * lower


def main(model: str, source: str, target: str, *points: str) -> None:
    """Print where each point, "x,y" in pixels of the source, lies on the target, and how sure that is."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    size = json.loads(session.get_modelmeta().custom_metadata_map["image_size"])
    (src, src_size), (trg, trg_size) = read(source, size), read(target, size)
    flow, confidence = session.run(["flow", "confidence"], {"src": src, "trg": trg})
    for point in points:
        x, y = (float(number) / side for number, side in zip(point.split(","), src_size, strict=True))
        found = (sample(flow[0], x, y) + 1) / 2 * trg_size
        print(f"{point} -> {found[0]:.1f},{found[1]:.1f} confidence {sample(confidence[0, ..., None], x, y)[0]:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
