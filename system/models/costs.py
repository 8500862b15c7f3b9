"""Count operations and memory of a step.

Count the operations and memory of a training step, by running an encoder on torch's tensors without values.

torch is only imported for counting.
"""

import math
from collections.abc import Callable, Hashable, Iterator
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
def unknown_if_it_fails(name: str) -> Iterator[None]:
    """Context manager that turns errors of building the model `name` into UnknownSizeError.

    An error of full memory becomes KitError.
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

    flops: Operations, forward and backward. kept: Bytes stored for the backward pass. widest: Bytes of the largest
    output of a layer.
    """

    flops: float = 0.0
    kept: float = 0.0
    widest: float = 0.0

    def times(self, count: float) -> "Cost":
        """Return the cost of `count` clips or captions, from the cost of one."""
        return Cost(self.flops * count, self.kept * count, self.widest * count)


@contextmanager
def weights_left_out() -> Iterator[None]:
    """Context manager for building networks without initialising their weights, to save time and memory."""
    from torch.overrides import TorchFunctionMode

    from system.compute.device import memory_errors

    class LeaveWeights(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if getattr(function, "__module__", None) == "torch.nn.init":
                return args[0] if args else (kwargs or {})["tensor"]
            return function(*args, **(kwargs or {}))

    with memory_errors("the model", "make it smaller"), LeaveWeights():
        yield


def count_parameters(network: "nn.Module", trainable: bool) -> int:
    """Count the network's trainable parameters, or its frozen parameters if `trainable` is false."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad == trainable)


def count_once(key: Hashable, network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool) -> Cost:
    """Count the cost of a network as `count` does, but only once per process for the same key and input sizes.

    This saves time, since the variants of a study share encoders.
    """
    sizes = tuple(sorted((*p.shape, p.requires_grad) for p in network.parameters()))
    if (key, half, sizes) not in _counted:
        _counted[key, half, sizes] = count(network, run, half)
    return _counted[key, half, sizes]


def count(network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool) -> Cost:
    """Count operations and memory of a forward and a backward pass of a network.

    run: Function that computes the network's output. half: Whether to count for 16-bit training (autocast);
    the operations of the backward pass are then left out.
    No values are computed, unless shapes depend on values, as in packed series. Then the forward pass is computed in
    float32, and the backward pass is assumed to have twice its operations. Weights and their copies in 16 bits are not
    counted, since they are the same for any number of clips.

    Raises UnknownSizeError for a network that cannot be run.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _count(network, run, half, backward=not half)
    except Exception:  # mostly RuntimeError: a shape that depends on values
        for weight in network.parameters():
            weight.data.zero_()  # arbitrary values of uninitialised memory can slow computations down
        with unknown_if_it_fails("the encoder"):
            forward = _count(network, run, half=False, backward=False)
        share = 0.5 if half else 1.0
        return Cost(3 * forward.flops, share * forward.kept, share * forward.widest)


def _count(network: "nn.Module", run: "Callable[[], torch.Tensor]", half: bool, backward: bool) -> Cost:
    """Count operations and memory of a forward pass and, if `backward`, of the backward pass. See count."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook
    from torch.utils.flop_counter import FlopCounterMode

    weights = {tuple(sorted(p.shape)) for p in network.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # references, so that no other storage gets the same key
    widest = 0

    def measure(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Record the bytes of a layer's largest output."""
        nonlocal widest
        if isinstance(output, torch.Tensor):
            widest = max(widest, output.nbytes)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that is stored for the backward pass, unless it is a weight."""
        if tuple(sorted(tensor.shape)) not in weights:
            saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as flops:
        with (
            register_module_forward_hook(measure),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=half),
        ):
            output = run()
        if backward and output.requires_grad:
            output.float().sum().backward()
    return Cost(flops.get_total_flops(), float(sum(storage.nbytes() for storage in saved.values())), widest)


def _convolution_backward_flops(grad: Any, values: Any, weight: Any, *rest: Any, out_shape: Any) -> int:
    """Count the operations of a convolution's backward pass by its shapes.

    torch 2.11 itself counts the gradient of grouped weights as if they had no groups.
    """
    *_, transposed, _, _, wanted = rest
    positions = math.prod((values if transposed else grad)[2:])
    return int(2 * math.prod(weight) * grad[0] * positions * sum(wanted[:2]))
