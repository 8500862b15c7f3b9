"""Rankers of runs and exported models.

Open the ranker of a finished run or an exported model. It ranks the clips of any folder or manifest.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.manifest import Clip, Query, caption_queries
from submission.formats.score_matrix import read_scores
from system.batches.loader import Taught
from system.compute.device import device_of
from system.models.scores import MomentScore
from system.ranking.base import RankEntry, Ranker
from system.ranking.cache import CachedEmbeddings, FileEmbeddings, cache_folder, frame_banks_folder
from system.ranking.checkpoint import RankBlind
from system.ranking.listing import Listed, list_clips
from system.ranking.model import ModelRanker, WindowSettings
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.folder import Run
from system.runs.names import is_recipe, is_untrained
from system.runs.open import Trained, existing_path, open_trained, score_of_windows
from system.runs.untrained import open_untrained


def open_ranker(
    folder: Path,
    stage: str | None = None,
    checkpoint: str | None = None,
    changes: list[str] | None = None,
    device: str | None = None,
    cache: Path | None = None,
    with_windows: bool = False,
) -> Ranker:
    """Open a run or an exported model, and return its ranker, which can rank any clips.

    A run ranks by the given checkpoint. Without a given checkpoint, it ranks like its first rank entry that can rank
    any clips, not only the recipe's.

    Args:
        stage, checkpoint: Stage and checkpoint of a run; None: as in that rank entry.
        changes: Changed settings, such as "model.audio.experts.NAME.weights=FILE". Only paths may change in a trained
            model.
        device: cuda, cuda:1, mps or cpu; None for this machine's default device.
        cache: Folder of cached embeddings of clips; None: the folder lbar-kit in the user's cache directory.
        with_windows: Whether to find windows in recordings too, if the model has a score of moments.
    Raises: The errors of open_trained; for a model of the Hugging Face hub or a recipe, those of open_untrained.
    """
    cache, chosen = cache_folder(cache), device_of(device) if device else None
    if is_untrained(folder):
        if stage or checkpoint:
            raise KitError(f"{folder} is a published model without stages; leave out --stage and --checkpoint")
        return ranker_of(open_untrained(folder, changes, chosen, frame_banks_folder(cache)), cache, with_windows)

    def open_model_ranker(stage: str | None, checkpoint: str | None) -> ModelRanker:
        """Return the ranker of the model at a stage's checkpoint."""
        trained = open_trained(folder, stage, checkpoint, changes, chosen, frame_banks_folder(cache))
        return ranker_of(trained, cache, with_windows)

    run = Run(folder)
    if stage is None and checkpoint is None and run.vocabulary.exists() and (folder / "resolved.json").exists():
        run.read_provenance()  # refuses a damaged resolved.json before it is read
        recipe = load_recipe(folder / "resolved.json").recipe
        if entry := first_entry(recipe):
            return entry.ranker(_OpenedRun(run, recipe, open_model_ranker))
    return open_model_ranker(stage, checkpoint)


def first_entry(recipe: schema.Recipe) -> RankEntry | None:
    """Return the first rank entry that can rank any clips, not only the recipe's clips; None if no entry can.

    Entries that correct the scores of hubs (clips with high scores for many queries) take precedence. Entries with
    metrics take precedence over entries of blind sets.
    """
    found = [entry for entry in recipe.rank.values() if entry.ranks_any_clips]
    return min(found, key=lambda entry: (isinstance(entry, RankBlind), not entry.combined_entries), default=None)


