"""A run on disk: one folder that says what was done, with what, and what came of it.

<runs>/<date>_<recipe>_s<seed>_<commit>/
  recipe.yaml      the recipe's bytes            resolved.json    every setting; as a recipe it gives the same run
  provenance.json  versions, machine, data       log.txt          what was said
  vocabulary.json  words, for text from scratch  metrics.jsonl    a line an epoch
  trained_on.csv   clips it learned from
  <stage>/         last.pt, the best checkpoints, checkpoints.json, done.json
  scores/  submission/  figures/   score matrices and what they are of, ranked lists, curves
  result.json      written last: exists = finished
"""

import hashlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_tools.documents.json_text import parse_json, require_unharmed, sha256_of, write_json
from data_tools.errors import DataError, KitError
from data_tools.files import remove_parts, replacing, require_file, write_text
from data_tools.locks import lock
from data_tools.manifest import Clip
from submission.runs.reading import made_again, read_metrics, read_provenance, read_result
from submission.runs.record import EpochLine, Provenance, RunResult
from system.experts.base import file_sha256
from system.recipe import schema
from system.recipe.differing import differing
from system.recipe.load import Loaded, RecipeError, load_recipe
from system.runs.log_file import LogFile
from system.runs.weights import trained_files

TRAINED_ON = "trained_on.csv"  # also in an exported model

log = logging.getLogger(__name__)


