"""The command line `lbar`.

`lbar data` and `lbar submit` are those of the other floors. A verb's docstring is its help; what it needs is imported
when it runs, so that the help imports no torch.
"""

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from data_tools.cli import add_verb, new_app, run_app
from data_tools.errors import KitError
from system.check.shipped import list_recipes, new
from system.processes import exit_process

Recipe = Annotated[Path, typer.Argument(help="A recipe, or a study (.study.yaml).")]
MODELS = """RUN or RUN:ENTRY (the checkpoint of a rank entry), an exported model, a recipe without stages, or the
Hugging Face name or folder of CLAP, PE-AV or PE-A-Frame."""
Model = Annotated[Path, typer.Argument(help=" ".join(MODELS.split()))]
Audio = Annotated[Path, typer.Argument(help="The clips: a folder with its subfolders, or a manifest (.jsonl).")]
Changes = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as stages.finetune.batch_size=64; repeat."),
]
Imports = Annotated[
    list[Path], typer.Option("--import", metavar="FILE.py", help="A file with kinds of your own, as `imports`; repeat.")
]
Runs = Annotated[Path, typer.Option(help="Folder of all runs.")]
Split = Annotated[str | None, typer.Option(help="For a manifest: use only the clips of this split.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1 (the second GPU), mps or cpu; default: cuda, else cpu.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for stored embeddings; default: ~/.cache/lbar-kit.")]
Unknown = Annotated[bool, typer.Option("--allow-unknown", help="Accept queries without any word that it knows.")]


def run(
    recipe: Recipe,
    *,
    changes: Changes = [],
    imports: Imports = [],
    runs: Runs = Path("runs"),
    out: Path | None = None,
    name: str | None = None,
    until: Literal["features", "training", "results"] = "results",
    device: Device = None,
    track: Literal["tensorboard", "wandb"] | None = None,
    profile: Annotated[int, typer.Option(min=0, metavar="N")] = 0,
) -> None:
    """Run all steps of a recipe or a study.

    The steps are data, features, training, ranking and submission files. What is finished is skipped, what was
    interrupted goes on.

    Args:
        out: Folder of the run; default: RECIPE_sSEED in --runs.
        name: Name of the run's folder in --runs.
        until: Last step.
        track: Send the metrics of every epoch to a tracker.
        profile: Write torch's trace of N steps to STAGE/trace.json.
    """
    from system.devices import device_of
    from system.experiments.run import run_steps
    from system.experiments.summary import report
    from system.processes import is_first, processes
    from system.recipe.load import load_recipe
    from system.training.tracking import require_tracker

    if out and name:
        raise KitError("--out and --name both name the run's folder; give one")
    changes = _with_imports(changes, imports)
    require_tracker(track)
    chosen = device_of(device) if device else None
    if recipe.name.endswith(".study.yaml"):
        if out or name or profile:
            raise KitError("--out, --name and --profile are for one run; a study's runs lie in --runs")
        from system.experiments.studies import load_study, run_study

        study, cells = load_study(recipe, changes, runs)
        with processes(chosen):
            print(run_study(study, cells, runs, chosen, track, until), end="")
        return
    loaded = load_recipe(recipe, changes)
    with processes(chosen):
        done = run_steps(loaded, runs, out or (runs / name if name else None), chosen, track, until, profile)
        if is_first() and until != "features":
            print(report(done) if until == "results" else f"trained: {done.folder}")


def check(
    recipe: Path,
    *,
    changes: Changes = [],
    imports: Imports = [],
    step: bool = False,
    device: Device = None,
) -> None:
    """Print a recipe's mistakes, its needs, and what is missing.

    Args:
        recipe: A recipe (.yaml).
        step: Measure a training step of each stage.
    """
    from system.check.check import print_check

    if not print_check(recipe, _with_imports(changes, imports), step, device):
        raise typer.Exit(1)


def download(recipe: Path, *, changes: Changes = [], show: bool = False) -> None:
    """Fetch and verify published weight files that are missing here.

    Args:
        recipe: A recipe (.yaml), or the hub name of a model.
        show: Print files and addresses only.
    """
    from system.check.download import download_files

    download_files(recipe, changes, show)


