"""Sections on the run itself.

Make the sections about the run itself: its recipe and data, its learning curves, and caveats for the reader.
"""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from data_tools.cli import counted
from submission.plots import CURVES
from submission.report.elements import NONE, Drawing, Section, Table, figure4, without_folders
from submission.report.settings import read_settings
from submission.report.statistics import ScoreGaps
from submission.runs.finished import Finished
from submission.runs.recipe import RelevanceSettings
from submission.runs.record import EpochLine, Parameters, Provenance, RankedResult

MEANING_OF_M = (
    "within validation batches, the share of clips whose own caption has the highest score (m1), and the share of "
    "captions whose own clip has the highest score (m2)"
)
LICENCES = 4  # maximum number of named licences per data set


def run_section(run: Finished) -> Section:
    """Return the section on the run: recipe, command, versions, hardware, duration, parameters, data and experts."""
    result, ranked = run.result, run.ranked
    provenance = run.provenance or Provenance.model_construct()  # only its keys with a default are shown
    command = provenance.command
    if command and command[0].endswith("__main__.py"):
        command = ["python", "-m", Path(command[0]).parent.name, *command[1:]]
    command, changes = without_folders(command), without_folders(provenance.changes)
    versions = (("Python", provenance.python), ("torch", provenance.torch))
    facts = {
        "Recipe": f"{result.recipe}, seed {result.seed}",
        "Changes": ", ".join(changes),
        "Command": shlex.join(command),
        "Run": run.folder.resolve().name,
        "Began": provenance.began.replace("T", " ").replace("+00:00", " UTC"),
        "Commit": ", ".join(result.commits),
        "Hardware": ", ".join(part for part in (result.hardware, provenance.machine) if part),
        "Software": ", ".join(f"{name} {version}" for name, version in versions if version),
        "Time": f"{_format_duration(result.training_seconds)} of training, "
        f"{_format_duration(result.seconds)} since the run was started, or was resumed for the last time",
        "Ranked": f"{run.entry}: {counted(ranked.queries, 'query', ',')} against "
        f"{counted(ranked.clips, 'clip', ',')} of {ranked.data}",
        "Checkpoint": ranked.checkpoint,
        "m1 and m2": MEANING_OF_M if any(f" best {name} " in f" {ranked.checkpoint} " for name in ("m1", "m2")) else "",
        "Parameters": _format_parameters(result.parameters),
    }  # fmt: skip
    settings = read_settings(run)
    return Section(
        anchor="run",
        title="Run",
        facts=[(name, value) for name, value in facts.items() if value],
        tables=[_data_table(run), _expert_table(run)],
        folded=[("The resolved recipe", json.dumps(without_folders(settings), indent=1, ensure_ascii=False))],
    )


def _format_duration(seconds: float) -> str:
    """Format a duration (given in seconds) in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _format_parameters(parameters: Parameters) -> str:
    """Format the numbers of trained and frozen parameters, e.g. `trained 9,000 (audio 9,000); frozen 0`."""

    def format_parts(parts: Mapping[str, int]) -> str:
        """Format the total number of parameters, followed by the number of each part, e.g. `9,000 (audio 9,000)`."""
        names = ", ".join(f"{name} {count:,}" for name, count in parts.items())
        return f"{sum(parts.values()):,}{f' ({names})' if names else ''}"

    return f"trained {format_parts(parameters.trained)}; frozen {format_parts(parameters.frozen)}"


def _data_table(run: Finished) -> Table:
    """Return a table of the run's data sets: their use, clips, captions, hours and licences."""
    rows = []
    for source, about in run.result.data.items():
        uses = [*(f"trains {stage}" for stage in about.trains), *_other_uses(run, source)]
        for name, part in about.sets.items():
            numbers = [f"{part.clips:,}", f"{part.captions:,}", f"{part.hours:.2f}"]
            rows.append([source, name, "; ".join(uses) or NONE, *numbers, _format_licences(part.licences)])
    return Table("Data", ("source", "set", "use", "clips", "captions", "hours", "licences (clips)"), rows)


def _other_uses(run: Finished, source: str) -> Iterator[str]:
    """Yield a text for each use of a data source except training: monitoring of a stage, or ranking in this entry."""
    for stage, settings in run.recipe.stages.items():
        if source in settings.monitor.data:
            yield f"monitors {stage}"
    if source == run.ranked.data:
        yield "ranked here"