class Run:
    """Where the files of a run are, and reading them.

    made: the folder and those above it that were not there before, if any, from the inside out. ranks_anew: what it is
    to rank differs from what it ranked, or was to rank, before; what it trains does not.
    """

    def __init__(self, folder: Path, made: tuple[Path, ...] = (), ranks_anew: bool = False) -> None:
        self.folder, self.made, self.ranks_anew = folder, made, ranks_anew
        self.result, self.provenance = folder / "result.json", folder / "provenance.json"
        self.metrics, self.vocabulary = folder / "metrics.jsonl", folder / "vocabulary.json"
        self.figures, self.trained_on = folder / "figures", folder / TRAINED_ON

    def scores_file(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.npy"

    def csv_file(self, name: str) -> Path:
        """The challenge's file of an entry."""
        return self.folder / "submission" / f"{name}.csv"

    def clips_file(self, name: str) -> Path:
        """What was ranked: see submission.runs.clips."""
        return self.folder / "scores" / f"{name}.clips.csv"

    def again(self, *damaged: Path) -> str:
        """The end of a sentence on damaged files: what to delete, and the command that then makes them again."""
        return made_again(self.folder, *damaged)

    def read_provenance(self) -> Provenance:
        """DataError when it, or one of the files it has the checksums of, is missing or damaged."""
        found = read_provenance(self.folder)
        for name, checksum in found.sha256.items():
            require_unharmed(self.folder / name, checksum, self.again(self.folder / name))
        return found

    def read_result(self) -> RunResult:
        return read_result(self.folder)

    def read_metrics(self, hint: str | None = None) -> list[EpochLine]:
        return read_metrics(self.metrics, hint or self.again(self.metrics))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No second process may work on the run meanwhile; its log goes to log.txt too. What killed processes left
        half written is removed; so is a new run that an error ends before it has trained anything."""
        busy = f"{self.folder}: another process is working on this run; wait for it, or stop it"
        with lock(self.folder / "lock", busy):
            remove_parts(self.folder)
            with closing(LogFile(self.folder / "log.txt")) as handler:
                logging.getLogger().addHandler(handler)
                try:
                    yield
                except (KitError, OSError):
                    self._remove_untrained()
                    raise
                finally:
                    logging.getLogger().removeHandler(handler)

    def _remove_untrained(self) -> None:
        if self.made and not any(self.folder.glob("*/last.pt")):
            shutil.rmtree(self.folder)
            with suppress(OSError):  # of a folder that holds other runs by now
                for above in self.made[1:]:
                    above.rmdir()


def open_run(loaded: Loaded, runs: Path, out: Path | None = None) -> Run:
    """The run of these settings: the one there is, to be resumed or, where only what is ranked differs, to be ranked
    again; or a new folder.

    out: the folder to use, by itself; KitError when it holds another recipe's run, or something else.
    """
    resolved = loaded.resolved()
    if out is None:
        found = sorted(runs.glob("*/resolved.json"))
        same = [path.parent for path in found if _is_of(path, resolved)]
        for path in found:
            noted = None if path.parent in same else _provenance(path.parent)
            if noted and (noted.recipe, noted.seed) == (loaded.recipe.name, loaded.recipe.seed):
                _refuse_damaged(path.parent, noted)
        if same:
            out = ([folder for folder in same if not (folder / "result.json").exists()] or same)[-1]
        else:
            alike = [path.parent for path in found if _trains_as(path, loaded.recipe)]
            finished = [folder for folder in alike if (folder / "result.json").exists()]
            out = (finished or alike or [_new_folder(loaded, runs)])[-1]
    if not (out / "result.json").exists():
        teachers_of(loaded.recipe)  # one that is missing is named before anything is made
    made = tuple(folder for folder in (out, *out.parents) if not folder.exists())
    fresh = _is_fresh(out, loaded.source)
    ranks_anew = False
    if (out / "resolved.json").exists():
        ranks_anew = _differs_in_ranking(out, loaded, resolved)
    elif not fresh and not _was_of(out, loaded):
        raise KitError(f"{out} is not a run and not empty; name another folder")
    if not (out / "recipe.yaml").exists():
        with replacing(out / "recipe.yaml") as temporary:
            temporary.write_bytes(loaded.source)
    if not (out / "resolved.json").exists():
        _note_resolved(out, resolved)
        write_text(out / "resolved.json", resolved)  # after the recipe: it is what a run is found by
    return Run(out, made, ranks_anew)


def _is_of(path: Path, resolved: str) -> bool:
    """Whether a resolved.json holds these settings, as it stands or with the keys that later releases added."""
    if path.read_bytes() == resolved.encode():
        return True
    wanted = json.loads(resolved)
    found = _recipe_of(path, wanted["name"], wanted["seed"])
    return found is not None and found.resolved() == resolved


def _trains_as(path: Path, recipe: schema.Recipe) -> bool:
    """Whether a run's resolved.json, unharmed, has the settings of this recipe but for what is ranked."""
    found, noted = _recipe_of(path, recipe.name, recipe.seed), _provenance(path.parent)
    if found is None or _trained_settings(found.recipe) != _trained_settings(recipe):
        return False
    return noted is None or noted.sha256.get("resolved.json") in (None, sha256_of(path))


def _recipe_of(path: Path, name: str, seed: int) -> Loaded | None:
    """What a resolved.json holds; None for a damaged one, and for a run of another name or seed."""
    try:
        found = parse_json(path.read_bytes(), str(path))
        same = isinstance(found, dict) and (found.get("name"), found.get("seed")) == (name, seed)
        return load_recipe(path) if same else None
    except (DataError, RecipeError):
        return None


def _trained_settings(recipe: schema.Recipe) -> str:
    """All settings but `rank`, and the data sources that only it names. The order counts, that of stages and of experts
    decides draws; only the order of the sources does not."""
    settings = recipe.model_dump(mode="json", exclude={"rank"})
    used = {name for stage in recipe.stages.values() for name in (*stage.train.data, *stage.monitor.data)}
    used |= set(recipe.relevance.corpus if recipe.relevance else ())
    return json.dumps(settings | {"data": {name: settings["data"][name] for name in sorted(used)}})


_PART = re.compile(r"\.(?:recipe\.yaml|resolved\.json)\.[0-9]+\.part")


def _is_fresh(folder: Path, recipe: bytes) -> bool:
    """Whether a folder is absent or empty, or holds only what a process left that was killed while it began a run of
    this recipe: its bytes, whole or not."""
    return not folder.exists() or all(
        (path.name == "recipe.yaml" and path.read_bytes() == recipe) or _PART.fullmatch(path.name)
        for path in folder.iterdir()
    )


def _was_of(folder: Path, loaded: Loaded) -> bool:
    """Whether a run whose resolved.json is gone was one of these settings: they have the noted checksum, or come of
    the same recipe and changes (an earlier release called some settings otherwise)."""
    noted, recipe = _provenance(folder), folder / "recipe.yaml"
    if noted is None:
        return False
    same_recipe = recipe.is_file() and recipe.read_bytes() == loaded.source and noted.changes == list(loaded.changes)
    return same_recipe or noted.sha256.get("resolved.json") == _sha256(loaded.resolved())


def _note_resolved(folder: Path, resolved: str) -> None:
    """The checksum of a resolved.json that is about to be written anew, where a run has noted another one."""
    noted = _provenance(folder)
    if noted and noted.sha256.get("resolved.json") not in (None, _sha256(resolved)):
        checksums = {**noted.sha256, "resolved.json": _sha256(resolved)}
        write_json(folder / "provenance.json", noted.document() | {"sha256": checksums})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _provenance(folder: Path) -> Provenance | None:
    """What a run notes of itself; None where that is missing or damaged. Its files are not compared."""
    try:
        return read_provenance(folder)
    except DataError:
        return None


def _refuse_damaged(folder: Path, noted: Provenance | None) -> None:
    """KitError for a run whose resolved.json is not the one that its provenance notes."""
    path = folder / "resolved.json"
    if noted and noted.sha256.get("resolved.json") not in (None, sha256_of(path)):
        raise KitError(f"{path} is damaged: its checksum is not the one in provenance.json; {made_again(folder, path)}")


def _new_folder(loaded: Loaded, runs: Path) -> Path:
    recipe = loaded.recipe
    name = f"{datetime.now(UTC):%Y-%m-%d}_{recipe.name}_s{recipe.seed}_{commit()}"
    taken = {folder.name for folder in runs.glob(name + "*") if not _is_fresh(folder, loaded.source)}
    candidates = [name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))]
    return runs / next(candidate for candidate in candidates if candidate not in taken)


