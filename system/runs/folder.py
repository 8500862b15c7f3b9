"""Files of a run's folder, runs/NAME_sSEED.

A step whose file is there is finished.

recipe.yaml      copy of the recipe file
imports/         copies of the Python files that it imports
resolved.json    every setting; used as a recipe, this file results in the same run
provenance.json  versions, machine, and checksums of what the run reads
log.txt          log messages
vocabulary.json  known words of a text encoder from scratch
trained_on.csv   clips that the model was trained on
metrics.jsonl    one line of metrics per epoch
<stage>/         last.pt, the best checkpoints; done.json once it is trained
scores/          score matrices, and the clips and queries that they rank
submission/      ranked lists
results/         a file per ranked entry: its settings and its metrics
figures/         curves of the metrics
result.json      facts about the run and the results of all entries; written last
"""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import lock, remove_parts, replacing, write_text
from data_tools.settings import read_shaped
from submission.runs.record import (
    EpochLine,
    MomentsResult,
    RankedResult,
    Record,
    RunResult,
    finish_hint,
    read_metrics,
    read_result,
    repair_hint,
)
from system.recipe import schema
from system.recipe.load import Loaded, differing, keep_imports, load_recipe, text_of

FILES = {  # of a rank entry
    "result": "results/{}.json",
    "scores": "scores/{}.npy",
    "clips": "scores/{}.clips.csv",
    "csv": "submission/{}.csv",
    "windows": "scores/{}.windows.jsonl",  # found ones with their scores
    "answers": "submission/{}.jsonl",  # without
    "truth": "scores/{}.truth.jsonl",
    "frames": "scores/{}.frames.npz",
}
TRAINED_ON = "trained_on.csv"  # exported models have this file too
log = logging.getLogger(__name__)


class Provenance(Record):
    """What a run is made of.

    Attributes:
        changes: Settings that the option --set changed.
        commits: Of the code, in order of time.
        inputs: What identifies each thing that the run reads: checksums of files by their paths (manifests, teachers,
            start models, augmentation), and weights (`experts.NAME`, `audio.FILE`, `text`).
        started_in: Folder to which paths in the recipe are relative, itself relative to the run's folder.
    """

    changes: list[str]
    commits: list[str]
    began: str
    machine: str
    started_in: str
    inputs: dict[str, Any]