def _format_licences(counts: Mapping[str, int]) -> str:
    """Format the most frequent licences with their numbers of clips; all other licences have one common number."""
    by_count = sorted(counts.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} ({count:,})" for name, count in by_count[:LICENCES])
    rest = sum(count for _, count in by_count[LICENCES:])
    return named + (f", others ({rest:,})" if rest else "")


def _expert_table(run: Finished) -> Table:
    """Return a table of the run's experts (audio models): kind, sample rate, dimension, frame rate, parameters."""
    rows = []
    for name, expert in run.result.experts.items():
        frozen = f"{run.result.parameters.frozen.get(name, 0):,}"
        rates = [f"{expert.rate:,}", f"{expert.frames_per_second:.2f}"] if expert.rate else ["none", "none"]
        numbers = [rates[0], f"{expert.dim:,}", rates[1], frozen]
        rows.append([name, expert.kind, *numbers, ", ".join(expert.published) or NONE])
    header = ("name", "kind", "rate (Hz)", "dimension", "frames/s", "frozen parameters", "published")
    return Table("Experts", header, rows)


def curves_section(run: Finished) -> Section:
    """Return the section with the learning curves that the run has drawn; a curve with one point becomes text."""
    lines = run.epochs
    drawings, sentences = [], []
    keys: set[str] = set()
    for name, (title, _, labels) in CURVES.items():
        if (file := run.folder / "figures" / f"{name}.svg").is_file():
            keys |= labels.keys()
            points = max((sum(line.value(key) is not None for line in lines) for key in labels), default=0)
            curve = _curve_drawing(file, title, labels, lines)
            if points == 1:
                sentences.append(curve.alt)
            else:
                drawings.append(curve)
    relevance = run.folder / "figures" / "relevance.svg"
    if relevance.is_file() and run.recipe.relevance:
        drawings.append(_relevance_drawing(relevance, run.recipe.relevance))
    epochs_by_stage = Counter(line.stage for line in lines)
    stages = [f"{name} ({counted(epochs_by_stage[name], 'epoch', ',')})" for name in run.recipe.stages]
    text = f"{counted(len(stages), 'stage', ',')}: {', then '.join(stages)}."
    if len(stages) > 1:
        text += " A dotted line separates two stages; epochs are counted over all stages."
    if "validation.m1" in keys:
        text += f" m1 and m2: {MEANING_OF_M}."
    return Section("learning", "Learning curves", paragraphs=[text, *sentences], drawings=drawings)


def _curve_drawing(file: Path, title: str, labels: Mapping[str, str], lines: list[EpochLine]) -> Drawing:
    """Return a drawing of metrics by epoch, with a table and a description in words. labels: Label of each metric."""
    known = {label: [line.value(key) for line in lines] for key, label in labels.items()}
    columns = {label: [math.nan if v is None else v for v in values] for label, values in known.items()}
    columns = {label: values for label, values in columns.items() if not all(map(math.isnan, values))}
    rows = [
        [str(number), line.stage, *(figure4(values[number - 1]) for values in columns.values())]
        for number, line in enumerate(lines, start=1)
    ]
    alt = "; ".join(_describe_curve(label, values) for label, values in columns.items())
    return Drawing(file, title, f"{title} by epoch: {alt}.", Table(title, ("epoch", "stage", *columns), rows))


def _describe_curve(label: str, values: list[float]) -> str:
    """Describe a curve in words: first and last value, and the lowest and the highest value with their epochs."""
    known = [(epoch, value) for epoch, value in enumerate(values, start=1) if not math.isnan(value)]
    if len(known) == 1:
        return f"{label} {known[0][1]:.3g} (epoch {known[0][0]})"
    low, high = (choose(known, key=lambda point: point[1]) for choose in (min, max))
    return (
        f"{label} from {known[0][1]:.3g} to {known[-1][1]:.3g}, lowest {low[1]:.3g} (epoch {low[0]}), "
        f"highest {high[1]:.3g} (epoch {high[0]})"
    )


