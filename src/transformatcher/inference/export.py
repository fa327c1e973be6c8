"""Matcher → one file that runs elsewhere, two images in, flow and confidence out; held to the matcher it came from."""

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from transformatcher import __version__
from transformatcher.coords import norm_to_px
from transformatcher.errors import InputError, require_packages
from transformatcher.files import atomic_write
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD, read_image, resize
from transformatcher.inference.calibration import Calibration
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.readout import TwoWayFlow, read_flow
from transformatcher.models.backbones.resnet import ResNetFeatures
from transformatcher.models.fused.inference import FoldedResNet
from transformatcher.models.transformatcher import TransforMatcher

if TYPE_CHECKING:
    import onnx

Format = Literal["onnx", "torch"]
Precision = Literal["float32", "float16", "int8"]
Runner = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # src, trg → flow, confidence

SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}
INPUTS, OUTPUTS = ("src", "trg"), ("flow", "confidence")
MOST = 2**20  # pairs at once; older versions of torch want to know a limit
LARGE = 1024  # numbers: tensors of fewer are left in float32, whatever the precision
GROUP = 16  # numbers of a filter that share a scale in int8


class ExportWrapper(nn.Module):
    """Pixels of both images → flow and confidence: all that lies between a resized photo and an answer.

    Args:
        model: on the CPU.
        calibration: of its confidence; without, confidence is the sharpness of a match.
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
        self, src: UInt8[Tensor, "b h w 3"], trg: UInt8[Tensor, "b h w 3"]
    ) -> tuple[Float[Tensor, "b hs ws 2"], Float[Tensor, "b hs ws"]]:
        """Where every cell of a grid over the source lands on the target, in [-1, 1]², and how sure that is."""
        pixels = torch.cat([src, trg]).permute(0, 3, 1, 2).float()  # (2b, 3, h, w)
        features = self.model.encode((pixels - self.pixel_mean) / self.pixel_deviation)
        b = src.shape[0]
        refined = self.model.refine([f[:b] for f in features], [f[b:] for f in features])
        cells = read_flow(TwoWayFlow.of(self.model.readout, refined), self.calibration, precision=torch.float32)
        flow = cells.flows.forward.trg_norm
        return flow, cells.confidence.reshape(flow.shape[:3])


# ---------------------------------------------------------------- writing


@dataclass(frozen=True)
class Parity:
    """How far a file's answers for the example photos are from the matcher's own, over all cells of the flow."""

    flow_px: float  # the largest distance, in pixels of the input
    flow_mean_px: float
    confidence: float  # the largest difference
    confidence_mean: float


# Of float32 every cell must agree. A rounded weight may tip the balance between two places that are equally good for a
# cell, and that cell's flow jumps; so with fewer bits the mean is what is held.
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
    """The figures that count, in a sentence's middle."""
    flow = [f"{value:.2g} px of flow {word}" for word, value in
            (("at most", parity.flow_px), ("on average", parity.flow_mean_px)) if np.isfinite(value)]  # fmt: skip
    sure = [f"{value:.2g} of confidence {word}" for word, value in
            (("at most", parity.confidence), ("on average", parity.confidence_mean)) if np.isfinite(value)]  # fmt: skip
    return ", ".join([*flow, *sure])


def export(matcher: Matcher, path: Path, precision: Precision = "float32") -> tuple[Parity, Parity]:
    """Write a matcher as one file, if that computes the same: what differs, and what might.

    Args:
        matcher: on the CPU, at the image size that the file is to take.
        path: .onnx, or .pt2 for :func:`torch.export.load`.
        precision: of the weights in an ONNX file. All of them compute in float32.
    """
    format = format_of(path)
    if format == "torch" and precision != "float32":
        raise InputError(f"precision {precision}: for ONNX files alone; a torch.export file is float32")
    if format == "onnx":
        require_onnx()
    program = traced(matcher)
    allowed = TOLERANCE[precision]
    found: list[Parity] = []

    def write(new: Path) -> None:
        if format == "onnx":
            new.write_bytes(onnx_model(program, matcher, precision).SerializeToString())
        else:
            with new.open("wb") as file:
                torch.export.save(program, file, extra_files={"transformatcher.json": json.dumps(metadata(matcher))})
        found.append(parity(matcher, runner(new, format)))
        if any(value > getattr(allowed, name) for name, value in vars(found[0]).items()):
            raise ParityError(found[0], allowed)

    atomic_write(path, write)
    return found[0], allowed


def format_of(path: Path) -> Format:
    """What a file's name says it is."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the name of an exported model ends in .onnx, or in .pt2 for torch.export")
    return SUFFIXES[path.suffix.lower()]


def require_onnx() -> None:
    """Raise an InputError where a package that ONNX files need is not installed."""
    require_packages("an ONNX file", "onnx", "onnxscript", "onnxruntime", extra="export")


def traced(matcher: Matcher) -> torch.export.ExportedProgram:
    """The whole pipeline as a graph, for any number of pairs of images of the matcher's size."""
    h, w = matcher.config.image_size
    images = torch.zeros(2, 3, h, w, 3, dtype=torch.uint8)  # three pairs: one or two would be taken for fixed
    batch = torch.export.Dim("batch", max=MOST)
    with torch.no_grad(), _quiet():
        pipeline = ExportWrapper(matcher.model, matcher.calibration)
        return torch.export.export(
            pipeline, (images[0], images[1]), dynamic_shapes=({0: batch}, {0: batch}), strict=False
        )