class Run:
    """Paths and readers of the files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resolved = folder / "resolved.json"
        self.provenance = folder / "provenance.json"
        self.vocabulary = folder / "vocabulary.json"
        self.trained_on = folder / TRAINED_ON
        self.metrics_file = folder / "metrics.jsonl"
        self.result = folder / "result.json"
        self.figures = folder / "figures"

    def __repr__(self) -> str:
        """Name the run's folder."""
        return f"Run({self.folder})"

    def file(self, kind: str, name: str) -> Path:
        """Return the path of a rank entry's file.

        Args:
            kind: A key of FILES.
        """
        return self.folder / FILES[kind].format(name)

    def ranked_entries(self) -> set[str]:
        """Return the names of the rank entries that are ranked."""
        return {path.stem for path in self.folder.glob("results/*.json")}

    def files(self, name: str) -> list[Path]:
        """Return what a rank entry has written, but its result."""
        return sorted(path for folder in ("scores", "submission") for path in self.folder.glob(f"{folder}/{name}.*"))

    def forget(self, name: str) -> None:
        """Delete a rank entry's files, and make their folders."""
        for path in (self.file("result", name), *self.files(name)):  # the result first, since it says they are there
            path.unlink(missing_ok=True)
        for folder in ("scores", "submission"):
            (self.folder / folder).mkdir(exist_ok=True)

    def read_provenance(self) -> Provenance:
        """Read provenance.json."""
        return read_shaped(self.provenance, Provenance, repair_hint(self.folder, self.provenance))

    def read_result(self) -> RunResult:
        """Read result.json."""
        return read_result(self.folder)

    @property
    def results(self) -> dict[str, RankedResult | MomentsResult]:
        """Results of the rank entries but blind sets, by name."""
        result = self.read_result()
        return {**result.rank, **result.moments}

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of rank entries whose answers are known, by name."""
        return {name: entry.figures for name, entry in self.results.items() if entry.figures}

    def read_metrics(self) -> list[EpochLine]:
        """Read metrics.jsonl: one line per epoch; none before the first."""
        hint = f"delete it, and continue with lbar run {self.resolved} --out {self.folder}"
        return read_metrics(self.metrics_file, hint) if self.metrics_file.exists() else []

    def write_metrics(self, lines: Iterable[EpochLine]) -> None:
        """Replace the content of metrics.jsonl, if it differs."""
        text = "".join(json.dumps(line.document()) + "\n" for line in lines)
        if not self.metrics_file.exists() or self.metrics_file.read_text(encoding="utf-8") != text:
            write_text(self.metrics_file, text)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run, and copy log messages to log.txt.

        The folder of a new run is removed if the run fails before any training.
        """
        made = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        busy = f"{self.folder}: another process is working on this run; wait for it"
        with lock(self.folder / "lock", busy):
            handler = logging.FileHandler(self.folder / "log.txt", encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logging.getLogger().addHandler(handler)
            try:
                remove_parts(self.folder)
                yield
            except BaseException as error:
                handler.handle(logging.makeLogRecord({"msg": f"error: {error}"}))
                has_work = any(self.folder.glob("*/last.pt")) or self.ranked_entries()
                if isinstance(error, KitError | OSError) and made and not has_work:
                    shutil.rmtree(self.folder)
                    with suppress(OSError):  # the folder holds other runs by now
                        for above in made[1:]:
                            above.rmdir()
                raise
            finally:
                logging.getLogger().removeHandler(handler)
                with suppress(OSError):  # on a full disk its last lines are lost
                    handler.close()

    def require_place(self, loaded: Loaded) -> None:
        """Refuse a folder of other files or another recipe.

        Only `rank`, and the sources that only `rank` uses, may differ.
        """
        if not self.resolved.exists():
            found = self.folder.iterdir() if self.folder.exists() else ()
            begun, copy = {"lock", "log.txt", "imports"}, self.folder / "recipe.yaml"  # killed as it began
            if copy.is_file() and copy.read_bytes() == loaded.source:
                begun.add(copy.name)
            if any(path.name not in begun and path.suffix != ".part" for path in found):
                raise KitError(f"{self.folder} is neither a run nor empty; name another folder")
            return
        before, now = (_training_settings(one) for one in (load_recipe(self.resolved).recipe, loaded.recipe))
        if json.dumps(before) != json.dumps(now):
            keys = ", ".join(key for key, _, _ in differing(before, now)) or "the order of stages or experts"
            raise KitError(
                f"{self.folder} is a run with other settings ({keys}); repeat its --set, or give a new --name"
            )

    def adopt(self, loaded: Loaded) -> None:
        """Write the recipe, if it is new or differs."""
        if self.resolved.exists() and self.resolved.read_text(encoding="utf-8") == text_of(loaded.recipe):
            return
        keep_imports(loaded.imports, self.folder)
        with replacing(self.folder / "recipe.yaml") as temporary:
            temporary.write_bytes(loaded.source)
        write_text(self.resolved, text_of(loaded.recipe))  # last: the run begins with it


def best_epochs(lines: Iterable[EpochLine], metric: str) -> list[tuple[float, int]]:
    """Return (value, epoch) of a stage's epochs, best first.

    Of equal values, the earlier epoch is better.
    """
    sign = 1 if metric in schema.LOWER_IS_BETTER else -1
    values = [(line.validation[metric], line.epoch) for line in lines]
    return sorted(values, key=lambda one: (sign * one[0], one[1]))


def _training_settings(recipe: schema.Recipe) -> dict[str, Any]:
    """Return the settings that training depends on, in their order."""
    used = {name for stage in recipe.stages.values() for name in stage.sources}
    used |= set(recipe.relevance.corpus if recipe.relevance else ())
    settings = recipe.model_dump(mode="json", exclude={"rank", "imports"})
    for key in ("blind_files", "blind_queries"):
        settings["model"]["text"].pop(key, None)
    return settings | {"data": {name: settings["data"][name] for name in sorted(used)}}


def trained_files(path: Path) -> list[Path]:
    """Return the files that identify a model's weights.

    Args:
        path: A run, an exported model, or a file, which is returned itself.

    Raises:
        KitError: There is no trained model.
    """
    if path.is_file():
        return [path]
    if path.suffix == ".npz":
        raise KitError(f"{path}: no such file; write it with lbar embed")
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    if done := sorted(path.glob("*/done.json")):
        return done
    if (path / "result.json").exists():
        raise KitError(f"{path} is a run without trained stages; export its model, and name the exported folder")
    raise KitError(f"{path} is neither a finished run nor an exported model; {finish_hint(path)}")
