"""Prepare the training of a recipe: its model, vocabulary, provenance and CIDEr-D."""

from collections.abc import Iterable

import torch

from data_tools.files import read_json, write_json
from system.compute.device import device_of, gpu_of, moved
from system.compute.processes import first_before_others, is_first
from system.losses import terms
from system.losses.cider import Relevance
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.recipe.data import Data
from system.recipe.load import Loaded
from system.runs.folder import Run
from system.runs.open import build_model, training_vocabulary
from system.runs.provenance import contents_checksum, record_provenance
from system.runs.trained_on import refuse_leaks, write_trained_clips
from system.training.validation import require_windows


def prepare(loaded: Loaded, run: Run, data: Data, device: torch.device | None = None) -> RetrievalModel:
    """Build and return the model; check that nothing has changed since the run began, and write the run's provenance.

    The run's vocabulary is written too, and texts are embedded by frozen text encoders.
    device: Device of all computations; None for this machine's default device.
    Raises KitError if data, weights, or an exported model have changed since the run began, if a stage needs moments
    whose windows are not known, and if a starting model or a teacher was trained on a ranked clip.
    """
    with first_before_others():
        return _prepare(loaded, run, data, device or device_of())


def _prepare(loaded: Loaded, run: Run, data: Data, device: torch.device) -> RetrievalModel:
    """Build and return the model, and write the run's vocabulary, table of training clips, and provenance."""
    recipe = loaded.recipe
    if any(stage.unit == "moment" for stage in recipe.stages.values()):
        require_windows(recipe, data)
    if not run.vocabulary.exists():
        write_json(
            run.vocabulary,
            training_vocabulary(recipe, data.clips, _additional_texts(recipe.trained_on, data)),
        )
    model = build_initial_model(recipe, run, device)
    if is_first():
        contents = {name: contents_checksum(clips, data.features.keys) for name, clips in data.clips.items()}
        refuse_leaks(recipe, data)
        write_trained_clips(recipe, run, data)
        record_provenance(run, loaded, model.text.identity(), contents, gpu_of(model.device))
    used = {name for stage in recipe.stages.values() for name in (*stage.train.data, *stage.monitor.data)}
    captions = [caption for name in sorted(used) for clip in data.readable_clips(name) for caption in clip.captions]
    model.text.prepare([*captions, *_additional_texts(sorted(used), data)])
    return model


def _additional_texts(names: Iterable[str], data: Data) -> list[str]:
    """Return the texts of the data sources' moments, and the texts that augmentation may use instead of captions."""
    return [*(moment.text for name in names for moment in data.moments.get(name, ())), *new_texts(data)]


def new_texts(data: Data) -> list[str]:
    """Return the texts that augmentation may use instead of captions during training."""
    return [text for augmentation in data.augmentations.values() for text in augmentation.new_texts()]


def training_relevance(recipe: schema.Recipe, data: Data) -> Relevance | None:
    """Return the CIDEr-D and margin factors of all captions; None if no loss needs these.

    Document frequencies are counted in the recipe's `relevance.corpus`.
    """
    asking = [stage for stage in recipe.stages.values() if terms.need_relevance(stage.losses)]
    if recipe.relevance is None or not asking:
        return None
    corpus = [clip.captions for name in recipe.relevance.corpus for clip in data.clips[name] if clip.captions]
    relevance = Relevance(recipe.relevance, corpus)
    used = {name for stage in asking for name in (*stage.train.data, *stage.monitor.data)}
    relevance.prepare(
        caption for name in sorted(used) for clip in data.readable_clips(name) for caption in clip.captions
    )
    relevance.prepare(new_texts(data))
    return relevance


def build_initial_model(recipe: schema.Recipe, run: Run, device: torch.device) -> RetrievalModel:
    """Build the model before training: new layers with random weights, and networks with published weights.

    The model only depends on the recipe, its seed, the vocabulary, and the published weights.
    """
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, read_json(run.vocabulary))
    if recipe.model.audio.needs():
        model.audio.load_pretrained()
    return moved(model, device)
