"""Read the layers of the public yamnet.tflite.

`lbar convert` makes the weight file of the network `yamnet` of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError
from data_tools.files import checksum, require_file

PUBLIC_SHA256 = "469be6a3421cbc52cf97e9f2f966cba984198e8e7af9854d68b3e3ebb1e04194"


def read_layers(path: Path) -> dict[str, np.ndarray]:
    """Read the 31 layers of yamnet.tflite.

    8-bit weights are dequantised, (q - zero point) x scale. Arrays have TensorFlow Lite's layout: (out, height, width,
    in) for convolutions, (1, height, width, channels) for depthwise convolutions, and (out, in) for dense layers. The
    first two layers (the DFT of the front-end) have no bias.

    Returns:
        Weights `NN_w` and biases `NN_b` of each layer NN in float32, in the order of the graph.

    Raises:
        KitError: The file is not the public one, or the package `tflite` is not installed.
    """
    require_file(path, "give the path of the public yamnet.tflite")
    if checksum(path) != PUBLIC_SHA256:
        raise KitError(f"{path}: not the public yamnet.tflite; fetch it again (sha256 {PUBLIC_SHA256[:12]}...)")
    try:
        from tflite import Model
    except ModuleNotFoundError as error:
        raise KitError(f"{path}: needs the package tflite; pip install -e '.[tflite]'") from error
    model = Model.GetRootAsModel(path.read_bytes(), 0)
    return dict(_weights_and_biases(model, model.Subgraphs(0)))


def _weights_and_biases(model: Any, graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and values of every weight and bias.

    They come in the order of the graph.
    """
    from tflite import BuiltinOperator as Kind

    operators: dict[Any, list[Any]] = {}
    for operator in (graph.Operators(i) for i in range(graph.OperatorsLength())):
        code = model.OperatorCodes(operator.OpcodeIndex())
        kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # older files store it in the latter
        kind = "layer" if kind in (Kind.CONV_2D, Kind.DEPTHWISE_CONV_2D, Kind.FULLY_CONNECTED) else kind
        operators.setdefault(kind, []).append(operator)
    # Some 8-bit weights reach their layer through an operator that dequantises them.
    sources = {one.Outputs(0): one.Inputs(0) for one in operators[Kind.DEQUANTIZE]}
    for number, layer in enumerate(operators["layer"]):
        for i, part in enumerate("wb"[: layer.InputsLength() - 1], start=1):
            if layer.Inputs(i) >= 0:
                tensor = graph.Tensors(sources.get(layer.Inputs(i), layer.Inputs(i)))
                yield f"{number:02d}_{part}", _read_values(model, tensor)


def _read_values(model: Any, tensor: Any) -> np.ndarray:
    """Return the values of a tensor as float32.

    8-bit values are dequantised.
    """
    from tflite import TensorType

    dtype = {TensorType.FLOAT32: np.float32, TensorType.INT8: np.int8}[tensor.Type()]
    values = model.Buffers(tensor.Buffer()).DataAsNumpy().view(dtype).reshape(tensor.ShapeAsNumpy())
    if dtype == np.float32:
        return np.array(values)
    scaling = tensor.Quantization()
    return np.array((values.astype(np.float32) - np.float32(scaling.ZeroPoint(0))) * np.float32(scaling.Scale(0)))