def _differs_in_ranking(out: Path, loaded: Loaded, resolved: str) -> bool:
    """Whether the run in this folder ranks otherwise; KitError where it trains otherwise."""
    path = out / "resolved.json"
    if _is_of(path, resolved):
        return False
    if _trains_as(path, loaded.recipe):
        return True
    _refuse_damaged(out, _provenance(out))
    found = differing(parse_json(path.read_bytes(), str(path)), json.loads(resolved))
    keys = ", ".join(sorted(key for key, _, _ in found)[:5]) or "the order of stages or experts"
    noted = _provenance(out)
    begun = "".join(f" --set {shlex.quote(change)}" for change in noted.changes) if noted else ""
    go_on = f"to go on with it add{begun}, or " if begun and not loaded.changes else ""
    raise KitError(f"{out} is a run of other settings ({keys}); {go_on}name another folder")


def commit() -> str:
    """Short hash of the code's commit, "+" behind it when files differ from it; "unversioned" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def made_with(recipe: schema.Recipe, text: str | None, contents: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Checksums of all that a run depends on beside its settings. text: identity of a pre-trained text encoder.
    contents: by source, of all its audio; left out where it has not been read, as what changes training data is."""
    teachers = teachers_of(recipe)
    changed_by = {name for stage in recipe.stages.values() if stage.augment for name in stage.augment.files()}
    augment = {name: file_sha256(Path(name)) for name in sorted(changed_by)} if contents is not None else {}
    starts = [s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)]
    weights = {folder: _weights_of(Path(folder), f"start_from {folder}") for folder in starts}
    return {
        "manifests": {name: file_sha256(path) for name, path in recipe.data_files.items()},
        "experts": {name: expert.identity() for name, expert in recipe.model.audio.experts.items()},
        "text": text,
        "starts": {folder: " ".join(checksums.values()) for folder, checksums in weights.items()},
        **({"teachers": teachers} if teachers else {}),
        **({"audio": audio} if (audio := recipe.model.audio.file_checksums()) else {}),
        **({"augment": augment} if augment else {}),
        **({} if contents is None else {"contents": dict(contents)}),
    }


def teachers_of(recipe: schema.Recipe) -> dict[str, dict[str, str]]:
    """By name, checksums of what says which weights a teacher has. KitError where nothing is trained there."""
    found = {}
    for name, teacher in recipe.teachers.items():
        if isinstance(teacher, schema.StageTeacher):
            continue
        if isinstance(teacher, schema.EmbeddingsTeacher):
            require_file(Path(teacher.file), f"teacher {name}: write it with python -m system embeddings")
            found[name] = {Path(teacher.file).name: file_sha256(Path(teacher.file))}
            continue
        found[name] = _weights_of(Path(teacher.folder), f"teacher {name}")
    return found


