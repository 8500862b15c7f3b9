"""Put a plan together.

The plan of a recipe: data, features, model, stages, ranking, time and disk, and all problems.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

from submission.editions import get_edition
from system.models.base import EncoderKind
from system.plan.content import Content
from system.plan.data import data_lines, feature_lines, file_problems, find_data
from system.plan.estimates import ASSUMED_VOCABULARY, Estimates
from system.plan.lines import MISSING, MISTAKE, Plan, Problem, Row
from system.plan.processes import process_lines
from system.plan.stages import (
    cost_lines,
    count_updates,
    missing_model_problem,
    rate_lines,
    stage_lines,
    unused_setting_warnings,
)
from system.plan.totals import disk_lines, hour_lines
from system.ranking.checkpoint import RankBlind
from system.recipe import schema


def plan(
    recipe: schema.Recipe,
    gpu_bytes: float | None = None,
    memory_bytes: float | None = None,
    runs: Path | None = None,
    copies: int = 1,
    made_before: Collection[Path] = (),
    processes: int = 1,
    gpu: str | None = None,
) -> Plan:
    """Return the plan of a recipe: its data, its costs, and problems.

    Args:
        gpu_bytes: Memory of the GPU for the stages; None for no GPU.
        memory_bytes: Memory of the machine, for stages without a GPU; None if it is not known.
        runs: Folder of the run; None: do not check the disk.
        copies: Number of runs of this recipe that are not finished.
        made_before: Folders of the runs of a study that finish before this one.
        processes: Number of processes of torchrun.
        gpu: Name of the GPU of each process; None: estimate times for all known GPUs.
    """
    contents = find_data(recipe)
    estimates = Estimates(recipe, contents)
    lines = [*data_lines(recipe, contents), *feature_lines(recipe, estimates), *_model_lines(recipe, estimates)]
    lines += file_problems(recipe, contents)
    lines += _teacher_lines(recipe, made_before)
    for name, stage in recipe.stages.items():
        lines += stage_lines(name, stage, contents, made_before)
        if estimates.why_unknown:
            continue
        lines += rate_lines(name, stage.optimizer, estimates.parameters_by_part, count_updates(stage, contents))
        lines += cost_lines(name, stage, estimates, gpu_bytes, memory_bytes)
        lines += process_lines(name, stage, estimates, processes, gpu) if processes > 1 else ()
    lines += [*unused_setting_warnings(recipe), *_rank_lines(recipe, contents)]
    missing = estimates.missing_seconds
    lines += hour_lines(recipe, estimates, contents, missing, processes, gpu)
    lines += disk_lines(recipe, estimates, missing, runs, copies) if runs else ()
    rows = [line for line in lines if isinstance(line, Row)]
    return Plan(f"recipe {recipe.name}, seed {recipe.seed}", rows, [x for x in lines if isinstance(x, Problem)])


def _model_lines(recipe: schema.Recipe, estimates: Estimates) -> Iterator[Row | Problem]:
    """Yield the plan's rows on the model, and the model's problems."""
    audio, text = recipe.model.audio, recipe.model.text
    yield from _encoder_lines("audio", audio)
    yield from _encoder_lines("text", text)
    if estimates.why_unknown:
        yield Row(
            "model",
            "parameters",
            f"the numbers, and the memory and time of a step, are unknown: {estimates.why_unknown}",
        )
        return
    parts = estimates.parameters_by_part
    named = [f"{name if name == 'text' else audio.part_name(name)} {count:,}" for name, count in parts.items()]
    assumed = (
        f" ({ASSUMED_VOCABULARY:,} words assumed, since the captions are missing)"
        if estimates.assumes_vocabulary
        else ""
    )
    yield Row("model", "parameters", f"{', '.join(named)}; {sum(parts.values()):,} trainable in total{assumed}")


def _encoder_lines(side: str, encoder: EncoderKind) -> Iterator[Row | Problem]:
    """Yield the plan's row on an encoder, and a problem for each of its missing files. side: "audio" or "text"."""
    fact, missing = encoder.plan_facts()
    yield Row("model", side, fact)
    yield from (Problem(MISSING, *one) for one in missing)
    if fault := encoder.plan_fault():
        yield Problem(MISTAKE, f"model.{side}", fault)


def _teacher_lines(recipe: schema.Recipe, made_before: Collection[Path]) -> Iterator[Row | Problem]:
    """Yield the plan's row on each teacher, and a problem for each teacher whose files are missing.

    made_before: Folders of models that earlier runs of a study will train; their files are not reported as missing.
    """
    for name, teacher in recipe.teachers.items():
        if isinstance(teacher, schema.ModelTeacher):
            before = " (trained by an earlier run of this study)" if Path(teacher.folder) in made_before else ""
            yield Row("teachers", name, f"{teacher.folder}{before}")
            yield from missing_model_problem(f"teacher {name}", Path(teacher.folder), made_before)
        elif isinstance(teacher, schema.EmbeddingsTeacher):
            yield Row("teachers", name, f"embeddings in {teacher.file}")
            if not Path(teacher.file).is_file():
                yield Problem(
                    MISSING,
                    f"teacher {name} {teacher.file}",
                    "this file of embeddings is missing; write it with lbar embeddings",
                )
        else:
            yield Row("teachers", name, f"stage {teacher.stage} of this run")


def _rank_lines(recipe: schema.Recipe, contents: dict[str, Content]) -> Iterator[Row | Problem]:
    """Yield the plan's row on each rank entry, and a problem for each entry with too few clips for its CSV."""
    for name, entry in recipe.rank.items():
        ranked = recipe.ranked(name)
        if isinstance(ranked, RankBlind):
            later = (
                f"; {' and '.join(ranked.missing_files)} missing: `run` skips this entry until these files exist"
                if ranked.missing_files
                else ""
            )
            yield Row("ranking", name, f"{ranked.audio} {entry.how_scored}, edition {entry.edition}{later}")
            continue
        yield Row("ranking", name, f"{ranked.data} {entry.how_scored}, edition {entry.edition}")
        if entry.finds_windows:
            continue
        clips = len(contents[ranked.data].clips)
        edition = get_edition(entry.edition).for_pool(clips)
        if entry.csv and edition.output == "ranked" and 0 < clips < edition.ranking_length:
            fault = f"a ranked CSV needs {edition.ranking_length} clips, but {ranked.data} has {clips}; set csv: false"
            yield Problem(MISTAKE, f"rank {name}", fault)
