"""Checkpoints of a stage: the last one, which training resumes from, and the best few by each monitored metric.

last.pt            model, optimizer, position, table of the best (loads with weights_only=True)
e0012.safetensors  weights after epoch 12
checkpoints.json   the table of the best, for people and for `rank`
done.json          the stage is finished
"""

import io
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from data_tools.files import replacing
from system.errors import KitError
from system.runs import read_json, write_json
from system.schedule import LOWER_IS_BETTER

# Metric -> the best [value, epoch], best first.
Table = dict[str, list[list[float]]]


def updated(table: Table, values: dict[str, float], epoch: int, keep: int) -> Table:
    """The table with one more epoch; of equal values the earlier epoch stays ahead."""
    return {
        metric: sorted(
            [*table.get(metric, []), [value, epoch]],
            key=lambda entry: (entry[0] if metric in LOWER_IS_BETTER else -entry[0], entry[1]),
        )[:keep]
        for metric, value in values.items()
    }


def kept_epochs(table: Table) -> set[int]:
    return {int(epoch) for entries in table.values() for _, epoch in entries}


def weights_file(folder: Path, epoch: int) -> Path:
    return folder / f"e{epoch:04d}.safetensors"


def save_weights(model: nn.Module, path: Path) -> None:
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(weights))


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights strictly; only a vocabulary may have grown at its end, whose new words keep their first vectors."""
    if not path.is_file():
        raise KitError(f"no checkpoint {path}; train the run first")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise KitError(f"{path} is not a whole safetensors file ({error}); train or export it again") from error
    own = model.state_dict()
    words = "text.words.weight"
    if words in weights and words in own and len(weights[words]) < len(own[words]):
        weights[words] = torch.cat([weights[words], own[words][len(weights[words]) :].cpu()])
    restore(model, weights, path)


def restore(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Put weights that came from `path` into a model of exactly their shape; KitError for another one."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise KitError(
            f"{path} is a checkpoint of another model ({reason}); use the recipe it was trained with"
        ) from error


def save_state(folder: Path, state: dict[str, Any], epoch_weights: nn.Module | None) -> None:
    """Write last.pt (and the weights of this epoch before it), then drop weights that the table names no more."""
    if epoch_weights is not None:
        save_weights(epoch_weights, weights_file(folder, state["epoch"]))
    buffer = io.BytesIO()  # torch.save's own writer turns a full disk into an error without its cause
    torch.save(state, buffer)
    with replacing(folder / "last.pt") as temporary:
        temporary.write_bytes(buffer.getbuffer())
    write_json(folder / "checkpoints.json", state["best"])
    kept = {weights_file(folder, epoch) for epoch in kept_epochs(state["best"])}
    for path in set(folder.glob("e*.safetensors")) - kept:
        path.unlink()


def load_state(folder: Path) -> dict[str, Any] | None:
    """The state to resume from, None before the first save."""
    path = folder / "last.pt"
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for a damaged file
        raise KitError(
            f"{path} is damaged ({type(error).__name__}); delete the folder {folder} to train the stage again"
        ) from error
    return state


def load_checkpoint(model: nn.Module, folder: Path, which: str) -> str:
    """Load a finished stage's checkpoint, "last" or the best by a metric; returns its name for the record."""
    done = folder / "done.json"
    if not done.exists():
        raise KitError(f"stage {folder.name} of {folder.parent} is not finished; train it first")
    if which == "last":
        state = load_state(folder)
        if state is None:
            raise KitError(f"no checkpoint {folder / 'last.pt'}; train the run first")
        restore(model, state["model"], folder / "last.pt")
        return f"{folder.name} last"
    table: Table = read_json(done)["best"]
    if which not in table:
        raise KitError(f"stage {folder.name} did not monitor {which}; it monitored {', '.join(table)}")
    value, epoch = table[which][0]
    load_weights(model, weights_file(folder, int(epoch)))
    return f"{folder.name} epoch {int(epoch)}, best {which} {value:.4f}"