class _OpenedRun:
    """Access of rank entries to the models and data of a finished run; see Models."""

    content_keys: Mapping[str, str] = {}

    def __init__(
        self, run: Run, recipe: schema.Recipe, open_model_ranker: Callable[[str | None, str | None], ModelRanker]
    ) -> None:
        """Store the run, its recipe, and a function that opens the run's model at the checkpoint of a stage."""
        self.recipe_name, self.model_ranker, self._rank = recipe.name, open_model_ranker, recipe.rank
        self._recipe, self._run = recipe, run
        self.chosen: dict[str, dict[str, float]] = {}

    def entry_ranker(self, name: str) -> Ranker:
        """Return the ranker of the rank entry `name`."""
        return self._rank[name].ranker(self)

    def live_ranker(self, name: str, source: str | None = None) -> Ranker:
        """Return the ranker of the rank entry `name`, for any queries and clips. source: Not used."""
        return self.entry_ranker(name)

    def ranked_clips(self, source: str) -> Sequence[Clip]:
        """Return the clips of a data source of the recipe, without clips that the run could not read."""
        data = self._recipe.data[source]
        broken = self._run.read_result().broken if self._run.result.exists() else {}
        clips = list_clips(existing_path(self._run, data.manifest), data.split).clips
        return [clip for clip in clips if clip.id not in broken]

    def caption_queries(self, source: str) -> Sequence[Query]:
        """Return the captions of a data source's readable clips as queries."""
        return caption_queries(self.ranked_clips(source))

    def earlier_facts(self, entry: RankEntry) -> Mapping[str, Any]:
        """Return the metadata that the run stored with a rank entry's scores; empty if the scores are missing."""
        name = next(name for name, one in self._rank.items() if one == entry)
        path = self._run.scores_file(name)
        return read_scores(path).facts if path.exists() else {}

    def teacher_embeddings(self, teacher: str, clips: Sequence[Clip]) -> Taught:
        """Raise KitError in any case, since teachers' embeddings exist only for the recipe's clips."""
        raise KitError(
            f"the recipe {self.recipe_name} ranks with teachers, which can only rank the recipe's clips; "
            "name a run or an exported model that ranks with a trained model"
        )


def ranker_of(trained: Trained, cache: Path, with_windows: bool = False) -> ModelRanker:
    """Return the ranker of an opened model, for any clips and queries. cache: Folder of clips' embeddings.

    with_windows: Whether to find windows (times of the query) in recordings too, if the model was made for moments.
    Windows are found as in the recipe's first rank entry of moments. Without such an entry, they are found by the
    threshold that was published with the model or, without one, by their posterior probability.
    """
    settings, windows = trained.recipe.model, None
    if with_windows and isinstance(trained.model.score, MomentScore):
        windows = _window_settings(trained, trained.model.score)
    return ModelRanker(
        trained.model,
        (CachedEmbeddings if settings.audio.reads_clips else FileEmbeddings)(
            settings, Path(trained.recipe.banks), cache
        ),
        trained.facts.document(),
        trained.facts.checkpoint,
        score=settings.score,
        windows=windows,
        name=str(trained.folder),
    )


def _window_settings(trained: Trained, score: MomentScore) -> WindowSettings:
    """Return the settings for finding windows by a model with a score of moments."""
    if entry := next(iter(trained.recipe.rank_moments.values()), None):
        return WindowSettings(score_of_windows(trained), entry.windows, entry.decoding)
    usual = WindowSettings(score_of_windows(trained))
    return usual if score.published_threshold is None else usual.with_threshold(score.published_threshold)


def clips_to_rank(model: Path, split: str | None) -> Listed:
    """List the clips that the first rank entry of a model's recipe ranks.

    model: Folder of a run or an exported model, or a recipe.
    split: Split of the manifest; None: the split that the entry ranks. Raises KitError if the recipe ranks no clips and
    for a hub model, and DataError if the manifest cannot be read.
    """
    if is_untrained(model) and not is_recipe(model):
        raise KitError(f"the published model {model} has no clips; name a folder of sounds after it")
    path = model / "resolved.json"
    path = model if is_recipe(model) else path if path.exists() else model / "recipe.json"
    recipe = load_recipe(path).recipe
    ranked = next(iter(recipe.scored or recipe.rank_moments), None)
    if ranked is None:
        raise KitError(f"the recipe {recipe.name} has no rank entry, so its clips are unknown; name the clips after it")
    source = recipe.data[recipe.ranked_source(ranked)]
    audio = Path(source.manifest)
    if not audio.exists():
        raise KitError(f"the manifest {audio} of the recipe {recipe.name} is missing; name the clips after it")
    return list_clips(audio, split or source.split)
