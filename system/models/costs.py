"""Count operations and memory of a step.

They are counted by running an encoder on fake tensors, which have shapes but no values.

torch is only imported for counting.
"""

import math
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_tools.errors import KitError, first_line

if TYPE_CHECKING:
    import torch
    from torch import nn

_counted: dict[Hashable, "Cost"] = {}

TOKENS = 16  # of a caption: the mean is 15.3 in Clotho, 12.0 in AudioCaps; padding of sorted chunks adds one in 25


class UnknownSizeError(KitError):
    """A model cannot be counted, or its configuration is not on this machine."""


@contextmanager
def raise_unknown_size(name: str) -> Iterator[None]:
    """Context manager that turns errors of building the model `name` into UnknownSizeError.

    If the memory is full, the error becomes a KitError.
    """
    from system.compute.device import memory_errors

    try:
        with memory_errors("the model", "make it smaller"):
            yield
    except KitError:
        raise
    except Exception as error:  # a configuration of another form makes the library raise many kinds
        raise UnknownSizeError(f"the size of {name} cannot be computed: {first_line(error)}") from error


@dataclass(frozen=True)
class Cost:
    """The cost of a training step of an encoder, for one clip or caption.

    flops: Operations of the forward and the backward pass. kept: Bytes stored for the backward pass. peak: Highest
    number of bytes of values and gradients in memory at the same time, without weights and gradients of weights.
    """

    flops: float = 0.0
    kept: float = 0.0
    peak: float = 0.0

    def times(self, count: float) -> "Cost":
        """Return the cost of `count` clips or captions: this cost times `count`."""
        return Cost(self.flops * count, self.kept * count, self.peak * count)


@contextmanager
def skip_weight_init() -> Iterator[None]:
    """Context manager for building networks without initialising their weights, to save time and memory."""
    from torch.overrides import TorchFunctionMode

    from system.compute.device import memory_errors

    class LeaveWeights(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            """Skip functions of torch.nn.init, and call all other functions of torch."""
            if getattr(function, "__module__", None) == "torch.nn.init":
                return args[0] if args else (kwargs or {})["tensor"]
            return function(*args, **(kwargs or {}))

    with memory_errors("the model", "make it smaller"), LeaveWeights():
        yield


def count_parameters(network: "nn.Module", trainable: bool) -> int:
    """Count the network's trainable parameters, or its frozen parameters if `trainable` is false."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad == trainable)


def measure_cost_once(key: Hashable, network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool) -> Cost:
    """Return the cost of training a network, stored for later calls. run: Calls the network. half: 16-bit training.

    A second call with the same `key`, the same `half` and the same shapes of weights returns the stored cost. This
    saves time, since the variants of a study share encoders.
    """
    sizes = tuple(sorted((*p.shape, p.requires_grad) for p in network.parameters()))
    if (key, half, sizes) not in _counted:
        _counted[key, half, sizes] = measure_cost(network, run, half)
    return _counted[key, half, sizes]


def measure_cost(network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool) -> Cost:
    """Return the operations and memory of a network's forward and backward pass. run: Calls the network.

    half: Use 16-bit autocast.

    Usually no values are computed. If shapes depend on values, as in packed series, the forward pass is computed in
    float32. The backward pass is then assumed to have twice the operations of the forward pass, and a fifth more
    memory. Weights and their copies in 16 bits are not counted, since they are the same for any number of clips.

    Raises UnknownSizeError for a network that cannot be run.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _measure_cost(network, run, half, backward=True)
    except Exception:  # mostly RuntimeError: a shape that depends on values
        for weight in network.parameters():
            weight.data.zero_()  # arbitrary values of uninitialised memory can slow computations down
        with raise_unknown_size("the encoder"):
            forward = _measure_cost(network, run, half=False, backward=False)
        share = 0.5 if half else 1.0
        return Cost(3 * forward.flops, share * forward.kept, 1.2 * share * forward.kept)


def _measure_cost(network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool, backward: bool) -> Cost:
    """Return the operations and memory of a forward pass and, if `backward`, of the backward pass. half: 16 bits."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    weights = {tuple(sorted(p.shape)) for p in network.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # references, so that no other storage gets the same key

    def record_saved(tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that torch stores for the backward pass, unless it is a weight; return the tensor."""
        if tuple(sorted(tensor.shape)) not in weights:
            saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as flops, live_bytes(weights) as live:
        with (
            torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=half),
        ):
            output = run()
        kept = float(sum(storage.nbytes() for storage in saved.values()))
        saved.clear()
        if backward and output.requires_grad:
            output.float().sum().backward()
    for weight in network.parameters():
        weight.grad = None
    return Cost(flops.get_total_flops(), kept, max(kept, live.peak))


@contextmanager
def live_bytes(left_out: Collection[tuple[int, ...]]) -> "Iterator[Any]":
    """Context manager that counts the bytes of tensors made inside it, except tensors with a shape in `left_out`.

    A tensor counts until it is freed. left_out: Sorted shapes of weights, their copies and gradients. Yields: An object
    whose attribute `peak` is the highest number of bytes so far.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Live(TorchDispatchMode):
        bytes_now = peak = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Run an operation of torch, and count the bytes of its results."""
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if hasattr(tensor, "untyped_storage") and tuple(sorted(tensor.shape)) not in left_out:
                    self.add(tensor.untyped_storage())
            return result

        def add(self, storage: Any) -> None:
            """Add the bytes of a tensor's storage to `bytes_now` until the storage is freed."""
            if (key := storage._cdata) not in sizes:
                sizes[key] = storage.nbytes()
                self.bytes_now += sizes[key]
                self.peak = max(self.peak, self.bytes_now)
                weakref.finalize(storage, self.free, key)

        def free(self, key: int) -> None:
            """Subtract the bytes of a freed storage from `bytes_now`. key: Key of the storage in `sizes`."""
            self.bytes_now -= sizes.pop(key, 0)

    sizes: dict[int, int] = {}
    with Live() as live:  # type: ignore[no-untyped-call]
        yield live


def _convolution_backward_flops(grad: Any, values: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    """Return the number of operations of a convolution's backward pass, computed from its shapes.

    torch 2.11 ignores the groups when it counts the gradient of a grouped convolution's weights.
    """
    *_, transposed, _, _, wanted = rest
    positions = math.prod((values if transposed else grad)[2:])
    return int(2 * math.prod(weight) * grad[0] * positions * sum(wanted[:2]))
