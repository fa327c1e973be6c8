"""Matcher → one ONNX or torch.export file that finds points of one image on another without this package."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from transformatcher import __version__
from transformatcher.errors import InputError, require_packages
from transformatcher.files import atomic_write
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.inference.calibration import Calibration
from transformatcher.inference.export_parity import INPUTS, OUTPUTS, TOLERANCE, Format, Parity, check_parity, load_file
from transformatcher.inference.export_quantize import Precision, quantize_weights
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.readout import TwoWayFlow, read_flow, read_points
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.fused.inference import FoldedResNet
from transformatcher.models.transformatcher import TransforMatcher

if TYPE_CHECKING:
    import onnx

SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}
MAX_SIZE = 2**20  # of the batch and of the keypoints; older versions of torch want a limit


class ExportWrapper(nn.Module):
    """All that lies between two resized photos and the matches of points, as one module.

    Args:
        model: on the CPU.
        calibration: of its confidence; without one, confidence is the peak of a match.
    """

    pixel_mean: Tensor
    pixel_deviation: Tensor

    def __init__(self, model: TransforMatcher, calibration: Calibration | None) -> None:
        super().__init__()
        self.model = deepcopy(model).eval().requires_grad_(False)
        if isinstance(self.model.backbone, ResNetFeatures):
            self.model.backbone = FoldedResNet(self.model.backbone)
        self.calibration = calibration
        for name, values in (("pixel_mean", IMAGENET_MEAN), ("pixel_deviation", IMAGENET_STD)):
            self.register_buffer(name, 255 * torch.tensor(values)[:, None, None], persistent=False)

    def forward(
        self, src: UInt8[Tensor, "b h w 3"], trg: UInt8[Tensor, "b h w 3"], keypoints0: Float[Tensor, "b n 2"]
    ) -> tuple[Float[Tensor, "b n 2"], Float[Tensor, "b n"], Float[Tensor, "b hf wf 2"], Float[Tensor, "b hf wf"]]:
        """Match points of the source, and every cell of a grid over the source.

        Args:
            src, trg: RGB pixels of both images, resized to the model's image size.
            keypoints0: points (x, y) of the source in [-1, 1]².

        Returns:
            The points on the target in [-1, 1]² and their confidence; the same of every cell of the flow.
        """
        pixels = torch.cat([src, trg]).permute(0, 3, 1, 2).float()  # (2b, 3, h, w)
        features = self.model.encode((pixels - self.pixel_mean) / self.pixel_deviation)
        b = src.shape[0]
        refined = self.model.refine([f[:b] for f in features], [f[b:] for f in features])
        flows = TwoWayFlow.of(self.model.readout, refined)
        points = read_points(flows, keypoints0, self.calibration, transfer=self.model.transfer, precision=torch.float32)
        cells = read_flow(flows, self.calibration, precision=torch.float32)
        flow = flows.forward.trg_norm
        return points.trg_norm, points.confidence, flow, cells.confidence.reshape(flow.shape[:3])


def export(matcher: Matcher, path: Path, precision: Precision = "float32") -> tuple[Parity, Parity]:
    """Write a matcher as one file. A file that does not compute what the matcher does in one pass is not written.

    Args:
        matcher: on the CPU, with the image size that the file is to take.
        path: .onnx, or .pt2 for :func:`torch.export.load`.
        precision: of the weights in an ONNX file. All files compute in float32.

    Returns:
        How far the file's results are from the matcher's, and how far they may be.

    Example:
        >>> parity, allowed = export(Matcher.from_pretrained(device="cpu"), Path("model.onnx"))
    """
    format = check_request(path, precision)
    matcher = _in_one_pass(matcher)
    program = trace(matcher)
    allowed = TOLERANCE[precision]
    found: list[Parity] = []

    def write(new: Path) -> None:
        if format == "onnx":
            new.write_bytes(onnx_model(program, matcher, precision).SerializeToString())
        else:
            buffer = BytesIO()  # in a file, torch ends the process where the disk is full
            torch.export.save(program, buffer, extra_files={"transformatcher.json": json.dumps(metadata(matcher))})
            new.write_bytes(buffer.getbuffer())
        found.append(check_parity(matcher, load_file(new, format), allowed))

    atomic_write(path, write)
    return found[0], allowed


def _in_one_pass(matcher: Matcher) -> Matcher:
    """The same model for whole photos alone: a graph has no crops that depend on what the first pass found."""
    config = replace(matcher.config, coarse_to_fine=replace(matcher.config.coarse_to_fine, passes=1))
    return Matcher(matcher.model, config, str(matcher.device), matcher.calibration, precision="float32")


def format_of(path: Path) -> Format:
    """The format that a file's suffix stands for."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the name of an exported model ends in .onnx, or in .pt2 for torch.export")
    return SUFFIXES[path.suffix.lower()]


