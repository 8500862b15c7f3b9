"""Read the layers of yamnet.tflite.

Reads the layers of the public yamnet.tflite, for the weight file of the expert `yamnet`.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError
from data_tools.files import require_file
from system.audio.yamnet import layer_shapes

LAYERS = 31  # of the file; the first three are its front-end
PUBLIC_SHA256 = "469be6a3421cbc52cf97e9f2f966cba984198e8e7af9854d68b3e3ebb1e04194"

log = logging.getLogger(__name__)


def read_layers(path: Path) -> dict[str, np.ndarray]:
    """Read the 31 layers of yamnet.tflite; return a dict with weights `NN_w` and biases `NN_b` of each layer NN.

    The arrays are float32, in the order of the graph. 8-bit weights are dequantised, (q - zero point) x scale. Arrays
    have TensorFlow Lite's layout: (out, height, width, in) for convolutions, (1, height, width, channels) for depthwise
    convolutions, and (out, in) for dense layers. The first two layers (the DFT of the front-end) have no bias. Raises
    KitError for a missing or unreadable file, for a model with other layers, and if the package `tflite` is not
    installed.
    """
    try:
        from tflite import Model
    except ModuleNotFoundError as error:
        raise KitError(
            "reading a .tflite file needs the package tflite; install it with: pip install -e '.[tflite]'"
        ) from error

    require_file(path, "give the path of the public yamnet.tflite")
    data = path.read_bytes()
    if not Model.ModelBufferHasIdentifier(data, 0):
        raise KitError(f"{path} is not a TensorFlow Lite model; fetch the public yamnet.tflite again")
    try:
        model = Model.GetRootAsModel(data, 0)
        layers = dict(_weights_and_biases(model, model.Subgraphs(0)))
    except Exception as error:  # a damaged file can raise any error in the reader of its tables
        raise KitError(f"{path} is damaged or truncated; fetch the public yamnet.tflite again") from error
    wrong = [name for name, shape in layer_shapes().items() if name not in layers or layers[name].shape != shape]
    if wrong or len(layers) != 2 * LAYERS - 2:
        raise KitError(f"{path} is not yamnet.tflite (its layers have other shapes); fetch the public yamnet.tflite")
    return layers


def _weights_and_biases(model: Any, graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values of every weight and bias, in the order of the graph."""
    from tflite import BuiltinOperator as Kind

    def operator_type(operator: Any) -> int:
        """Return the number of an operator's type, such as CONV_2D, in TensorFlow Lite."""
        code = model.OperatorCodes(operator.OpcodeIndex())
        return int(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()))  # older files store it in the latter

    operators = [graph.Operators(i) for i in range(graph.OperatorsLength())]
    # Some 8-bit weights reach their layer through an operator that dequantises them.
    sources = {one.Outputs(0): one.Inputs(0) for one in operators if operator_type(one) == Kind.DEQUANTIZE}
    layers = (Kind.CONV_2D, Kind.DEPTHWISE_CONV_2D, Kind.FULLY_CONNECTED)
    with_weights = [one for one in operators if operator_type(one) in layers]
    for number, operator in enumerate(with_weights):
        for i, part in enumerate("wb", start=1):
            index = operator.Inputs(i) if operator.InputsLength() > i else -1
            if index >= 0:
                yield f"{number:02d}_{part}", _read_values(model, graph.Tensors(sources.get(index, index)))


def _read_values(model: Any, tensor: Any) -> np.ndarray:
    """Return the values of a tensor of the file as float32; 8-bit values are dequantised."""
    from tflite import TensorType

    dtype = {TensorType.FLOAT32: np.float32, TensorType.INT8: np.int8}[tensor.Type()]
    values = model.Buffers(tensor.Buffer()).DataAsNumpy().view(dtype).reshape(tensor.ShapeAsNumpy())
    if dtype == np.float32:
        return np.array(values)
    scaling = tensor.Quantization()
    if scaling.ScaleLength() != 1:
        raise ValueError(
            "a layer of the file has one weight scale per channel, but a layer of yamnet.tflite has only one scale; "
            "fetch the public yamnet.tflite"
        )
    return np.array((values.astype(np.float32) - np.float32(scaling.ZeroPoint(0))) * np.float32(scaling.Scale(0)))
