"""Reading a recipe: YAML text + settings from the command line -> a checked Recipe, or all mistakes at once."""

import difflib
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from data_tools.errors import DataError, KitError
from data_tools.files import require_file
from data_tools.manifest import TEST_SPLITS
from data_tools.strict import MAX_SHOWN, cut, fault_of
from data_tools.yaml12 import Document, parse
from data_tools.yaml12 import Path as Keys
from submission.editions import EDITIONS
from system.recipe import schema
from system.recipe.kinds import check_kinds
from system.recipe.renamed import rename, renamed_keys


class RecipeError(KitError):
    """All mistakes of one recipe, a line each: file:line: where: what."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


_INDEX = re.compile("[0-9]{1,9}")  # of a list's item
RUN_FOLDERS = {"scores", "submission", "figures"}  # of a run, beside those of its stages

MAX_PROBLEMS = 200  # that are printed; what is behind them is counted
MAX_SUGGESTED = 20  # unknown keys for which a near one is looked for
SUFFIXES = (".yaml", ".yml", ".json")  # a run's and a model's settings are JSON

Mistake = tuple[Keys, int, str]  # where in the document, its line (0: the command line), what is wrong


@dataclass(frozen=True)
class Loaded:
    """recipe: checked. source: the file's bytes as they are. changes: the `--set` texts that were applied. renamed: a
    line for each key that is given by an old name, with what to write."""

    recipe: schema.Recipe
    source: bytes
    changes: tuple[str, ...]
    renamed: tuple[str, ...] = ()

    def resolved(self) -> str:
        """JSON of every setting; read as a recipe it gives this recipe again."""
        return json.dumps(self.recipe.model_dump(mode="json"), indent=1) + "\n"


def load_recipe(path: Path | str, changes: list[str] | None = None) -> Loaded:
    """Read, change (`stages.finetune.batch_size=64`), and check a recipe. Raises RecipeError naming every mistake."""
    path = Path(path)
    source, document = read_document(path, "recipe")
    if isinstance(document.value, dict) and "cells" in document.value:
        raise RecipeError([f"{path} is a study; run it with: python -m system study {path}"])
    renamed = [f"{path}:{line}: {text}" for line, text in rename(document)]
    mistakes = list(_apply(document, changes or [], renamed))
    renamed += [f"--set: {text}" for _, text in rename(document)]  # in values that --set gave
    found = list(_null_characters(document.value))
    _leave_out_nulls(document.value)
    recipe, refused = _validate(document.value)
    found += [*refused, *_cross_checks(document.value), *(check_kinds(recipe) if recipe else ())]
    problems = [*document.problems, *mistakes, *((keys, document.line(keys), text) for keys, text in found)]
    if problems or recipe is None:
        raise RecipeError(_report(path, problems))
    return Loaded(recipe, source, tuple(changes or []), tuple(renamed))


def read_document(path: Path, what: str) -> tuple[bytes, Document]:
    """A file's bytes, and their YAML. what: a recipe or a study.

    RecipeError for a path that names no such file, and for one that is not YAML: there is nothing else to say of it.
    """
    try:
        require_file(path, "shipped ones are in recipes/")
    except DataError as error:
        raise RecipeError([str(error)]) from None
    if path.suffix not in SUFFIXES:
        raise RecipeError([f"{path} is no {what}, whose name ends in .yaml; shipped ones are in recipes/"])
    source = path.read_bytes()
    try:
        document = parse(source.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError([f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8"]) from error
    if document.problems and not document.value:  # not YAML, or past its bounds
        raise RecipeError(_report(path, document.problems))
    return source, document


def _report(path: Path, problems: list[Mistake]) -> list[str]:
    """A line per key, by line number; what a union's members say of one value stands on one line."""
    by_key: dict[tuple[int, str], list[str]] = {}
    for keys, line, text in problems:
        by_key.setdefault((line, ".".join(map(str, keys))), []).append(text)
    lines = [
        f"{f'{path}:{line}:' if line else '--set'} {cut(key)}{': ' if key else ''}{'; or '.join(dict.fromkeys(texts))}"
        for (line, key), texts in sorted(by_key.items())
    ]
    more = len(lines) - MAX_PROBLEMS
    return [*lines[:MAX_PROBLEMS], *([f"{path}: and {more:,} more mistakes"] if more > 0 else [])]