def rank(
    model: Model,
    audio: Audio,
    queries: Path | None = None,
    *,
    out: Path | None = None,
    split: Split = None,
    top: Annotated[int | None, typer.Option(min=1, metavar="K")] = None,
    score: bool = False,
    allow_unknown: Unknown = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Score any clips for any queries with a trained model.

    Args:
        queries: Captions (.csv, .txt); default: those of AUDIO.
        out: A score matrix (.npy); with --top a ranked CSV, or pairs for a judge (.jsonl).
        top: Only each query's K best clips.
        score: Print the metrics; no file is written.
    """
    from system.experiments.rank import evaluate, rank_files
    from system.retriever import load_model

    opened = partial(load_model, model, device, cache, changes)
    if score:
        if queries or out:
            raise KitError("--score ranks the clips for their own captions, and writes no file; leave out the rest")
        print(*evaluate(opened(), audio, split).lines(), sep="\n")
        return
    rank_files(opened, audio, queries, split, out, top, allow_unknown)


def locate(
    model: Model,
    audio: Path,
    moments: Path,
    *,
    out: Path,
    split: Split = None,
    also: Annotated[list[Path], typer.Option(metavar="MODEL")] = [],
    fit: Annotated[str | None, typer.Option(metavar="SPLIT")] = None,
    decode: Annotated[list[str], typer.Option(metavar="KEY=VALUE")] = [],
    piece: Annotated[float, typer.Option(min=0.01, max=3600)] = 10,
    hop: Annotated[float, typer.Option(min=0.01, max=3600)] = 1,
    allow_unknown: Unknown = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Find the times of queries in long recordings.

    Args:
        audio: The recordings: a manifest (.jsonl).
        moments: The queries, each with its recording (.jsonl).
        out: The windows (.jsonl), as the challenge's scorer of 2026 reads them.
        also: A further model, averaged; repeat.
        fit: Fit scores to windows of this split; for models of clips.
        decode: How windows are chosen, where it differs from the model's recipe: by (overlap or thresholds),
            threshold, round_to, heard, mean_edges, null for none; repeat.
        piece: For models of clips: seconds of a piece.
        hop: For models of clips: seconds from a piece to the next.
    """
    from system.experiments.moments import locate_files
    from system.ranking.windows import Sliding
    from system.retriever import load_model

    opened, slide = partial(load_model, device=device, cache=cache, changes=changes), Sliding(piece, hop)
    locate_files([model, *also], opened, audio, moments, split, fit, out, slide, decode, allow_unknown)


def search(
    model: Model,
    audio: Audio,
    queries: list[str],
    *,
    split: Split = None,
    top: Annotated[int, typer.Option(min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Print the clips that a trained model finds for queries.

    Args:
        queries: Sentences, such as "a dog barks".
        top: Clips to print for a query.
        as_json: Print one JSON document.
    """
    from system.experiments.rank import print_found
    from system.retriever import list_clips, load_model

    clips = list_clips(audio, split)
    retriever = load_model(model, device, cache, changes)
    print_found(retriever, clips, queries, top, as_json)


def serve(
    model: Model,
    audio: Audio,
    *,
    split: Split = None,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8020,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Search clips with a trained model in the browser.

    Args:
        port: 0 chooses any free port.
    """
    from system.retriever import list_clips, load_model
    from system.serve import server

    with server.bind(port) as listener:  # a taken port is reported before anything is computed
        clips = list_clips(audio, split)
        retriever = load_model(model, device, cache, changes)
        server.serve(server.Search(retriever, retriever.open(clips), audio, split), listener)


def embed(
    model: Model,
    audio: Audio,
    *,
    out: Path,
    raw: bool = False,
    split: Split = None,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Write a trained model's embeddings of clips and captions.

    Args:
        out: The file to write (.npz).
        raw: Unscaled vectors; default: unit length.
    """
    from system.experiments.rank import write_embeddings
    from system.retriever import list_clips, load_model

    if out.suffix != ".npz":
        raise KitError(f"--out {out}: must end in .npz")
    clips = list_clips(audio, split)
    write_embeddings(load_model(model, device, cache, changes), clips, out, normalize=not raw)


def export(run: Path, *, out: Path, push: Annotated[str | None, typer.Option(metavar="USER/NAME")] = None) -> None:
    """Write a trained model as one folder for another machine.

    Args:
        run: Folder of a finished run, or RUN:ENTRY.
        out: New or empty folder of the exported model.
        push: Upload it to the Hugging Face hub, as a private model.
    """
    from system.bridges.export import export_run

    export_run(run, out)
    print(f"exported: {out}")
    if push:
        from system.bridges.hub import push_folder

        print(f"uploaded: {push_folder(out, push)}")


def convert(
    file: Path,
    *,
    out: Path,
    recipe: Path | None = None,
    text: Annotated[str | None, typer.Option(metavar="MODEL")] = None,
    words: bool = False,
    changes: Changes = [],
) -> None:
    """Convert published weights to the kit's formats.

    Args:
        file: yamnet.tflite, a checkpoint (.ckpt), M2D-CLAP's .zip, or with --words a text model.
        out: A file .npz of yamnet.tflite, .bin of word vectors, or else a folder.
        recipe: Recipe of a checkpoint (.ckpt).
        text: M2D-CLAP's text model on the hub.
        words: Write a text model's input embeddings of words.
    """
    from system.bridges.convert import convert_file

    print(convert_file(file, out, recipe, text, words, changes))


def runs(
    folder: Annotated[Path, typer.Argument()] = Path("runs"),
    *,
    sort: Literal["name", "validation", "test", "time"] = "name",
) -> None:
    """List all runs with their state and best metrics.

    Args:
        folder: Folder of all runs.
        sort: Column that orders the runs; the best first.
    """
    from system.runs.overview import print_runs

    print_runs(folder, sort)


def keys(path: Annotated[str, typer.Argument()] = "") -> None:
    """Print and explain settings of a recipe.

    Args:
        path: Place of the settings, such as stages.optimizer; default: the whole recipe.
    """
    from system.recipe.schema import settings_at, source_of

    print(source_of(settings_at(path)))


def _with_imports(changes: list[str], imports: list[Path]) -> list[str]:
    return [*changes, f"imports={json.dumps(list(map(str, imports)))}"] if imports else changes


app = new_app(
    "lbar", "Check, train and use retrieval systems; `lbar data` makes data sets, `lbar submit` the challenge's files."
)
recipes = typer.Typer(help="List the shipped recipes, or copy one.", invoke_without_command=True, rich_markup_mode=None)
recipes.callback()(list_recipes)
add_verb(recipes, new)
for verb in (run, check, download, rank, locate, search, serve, embed, export, convert, runs):
    add_verb(app, verb)
app.add_typer(recipes, name="recipes")
add_verb(app, keys)


def main(argv: list[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    return run_app(app, "lbar", argv)


def lbar() -> NoReturn:
    """Run the program `lbar`, and end the process."""
    floor = {"data": "data_tools", "submit": "submission"}.get("".join(sys.argv[1:2]))
    if floor:
        exit_process(import_module(f"{floor}.__main__").main(sys.argv[2:]))
    exit_process(main())


if __name__ == "__main__":
    exit_process(main())
