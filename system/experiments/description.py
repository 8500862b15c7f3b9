"""What a run's system is, in numbers, for its result.json: its parameters, its experts, and the data behind it."""

from collections import Counter
from collections.abc import Sequence

from data_tools.manifest import Clip
from submission.runs.record import ExpertFacts, Parameters, SetFacts, SourceFacts
from system.batches.data import Data
from system.models.retrieval import RetrievalModel
from system.recipe import schema


def parameters_of(recipe: schema.Recipe, model: RetrievalModel) -> Parameters:
    """Of the whole system: what is trained, by part; what is frozen, by expert, `audio`, or `text`; the total."""
    frozen = {name: expert.parameters for name, expert in recipe.model.audio.experts.items() if expert.parameters}
    if count := sum(p.numel() for p in model.audio.parameters() if not p.requires_grad):
        frozen["audio"] = count
    if count := model.text.frozen_parameters():
        frozen["text"] = count
    trained = model.parameters_by_part()
    return Parameters(trained=trained, frozen=frozen, total=sum(trained.values()) + sum(frozen.values()))


def experts_of(recipe: schema.Recipe) -> dict[str, ExpertFacts]:
    return {
        name: ExpertFacts(
            **{key: getattr(expert, key) for key in ("kind", "rate", "dim", "frames_per_second")},
            published=sorted(expert.published_addresses().values()),
        )
        for name, expert in recipe.model.audio.experts.items()
    }


def data_of(recipe: schema.Recipe, data: Data) -> dict[str, SourceFacts]:
    """Of every source: its data sets, the stages that train on it, and where it is published."""
    return {
        name: SourceFacts(
            sets={of: _set([clip for clip in clips if clip.source == of]) for of in {clip.source: 0 for clip in clips}},
            trains=[stage for stage, settings in recipe.stages.items() if name in settings.train.data],
            published=recipe.data[name].published,
        )
        for name, clips in data.clips.items()
    }


def _set(clips: Sequence[Clip]) -> SetFacts:
    return SetFacts(
        clips=len(clips),
        captions=sum(len(clip.captions) for clip in clips),
        hours=sum(clip.seconds or 0.0 for clip in clips) / 3600,
        licences=dict(Counter(clip.licence or "not known" for clip in clips).most_common()),
    )
