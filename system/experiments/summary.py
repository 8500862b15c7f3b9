"""Collect the facts about a finished run, and print them."""

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_tools.cli import counted
from data_tools.files import read_json
from data_tools.manifest import Clip
from submission.editions import format_metric
from submission.metrics.summary import format_interval
from submission.runs.record import (
    ExpertFacts,
    MomentsResult,
    Parameters,
    RankedResult,
    RunResult,
    SetFacts,
    SourceFacts,
)
from system.audio import ExpertSettings
from system.devices import gpu_of
from system.models.retrieval import RetrievalModel
from system.processes import process_count
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.load import load_recipe
from system.runs.folder import Run


def ceiling_of(source: schema.Source) -> float | None:
    """Return the mAP@10 of a ranker that knows all labels.

    This is an upper limit, since the ranker cannot distinguish clips with equal labels. A label is the list of sounds
    in a clip. Only the scenes that data_tools composes have labels; others have no limit.
    """
    folder = Path(source.manifest).parent
    if not (folder / "scenes.json").exists():
        return None
    from data_tools.scenes.build import ceiling

    return ceiling(folder, source.split)


def describe_run(recipe: schema.Recipe, run: Run, data: Data, model: RetrievalModel, seconds: float) -> RunResult:
    """Collect the facts about a run, and its results.

    Args:
        seconds: Duration of this process.
    """
    results: dict[str, dict[str, Any]] = {"rank": {}, "blind": {}, "moments": {}}
    for name in [name for name in recipe.rank if name in run.ranked_entries()]:
        kind = "moments" if name in recipe.rank_moments else "blind" if recipe.blind(name) else "rank"
        results[kind][name] = read_json(run.file("result", name))["result"]
    several = f", {process_count()} processes" if process_count() > 1 else ""
    audio = recipe.model.audio
    licensed = dict(audio.experts) | ({"audio": audio} if audio.weight_files() else {})
    return RunResult(
        recipe=recipe.name,
        seed=recipe.seed,
        commits=run.read_provenance().commits,
        hardware=f"{os.cpu_count()} cores {platform.machine()}, {gpu_of(model.device) or 'no GPU'}{several}",
        parameters=parameters_of(recipe, model),
        experts={name: _describe_expert(expert) for name, expert in audio.experts.items()},
        weight_licences={name: part.licence for name, part in licensed.items() if part.licence},
        data=describe_data(recipe, data),
        seconds=seconds,
        training_seconds=round(sum(line.seconds for line in run.read_metrics()), 1),
        broken=data.features.broken,
        **results,
    )


def parameters_of(recipe: schema.Recipe, model: RetrievalModel) -> Parameters:
    """Count the trained and the frozen parameters.

    Frozen parameters are counted per expert, for the audio encoder (`audio`), and for the text encoder (`text`).
    """
    counts = {name: expert.count_parameters() for name, expert in recipe.model.audio.experts.items()}
    frozen = {name: count for name, count in counts.items() if count}
    if count := sum(p.numel() for p in model.audio.parameters() if not p.requires_grad):
        frozen["audio"] = count
    if count := model.text.frozen_parameters():
        frozen["text"] = count
    trained = model.parameters_by_part()
    total = sum(trained.values()) + sum(frozen.values())
    return Parameters(trained=trained, frozen=frozen, total=total)


def _describe_expert(expert: ExpertSettings) -> ExpertFacts:
    facts = {key: getattr(expert, key) for key in ("kind", "rate", "dim", "frames_per_second", "pretrained")}
    return ExpertFacts(**facts, published=sorted(need.address for need in expert.needs() if need.address))


def describe_data(recipe: schema.Recipe, data: Data) -> dict[str, SourceFacts]:
    """Describe every data source."""
    return {
        name: SourceFacts(
            sets={
                of: _describe_clips([clip for clip in clips if clip.source == of])
                for of in {clip.source: 0 for clip in clips}
            },
            trains=[stage for stage, settings in recipe.stages.items() if name in settings.train.data],
            published=recipe.data[name].published,
            **({"moments": len(data.moments[name])} if name in data.moments else {}),
        )
        for name, clips in data.clips.items()
    }


def _describe_clips(clips: Sequence[Clip]) -> SetFacts:
    return SetFacts(
        clips=len(clips),
        captions=sum(len(clip.captions) for clip in clips),
        hours=sum(clip.seconds or 0.0 for clip in clips) / 3600,
        licences=dict(Counter(clip.licence or "not known" for clip in clips).most_common()),
    )


