"""Layers with adapters.

The linear layers of a network that get low-rank adapters, and the number of parameters of the adapters.
"""

import re
from collections.abc import Sequence

from torch import nn

from data_tools.errors import KitError


def adapted_layers(network: nn.Module, ends: Sequence[str] | None) -> dict[str, nn.Linear]:
    """Return a dict from name to layer, for each linear layer of the network that gets an adapter.

    ends: Ends of the names of these layers; None for all linear layers. Raises KitError if no layer has such a name.
    """
    linear = {name: layer for name, layer in network.named_modules() if type(layer) is nn.Linear}
    chosen = {name: one for name, one in linear.items() if ends is None or name.endswith(tuple(ends))}
    if not chosen:
        known = ", ".join(sorted({re.sub(r"^.*\.\d+\.", "", name) for name in linear})) or "none"
        wanted = ", ".join(ends or ["null"])
        raise KitError(
            f"lora.layers {wanted}: no linear layer of the network has such a name; name some of its linear "
            f"layers: {known}"
        )
    return chosen


def count_adapter_parameters(network: nn.Module, rank: int, ends: Sequence[str] | None) -> int:
    """Count the parameters of adapters of rank `rank` for linear layers of the network.

    ends: Ends of the names of the linear layers that get adapters; None for all linear layers.
    """
    return sum(rank * (layer.in_features + layer.out_features) for layer in adapted_layers(network, ends).values())