def metadata(matcher: Matcher) -> dict[str, str]:
    """What a file says of itself."""
    h, w = matcher.config.image_size
    return {
        "transformatcher": __version__,
        "image_size": json.dumps([h, w]),
        "input": "src and trg: uint8 RGB pixels (batch, height, width, 3), resized to image_size",
        "output": "flow: x, y on the target in [-1, 1] of every cell of a grid over the source; confidence of each",
        "mean": json.dumps(IMAGENET_MEAN),  # subtracted inside, from pixels / 255
        "std": json.dumps(IMAGENET_STD),
        "calibrated": json.dumps(matcher.calibration is not None),
    }


def onnx_model(
    program: torch.export.ExportedProgram, matcher: Matcher, precision: Precision = "float32"
) -> "onnx.ModelProto":
    """The graph in ONNX, with notes on what it takes."""
    model = translated(program)
    for key, value in (metadata(matcher) | {"precision": precision}).items():
        model.metadata_props.add(key=key, value=value)
    if precision != "float32":
        quantize_weights(model, precision)
    return model


def translated(program: torch.export.ExportedProgram) -> "onnx.ModelProto":
    """The graph in ONNX, of the operator set that torch's exporter writes now."""
    batch = torch.export.Dim("batch", max=MOST)
    with _quiet():
        made = torch.onnx.export(
            program, dynamo=True, input_names=INPUTS, output_names=OUTPUTS, verbose=False,
            dynamic_shapes=({0: batch}, {0: batch}),
        )  # fmt: skip
    assert made is not None
    return made.model_proto


def quantize_weights(model: "onnx.ModelProto", precision: Precision) -> None:
    """Keep large weights as float16, or filters as int8; they are made float32 again when the file is loaded.

    Rounding activations, too, would be faster on some devices, but costs more than a point of PCK.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    filters = {node.input[1] for node in graph.node if node.op_type == "Conv"} if precision == "int8" else set()
    kept, nodes = [], []
    for tensor in graph.initializer:
        name, values = tensor.name, numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < LARGE:
            kept.append(tensor)
        elif name in filters:
            whole, scales = grouped_int8(values)
            parts = {"int8": whole, "scales": scales, "shape": np.array(values.shape)}
            kept += [numpy_helper.from_array(part, f"{name}.{word}") for word, part in parts.items()]
            scaled = f"{name}.scaled"
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}.int8", f"{name}.scales"], [scaled], axis=0))
            nodes.append(helper.make_node("Reshape", [scaled, f"{name}.shape"], [name]))
        else:
            kept.append(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
            nodes.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes += graph.node
    for field, items in (("initializer", kept), ("node", nodes)):
        graph.ClearField(field)
        getattr(graph, field).extend(items)


def grouped_int8(values: Float[np.ndarray, "out in *kernel"]) -> tuple[np.ndarray, Float[np.ndarray, " groups"]]:
    """Filters → whole numbers and the scale of each group of them, ``GROUP`` input channels of one filter."""
    _, channels, *kernel = values.shape
    group = GROUP if channels % GROUP == 0 else channels
    rows = values.reshape(-1, group, *kernel)
    axes = tuple(range(1, rows.ndim))
    scales = np.maximum(abs(rows).max(axis=axes) / 127, 1e-12).astype(np.float32)
    return np.rint(rows / np.expand_dims(scales, axes)).astype(np.int8), scales


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of their own future and of names of axes; what counts is whether the file computes the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------- checking and measuring


def runner(path: Path, format: Format) -> Runner:
    """An exported file → a function."""
    if format == "torch":
        module = torch.export.load(io.BytesIO(path.read_bytes())).module()  # whatever its name ends in

        def run_torch(src: np.ndarray, trg: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with torch.no_grad():
                flow, confidence = module(torch.from_numpy(src), torch.from_numpy(trg))
            return flow.numpy(), confidence.numpy()

        return run_torch
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run_onnx(src: np.ndarray, trg: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flow, confidence = session.run(list(OUTPUTS), {"src": src, "trg": trg})
        return flow, confidence

    return run_onnx


def parity(matcher: Matcher, run: Runner) -> Parity:
    """How far a file's answers are from the matcher's own: the example photos, together and one pair alone."""
    size = matcher.config.image_size
    with as_file(files("transformatcher") / "examples") as folder:
        a, b, c = (resize(read_image(folder / f"cat_{letter}.jpg"), size) for letter in "abc")
    pairs = [(a, b), (a, c), (c, b)]
    wanted = [next(matcher.pairs(src, [trg])) for src, trg in pairs]
    flow, confidence = run(np.stack([src for src, _ in pairs]), np.stack([trg for _, trg in pairs]))
    alone = run(a[None], b[None])
    distances, differences = [], []
    for pair, flow_norm, sure in zip([*wanted, wanted[0]], [*flow, *alone[0]], [*confidence, *alone[1]], strict=True):
        flow_px = norm_to_px(flow_norm.astype(np.float64), size)
        distances.append(np.linalg.norm(flow_px - pair.flow_px, axis=-1))
        differences.append(abs(sure - pair.flow_confidence))
    return Parity(
        flow_px=float(np.max(distances)),
        flow_mean_px=float(np.mean(distances)),
        confidence=float(np.max(differences)),
        confidence_mean=float(np.mean(differences)),
    )
