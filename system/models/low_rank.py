"""Layers with adapters.

The linear layers of a network that get low-rank adapters, and the size of these.
"""

import re
from collections.abc import Sequence

from torch import nn

from data_tools.errors import KitError


def adapted_layers(network: nn.Module, ends: Sequence[str] | None) -> dict[str, nn.Linear]:
    """Return the linear layers of a network that get adapters, by their names. Raises KitError without any.

    ends: Ends of their names; None for all linear layers.
    """
    linear = {name: layer for name, layer in network.named_modules() if type(layer) is nn.Linear}
    chosen = {name: one for name, one in linear.items() if ends is None or name.endswith(tuple(ends))}
    if not chosen:
        known = ", ".join(sorted({re.sub(r"^.*\.\d+\.", "", name) for name in linear})) or "none"
        raise KitError(f"lora.layers {', '.join(ends or ['null'])}: no such linear layer; the network has {known}")
    return chosen


def adapter_parameters(network: nn.Module, rank: int, ends: Sequence[str] | None) -> int:
    """Return the number of trained parameters of a network's adapters of a rank. ends: See adapted_layers."""
    return sum(rank * (layer.in_features + layer.out_features) for layer in adapted_layers(network, ends).values())
