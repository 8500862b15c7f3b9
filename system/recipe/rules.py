"""Rules between keys.

Check that the names in a recipe refer to existing entries, such as stages, and that settings fit each other.
"""

import itertools
import shlex
from collections.abc import Collection, Iterator
from typing import Any

from data_tools.manifest import TEST_SPLITS
from data_tools.settings import Keys
from submission.editions import EDITIONS, MOMENTS

RUN_FOLDERS = {"scores", "submission", "figures"}  # a run has these folders, and one per stage


def child(value: Any, key: str | int) -> Any:
    """Return value[key] of a dict or list; None if the key is missing, or if `value` is no dict or list."""
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return value[key]
    return None


def _dict_items(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the keys and values of the dict `value` whose values are dicts too; nothing if `value` is no dict."""
    if isinstance(value, dict):
        yield from ((key, item) for key, item in value.items() if isinstance(item, dict))


def _text_items(value: Any) -> list[tuple[int, str]]:
    """Return the position and the text of each item of `value` that is a text; an empty list if `value` is no list."""
    return [(i, name) for i, name in enumerate(value) if isinstance(name, str)] if isinstance(value, list) else []


def between_keys(value: Any) -> Iterator[tuple[Keys, str]]:
    """Yield (keys, error message) for names in a recipe that do not exist, and for settings that do not fit each other.

    value: The recipe's document, not yet checked by the schema. All mistakes can thus be reported together.
    """
    data = dict(_dict_items(child(value, "data")))
    for name, source in data.items():
        if isinstance(source.get("make"), str) and not _is_made_by_tools(source["make"]):
            yield ("data", name, "make"), "the command must begin with: lbar data"
    stages = dict(_dict_items(child(value, "stages")))
    for name in RUN_FOLDERS & stages.keys():
        yield ("stages", name), f"every run already has a folder named {name}; give the stage another name"
    for position, (name, stage) in enumerate(stages.items()):
        yield from _check_stage(("stages", name), stage, data, list(stages)[:position], stages)
    yield from _check_relevance(child(value, "relevance"), data)
    teachers = dict(_dict_items(child(value, "teachers")))
    for name, teacher in teachers.items():
        if teacher.get("kind") == "stage":
            yield from _check_checkpoint(("teachers", name), teacher.get("stage"), teacher.get("checkpoint"), stages)
    ranks = dict(_dict_items(child(value, "rank")))
    for position, (name, ranked) in enumerate(ranks.items()):
        at: Keys = ("rank", name)
        yield from _check_source((*at, "data"), ranked.get("data"), data)
        yield from _check_sources((*at, "fit"), [ranked.get("fit")], data, "fit models to another split")
        yield from _check_checkpoint(at, ranked.get("stage"), ranked.get("checkpoint"), stages)
        if ranked.get("kind") == "teachers":
            yield from _check_named_teachers((*at, "of"), ranked.get("of"), teachers)
        elif ranked.get("kind") == "mean":
            yield from _check_parts_of_mean((*at, "of"), ranked.get("of"), dict(list(ranks.items())[:position]))
        elif ranked.get("kind") == "hub_corrected":
            yield from _check_hubs(at, ranked, dict(list(ranks.items())[:position]), data)
            yield from _check_untrained((*at, "validation"), ranked.get("validation"), stages)
        known: Collection[str] = MOMENTS if ranked.get("kind") == "moments" else EDITIONS
        edition = ranked.get("edition")
        if edition is not None and str(edition) not in known:
            yield (*at, "edition"), f"edition {edition} is not known; known editions: {', '.join(known)}"


def _check_relevance(relevance: Any, data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield keys and error messages for mistakes in the recipe section `relevance` (similarity of captions)."""
    yield from _check_sources(("relevance", "corpus"), child(relevance, "corpus"), data, "count another split")
    curve = child(relevance, "relax")
    points = [(child(p, "percentile"), child(p, "factor")) for p in (curve if isinstance(curve, list) else [])]
    for i, (before, point) in enumerate(itertools.pairwise(points), start=1):
        if all(isinstance(n, int | float) for n in (*before, *point)) and not (
            before[0] < point[0] and before[1] >= point[1]
        ):
            yield (
                ("relevance", "relax", i),
                "each percentile must be higher than the one before, and no factor may be higher than the one before",
            )


def _check_once(at: Keys, names: Any) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message for each name that is repeated in a list."""
    names_before: set[str] = set()
    for i, name in _text_items(names):
        if name in names_before:
            yield (*at, i), f"{name!r} occurs twice; name it once"
        names_before.add(name)


def _check_parts_of_mean(at: Keys, of: Any, earlier: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield keys and messages if a mean names entries that are not in `earlier`, or that rank different sources."""
    ranked = {
        name: [entry.get(key) for key in ("data", "audio", "queries")]
        for name, entry in earlier.items()
        if isinstance(kind := entry.get("kind"), str) and kind not in ("mean", "moments")
    }
    for i, name in _text_items(of):
        if name not in ranked:
            ranked_names = ", ".join(ranked) or "none"
            yield (*at, i), f"{name!r} is no earlier entry that a mean can use; such entries: {ranked_names}"
    yield from _check_once(at, of)
    if len({str(ranked[name]) for _, name in _text_items(of) if name in ranked}) > 1:
        yield at, "the entries rank different data sources; name entries of one data source"


def _check_hubs(at: Keys, ranked: Any, earlier: dict[str, Any], data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield keys and error messages for mistakes in a rank entry that corrects scores for hubs.

    at, ranked: Keys and values of the entry. earlier: Rank entries before this one. data: The recipe's data sources.
    """
    inner = earlier.get(str(ranked.get("of")))
    if not isinstance(inner, dict) or inner.get("kind") not in ("checkpoint", "blind"):
        names = [name for name, one in earlier.items() if one.get("kind") in ("checkpoint", "blind")]
        yield (
            (*at, "of"),
            f"`of` must be an earlier entry of kind checkpoint or blind; such entries: {', '.join(names) or 'none'}",
        )
        return
    yield from _check_sources((*at, "bank"), ranked.get("bank"), data, "name a training split")
    yield from _check_sources((*at, "validation"), [ranked.get("validation")], data, "name a validation split")
    for key, named in (("bank", _text_items(ranked.get("bank"))), ("validation", [(0, ranked.get("validation"))])):
        for _, name in named:
            if key == "bank" and name == ranked.get("validation"):
                yield (
                    (*at, key),
                    f"data source {name!r} is also named in `validation`; name a training split",
                )
            is_choice = key == "validation" and child(data.get(name), "split") == "validation"
            if name == inner.get("data") and not is_choice:  # scores of validation are needed for a blend's weights
                yield (
                    (*at, key),
                    f"{name!r} is also ranked, so the correction must not use its captions; name another source",
                )


def _check_untrained(at: Keys, source: Any, stages: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message if a stage trains on `source`, the data used to choose a hub correction."""
    for name, stage in stages.items():
        if source in [one for _, one in _text_items(child(child(stage, "train"), "data"))]:
            yield at, f"stage {name} trains on {source!r}; name a validation split"


def _check_named_teachers(at: Keys, of: Any, teachers: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message for each teacher that a rank entry names, if it is missing or repeated."""
    yield from _check_once(at, of)
    for i, name in _text_items(of):
        if name not in teachers:
            yield (*at, i), f"the recipe has no teacher {name!r}; its teachers: {', '.join(teachers) or 'none'}"


def _is_made_by_tools(command: str) -> bool:
    """Return whether a command begins with `lbar data`."""
    try:
        return shlex.split(command)[:2] == ["lbar", "data"]
    except ValueError:
        return False


def _check_source(at: Keys, name: Any, data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message if the recipe has no data source called `name`."""
    if isinstance(name, str) and name not in data:
        yield at, f"the recipe has no data source {name!r}; its data sources: {', '.join(data) or 'none'}"


def _check_sources(at: Keys, names: Any, data: dict[str, Any], hint: str | None) -> Iterator[tuple[Keys, str]]:
    """Yield the keys and an error message of each named data source that is missing, repeated, or a test split.

    at: Keys of the list `names`. hint: How to avoid the test split, for the message; None if a test split is allowed.
    """
    yield from _check_once(at, names)
    for i, name in _text_items(names):
        yield from _check_source((*at, i), name, data)
        split = child(data.get(name), "split")
        if isinstance(split, str) and split in TEST_SPLITS and hint:
            yield (*at, i), f"{name!r} is a test split ({split}); {hint}"


def _check_stage(
    at: Keys, stage: dict[str, Any], data: dict[str, Any], earlier: list[str], stages: dict[str, Any]
) -> Iterator[tuple[Keys, str]]:
    """Yield keys and messages for settings of a stage that do not fit each other. earlier: Stages before this one."""
    train, monitor = stage.get("train"), stage.get("monitor")
    yield from _check_sources((*at, "train", "data"), child(train, "data"), data, "train on another split")
    acknowledged = child(monitor, "test_split") == "acknowledged"
    hint = None if acknowledged else "validate on another split, or set monitor.test_split to acknowledged"
    yield from _check_sources((*at, "monitor", "data"), child(monitor, "data"), data, hint)
    unit, captions = stage.get("unit"), stage.get("captions_per_clip")
    if unit == "clip" and captions is None:
        yield (
            (*at, "captions_per_clip"),
            "captions_per_clip is missing, but a stage with unit clip needs it; set a number, or all",
        )
    if unit in ("pair", "moment") and captions is not None:
        yield (
            (*at, "captions_per_clip"),
            f"captions_per_clip only works with unit clip, since a {unit} has one caption; remove it",
        )
    at_once, batch_size = stage.get("grad_cache_chunk"), stage.get("batch_size")
    if isinstance(at_once, int) and isinstance(batch_size, int) and at_once >= batch_size:
        yield (
            (*at, "grad_cache_chunk"),
            f"grad_cache_chunk must be null, or less than batch_size, which is {batch_size}",
        )
    monitored = child(monitor, "metrics")
    for part in ("schedule", "stop"):
        metric = child(stage.get(part), "metric")
        if isinstance(metric, str) and isinstance(monitored, list) and metric not in monitored:
            yield (*at, part, "metric"), f"{metric} is not monitored; add it to monitor.metrics"
    start = stage.get("start_from")
    origin = child(start, "stage")
    if isinstance(origin, str) and origin not in earlier:
        yield (
            (*at, "start_from", "stage"),
            f"the recipe has no earlier stage {origin!r}; its earlier stages: {', '.join(earlier) or 'none'}",
        )
    else:
        yield from _check_checkpoint((*at, "start_from"), origin, child(start, "checkpoint"), stages)


def _check_checkpoint(at: Keys, stage: Any, checkpoint: Any, stages: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield a key and an error message if the stage `stage` is missing, or does not save `checkpoint`."""
    if not isinstance(stage, str):
        return
    if stage not in stages:
        yield (*at, "stage"), f"the recipe has no stage {stage!r}; its stages: {', '.join(stages) or 'none'}"
        return
    metrics = child(child(stages[stage], "monitor"), "metrics")
    if isinstance(metrics, list) and isinstance(checkpoint, str) and checkpoint not in ["last", *metrics]:
        yield (*at, "checkpoint"), f"stage {stage!r} does not monitor {checkpoint!r}; add it to monitor.metrics"
