"""The files of a run that `system` writes and others read.

Pydantic models of result.json and metrics.jsonl, and readers; scores/ENTRY.clips.csv, the table of ranked clips; the
probabilities of frames.

RunResult is the content of result.json, and EpochLine a line of metrics.jsonl.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_tools.errors import KitError
from data_tools.files import is_locked, parse_json, require_file, writing
from data_tools.manifest import Clip
from data_tools.settings import read_shaped, require_shape
from data_tools.tables import read_table, write_table

Interval = list[float]  # lower and upper bound


class Record(BaseModel):
    """Base class of all records in a run's files: strict types, unchangeable objects; unknown keys stay."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """Return the record as a dict for JSON, with the keys of the file; values that were not set are left out."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Parameters(Record):
    """Numbers of parameters. trained: By part of the model. frozen: By expert, or by encoder (`audio`, `text`)."""

    trained: dict[str, int]
    frozen: dict[str, int]
    total: int


class ExpertFacts(Record):
    """Facts about an expert, which is a frozen audio model.

    Attributes:
        kind: Kind of the expert.
        rate: Sample rate in Hz; 0 if it reads no audio.
        dim: Dimension of the embedding of a frame.
        published: Web addresses of its published weights.
        pretrained: Name of the model that computed the frames, if they were read from a file; None otherwise.
    """

    kind: str
    rate: int
    dim: int
    frames_per_second: float
    published: list[str]
    pretrained: str | None = None

    @property
    def model(self) -> str:
        """Name of the pre-trained model, if it is stored; otherwise the kind of the expert."""
        return self.pretrained or self.kind


class SetFacts(Record):
    """Facts about a data set in a data source. licences: Dict from licence to its number of clips."""

    clips: int
    captions: int
    hours: float
    licences: dict[str, int]


class SourceFacts(Record):
    """Facts about a data source under the key `data` of a recipe.

    Attributes:
        sets: Dict from the name of each data set in this source to its facts.
        trains: Names of the training stages that train on this source.
        published: Web address of the source; None if it is not published.
        moments: Number of moments of the source's clips; None if it has no file of moments.
    """

    sets: dict[str, SetFacts]
    trains: list[str]
    published: str | None
    moments: int | None = None


class RankedResult(Record):
    """Result of an entry that ranks clips; its metrics, such as mAP@10 and R@1, are further keys.

    Attributes:
        metric: Primary metric.
        interval, bootstrap: 95 % jackknife and bootstrap intervals of `metric`; None for a single query.
        chance, untrained, ceiling: Values of `metric` for random order, for the untrained model (None if nothing was
            trained), and for a perfect system on composed scenes (None for other data).
        also_trained_on: Number of ranked clips that are also training data.
    """

    __pydantic_extra__: dict[str, Any]

    metric: str
    interval: Interval | None
    bootstrap: Interval | None
    median_rank: float
    data: str
    queries: int
    clips: int
    checkpoint: str
    edition: str
    chance: float
    untrained: float | None
    ceiling: float | None
    also_trained_on: int

    @property
    def figures(self) -> dict[str, float]:
        """Dict from each metric of the entry to its value."""
        return {key: value for key, value in self.__pydantic_extra__.items() if isinstance(value, float | int)}


class BlindResult(Record):
    """Result of an entry that ranks a blind set, without metrics.

    Attributes:
        checkpoint: Description of the checkpoint.
    """

    queries: int
    clips: int
    checkpoint: str
    edition: str


class FittedScore(Record):
    """Fitted numbers of the score that finds moments.

    Attributes:
        scale: Factor of the similarity of a frame and a query.
        offset: Number that is added to the scaled similarity.
        enter: Log odds that a moment begins from one frame to the next.
        leave: Log odds that a moment ends from one frame to the next.
        rate: Factor of the similarity of a query and the change between two frames; None for the score kind `moments`,
            which does not use changes.
    """

    scale: float
    offset: float
    enter: float
    leave: float
    rate: float | None = None


class MomentsResult(Record):
    """Result of an entry that finds moments.

    Attributes:
        metric: Primary metric.
        figures: Dict from metric to its value in [0, 1]; None for a blind list.
        bootstrap: Dict from metric to its 95 % bootstrap interval over recordings; None for a blind list.
        random: Metrics of random windows; None for a blind list.
        ceiling: Metrics of the windows that a perfect model would find, which knows for each frame whether it is in a
            true window; None for a blind list.
        new_texts: Number of queries whose text was not in the training data; None for a blend.
        figures_of_new_texts: Metrics of these queries; None without such queries, and for a blind list.
        fitted: Numbers of the score of moments (see FittedScore) that the setting `fit` has fitted; None without it.
    """

    metric: str
    figures: dict[str, float] | None
    bootstrap: dict[str, Interval] | None
    random: dict[str, float] | None
    ceiling: dict[str, float] | None
    new_texts: int | None
    figures_of_new_texts: dict[str, float] | None
    data: str
    queries: int
    clips: int
    checkpoint: str
    fitted: FittedScore | None
    edition: str
    also_trained_on: int


