"""A trained model as one folder that another machine can rank with, or start a stage from.

model.safetensors   weights        recipe.json   the resolved recipe     model.json   where it comes from
vocabulary.json | text/   what the caption encoder needs                 README.md    a card for people
"""

import argparse
import json
from pathlib import Path

from system import schema
from system.checkpoints import save_weights
from system.errors import KitError
from system.models import Trained, open_trained
from system.runs import write_json

EXPERTS_ELSEWHERE = "\nWhere an expert's weights lie elsewhere: --set model.audio.experts.NAME.weights=FILE\n"


def export_model(trained: Trained, out: Path) -> None:
    """Write the folder; model.safetensors last, since it marks a whole export. KitError when `out` is not empty."""
    if out.exists() and any(out.iterdir()):
        raise KitError(f"{out} is not empty; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    trained.model.text.save_assets(out)
    write_json(out / "recipe.json", trained.recipe.model_dump(mode="json"))
    write_json(out / "model.json", trained.facts)
    (out / "README.md").write_text(_card(trained, out), encoding="utf-8")
    save_weights(trained.model, out / "model.safetensors")


def _card(trained: Trained, out: Path) -> str:
    recipe, facts = trained.recipe, trained.facts
    parameters = sum(p.numel() for p in trained.model.parameters()) + trained.model.text.frozen_parameters()
    sources = ", ".join(sorted({name for stage in recipe.stages.values() for name in stage.train.data}))
    inputs = "\n".join(f"- {name}: `{json.dumps(identity)}`" for name, identity in facts["experts"].items())
    weights = any(expert.weight_files() for expert in recipe.model.audio.experts.values())
    return (
        f"# {recipe.name}\n\n"
        f"Language-based audio retrieval model, {parameters:,} parameters with those of its text encoder.\n\n"
        f"- from: {facts['from']}, {facts['checkpoint']}\n"
        f"- seed: {facts['seed']}, commits: {', '.join(facts['commits'])}\n"
        f"- trained on: {sources}\n\nWhat it hears audio through, not in this folder:\n\n{inputs}\n\n"
        f"    python -m system rank {out.name} --audio FOLDER --queries QUERIES --out SCORES.npy\n"
        f"{EXPERTS_ELSEWHERE if weights else ''}{_words_card(trained)}"
    )


def _words_card(trained: Trained) -> str:
    if not isinstance(trained.recipe.model.text, schema.WordVectors):
        return ""
    return f"\nWord vectors, not in this folder: sha256 {trained.facts['text']}, --set model.text.vectors=FILE\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--stage", help="stage of the checkpoint (default: as the recipe ranks)")
    parser.add_argument("--checkpoint", help="last, or the metric it is best by (default: as the recipe ranks)")


def run(arguments: argparse.Namespace) -> int:
    export_model(open_trained(arguments.run_folder, arguments.stage, arguments.checkpoint), arguments.out)
    print(f"exported: {arguments.out}")
    return 0