def check_request(path: Path, precision: Precision) -> Format:
    """The format of the file to be written; InputError if it, or the packages it needs, cannot be had."""
    if path.is_dir():
        raise InputError(f"{path}: a folder; name the file itself")
    format = format_of(path)
    if format == "torch" and precision != "float32":
        raise InputError(f"precision {precision}: only for ONNX files; a torch.export file is float32")
    if format == "onnx":
        require_packages("an ONNX file", "onnx", "onnxscript", "onnxruntime", extra="export")
    return format


def _dynamic_shapes() -> tuple[dict[int, torch.export.Dim], ...]:
    batch, keypoints = (torch.export.Dim(name, max=MAX_SIZE) for name in ("batch", "keypoints"))
    return {0: batch}, {0: batch}, {0: batch, 1: keypoints}


def trace(matcher: Matcher) -> torch.export.ExportedProgram:
    """:class:`ExportWrapper` as a graph, for any number of pairs and points and one image size."""
    h, w = matcher.config.image_size
    # Three pairs and five points: torch takes one for a constant, and equal numbers for the same number.
    images, points = torch.zeros(2, 3, h, w, 3, dtype=torch.uint8), torch.zeros(3, 5, 2)
    with torch.no_grad(), _no_warnings():
        wrapper = ExportWrapper(matcher.model, matcher.calibration.one_pass)
        return torch.export.export(
            wrapper, (images[0], images[1], points), dynamic_shapes=_dynamic_shapes(), strict=False
        )


def metadata(matcher: Matcher) -> dict[str, str]:
    """What is stored in the file beside the graph."""
    h, w = matcher.config.image_size
    return {
        "transformatcher": __version__,
        "image_size": json.dumps([h, w]),
        "input": (
            "src, trg: uint8 RGB pixels (batch, height, width, 3), resized to image_size; "
            "keypoints0: points x, y of src in [-1, 1], at least one"
        ),
        "output": (
            "keypoints1: the points on trg, x, y in [-1, 1], and their confidence; "
            "flow: x, y on trg in [-1, 1] of every cell of a grid over src, and flow_confidence"
        ),
        "mean": json.dumps(IMAGENET_MEAN),  # subtracted inside the graph, from pixels / 255
        "std": json.dumps(IMAGENET_STD),
        "calibrated": json.dumps(matcher.calibration.one_pass is not None),
    }


def onnx_model(
    program: torch.export.ExportedProgram, matcher: Matcher, precision: Precision = "float32"
) -> "onnx.ModelProto":
    """The graph in ONNX with its metadata, its weights in the precision asked for."""
    model = to_onnx(program)
    for key, value in (metadata(matcher) | {"precision": precision}).items():
        model.metadata_props.add(key=key, value=value)
    if precision != "float32":
        quantize_weights(model, precision)
    return model


def to_onnx(program: torch.export.ExportedProgram) -> "onnx.ModelProto":
    """The graph in ONNX, of the operator set that torch's exporter writes by default."""
    with _no_warnings():
        made = torch.onnx.export(
            program, dynamo=True, input_names=INPUTS, output_names=OUTPUTS, verbose=False,
            dynamic_shapes=_dynamic_shapes(),
        )  # fmt: skip
    assert made is not None
    return made.model_proto


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Exporters warn of their own future and of names of axes. What counts is whether the file computes the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
