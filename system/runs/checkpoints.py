"""Checkpoints of a stage.

They are the last state, to resume training, and the weights of the best epochs by each monitored metric.

last.pt            state of training: model, optimizer, step, table of the best epochs (loads with weights_only=True).
                   It is a zip archive, whose own checksums are verified when it is read.
e0012.safetensors  weights after epoch 12
checkpoints.json   table of the best epochs, for people
done.json          exists once the stage is finished: table of the best epochs, and checksums of the stage's files
"""

import hashlib
import json
import math
import os
import re
import zipfile
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from data_tools.errors import KitError
from data_tools.files import checksum, replacing, require_unharmed, write_text
from data_tools.settings import read_shaped
from submission.editions import format_metric
from submission.runs.reading import finish_hint
from submission.runs.record import Checksums, EpochLine
from system.recipe.schema import LOWER_IS_BETTER
from system.runs.folder import Run

OF_LOSSES = "learned."  # start of the names of the learned parameters of losses

# Metric -> the best [value, epoch], best first.
BestEpochs = dict[str, list[list[float]]]


def _checked_value_and_epoch(pair: list[float]) -> list[float]:
    """Return `pair`, or raise ValueError unless it is a finite value of a metric and the number of an epoch."""
    if len(pair) != 2 or not all(map(math.isfinite, pair)) or pair[1] < 1 or pair[1] != int(pair[1]):
        raise ValueError("each best epoch must be a pair: a finite metric and an epoch number from 1")
    return pair


class Done(BaseModel):
    """Content of done.json. sha256: Checksums by file name. lines: The stage's lines of metrics.jsonl."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    epochs: int
    steps: int
    best: dict[str, list[Annotated[list[float], AfterValidator(_checked_value_and_epoch)]]]
    sha256: Checksums = {}
    lines: list[EpochLine]


def add_epoch(table: BestEpochs, values: dict[str, float], epoch: int, keep: int) -> BestEpochs:
    """Return the table of the best epochs with an epoch added: for each metric, the `keep` best values and epochs.

    values: Dict from metric to its value in this epoch. If two values are equal, the earlier epoch is first. Values
    that are not finite are never added.
    """
    return {
        metric: sorted(
            [*table.get(metric, []), *([[value, epoch]] if math.isfinite(value) else [])],
            key=lambda entry: (entry[0] if metric in LOWER_IS_BETTER else -entry[0], entry[1]),
        )[:keep]
        for metric, value in values.items()
    }


def best_epoch_numbers(table: BestEpochs) -> set[int]:
    """Return the numbers of all epochs in the table of the best epochs. Their weights are kept on disk."""
    return {int(epoch) for entries in table.values() for _, epoch in entries}


def weights_file(folder: Path, epoch: int) -> Path:
    """Return the path of the file with the weights after an epoch, such as e0012.safetensors."""
    return folder / f"e{epoch:04d}.safetensors"


def require_finite(weights: Mapping[str, Any], model_or_file: str, hint: str) -> None:
    """Raise KitError if any weight is infinite or NaN. model_or_file, hint: Subject and cure in the message."""
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
            raise KitError(f"{model_or_file} has weights that are infinite or NaN, first {name}; {hint}")


def save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> str:
    """Write a model's weights to a file atomically. Returns: The file's sha256."""
    on_host = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    storages: set[int] = set()
    for name, value in on_host.items():  # the format refuses tensors that share memory
        if (storage := value.untyped_storage().data_ptr()) in storages:
            on_host[name] = value.clone()
        storages.add(storage)
    with replacing(path) as temporary, as_os_errors(path):
        save_file(on_host, temporary)
        return checksum(temporary)


@contextmanager
def as_os_errors(folder: Path) -> Iterator[None]:
    """Context manager that converts errors of safetensors and tokenizers in writing a file or folder to OSError."""
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error ([0-9]+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error


class CheckpointWriter:
    """Writes checkpoints of a stage in a thread, from copies in the machine's memory, while training goes on.

    At most one checkpoint is being written. A training that was killed resumes from the last complete state.
    sha256: Dict from the name of each file of the stage to its checksum, as of the last complete checkpoint.
    resumable: Names of the files that belong to the last state.
    """

    def __init__(self, folder: Path) -> None:
        """Create the thread that writes checkpoints. folder: The stage's folder in the run."""
        self.folder = folder
        self.sha256: dict[str, str] = {}
        self.resumable: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._under_way: Future[dict[str, str]] | None = None

    def resume(self, sha256: Mapping[str, str]) -> None:
        """Register the files of the state that training resumes from. sha256: Dict from these files to checksums."""
        self.sha256, self.resumable = dict(sha256), set(sha256)

    def save(self, state: dict[str, Any], epoch_weights: Mapping[str, torch.Tensor] | None) -> None:
        """Begin to write a state to resume from, and the `epoch_weights` if given. Raises errors of earlier writing."""
        self.wait()
        copied: dict[int, torch.Tensor] = {}  # tensors that are in the state and in the weights are copied once
        copies = _copy_to_host(state, copied), _copy_to_host(epoch_weights, copied)
        self.resumable = {
            "last.pt",
            *(weights_file(self.folder, epoch).name for epoch in best_epoch_numbers(state["best"])),
        }
        self._under_way = self._thread.submit(save_state, self.folder, *copies, self.sha256)

    def save_best(self, epoch: int, best: BestEpochs, epoch_weights: Mapping[str, torch.Tensor]) -> None:
        """Begin to write the weights of a best epoch. best: All best epochs. Raises errors of earlier writing."""
        self.wait()
        copy = _copy_to_host(epoch_weights, {})
        self._under_way = self._thread.submit(
            save_best, self.folder, epoch, best, copy, self.sha256, frozenset(self.resumable)
        )

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete. Raises the errors of writing."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            self.sha256 = under_way.result()

    def close(self) -> None:
        """Wait until the last checkpoint is complete, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _copy_to_host(value: Any, copied: dict[int, torch.Tensor]) -> Any:
    """Return nested dicts and lists with all tensors copied to main memory. copied: Copies so far, by id()."""
    if isinstance(value, torch.Tensor):
        if id(value) not in copied:
            copied[id(value)] = value.detach().to("cpu", copy=True)
        return copied[id(value)]
    if isinstance(value, Mapping):
        return {key: _copy_to_host(one, copied) for key, one in value.items()}
    return [_copy_to_host(one, copied) for one in value] if isinstance(value, list) else value


class _Hashed:
    """File for torch.save that computes the checksum of the written bytes. error: Error raised by a write, or None."""

    def __init__(self, file: IO[bytes]) -> None:
        """Start the checksum of the bytes that will be written to `file`, a file that is open in binary mode."""
        self._file, self.checksum = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write bytes to the file, and add them to the checksum. Returns: The number of written bytes."""
        self.checksum.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error  # torch.save turns it into an error without its cause
            raise

    def flush(self) -> None:
        """Do nothing, since the file is flushed when it is closed."""


