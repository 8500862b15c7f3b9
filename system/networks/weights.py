"""Read published checkpoints.

Reads published PyTorch checkpoints safely, checks every key, and folds batch norms into convolutions.

Imports torch, so experts only import this module inside `load`.
"""

import argparse
import hashlib
import io
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from data_tools.errors import KitError

_WRONG_FILE = "the file is not the published checkpoint; fetch it again"


class Weights:
    """Tensors of a checkpoint by their published keys."""

    def __init__(self, path: Path, tensors: Mapping[str, Any]) -> None:
        """Store the tensors of a checkpoint. path: Its file, for error messages."""
        self.path, self.tensors = path, tensors

    def checked_tensor(self, key: str, *shape: int) -> torch.Tensor:
        """Return the tensor of a key as float32. Raises KitError if it is missing, damaged, or has another shape.

        shape: The required shape. A tensor with infinite or NaN values is refused, and one that is not dense or not of
        floating-point numbers.
        """
        value = self.tensors.get(key)
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        if not isinstance(value, torch.Tensor):
            raise KitError(f"{self.path} has no tensor {key}: {_WRONG_FILE}")
        if value.layout != torch.strided or value.is_meta or not value.is_floating_point():
            raise KitError(f"{self.path}: {key} is not a dense tensor of floating-point numbers: {_WRONG_FILE}")
        if tuple(value.shape) != shape:
            raise KitError(f"{self.path}: {key} has shape {tuple(value.shape)}, not {shape}: {_WRONG_FILE}")
        if not value.isfinite().all():
            raise KitError(f"{self.path}: {key} has infinite or NaN values: {_WRONG_FILE}")
        return value.float()

    def section(self, key: str) -> "Weights":
        """Return the dict that the checkpoint stores under a key, as Weights. Raises KitError if the key is missing."""
        tensors = self.tensors.get(key)
        if not isinstance(tensors, Mapping):
            raise KitError(f"{self.path} has no tensors{_under_key(key)}: {_WRONG_FILE}")
        return Weights(self.path, tensors)

    def convolution(
        self, key: str, inputs: int, outputs: int, size: int = 3, stride: int = 1, bias: bool = False
    ) -> nn.Conv2d:
        """Build a convolution with the checkpoint's tensors whose keys begin with `key`.

        With `stride` 1 the output has the size of the input.
        """
        layer: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, inputs, outputs, size, stride, size // 2, bias=bias).eval()
        layer.weight = nn.Parameter(
            self.checked_tensor(f"{key}.weight", outputs, inputs, size, size), requires_grad=False
        )
        if bias:
            layer.bias = nn.Parameter(self.checked_tensor(f"{key}.bias", outputs), requires_grad=False)
        return layer

    def batch_norm_scale_and_shift(self, key: str, channels: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale and the shift, each (channels,), of a batch norm that is applied before a convolution.

        key: Key of the batch norm in the checkpoint. eps: Constant that is added to the variance.
        Such a batch norm cannot be folded into the convolution, because the convolution adds zeros around the output of
        the batch norm.
        """
        parts = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, variance = (self.checked_tensor(f"{key}.{part}", channels) for part in parts)
        scale = weight / (variance + eps).sqrt()
        return scale, bias - mean * scale

    def batch_norm(self, key: str, channels: int, eps: float) -> nn.BatchNorm2d:
        """Build a batch norm with the checkpoint's tensors whose keys begin with `key`, for evaluation."""
        layer = nn.BatchNorm2d(channels, eps).eval().requires_grad_(False)
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(layer, name).copy_(self.checked_tensor(f"{key}.{name}", channels))
        return layer

    def fold_batch_norm(self, convolution: nn.Conv2d, norm: str, eps: float) -> nn.Conv2d:
        """Fold the batch norm with the key `norm` into the convolution before it, and return the convolution.

        The result is exact to float rounding.
        """
        return fuse_conv_bn_eval(convolution, self.batch_norm(norm, convolution.out_channels, eps))

    def linear(self, key: str, inputs: int, outputs: int) -> nn.Linear:
        """Build a linear layer with the checkpoint's tensors whose keys begin with `key`."""
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
        layer.weight = nn.Parameter(self.checked_tensor(f"{key}.weight", outputs, inputs), requires_grad=False)
        layer.bias = nn.Parameter(self.checked_tensor(f"{key}.bias", outputs), requires_grad=False)
        return layer


def read_weights(path: Path, inside: str | None = None) -> Weights:
    """Read the tensors of a checkpoint. inside: Key whose tensors are read; None for all tensors.

    The file is one of PyTorch, a .safetensors, or a .zip with one file of PyTorch in it. No code of the file is
    executed: it may contain tensors, numpy arrays, plain values, and the arguments of a command (argparse). Raises
    KitError for any other file, and for a damaged or truncated one.
    """
    try:
        content = _read_content(path)
    except FileNotFoundError:
        raise KitError(
            f"the weight file {path} is missing; correct the path, or fetch it with lbar download RECIPE"
        ) from None
    except Exception as error:  # a damaged file can make the unpickler raise any error
        raise KitError(f"{path} is damaged, truncated, or not a checkpoint of tensors; fetch it again") from error
    if not isinstance(content, Mapping):
        raise KitError(f"{path} has no tensors{_under_key(inside)}: {_WRONG_FILE}")
    return Weights(path, content).section(inside) if inside else Weights(path, content)


def _read_content(path: Path) -> Any:
    """Read a checkpoint of safetensors or PyTorch; the format is detected from its bytes, not from the file name."""
    with path.open("rb") as file:
        if file.read(9)[8:] == b"{":  # after the length of the header, which is JSON
            return safetensors.torch.load_file(path)
    with warnings.catch_warnings(), torch.serialization.safe_globals([*_numpy_globals(), argparse.Namespace]):
        warnings.simplefilter("ignore")  # old files cause deprecation warnings
        return torch.load(_unzip_checkpoint(path) or path, map_location="cpu", weights_only=True)


def _unzip_checkpoint(path: Path) -> io.BytesIO | None:
    """Return the bytes of the only .pth or .pt file in a .zip; None if it is no .zip or has none or several."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith((".pth", ".pt"))]
        return io.BytesIO(archive.read(members[0])) if len(members) == 1 else None


def _under_key(key: str | None) -> str:
    """Return " under the key KEY" for an error message; "" if there is no key."""
    return f" under the key {key}" if key else ""


def _numpy_globals() -> list[Any]:
    """Return the numpy classes and functions that the unpickler may use, with their names in numpy 1 and 2."""
    from numpy._core import multiarray

    makers = [
        (getattr(multiarray, name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("core", "_core")
    ]
    kinds = [type(np.dtype(kind)) for kind in ("?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8")]
    return [*makers, np.ndarray, np.dtype, *kinds]


def weights_sha256(module: nn.Module) -> str:
    """Return one sha256 of the names, types, shapes and values of all weights of a module."""
    weights = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        weights.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        weights.update(np.ascontiguousarray(value.float().cpu().numpy()).data)
    return weights.hexdigest()
