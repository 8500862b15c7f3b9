"""An exported model's card, and its upload to the hub."""

import json
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCardData

from data_tools.errors import KitError, first_line
from submission.runs.record import RunResult, read_result
from system.runs.open import Trained

TEXT = """---
{metadata}
---

# {name}

Language-based audio retrieval model of lbar-kit, {parameters:,} parameters including its text encoder.

{origin}
{inputs}
    lbar rank {folder} FOLDER QUERIES --out SCORES.npy
{elsewhere}
```python
from system import load_model
from sentence_transformers import SentenceTransformer

model = load_model("{folder}")
encoder = SentenceTransformer("{folder}", trust_remote_code=True)  # where lbar-kit is installed
```
"""


def push_folder(folder: Path, name: str) -> str:
    """Upload an exported model to the hub; return its address.

    Args:
        name: USER/NAME, which is created if it is new.
    """
    try:
        place = HfApi().create_repo(name, private=True, exist_ok=True)
        HfApi().upload_folder(folder_path=folder, repo_id=name, commit_message="Upload a model of lbar-kit")
    except Exception as error:  # of the hub, the network, or a missing login: each library has its own
        raise KitError(
            f"{folder} is exported, but not uploaded to {name}: {first_line(error)}; "
            f"`hf auth login` stores a token, `hf upload {name} {folder}` tries again"
        ) from error
    return str(place)


def model_card(trained: Trained, out: Path) -> str:
    """Return the text of the card.

    Args:
        out: The exported folder, whose name the commands show.
    """
    recipe, facts = trained.recipe, trained.facts
    done = read_result(trained.folder) if (trained.folder / "result.json").exists() else None
    origin = (
        f"- from: {facts.run}, {facts.checkpoint}\n"
        f"- seed: {facts.seed}, commits: {', '.join(facts.commits)}\n"
        f"- trained on: {', '.join(recipe.trained_on)}\n"
    )
    if facts.run is None:  # a model that others have published
        origin = f"- weights of {facts.checkpoint}; its training data is unknown\n"
    parts = {key: part for key, part in recipe.model.parts.items() if key != "audio" and part.weight_files()}
    identities = {f"audio.experts.{name}": one for name, one in facts.experts.items()} | {"text": facts.text}
    weights = "\n".join(f"- {key}: `{json.dumps(identities[key])}`" for key in parts)
    paths = " ".join(f"--set model.{key}.{name}=FILE" for key, part in parts.items() for name in part.weight_files())
    return TEXT.format(
        metadata=_metadata(trained, done),
        name=recipe.name,
        parameters=sum(p.numel() for p in trained.model.parameters()) + trained.model.text.frozen_parameters(),
        origin=origin,
        inputs=f"It reads published weights that are not in this folder:\n\n{weights}\n" if parts else "",
        folder=out.name,
        elsewhere=f"\nPublished weights that have another path here: {paths}\n" if parts else "",
    )


def _metadata(trained: Trained, done: RunResult | None) -> str:
    data = ModelCardData(
        model_name=trained.recipe.name,
        license="other",
        license_name="see-the-card",
        library_name="sentence-transformers",
        pipeline_tag="feature-extraction",
        tags=["lbar-kit", "audio-text-retrieval"],
        datasets=sorted({of for name in trained.recipe.trained_on for of in done.data[name].sets}) if done else None,
        eval_results=list(_scores(trained, done)) if done else None,
    )
    return str(data.to_yaml())


def _scores(trained: Trained, done: RunResult) -> Iterator[EvalResult]:
    """Yield the metrics of the rank entries by this checkpoint."""
    for name, entry in done.rank.items():
        for metric, value in entry.figures.items() if entry.checkpoint == trained.facts.checkpoint else ():
            yield EvalResult(
                task_type="text-to-audio-retrieval",
                dataset_type=" ".join(done.data[entry.data].sets),
                dataset_name=f"{entry.data}, {entry.clips} clips",
                metric_type=metric,
                metric_value=round(value, 6),
                metric_name=f"{metric} of {name}",
                metric_config=f"seed {trained.facts.seed}, commit {done.commits[-1]}",
            )