def _write_state(state: dict[str, Any], path: Path) -> str:
    """Write a state of training to a file atomically, without copying it in memory. Returns: The file's sha256."""
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            hashed: Any = _Hashed(file)
            try:
                torch.save(state, hashed)
            except Exception:
                if hashed.error is not None:
                    raise hashed.error from None
                raise
        checksum: str = hashed.checksum.hexdigest()
        return checksum


def load_weights(model: nn.Module, path: Path, hint: str = "train or export the model again") -> None:
    """Load weights from a file into a model; names and shapes must fit. hint: Cure for a damaged file, for the message.

    One difference is allowed: the model may have additional words after the words of the file. Additional words keep
    their initial vectors.
    """
    if not path.is_file():
        raise KitError(f"no checkpoint {path}; train the run first")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise KitError(f"{path} is damaged, or not a safetensors file ({error}); {hint}") from error
    require_finite(weights, str(path), hint)
    fresh = model.state_dict()
    words = "text.words.weight"
    if words in weights and words in fresh and len(weights[words]) < len(fresh[words]):
        weights[words] = torch.cat([weights[words], fresh[words][len(weights[words]) :].cpu()])
    load_tensors(model, weights, path)


def load_tensors(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Load the tensors `weights`, which were read from the file `path`, into a model.

    Learned parameters of losses may be missing in the file or the model. If they are only in the file, they are
    ignored; if they are only in the model, they keep their values. Raises KitError if any other name or shape differs.
    """
    fresh = model.state_dict()
    weights = {name: value for name, value in weights.items() if name in fresh or not name.startswith(OF_LOSSES)}
    weights |= {name: value for name, value in fresh.items() if name.startswith(OF_LOSSES) and name not in weights}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise KitError(
            f"{path} is a checkpoint of another model ({reason}); use the recipe that this checkpoint was trained with"
        ) from error


def save_state(
    folder: Path, state: dict[str, Any], epoch_weights: Mapping[str, torch.Tensor] | None, sha256: Mapping[str, str]
) -> dict[str, str]:
    """Write the state of training to last.pt, and `epoch_weights`, if given, to a file; return each file's checksum.

    Weights of epochs that are no longer in the table of the best epochs are deleted.
    sha256: Dict from each existing file of the stage to its checksum. Returns: A dict from each file that remains to
    its checksum. The dict is also stored in last.pt, without the entry for last.pt.
    """
    written = dict(sha256)
    if epoch_weights is not None:
        path = weights_file(folder, state["epoch"])
        written[path.name] = save_weights(epoch_weights, path)
    keep = {weights_file(folder, epoch).name for epoch in best_epoch_numbers(state["best"])}
    written = {name: checksum for name, checksum in written.items() if name in keep}
    checksum = _write_state({**state, "sha256": written}, folder / "last.pt")
    write_table_of_best(folder, state["best"])
    for path in folder.glob("e*.safetensors"):
        if path.name not in keep:
            path.unlink()
    return {**written, "last.pt": checksum}


def save_best(
    folder: Path,
    epoch: int,
    best: BestEpochs,
    epoch_weights: Mapping[str, torch.Tensor],
    sha256: Mapping[str, str],
    resumable: Container[str],
) -> dict[str, str]:
    """Write the weights of a best epoch; delete weights no longer needed; return the remaining files' checksums.

    Weights are needed if their epoch is in the table of the best epochs, `best`, or if they belong to the last state.
    sha256: Dict from each existing file of the stage to its checksum. resumable: Names of the files of the last state.
    Returns: A dict from each file that remains to its checksum.
    """
    path = weights_file(folder, epoch)
    written = {**sha256, path.name: save_weights(epoch_weights, path)}
    keep = {weights_file(folder, number).name for number in best_epoch_numbers(best)}
    for name in [name for name in written if name not in keep and name not in resumable]:
        (folder / name).unlink(missing_ok=True)
        del written[name]
    return written


def write_table_of_best(folder: Path, best: BestEpochs) -> None:
    """Write checkpoints.json, the table of the best epochs, for people."""
    write_text(folder / "checkpoints.json", json.dumps(best, indent=1) + "\n")


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read last.pt, the state that training resumes from; None if no state has been saved.

    Raises KitError if the file is damaged.
    """
    path, hint = folder / "last.pt", Run(folder.parent).repair_hint(folder)
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not compare the archive's checksums
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch.load raise many kinds for a damaged file
        raise KitError(f"{path} is damaged ({type(error).__name__}); {hint}") from error
    if damaged:
        raise KitError(f"{path} is damaged (wrong checksum of the file {damaged} in it); {hint}")
    if missing := {"model", "optimizer", "scaler", "precision", "best", "step", "sums"} - state.keys():
        raise KitError(f"{path} is damaged (missing parts: {', '.join(sorted(missing))}); {hint}")
    require_finite(state["model"], str(path), hint)
    return state


def read_done(folder: Path) -> Done:
    """Read done.json, which describes a finished stage. Raises KitError if the stage is not finished."""
    path = folder / "done.json"
    if not path.exists():
        raise KitError(f"stage {folder.name} of {folder.parent} is not finished; {finish_hint(folder.parent)}")
    return read_shaped(path, Done, Run(folder.parent).repair_hint(path))


def load_checkpoint(model: nn.Module, folder: Path, which: str) -> str:
    """Load a stage's checkpoint into a model: the last, or the best by the metric `which`; return its description.

    which: "last", or the name of a metric.
    Raises: KitError for a stage that is not finished or did not monitor the metric, DataError for a damaged file.
    """
    done = read_done(folder)
    hint = Run(folder.parent).repair_hint(folder)
    if which == "last":
        require_unharmed(folder / "last.pt", done.sha256.get("last.pt"), hint)
        state = load_state(folder)
        if state is None:
            raise KitError(f"no checkpoint {folder / 'last.pt'}; train the run first")
        load_tensors(model, state["model"], folder / "last.pt")
        return f"{folder.name} last"
    if not done.best.get(which):
        known = ", ".join(["last", *done.best])
        raise KitError(
            f"stage {folder.name} has no checkpoint {which}, since it did not monitor this metric; use one of {known}"
        )
    value, epoch = done.best[which][0]
    path = weights_file(folder, int(epoch))
    require_unharmed(path, done.sha256.get(path.name), hint)
    load_weights(model, path, hint)
    return f"{folder.name} epoch {int(epoch)}, best {which} {format_metric(which, value)}"
