"""A run on disk: one folder that says what was done, with what, and what came of it.

<runs>/<date>_<recipe>_s<seed>_<commit>/
  recipe.yaml      the recipe's bytes            resolved.json    every setting; as a recipe it gives the same run
  provenance.json  versions, machine, data       log.txt          what was said
  vocabulary.json  words, for text from scratch  metrics.jsonl    a line an epoch
  <stage>/         last.pt, the best checkpoints, checkpoints.json, done.json
  scores/  submission/  figures/   score matrices and what they are of, ranked lists, curves
  result.json      written last: exists = finished
"""

import fcntl
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_tools.files import write_text
from system import schema
from system.errors import KitError
from system.experts.base import file_sha256
from system.recipe import Loaded

log = logging.getLogger(__name__)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def provenance(self) -> Path:
        return self.folder / "provenance.json"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary.json"

    def stage(self, name: str) -> Path:
        return self.folder / name

    def scores(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.npy"

    def clips(self, name: str) -> Path:
        """What was ranked: see description.write_clips."""
        return self.folder / "scores" / f"{name}.clips.csv"

    @contextmanager
    def held(self) -> Iterator[None]:
        """No second process may work on the run meanwhile; its log goes to log.txt too."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise KitError(
                    f"{self.folder}: another process is working on this run; wait for it, or stop it"
                ) from error
            handler = logging.FileHandler(self.folder / "log.txt", encoding="utf-8")
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logging.getLogger().addHandler(handler)
            try:
                yield
            finally:
                logging.getLogger().removeHandler(handler)
                handler.close()


def open_run(loaded: Loaded, runs: Path, out: Path | None = None) -> Run:
    """The run of these settings: the one there is, to be resumed, or a new folder.

    out: the folder to use, by itself; KitError when it holds another recipe's run.
    """
    resolved = loaded.resolved()
    if out is None:
        same = [f.parent for f in sorted(runs.glob("*/resolved.json")) if f.read_text(encoding="utf-8") == resolved]
        unfinished = [folder for folder in same if not (folder / "result.json").exists()]
        if same:
            return Run((unfinished or same)[-1])
        out = _new_folder(loaded, runs)
    elif (out / "resolved.json").exists():
        _refuse_other(out, resolved)
        return Run(out)
    elif out.exists() and any(out.iterdir()):
        raise KitError(f"{out} is not a run and not empty; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "resolved.json", resolved)  # first: it is what a run is found by
    (out / "recipe.yaml").write_bytes(loaded.source)
    return Run(out)


def _new_folder(loaded: Loaded, runs: Path) -> Path:
    recipe = loaded.recipe
    name = f"{datetime.now(UTC):%Y-%m-%d}_{recipe.name}_s{recipe.seed}_{commit()}"
    taken = {folder.name for folder in runs.glob(name + "*")}
    candidates = [name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))]
    return runs / next(candidate for candidate in candidates if candidate not in taken)


def _refuse_other(out: Path, resolved: str) -> None:
    found = (out / "resolved.json").read_text(encoding="utf-8")
    if found != resolved:
        differing = ", ".join(sorted(_differing(json.loads(found), json.loads(resolved)))[:5])
        raise KitError(f"{out} is a run of other settings ({differing}); name another folder, or delete that one")


def _differing(a: Any, b: Any, at: str = "") -> Iterator[str]:
    """Dotted keys whose values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from _differing(a.get(key), b.get(key), f"{at}.{key}" if at else key)
    elif a != b:
        yield at


def commit() -> str:
    """Short hash of the code's commit, "+" behind it when files differ from it; "unversioned" outside a checkout."""
    here = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def read_json(path: Path) -> Any:
    """KitError for a file that is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        raise KitError(f"{path} is missing or damaged; it belongs to a run, start that run again") from error


def made_with(recipe: schema.Recipe, text: str | None) -> dict[str, Any]:
    """Checksums of all that a run depends on beside its settings. text: identity of a pre-trained text encoder."""
    starts = [s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)]
    return {
        "manifests": {name: file_sha256(Path(source.manifest)) for name, source in recipe.data.items()},
        "experts": {name: expert.identity() for name, expert in recipe.model.audio.experts.items()},
        "text": text,
        "starts": {folder: file_sha256(Path(folder) / "model.safetensors") for folder in starts},
    }


def require_same(run: Run, now: dict[str, Any]) -> None:
    """KitError when something that the run was made with has changed; what `now` leaves out is not compared."""
    before = read_json(run.provenance)
    changed = sorted(_differing({key: before[key] for key in now}, json.loads(json.dumps(now))))
    if changed:
        raise KitError(f"{run.folder}: {', '.join(changed)} changed since this run began; start a new run")


def record_provenance(run: Run, loaded: Loaded, text: str | None) -> None:
    """Write what the run is made with; on resuming, refuse what changed and note another commit."""
    import torch

    recipe = loaded.recipe
    now = made_with(recipe, text)
    if run.provenance.exists():
        require_same(run, now)
        before = read_json(run.provenance)
        if before["commits"][-1] != commit():
            write_json(run.provenance, before | {"commits": [*before["commits"], commit()]})
        return
    facts = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "changes": loaded.changes,
        "commits": [commit()],
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    write_json(run.provenance, facts | now)