def _time_lines(run: Run) -> list[str]:
    """Say where the time of each stage went."""
    found: dict[str, Counter[str]] = {}
    for line in run.read_metrics():
        found.setdefault(line.stage, Counter()).update(line.times | {"": line.seconds})
    return [
        f"  {stage:9}{seconds.pop('', 0):.1f} s: {', '.join(f'{name} {one:.1f} s' for name, one in seconds.items())}"
        for stage, seconds in found.items()
        if len(seconds) > 1
    ]


def report(run: Run) -> str:
    """Return the result of a run as text for printing."""
    result = run.read_result()
    trained, frozen = (sum(parts.values()) for parts in (result.parameters.trained, result.parameters.frozen))
    made = f"trained    {trained:,}" if trained else f"model      without training, {frozen:,}"
    times = f"{result.seconds:.0f} s in this process, {result.training_seconds:.0f} s of training"
    lines = [f"run        {run.folder}", f"{made} parameters, {result.hardware}, {times}", *_time_lines(run)]
    for name, entry in result.rank.items():
        lines += _rank_lines(name, entry, run)
    for name, blind in result.blind.items():
        size = f"{counted(blind.queries, 'query')}, {counted(blind.clips, 'clip')}"
        lines += [f"{name}: blind set, {size}, {_chosen(blind.checkpoint)}", f"  CSV        {run.file('csv', name)}"]
    for name, moments in result.moments.items():
        lines += _moment_lines(name, moments, run)
    recipe = load_recipe(run.resolved).recipe
    for name in recipe.rank:
        if name not in result.blind and (missing := " and ".join(recipe.awaited_files(name))):
            lines.append(f"{name}: not ranked yet, without {missing}; once there, run the same command again")
    return "\n".join(lines)


def _chosen(checkpoint: str) -> str:
    """Say which validation metric has chosen a checkpoint."""
    at, _, best = checkpoint.partition(", best ")
    return f"{at}, chosen by validation {best}" if best else checkpoint


def _rank_lines(name: str, entry: RankedResult, run: Run) -> Iterator[str]:
    size = f"{counted(entry.queries, 'query')}, {counted(entry.clips, 'clip')}"
    yield f"{name}: {size} of {entry.data}, {_chosen(entry.checkpoint)}"
    interval = "one query: no interval"
    if entry.interval:
        interval = "95 % {:.4f} to {:.4f}, jackknife over queries".format(*entry.interval)
    recalls = "  ".join(f"{key} {value:.4f}" for key, value in entry.figures.items() if key.startswith("R@"))
    yield f"  {entry.metric:<9}  {entry.figures[entry.metric]:.4f}  ({interval})   {recalls}"
    known = {"chance": entry.chance, "untrained": entry.untrained, "ceiling": entry.ceiling}
    baselines = {what: value for what, value in known.items() if value is not None}
    yield f"  baselines  {', '.join(f'{what} {value:.4f}' for what, value in baselines.items())}"
    csv = run.file("csv", name)
    yield f"  CSV        {csv if csv.exists() else 'none'}"
    if entry.also_trained_on:
        yield f"  beware     the model was also trained on {entry.also_trained_on} of these clips"
    for what, value in baselines.items():
        if what != "ceiling" and entry.interval and entry.interval[0] <= value:
            yield f"  BEWARE     {entry.metric} is not surely better than {what}: its interval reaches {value:.4f}"


def _moment_lines(name: str, entry: MomentsResult, run: Run) -> Iterator[str]:
    """Yield the lines on an entry of moments."""
    size = f"{counted(entry.queries, 'query')} in {counted(entry.clips, 'recording')}"
    yield f"{name}: {size} of {entry.data}, {_chosen(entry.checkpoint)}"
    known = {"random windows": entry.random, "true frames": entry.ceiling}
    for metric, value in (entry.figures or {}).items():
        low, high = (entry.bootstrap or {})[metric]
        interval = format_interval((low, high), metric)
        others = [f"{called} {format_metric(metric, one[metric])}" for called, one in known.items() if one]
        bounds = f"95 % {interval}, bootstrap over recordings"
        yield f"  {metric:<9}  {format_metric(metric, value)}  ({bounds})  {', '.join(others)}"
        if entry.random and low <= entry.random[metric]:
            yield f"  BEWARE     {metric} is not surely better than random windows"
    if entry.also_trained_on and entry.figures:
        yield f"  beware     the model was also trained on {entry.also_trained_on} of these recordings"
    yield f"  file       {run.file('answers', name)}"
