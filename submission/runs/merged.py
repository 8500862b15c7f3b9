"""Merge the records of runs.

Merge the recipes and results of blended runs, so that a blend has resolved.json and result.json like a run.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from submission.runs.finished import Finished
from submission.runs.record import Parameters

AnyRun = TypeVar("AnyRun", bound=Finished)


class Part(NamedTuple, Generic[AnyRun]):
    """A run in a blend. label: Unique name, made from the name of its folder. weight: Weight of the run, in (0, 1]."""

    label: str
    run: AnyRun
    weight: float


def parts_of(runs: Sequence[AnyRun], weights: Sequence[float]) -> list[Part[AnyRun]]:
    """Return the parts of a blend: runs with weights above 0, with these weights scaled to the sum 1.

    Each run gets a unique label: the name of its folder, with a number if several runs have the same folder name.
    weights: One weight per run; at least one is above 0.
    """
    names, parts = [run.folder.resolve().name for run in runs], []
    for number, (run, name, weight) in enumerate(zip(runs, names, weights, strict=True), 1):
        if weight > 0:
            label = f"{name}:{number}" if names.count(name) > 1 else name  # no folder of ours has a colon
            parts.append(Part(label, run, float(weight / sum(weights))))
    return parts


def describe_blend(parts: Sequence[Part[Any]]) -> str:
    """Return a text that names the runs of a blend with their weights and checkpoints."""
    return "blend of " + ", ".join(f"{p.weight:.2f} {p.label}:{p.run.entry} ({p.run.ranked.checkpoint})" for p in parts)


def merged_recipe(name: str, parts: Sequence[Part[Any]]) -> dict[str, Any]:
    """Return the content of a blend's resolved.json, with the stages and entries of all runs, renamed to LABEL/NAME.

    LABEL is the label of the run, usually the name of its folder; NAME is the name of the stage or entry in the run.
    The entries of the blend itself are missing; the caller adds them.
    """
    recipes = {part.label: part.run.recipe for part in parts}
    rank: dict[str, Any] = {}
    for label, recipe in recipes.items():
        for key, entry in recipe.rank.items():
            renamed = {"stage": f"{label}/{entry.stage}"} if entry.stage is not None else {}
            named = [f"{label}/{one}" for one in ([entry.of] if isinstance(entry.of, str) else entry.of)]
            of = {"of": named[0] if isinstance(entry.of, str) else named} if named else {}
            rank[f"{label}/{key}"] = entry.document() | renamed | of
    kinds = {side: _join_unique(getattr(r.model, side).kind for r in recipes.values()) for side in ("audio", "text")}
    return {
        "name": name,
        "seed": parts[0].run.recipe.seed,
        "data": _merge_tables(
            {label: {k: one.document() for k, one in r.data.items()} for label, r in recipes.items()}
        ),
        "model": {
            "score": parts[0].run.recipe.model.score.document(),
            **{side: {"kind": kind} for side, kind in kinds.items()},
        },
        "stages": {f"{label}/{key}": one.document() for label, r in recipes.items() for key, one in r.stages.items()},
        "rank": rank,
    }


def merged_result(name: str, parts: Sequence[Part[Any]]) -> dict[str, Any]:
    """Return the values of a blend's result.json that are merged from its runs, such as experts and parameters.

    Experts, data sources and licences that differ between runs are called LABEL/NAME, with the label of the run.
    """
    results = {part.label: part.run.result for part in parts}
    experts = _merge_tables({label: result.experts for label, result in results.items()})
    return {
        "recipe": name,
        "seed": parts[0].run.recipe.seed,
        "commits": list(dict.fromkeys(commit for result in results.values() for commit in result.commits)),
        "hardware": _join_unique(result.hardware for result in results.values()),
        "parameters": _count_parameters(parts, experts),
        "experts": experts,
        "weight_licences": _merge_tables({label: result.weight_licences for label, result in results.items()}),
        "data": _merge_tables({label: _label_stages(label, result.data) for label, result in results.items()}),
        "seconds": sum(result.seconds for result in results.values()),
        "training_seconds": sum(result.training_seconds for result in results.values()),
        "broken": {clip: why for result in results.values() for clip, why in result.broken.items()},
    }


def _join_unique(texts: Iterable[str]) -> str:
    """Join texts by ", ", in their order, each text only once."""
    return ", ".join(dict.fromkeys(texts))


def _merge_tables(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Merge the dicts of several runs into one; keep different values of the same key under separate keys.

    The first value has the key KEY. Another run's value has the key LABEL/KEY if it differs from the first one.
    tables: Dict from the label of a run to its dict.
    """
    united: dict[str, Any] = {}
    for label, table in tables.items():
        for key, value in table.items():
            if united.setdefault(key, value) != value:
                united[f"{label}/{key}"] = value
    return united


def _label_stages(label: str, sources: dict[str, Any]) -> dict[str, Any]:
    """Return a run's data sources, with every stage that uses them renamed to LABEL/STAGE."""
    return {
        name: source.model_copy(update={"trains": [f"{label}/{stage}" for stage in source.trains]})
        for name, source in sources.items()
    }


def _count_parameters(parts: Sequence[Part[Any]], experts: dict[str, Any]) -> Parameters:
    """Return the numbers of parameters of a blend's runs together; a run that is blended several times counts once.

    Frozen parameters of the same expert, or of the same published model, count once.
    experts: Dict from the name of each expert in the blend to its metadata, such as its number of parameters.
    """
    trained: dict[str, int] = {}
    frozen: dict[str, int] = {}
    models: dict[tuple[str, str, int], int] = {}  # by side, name and size of the published model of an encoder
    for part in {one.run.folder.resolve(): one for one in reversed(parts)}.values():
        settings, parameters = part.run.recipe.model, part.run.result.parameters
        trained |= {f"{part.label}/{key}": count for key, count in parameters.trained.items()}
        names = {"text": Path(settings.text.model or settings.text.vectors or "").name, "audio": settings.audio.weights}
        for key, count in parameters.frozen.items():
            if key in names:
                models[key, names[key] or part.label, count] = count
            else:
                is_same = experts[key] == part.run.result.experts[key] and frozen.get(key, count) == count
                frozen[key if is_same else f"{part.label}/{key}"] = count
    for (side, _, _), count in models.items():
        frozen[side] = frozen.get(side, 0) + count
    return Parameters(trained=trained, frozen=frozen, total=sum(trained.values()) + sum(frozen.values()))