class RunResult(Record):
    """Content of result.json.

    Attributes:
        commits: Commits of the code that made the run, in order of time.
        weight_licences: Dict from expert (or `audio`, the audio encoder) to the licence of its published weights.
        broken: Dict from the id of a clip that was left out to the reason.
        seconds: Duration of the last process.
        training_seconds: Duration of the training in all epochs.
        rank: Dict from the name of each entry of the recipe that ranks clips to its result.
        blind: Dict from the name of each entry of the recipe that ranks a blind set to its result.
        moments: Dict from the name of each entry of the recipe that finds moments to its result.
    """

    recipe: str
    seed: int
    commits: list[str]
    hardware: str
    parameters: Parameters
    experts: dict[str, ExpertFacts]
    weight_licences: dict[str, str] = {}
    data: dict[str, SourceFacts]
    seconds: float
    training_seconds: float
    broken: dict[str, str]
    rank: dict[str, RankedResult]
    blind: dict[str, BlindResult]
    moments: dict[str, MomentsResult]


class EpochLine(Record):
    """A line of metrics.jsonl: values of one epoch; those that not every stage has are further keys.

    Attributes:
        stage: Training stage.
        epoch: Number of the epoch in the stage, from 1.
        step: Number of the step in the stage.
        loss: Mean training loss over the steps of the epoch.
        validation: Dict from validation metric to its value.
        collapsed: Messages on a collapse: all embeddings become similar. Empty if the model did not collapse.

    Further keys:
        positive: Mean score of matching pairs of a clip and a caption.
        hardest_negative: Mean, over clips and captions, of the highest score with a partner that does not match.
        violations: Share of the pairs that do not match whose score is too high: above the score of the matching pair
            minus the margin of the loss. None without a margin.
        violations_relaxed: The same for the relaxed margin, if the loss has one.
        times: Seconds of it by what took them: data, step, validation, saving (of the epoch before).
        lr: Learning rate.
        skipped: Number of updates that were skipped because the fp16 loss was not finite.
        spread_of_clips, spread_of_captions: Spread of the directions of the embeddings; near 0 after a collapse.
    """

    stage: str
    epoch: int
    step: int | None = None
    loss: float | None = None
    seconds: float
    times: dict[str, float] = {}
    validation: dict[str, float] = {}
    collapsed: list[str] = []

    def value(self, name: str) -> float | None:
        """Return the value called `name`, such as `loss` or `validation.mAP@10`; None if the line lacks it."""
        part, _, metric = name.rpartition(".")
        value: float | None = self.validation.get(metric) if part else getattr(self, metric, None)
        return value


def read_result(folder: Path) -> RunResult:
    """Read result.json of a run."""
    path = folder / "result.json"
    return read_shaped(path, RunResult, repair_hint(folder, path))


def read_metrics(path: Path, hint: str) -> list[EpochLine]:
    """Read metrics.jsonl of a run, a line per epoch.

    Args:
        hint: End of an error message, with the repair.

    Returns: The lines in the order of training, without a cut last one, which a killed process may have left.
    """
    require_file(path, hint)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [
        require_shape(parse_json(line, f"{path}, line {number}"), EpochLine, f"{path}, line {number},", hint)
        for number, line in enumerate(lines, 1)
    ]


def repair_hint(folder: Path, *damaged: Path) -> str:
    """Return the cure for damaged files of a run."""
    files = " and ".join(map(str, dict.fromkeys([*damaged, folder / "result.json"])))
    return f"delete {files}, then make the run again in its folder {folder}"


def finish_hint(folder: Path) -> str:
    """Return the cure for a run that is not finished."""
    if not (folder / "resolved.json").is_file():
        return "give the folder of a run, which lbar run makes"
    if is_locked(folder / "lock"):
        return "the run is in progress now; wait until it ends"
    run = shlex.quote(str(folder))
    return f"continue the run with: lbar run {run}/resolved.json --out {run}"


def write_clips(path: Path, clips: Sequence[Clip]) -> None:
    """Write the table of a run's ranked clips."""
    rows = [[clip.id, clip.path, "" if clip.seconds is None else f"{clip.seconds:.3f}"] for clip in clips]
    write_table(path, ["clip", "path", "seconds"], rows)


def read_clips(path: Path, clip_ids: Sequence[str]) -> list[dict[str, str]]:
    """Read the table of ranked clips, ordered by ids."""
    rows = {row["clip"]: row for _, row in read_table(path, ["clip", "path", "seconds"])}
    if missing := set(clip_ids) - rows.keys():
        raise KitError(f"{path}: no line for the clip {min(missing)!r}; rank the run again")
    return [rows[clip] for clip in clip_ids]


class FrameScores(NamedTuple):
    """Probabilities of the frames of a recording.

    Attributes:
        edges: (T + 1,) of the frames, in seconds.
        frames: (T,) probability to be in a moment.
    """

    edges: np.ndarray
    frames: np.ndarray


def write_frame_scores(path: Path, scores: Mapping[str, FrameScores]) -> None:
    """Write the probabilities of frames as .npz.

    The arrays of a query are called `edges QID` and `frames QID`.
    """
    arrays = {f"{part} {qid}": values for qid, one in scores.items() for part, values in one._asdict().items()}
    with writing(path) as file:
        np.savez_compressed(file, **arrays)


def read_frame_scores(path: Path) -> dict[str, FrameScores]:
    """Read the probabilities of frames, by query id."""
    require_file(path)
    with np.load(path) as file:
        qids = [name.removeprefix("edges ") for name in file if name.startswith("edges ")]
        return {qid: FrameScores(file[f"edges {qid}"], file[f"frames {qid}"]) for qid in qids}
