"""A stand-in for a GPU: tensors on torch's device meta; mixed devices and copies with a wait are refused as well."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("meta")
COPIES = ("aten._to_copy.default", "aten.copy_.default")


class AsOnGpu(TorchDispatchMode):
    """Raises RuntimeError for an operation between both devices, and, unless `may_wait`, for a copy that waits.

    A tensor without dimensions may be in either place. Indexes in this machine's memory are copied with a wait. Not
    found are a list as an index, `torch.tensor` with a device, and copies from memory that is not page-locked.
    """

    def __init__(self, may_wait: bool = False) -> None:
        super().__init__()
        self.may_wait = may_wait

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        places = {one.device.type for one in tensors if one.dim() > 0}
        if str(func) in COPIES:
            target = kwargs.get("device") or args[0].device
            is_free = self.may_wait or kwargs.get("non_blocking") or (len(args) > 2 and args[2])
            source = tensors[-1].device.type
            if {source, torch.device(target).type} == {"cpu", "meta"} and not is_free:
                raise RuntimeError(f"{func} waits for the GPU")
        elif len(places) > 1 and "_pack_padded_sequence" not in str(func):  # its lengths are on the CPU
            raise RuntimeError(f"{func} mixes tensors of both devices")
        return func(*args, **kwargs)
