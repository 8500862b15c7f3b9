"""Checkpoints of a stage, in its folder.

last.pt            state to resume from: model, optimizer, scaler, step, lines of metrics.jsonl
e0012.safetensors  weights after epoch 12, one of the best by a monitored metric
done.json          exists once the stage is finished: its steps and lines
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from data_tools.errors import KitError
from data_tools.files import replacing
from data_tools.settings import read_shaped
from submission.editions import format_metric
from submission.runs.record import EpochLine, finish_hint
from system.runs.folder import best_epochs

OF_LOSSES = "learned."  # start of the names of the learned parameters of losses


class Progress(BaseModel):
    """How far the training of a stage is.

    Only a field that was assigned is stored, so assign a field to change it.

    Attributes:
        step: Number of finished updates.
        lines: Lines of metrics.jsonl, one per finished epoch.
        sums: Sums of the loss and its diagnostics over the epoch so far.
        counted: Steps in these sums, without skipped ones.
        times: Seconds of the epoch so far, by what took them: data, step, validation, saving.
    """

    step: int = 0
    lines: list[EpochLine] = []
    sums: dict[str, float] = {}
    counted: int = 0
    times: dict[str, float] = {}

    def document(self) -> dict[str, Any]:
        """Return the content of done.json."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.times |= {name: self.times.get(name, 0.0) + time.monotonic() - began}

    def add(self, values: dict[str, float] | None) -> None:
        """Count a step.

        Args:
            values: Its loss and diagnostics; None if fp16 has skipped the update.
        """
        self.step += 1
        if values is not None:
            self.counted += 1
            self.sums = {name: self.sums.get(name, 0.0) + value for name, value in values.items()}

    @property
    def history(self) -> list[dict[str, float]]:
        """The validation metrics of every finished epoch, oldest first."""
        return [line.validation for line in self.lines]

    def kept(self, keep: int) -> set[int]:
        """Return the epochs among the `keep` best by any metric."""
        metrics = self.lines[0].validation if self.lines else ()
        return {epoch for metric in metrics for _, epoch in best_epochs(self.lines, metric)[:keep]}


def weights_file(folder: Path, epoch: int) -> Path:
    """Return the path of the weights after an epoch."""
    return folder / f"e{epoch:04d}.safetensors"


def save(
    folder: Path, progress: Progress, keep: int, ends_epoch: bool, precision: str, model: nn.Module, **parts: Any
) -> None:
    """Save the state to resume from, and the best weights.

    The state is replaced after the weights that it needs are there, and before the others are deleted: a kill at any
    time leaves a state whose best epochs exist.
    """
    kept = progress.kept(keep)
    if ends_epoch and (epoch := progress.lines[-1].epoch) in kept:
        save_weights(model.state_dict(), weights_file(folder, epoch))
    state = {name: part.state_dict() for name, part in {"model": model, **parts}.items()}
    state |= {"precision": precision, "progress": progress.document()}
    with replacing(folder / "last.pt") as temporary, write_errors(folder / "last.pt"):
        torch.save(state, temporary)
    for path in folder.glob("e*.safetensors"):
        if path not in {weights_file(folder, number) for number in kept}:
            path.unlink()


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read the state to resume from, if any."""
    path = folder / "last.pt"
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        state["progress"] = Progress.model_validate(state["progress"])
    except Exception as error:  # torch.load raises many kinds for a damaged file
        raise KitError(f"{path} is damaged ({type(error).__name__}); {_again(folder)}") from error
    return state


def resume(folder: Path, precision: str, model: nn.Module, **parts: Any) -> Progress:
    """Restore what `save` has saved last, if anything."""
    if (state := load_state(folder)) is None:
        return Progress()
    if state["precision"] != precision:
        raise KitError(f"{folder} began in {state['precision']}, but this machine computes in {precision}; use another")
    load_tensors(model, state["model"], folder / "last.pt")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    found: Progress = state["progress"]
    return found


def read_done(folder: Path) -> Progress:
    """Read how a finished stage was trained."""
    path = folder / "done.json"
    if not path.exists():
        raise KitError(f"stage {folder.name} of {folder.parent} is not finished; {finish_hint(folder.parent)}")
    return read_shaped(path, Progress, _again(folder))


def _again(folder: Path) -> str:
    return f"delete {folder} and {folder.parent / 'result.json'}, and run the same command again"


def load_checkpoint(model: nn.Module, folder: Path, which: str) -> str:
    """Load a finished stage's checkpoint; return its description.

    Args:
        which: "last", or a metric, for its best epoch.
    """
    done = read_done(folder)
    if which == "last":
        if (state := load_state(folder)) is None:
            raise KitError(f"no checkpoint {folder / 'last.pt'}; train the run first")
        load_tensors(model, state["model"], folder / "last.pt")
        return f"{folder.name} last"
    known = done.lines[0].validation
    if which not in known:
        raise KitError(f"stage {folder.name} has no checkpoint {which}; use one of {', '.join(['last', *known])}")
    value, epoch = best_epochs(done.lines, which)[0]
    load_weights(model, weights_file(folder, epoch), _again(folder))
    return f"{folder.name} epoch {epoch}, best {which} {format_metric(which, value)}"


def save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write weights.

    Tensors that share memory are written twice, since the format refuses them.
    """
    with replacing(path) as temporary, write_errors(path):
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file({name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}, temporary)
        temporary.chmod(mode)  # the library's own lets no other user read


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise KitError if a library cannot write a file."""
    try:
        yield
    except Exception as error:
        if not any(sign in str(error) for sign in ("(os error ", "inline_container")):  # of safetensors, of torch
            raise
        raise KitError(f"{path}: cannot be written ({error}); free disk space") from error


def load_weights(model: nn.Module, path: Path, hint: str = "train or export the model again") -> None:
    """Load weights from a file into a model.

    Args:
        hint: Cure for a damaged file.
    """
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise KitError(f"{path} is missing or damaged ({error}); {hint}") from error
    load_tensors(model, weights, path)


def load_tensors(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Load weights, read from `path`, into a model.

    Learned numbers of losses may be on one side only. Words that only the model knows keep their start vectors.
    """
    fresh, words = model.state_dict(), "text.words.weight"
    if words in weights and words in fresh and len(weights[words]) < len(fresh[words]):
        weights[words] = torch.cat([weights[words], fresh[words][len(weights[words]) :].cpu()])
    weights = {name: value for name, value in weights.items() if name in fresh or not name.startswith(OF_LOSSES)}
    weights |= {name: value for name, value in fresh.items() if name.startswith(OF_LOSSES) and name not in weights}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise KitError(f"{path} is a checkpoint of another model ({reason}); use its own recipe") from error