def _weights_of(folder: Path, what: str) -> dict[str, str]:
    """Checksums of what says which weights a trained model has, by the name within its folder."""
    try:
        paths = trained_files(folder)
    except KitError as error:
        raise KitError(f"{what}: {error}") from None
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


def require_same(run: Run, now: dict[str, Any], others: Collection[str] = ()) -> None:
    """KitError when something that the run was made with has changed; what `now` leaves out is not compared, nor are
    data sources that only one of both has, and `others`, whose settings differ."""
    before = run.read_provenance().document()
    known = {key: before[key] for key in now if key in before}  # an earlier release noted less
    compared = json.loads(json.dumps({key: now[key] for key in known}))
    for key in ("manifests", "contents"):
        if key in known:
            both = (known[key].keys() & compared[key].keys()).difference(others)
            known[key], compared[key] = ({name: part[key][name] for name in both} for part in (known, compared))
    changed = sorted(key for key, _, _ in differing(known, compared))
    if changed:
        audio = ": audio files are not what they were" if any(key.startswith("contents") for key in changed) else ""
        raise KitError(f"{run.folder}: {', '.join(changed)} changed since this run began{audio}; start a new run")


def record_provenance(run: Run, loaded: Loaded, text: str | None, contents: Mapping[str, str], gpu: str | None) -> None:
    """Write what the run is made with; on resuming, refuse what changed and note another commit, and the checksum of
    resolved.json where it was killed before that. gpu: its name."""
    import torch

    recipe = loaded.recipe
    now = made_with(recipe, text, contents)
    if run.provenance.exists():
        require_same(run, now, _other_sources(run, recipe))
        before = run.read_provenance()
        commits = before.commits if before.commits[-1] == commit() else [*before.commits, commit()]
        sums = {"resolved.json": sha256_of(run.folder / "resolved.json"), **before.sha256}
        if (commits, sums) != (before.commits, before.sha256):
            write_json(run.provenance, before.document() | {"commits": commits, "sha256": sums})
        return
    noted = Provenance(
        recipe=recipe.name,
        seed=recipe.seed,
        changes=list(loaded.changes),
        commits=[commit()],
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        command=sys.argv,
        python=platform.python_version(),
        torch=str(torch.__version__),
        machine=platform.platform(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        gpu=gpu,
        started_in=os.path.relpath(Path.cwd(), run.folder.resolve()),
        sha256={path.name: sha256_of(path) for path in (run.folder / "resolved.json", run.vocabulary, run.trained_on)},
        **now,
    )
    write_json(run.provenance, noted.document())


def _other_sources(run: Run, recipe: schema.Recipe) -> list[str]:
    """The data sources of a recipe that had other settings when the run was last ranked: only `rank` names them."""
    if not run.ranks_anew:
        return []
    before = load_recipe(run.folder / "resolved.json").recipe.data
    others = {name for name, source in recipe.data.items() if before.get(name) != source}
    return [name for name in recipe.data_files if name.removesuffix(".moments") in others]


def take_ranking(run: Run, loaded: Loaded, text: str | None, contents: Mapping[str, str]) -> None:
    """Have a run that has ranked anew say so: its recipe, its settings, and the data of all that it ranked.

    The run has no result meanwhile: where the process is killed, the same command ranks it again.
    """
    resolved, before = loaded.resolved(), run.read_provenance().document()
    noted = before | made_with(loaded.recipe, text, contents) | {"changes": list(loaded.changes)}
    sums = {name: value for name, value in noted.get("sha256", {}).items() if name != "resolved.json"}
    write_json(run.provenance, noted | {"sha256": sums})
    with replacing(run.folder / "recipe.yaml") as temporary:
        temporary.write_bytes(loaded.source)
    write_text(run.folder / "resolved.json", resolved)
    write_json(run.provenance, noted | {"sha256": {**sums, "resolved.json": _sha256(resolved)}})


def contents_of(clips: Iterable[Clip], keys: Mapping[str, str]) -> str:
    """One checksum of a source's audio: of the ids and contents of its clips. keys: content by clip id; a clip whose
    audio is broken has none."""
    lines = sorted(f"{clip.id}\0{keys.get(clip.id)}\n" for clip in clips)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