def _relevance_drawing(file: Path, settings: RelevanceSettings) -> Drawing:
    """Return the drawing of caption similarities (CIDEr-D) and of the reduced margins of the loss."""
    points = [(f"{point.percentile:g}", f"{point.factor:g}") for point in settings.relax]
    text = ", ".join(f"{factor} at percentile {percentile}" for percentile, factor in points)
    return Drawing(
        file,
        "Similarity of captions, and the relaxed margin",
        f"Histogram of CIDEr-D between captions of {', '.join(settings.corpus)}, and the factor on the margin: {text}.",
        Table("Relax function", ("percentile of CIDEr-D", "factor on the margin"), points),
    )


def caveats_section(run: Finished, gaps: ScoreGaps | None) -> Section:
    """Return the section with reasons for caution about the results, such as equal scores and omitted clips."""
    broken = run.result.broken
    folded = [
        ("Clips left out, and why", "\n".join(f"{clip}: {_strip_folders(reason)}" for clip, reason in broken.items()))
    ]
    points = [
        f"The results are of one run with one seed ({run.recipe.seed}): intervals "
        "measure the uncertainty over queries, not the difference between seeds.",
        *_collapse_sentences(run.epochs),
        *_caveats_of_data(run),
        *([_ties_sentence(int(gaps.tied.sum()), len(gaps.tied))] if gaps else []),
        *_caveats_of_training(run),
    ]
    return Section("caveats", "Caveats", points=points, folded=folded if broken else ())


def _strip_folders(message: str) -> str:
    """Shorten all paths in a message that begins with a path to their last parts; return the message."""
    path, colon, rest = message.partition(": ")
    return f"{without_folders(path)}{colon}{without_folders(rest)}"


def _collapse_sentences(lines: list[EpochLine]) -> Iterator[str]:
    """Yield one sentence for each training stage with a collapse of the model, where all embeddings become similar."""
    collapsed = [line for line in lines if line.collapsed]
    for stage in dict.fromkeys(line.stage for line in collapsed):
        epochs = [line for line in collapsed if line.stage == stage]
        text = "; ".join(epochs[-1].collapsed)
        yield (
            f"The model collapsed in {counted(len(epochs), 'epoch', ',')} of stage {stage}, between epochs "
            f"{epochs[0].epoch} and {epochs[-1].epoch}. In the last of these epochs: {text}."
        )


def _caveats_of_data(run: Finished) -> Iterator[str]:
    """Yield sentences on training data among the ranked clips, hubs, omitted clips, and changed weights of experts."""
    trained, broken = run.ranked.also_trained_on, len(run.result.broken)
    if trained:
        yield f"Warning: {trained:,} ranked clips are also training data, by content or Freesound id."
    else:
        yield "No ranked clip is also training data, by content or Freesound id."
    if isinstance(run.ranked, RankedResult) and run.ranked.hub_skewness is not None:
        yield (
            "Hubs: for each clip, count the queries that have it in their top 10. The skewness of these counts is "
            f"{run.ranked.hub_skewness:.2f}; {100 * (run.ranked.never_found or 0):.1f} % of the clips are in no top 10."
        )
    if broken:
        yield f"{counted(broken, 'clip', ',')} with broken audio {'was' if broken == 1 else 'were'} left out."
    else:
        yield "No clip was left out because of broken audio."
    for name, expert in run.result.experts.items():
        for file in expert.unpublished:
            yield f"{name} was computed with {without_folders(file)}, which is not the published file."


def _ties_sentence(count: int, n: int) -> str:
    """Return a sentence on equal scores: in `count` of `n` queries, the relevant clip has the score of another clip."""
    if not count:
        return "No relevant clip has the same score as a clip that is not relevant."
    return (
        f"For {count:,} of {counted(n, 'query', ',')}, a clip that is not relevant has exactly the score of the best "
        "relevant clip. Clips with equal scores are sorted by file name."
    )


def _caveats_of_training(run: Finished) -> Iterator[str]:
    """Yield sentences on test splits used for monitoring, uncommitted code, and runs resumed with other code."""
    if stages := [name for name, stage in run.recipe.stages.items() if stage.monitor.test_split]:
        yield (
            f"A test split was monitored during training (stages: {', '.join(stages)}), which the recipe permits. A "
            "checkpoint chosen by this split has metrics that are too optimistic."
        )
    commits = run.result.commits
    if any(commit.endswith("+") for commit in commits):
        yield "The code had uncommitted changes, marked by + after the commit."
    if len(commits) > 1:
        yield f"The run was resumed with other code; its commits are {', '.join(commits)}."
