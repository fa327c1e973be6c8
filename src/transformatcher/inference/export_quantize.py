"""ONNX graph with float32 weights → the same graph with smaller weights, which computes in float32 all the same."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    import onnx

Precision = Literal["float32", "float16", "int8"]

MIN_NUMBERS = 1024  # smaller tensors stay float32, whatever the precision
GROUP = 16  # input channels of a filter that share a scale in int8


def quantize_weights(model: "onnx.ModelProto", precision: Precision) -> None:
    """Store large weights as float16, or filters as int8; nodes in the graph turn them into float32 again.

    Activations stay float32: rounding them, too, would be faster on some devices, but costs more than a point of PCK.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    filters = {node.input[1] for node in graph.node if node.op_type == "Conv"} if precision == "int8" else set()
    tensors, nodes = [], []
    for tensor in graph.initializer:
        name, values = tensor.name, numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < MIN_NUMBERS:
            tensors.append(tensor)
        elif name in filters:
            whole, scales = grouped_int8(values)
            parts = {"int8": whole, "scales": scales, "shape": np.array(values.shape)}
            tensors += [numpy_helper.from_array(part, f"{name}.{suffix}") for suffix, part in parts.items()]
            scaled = f"{name}.scaled"
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}.int8", f"{name}.scales"], [scaled], axis=0))
            nodes.append(helper.make_node("Reshape", [scaled, f"{name}.shape"], [name]))
        else:
            tensors.append(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
            nodes.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes += graph.node
    for field, items in (("initializer", tensors), ("node", nodes)):
        graph.ClearField(field)
        getattr(graph, field).extend(items)


def grouped_int8(values: Float[np.ndarray, "out in *kernel"]) -> tuple[np.ndarray, Float[np.ndarray, " groups"]]:
    """Filters → whole numbers in [-127, 127] and the scale of each group of ``GROUP`` input channels of one filter."""
    _, channels, *kernel = values.shape
    group = GROUP if channels % GROUP == 0 else channels
    rows = values.reshape(-1, group, *kernel)
    axes = tuple(range(1, rows.ndim))
    scales = np.maximum(abs(rows).max(axis=axes) / 127, 1e-12).astype(np.float32)
    return np.rint(rows / np.expand_dims(scales, axes)).astype(np.int8), scales