def _apply(document: Document, changes: list[str], renamed: list[str]) -> Iterator[Mistake]:
    """Set `a.b.0.c=value` in the document; the schema then refuses what it does not know. renamed: gets a line for each
    key that is set by an old name."""
    for change in changes:
        dotted, equals, text = change.partition("=")
        keys: Keys = tuple(int(part) if _INDEX.fullmatch(part) else part for part in dotted.split("."))
        if not equals or not dotted:
            yield keys, 0, "write it as key.key=value"
            continue
        if (today := renamed_keys(keys)) != keys:
            renamed.append(f"--set {cut(dotted)} is called {today[-1]} now; write {'.'.join(map(str, today))}")
            keys = today
        at = document.value
        for part in keys[:-1]:
            at = _child(at, part)
        last = keys[-1]
        value = parse(text)
        yield from ((keys, 0, f"{cut(text)!r}: {problem}") for _, _, problem in value.problems)
        if value.problems:
            continue
        if isinstance(at, dict) and isinstance(last, str):
            at[last] = value.value if text else None
        elif isinstance(at, list) and isinstance(last, int) and last < len(at):
            at[last] = value.value
        else:
            yield keys, 0, "the recipe has no such place"
            continue
        document.lines = {key: line for key, line in document.lines.items() if key[: len(keys)] != keys} | {keys: 0}


def _null_characters(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str) and "\0" in value:
        yield keys, "holds a null character, which no file name and no text may"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _null_characters(item, (*keys, key))


def _leave_out_nulls(value: Any) -> None:
    experts = _child(_child(_child(value, "model"), "audio"), "experts")
    for entries in (experts, *(_child(value, key) for key in ("data", "stages", "rank"))):
        if isinstance(entries, dict):
            for name in [name for name, entry in entries.items() if entry is None]:
                del entries[name]


def _child(value: Any, key: str | int) -> Any:
    """value[key] of a dict or list, None where there is none: raw documents may have any shape."""
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return value[key]
    return None


def _validate(value: Any) -> tuple[schema.Recipe | None, list[tuple[Keys, str]]]:
    try:
        return schema.Recipe.model_validate(value), []
    except ValidationError as error:
        found = []
        unknown = 0
        for item in error.errors(include_url=False):
            unknown += item["type"] == "extra_forbidden"
            found.append((_without_tags(value, item["loc"]), _sentence(item, suggest=unknown <= MAX_SUGGESTED)))
        return None, found


def _without_tags(value: Any, location: tuple[str | int, ...]) -> Keys:
    """pydantic names the chosen member of a union inside the location; a document has no such level."""
    keys: list[str | int] = []
    fresh = True  # no tag seen yet at this value
    for i, part in enumerate(location):
        is_mapping, is_last = isinstance(value, dict), i == len(location) - 1
        if is_mapping and fresh and value.get("kind") == part and not is_last:
            fresh = False
        elif _child(value, part) is not None or (is_mapping and (is_last or part in value)):
            keys.append(part)
            value, fresh = _child(value, part), True
    return tuple(keys)


def _sentence(item: Any, suggest: bool) -> str:
    kind, name = item["type"], item["loc"][-1] if item["loc"] else ""
    if kind == "extra_forbidden":
        if not suggest or len(str(name)) > MAX_SHOWN:
            return "unknown key"
        candidates = difflib.get_close_matches(str(name), sorted(_all_keys(schema.Recipe)), 1)
        if candidates == [name]:
            return "not a key of this kind"
        return "unknown key" + (f"; did you mean {candidates[0]}?" if candidates else "")
    if kind == "missing":
        return "missing; a recipe says everything about itself"
    if kind == "union_tag_invalid":
        known = re.findall("'([^']*)'", item["ctx"]["expected_tags"])
        candidates = difflib.get_close_matches(str(item["ctx"]["tag"]), known, 1)
        likely = f"did you mean {candidates[0]}? " if candidates else ""
        return f"unknown kind {cut(repr(item['ctx']['tag']))}; {likely}there are {', '.join(known)}"
    return fault_of(item)


