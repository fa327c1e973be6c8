"""An exported file and its matcher → how far their results for the example photos differ."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from transformatcher.coords import grid_norm, norm_to_px
from transformatcher.images import read_image, resize
from transformatcher.inference.export_quantize import Precision
from transformatcher.inference.matcher import Matcher

Format = Literal["onnx", "torch"]
INPUTS = ("src", "trg", "keypoints0")
OUTPUTS = ("keypoints1", "confidence", "flow", "flow_confidence")
ExportedModel = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, ...]]  # INPUTS → OUTPUTS

N_POINTS = 7  # along each side of the grid of points that are compared; most lie between the cells of a flow


@dataclass(frozen=True)
class Parity:
    """How far a file's results are from its matcher's, over all cells of the flow and a grid of points."""

    flow_px: float  # the largest distance, in pixels of the input
    flow_mean_px: float
    confidence: float  # the largest difference
    confidence_mean: float


# In float32 every point must agree. A rounded weight may change which of two equally good matches wins, and that point
# jumps; so with fewer bits only the means are limited.
TOLERANCE: dict[Precision, Parity] = {
    "float32": Parity(flow_px=0.1, flow_mean_px=0.01, confidence=0.01, confidence_mean=0.001),
    "float16": Parity(flow_px=np.inf, flow_mean_px=0.2, confidence=np.inf, confidence_mean=0.01),
    "int8": Parity(flow_px=np.inf, flow_mean_px=3.0, confidence=np.inf, confidence_mean=0.05),
}


class ParityError(Exception):
    """An exported file does not compute what its matcher does."""

    def __init__(self, parity: Parity, allowed: Parity) -> None:
        super().__init__(
            f"the exported file differs from the model by {format_parity(parity)}, "
            f"where at most {format_parity(allowed)} is allowed; nothing was written"
        )


def format_parity(parity: Parity) -> str:
    """The finite numbers as part of a sentence: ``0.01 px of flow at most, …``."""
    numbers = (
        (parity.flow_px, "px of flow at most"),
        (parity.flow_mean_px, "px of flow on average"),
        (parity.confidence, "of confidence at most"),
        (parity.confidence_mean, "of confidence on average"),
    )
    return ", ".join(f"{value:.2g} {unit}" for value, unit in numbers if np.isfinite(value))


def load_file(path: Path, format: Format) -> ExportedModel:
    """An exported file → a function from src, trg, keypoints0 to keypoints1, confidence, flow, flow_confidence."""
    if format == "torch":
        module = torch.export.load(io.BytesIO(path.read_bytes())).module()  # by content: the suffix may be another

        def run_torch(*inputs: np.ndarray) -> tuple[np.ndarray, ...]:
            with torch.no_grad():
                return tuple(output.numpy() for output in module(*map(torch.from_numpy, inputs)))

        return run_torch
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run_onnx(*inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(session.run(list(OUTPUTS), dict(zip(INPUTS, inputs, strict=True))))

    return run_onnx


def measure_parity(matcher: Matcher, exported: ExportedModel) -> Parity:
    """Compare a file's results with its matcher's: three pairs of example photos in a batch, and one pair alone."""
    size = matcher.config.image_size
    with as_file(files("transformatcher") / "examples") as folder:
        a, b, c = (resize(read_image(folder / f"cat_{letter}.jpg"), size) for letter in "abc")
    points = grid_norm((N_POINTS, N_POINTS), like=torch.zeros(1)).reshape(1, -1, 2).numpy()
    pairs = [(a, b), (a, c), (c, b)]
    src, trg = (np.stack([pair[side] for pair in pairs]) for side in (0, 1))
    batch, alone = exported(src, trg, points.repeat(len(pairs), axis=0)), exported(a[None], b[None], points)
    distances, differences = [], []
    for (src_pixels, trg_pixels), *results in zip(
        [*pairs, pairs[0]], *([*several, *one] for several, one in zip(batch, alone, strict=True)), strict=True
    ):
        matches = matcher.match(src_pixels, trg_pixels, norm_to_px(points[0].astype(np.float64), size))
        keypoints1, confidence, flow, flow_confidence = (result.astype(np.float64) for result in results)
        for norm, px in ((keypoints1, matches.keypoints1), (flow, matches.flow_px)):
            distances.append(np.linalg.norm(norm_to_px(norm, size) - px, axis=-1).ravel())
        for value, wanted in ((confidence, matches.confidence), (flow_confidence, matches.flow_confidence)):
            differences.append(abs(value - wanted).ravel())
    return Parity(
        flow_px=float(np.concatenate(distances).max()),
        flow_mean_px=float(np.concatenate(distances).mean()),
        confidence=float(np.concatenate(differences).max()),
        confidence_mean=float(np.concatenate(differences).mean()),
    )


def check_parity(matcher: Matcher, exported: ExportedModel, allowed: Parity) -> Parity:
    """:func:`measure_parity`, with a :class:`ParityError` where a difference is larger than allowed."""
    parity = measure_parity(matcher, exported)
    if any(value > getattr(allowed, name) for name, value in vars(parity).items()):
        raise ParityError(parity, allowed)
    return parity
