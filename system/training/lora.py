"""Low-rank adapters.

Train low-rank adapters of published networks by peft, and add them to the weights for checkpoints.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from data_tools.errors import KitError
from system.models.low_rank import adapted_layers
from system.models.retrieval import RetrievalModel
from system.recipe.tuning import Lora

log = logging.getLogger(__name__)

ADAPTER = "kit"  # name of the adapters in peft


def published_networks(model: RetrievalModel) -> dict[str, nn.Module]:
    """Return a dict from encoder, "audio" or "text", to the published network to which adapters can be added."""
    found = {"audio": model.audio.parts().get("network"), "text": getattr(model.text, "trained", None)}
    return {name: network for name, network in found.items() if isinstance(network, nn.Module)}


class Adapters:
    """Low-rank adapters that are added to a model for a stage. `remove` deletes them after the stage."""

    def __init__(self, model: RetrievalModel, settings: Lora, seed: int) -> None:
        """Add adapters to the model's networks, and freeze the networks. seed: Seed of the adapters' start values.

        Raises KitError if the package peft is missing, if an encoder trains no published network, and for unknown
        layers.
        """
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ModuleNotFoundError:
            raise KitError("lora needs the package peft; install it: pip install peft") from None
        networks = published_networks(model)
        if absent := [name for name in settings.networks if name not in networks]:
            raise KitError(
                f"lora.networks {absent[0]}: this encoder trains no published network; remove it from lora.networks"
            )
        self.model, self._chosen = model, settings.layers
        self._frozen = [p for name in settings.networks for p in networks[name].parameters() if p.requires_grad]
        torch.manual_seed(seed)
        for name in settings.networks:
            names = list(adapted_layers(networks[name], settings.layers))
            sizes: dict[str, Any] = {"r": settings.rank, "lora_alpha": settings.alpha}
            config = LoraConfig(**sizes, lora_dropout=settings.dropout, target_modules=_exact_pattern(names))
            inject_adapter_in_model(config, networks[name], ADAPTER)
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        self._unchecked = {_layer_kind(name) for name, _ in self._adapted_layers()}

    def _adapted_layers(self) -> Iterator[tuple[str, Any]]:
        """Yield (name in the model, layer) for every layer with an adapter."""
        from peft.tuners.lora import LoraLayer

        for name, layer in self.model.named_modules():
            if isinstance(layer, LoraLayer):
                yield name, layer

    def merge_adapters(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a state_dict of the model, with the adapters merged into the weights.

        The product of each adapter's two matrices is added to the weights of its layer.
        state: The result of `model.state_dict()`. Its adapters must have the model's current values.
        """
        with torch.no_grad():
            sums = {f"{name}.weight": layer.get_delta_weight(ADAPTER) for name, layer in self._adapted_layers()}
            plain = {name.replace(".base_layer.", "."): one for name, one in state.items() if ".lora_" not in name}
            return {name: one + sums[name].to(one) if name in sums else one for name, one in plain.items()}

    def require_used(self) -> None:
        """Raise KitError or warn, after a backward pass, if the network never calls a kind of adapted layer.

        Some networks read the weights of a layer without calling the layer. Then the adapters have no effect. The
        check is made once per kind. Raises KitError if the recipe names such layers; otherwise logs a warning.
        """
        if not self._unchecked:
            return
        used: dict[tuple[str, str], bool] = {}
        for name, layer in self._adapted_layers():
            weight, kind = layer.lora_B[ADAPTER].weight, _layer_kind(name)
            if kind in self._unchecked and weight.requires_grad:  # not in a part that is frozen in the first steps
                used[kind] = used.get(kind, False) or weight.grad is not None
        self._unchecked -= used.keys()
        unused = sorted(end for (_, end), is_used in used.items() if not is_used)
        if unused:
            others = ", ".join(sorted(end for (_, end), is_used in used.items() if is_used)) or "none"
            problem = (
                f"lora: the network never calls its layers {', '.join(unused)}, so their adapters have no effect; set "
                f"lora.layers to layers that the network calls ({others})"
            )
            if self._chosen:
                raise KitError(problem)
            log.warning("%s", problem)

    def remove(self) -> None:
        """Put back the layers without their adapters, whose changes are discarded, and unfreeze all layers.

        Only the checkpoints of the stage contain the weights with the adapters' changes.
        """
        for name, layer in list(self._adapted_layers()):
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, layer.get_base_layer())
        for parameter in self._frozen:
            parameter.requires_grad_()


def _layer_kind(layer: str) -> tuple[str, str]:
    """Return the kind of a layer: the encoder that contains it, and the last part of its name, such as query."""
    return layer.partition(".")[0], layer.rpartition(".")[2]


def _exact_pattern(names: list[str]) -> str:
    """Return a regular expression that matches only the given names of layers.

    Given a list instead, peft would also choose layers whose names end with one of these names.
    """
    return "|".join(f"(?:{re.escape(name)})" for name in names)
