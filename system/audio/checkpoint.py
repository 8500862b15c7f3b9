"""Read published checkpoints without running their code."""

import argparse
import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy._core import multiarray
from torch import nn

from data_tools.errors import KitError

INSIDE = ("model", "model_state_dict", "state_dict")  # keys under which training programs put the tensors


def load_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a published file, in float32.

    Args:
        path: A file of PyTorch, safetensors or numpy, or a .zip with one file of PyTorch in it.

    Raises:
        KitError: The file is missing, damaged, or something else.
    """
    try:
        content = _read_content(path)
    except FileNotFoundError:
        raise KitError(f"{path} is missing; fetch it with lbar download RECIPE") from None
    except Exception as error:  # a damaged file can raise anything
        raise KitError(f"{path} is damaged, or no checkpoint of tensors; get it again") from error
    for key in INSIDE:
        content = content[key] if isinstance(content.get(key), dict) else content
    tensors = {key: torch.as_tensor(value) for key, value in content.items() if _is_tensor(value)}
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def _read_content(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(9)[8:] == b"{":  # after the length of the header, which is JSON
            return dict(safetensors.torch.load_file(path))
    if path.suffix == ".npz":
        return dict(np.load(path))
    source: Any = path
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith((".pth", ".pt"))]
            source = io.BytesIO(archive.read(members[0])) if len(members) == 1 else path
    with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_names()):
        warnings.simplefilter("ignore")  # old files cause deprecation warnings
        return dict(torch.load(source, map_location="cpu", weights_only=True))


def _numpy_names() -> list[Any]:
    """Return what the unpickler may use besides tensors.

    These are arrays, with the names of their module in numpy 1 and 2, and parsed arguments.
    """
    makers = [
        (getattr(multiarray, name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("core", "_core")
    ]
    kinds = {type(np.dtype(kind)) for kind in "?bBhilqefd"}  # bool, whole numbers and floats
    return [*makers, np.ndarray, np.dtype, *kinds, argparse.Namespace]


def weights_sha256(module: nn.Module) -> str:
    """Return one sha256 of all weights of a module.

    It covers their names, types, shapes and values.
    """
    weights = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        weights.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        weights.update(np.ascontiguousarray(value.float().cpu().numpy()).data)
    return weights.hexdigest()