def _all_keys(model: type[BaseModel]) -> set[str]:
    """Every key of the schema, for suggestions."""
    pending: list[Any] = [model]
    done: set[type[BaseModel]] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, type) and issubclass(part, BaseModel) and part not in done:
            done.add(part)
            pending += [field.annotation for field in part.model_fields.values()]
        pending += getattr(part, "__args__", ())
    return {key for part in done for key in part.model_fields}


def _items(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mapping-valued entries of a mapping; nothing where it is not one."""
    if isinstance(value, dict):
        yield from ((key, item) for key, item in value.items() if isinstance(item, dict))


def _names(value: Any) -> list[tuple[int, str]]:
    return [(i, name) for i, name in enumerate(value) if isinstance(name, str)] if isinstance(value, list) else []


def _cross_checks(value: Any) -> Iterator[tuple[Keys, str]]:
    """Rules between keys, on the raw document, so that they are reported beside the schema's own mistakes."""
    data = dict(_items(_child(value, "data")))
    for name, source in data.items():
        if isinstance(source.get("make"), str) and not _is_made_by_tools(source["make"]):
            yield ("data", name, "make"), "a make command begins with: python -m data_tools"
    stages = dict(_items(_child(value, "stages")))
    for name in RUN_FOLDERS & stages.keys():
        yield ("stages", name), f"a run keeps other things in a folder {name}; give the stage another name"
    for position, (name, stage) in enumerate(stages.items()):
        yield from _check_stage(("stages", name), stage, data, list(stages)[:position], stages)
    yield from _check_relevance(_child(value, "relevance"), data)
    for name, teacher in _items(_child(value, "teachers")):
        if teacher.get("kind") == "stage":
            yield from _check_checkpoint(("teachers", name), teacher.get("stage"), teacher.get("checkpoint"), stages)
    ranks = dict(_items(_child(value, "rank")))
    for position, (name, ranked) in enumerate(ranks.items()):
        at: Keys = ("rank", name)
        yield from _check_source((*at, "data"), ranked.get("data"), data)
        yield from _check_checkpoint(at, ranked.get("stage"), ranked.get("checkpoint"), stages)
        yield from _check_parts_of_mean((*at, "of"), ranked.get("of"), dict(list(ranks.items())[:position]))
        edition = ranked.get("edition")
        if edition is not None and str(edition) not in EDITIONS:
            yield (*at, "edition"), f"no edition {edition}; there are {', '.join(EDITIONS)}"


def _check_relevance(relevance: Any, data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    yield from _check_sources(
        ("relevance", "corpus"), _child(relevance, "corpus"), data, "count another one's captions"
    )
    curve = _child(relevance, "relax")
    points = [(_child(p, "percentile"), _child(p, "factor")) for p in (curve if isinstance(curve, list) else [])]
    for i, (before, point) in enumerate(itertools.pairwise(points), start=1):
        if all(isinstance(n, int | float) for n in (*before, *point)) and not (
            before[0] < point[0] and before[1] >= point[1]
        ):
            yield ("relevance", "relax", i), "percentiles must rise, and factors must not"


def _check_once(at: Keys, names: Any) -> Iterator[tuple[Keys, str]]:
    seen: set[str] = set()
    for i, name in _names(names):
        if name in seen:
            yield (*at, i), f"{name!r} is there already; name each once"
        seen.add(name)


def _check_parts_of_mean(at: Keys, of: Any, before: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    keys = {"checkpoint": ["data"], "blind": ["audio", "queries"]}
    ranked = {
        name: [entry.get(key) for key in keys[entry["kind"]]]
        for name, entry in before.items()
        if entry.get("kind") in ("checkpoint", "blind")
    }
    for i, name in _names(of):
        if name not in ranked:
            there = ", ".join(ranked) or "none"
            yield (*at, i), f"no earlier entry {name!r} of kind checkpoint or blind; there are {there}"
    yield from _check_once(at, of)
    if len({str(ranked[name]) for _, name in _names(of) if name in ranked}) > 1:
        yield at, "they rank different sources; a mean needs one"


def _is_made_by_tools(command: str) -> bool:
    try:
        return shlex.split(command)[:3] == ["python", "-m", "data_tools"]
    except ValueError:
        return False


def _check_source(at: Keys, name: Any, data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    if isinstance(name, str) and name not in data:
        yield at, f"no data source {name!r}; there are {', '.join(data) or 'none'}"


def _check_sources(at: Keys, names: Any, data: dict[str, Any], hint: str | None) -> Iterator[tuple[Keys, str]]:
    """Names of sources, each once. hint: what to do about a test split; None where one may be used."""
    yield from _check_once(at, names)
    for i, name in _names(names):
        yield from _check_source((*at, i), name, data)
        split = _child(data.get(name), "split")
        if isinstance(split, str) and split in TEST_SPLITS and hint:
            yield (*at, i), f"{name!r} is a test split ({split}); {hint}"


def _check_stage(
    at: Keys, stage: dict[str, Any], data: dict[str, Any], before: list[str], stages: dict[str, Any]
) -> Iterator[tuple[Keys, str]]:
    train, monitor = stage.get("train"), stage.get("monitor")
    yield from _check_sources((*at, "train", "data"), _child(train, "data"), data, "train on another split")
    acknowledged = _child(monitor, "test_split") == "acknowledged"
    hint = None if acknowledged else "say `test_split: acknowledged` beside it"
    yield from _check_sources((*at, "monitor", "data"), _child(monitor, "data"), data, hint)
    unit, captions = stage.get("unit"), stage.get("captions_per_clip")
    if unit == "clip" and captions is None:
        yield (*at, "captions_per_clip"), "missing; a batch of clips needs it: a number, or all"
    if unit == "pair" and captions is not None:
        yield (*at, "captions_per_clip"), "a batch of pairs has one caption a pair; remove the key"
    at_once, batch_size = stage.get("grad_cache_chunk"), stage.get("batch_size")
    if isinstance(at_once, int) and isinstance(batch_size, int) and at_once >= batch_size:
        yield (*at, "grad_cache_chunk"), f"as large as the batch of {batch_size}, it only costs time; say null or less"
    monitored = _child(monitor, "metrics")
    for part in ("schedule", "stop"):
        metric = _child(stage.get(part), "metric")
        if isinstance(metric, str) and isinstance(monitored, list) and metric not in monitored:
            yield (*at, part, "metric"), f"{metric} is not monitored; add it to monitor.metrics"
    start = stage.get("start_from")
    origin = _child(start, "stage")
    if isinstance(origin, str) and origin not in before:
        yield (*at, "start_from", "stage"), f"no earlier stage {origin!r}; there are {', '.join(before) or 'none'}"
    else:
        yield from _check_checkpoint((*at, "start_from"), origin, _child(start, "checkpoint"), stages)


def _check_checkpoint(at: Keys, stage: Any, checkpoint: Any, stages: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    if not isinstance(stage, str):
        return
    if stage not in stages:
        yield (*at, "stage"), f"no stage {stage!r}; there are {', '.join(stages) or 'none'}"
        return
    metrics = _child(_child(stages[stage], "monitor"), "metrics")
    if isinstance(metrics, list) and isinstance(checkpoint, str) and checkpoint not in ["last", *metrics]:
        yield (*at, "checkpoint"), f"stage {stage!r} does not monitor {checkpoint!r}"
