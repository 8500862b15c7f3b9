"""Command line: `lbar VERB ...`, with `lbar data` and `lbar submit` for the other floors."""

import json
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from data_tools.cli import ranks, run_app, set_up_log, version
from data_tools.errors import KitError
from system.compute.processes import exit_process

app = typer.Typer(
    name="lbar",
    help="Check, train and use retrieval systems; `lbar data` makes data sets, `lbar submit` the challenge's files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
recipes = typer.Typer(help="List the shipped recipes, or copy one.", invoke_without_command=True, rich_markup_mode=None)
app.add_typer(recipes, name="recipes")

Recipe = Annotated[Path, typer.Argument(help="A recipe, or a study (.study.yaml).")]
Model = Annotated[
    Path,
    typer.Argument(
        help="RUN or RUN:ENTRY (the checkpoint of a rank entry), an exported model, a recipe without stages, or the "
        "Hugging Face name or folder of CLAP, PE-AV or PE-A-Frame."
    ),
]
Audio = Annotated[Path, typer.Argument(help="The clips: a folder with its subfolders, or a manifest (.jsonl).")]
Changes = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as stages.finetune.batch_size=64; repeat."),
]
Imports = Annotated[
    list[Path], typer.Option("--import", metavar="FILE.py", help="A file with kinds of your own, as `imports`; repeat.")
]
Runs = Annotated[Path, typer.Option(help="Folder of all runs.")]
Out = Annotated[Path, typer.Option(help="The file or folder to write.")]
Split = Annotated[str | None, typer.Option(help="For a manifest: use only the clips of this split.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1 (the second GPU), mps or cpu; default: cuda, else cpu.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for stored embeddings; default: ~/.cache/lbar-kit.")]
Unknown = Annotated[bool, typer.Option("--allow-unknown", help="Accept queries without any word that it knows.")]


def print_version(asked: bool) -> None:
    if asked:
        print(f"lbar-kit {version()}")
        raise typer.Exit


@app.callback()
def log_of_all(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print times, modules and tracebacks.")] = False,
    shows_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    for chatty in ("httpx", "sentence_transformers", "urllib3", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    set_up_log(quiet, verbose)
    if ranks()[1] > 1 and context.invoked_subcommand != "run":
        raise KitError(f"{context.invoked_subcommand} needs exactly one process; run it without torchrun")


@app.command()
def run(
    recipe: Recipe,
    changes: Changes = [],
    imports: Imports = [],
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: RECIPE_sSEED in --runs.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run's folder in --runs.")] = None,
    until: Annotated[Literal["features", "training", "results"], typer.Option(help="Last step.")] = "results",
    device: Device = None,
    track: Annotated[
        Literal["tensorboard", "wandb"] | None, typer.Option(help="Send the metrics of every epoch to a tracker.")
    ] = None,
    profile: Annotated[
        int, typer.Option(min=0, metavar="N", help="Write torch's trace of N steps to STAGE/trace.json.")
    ] = 0,
) -> None:
    """Run all steps of a recipe or a study.

    The steps are data, features, training, ranking and submission files. What is finished is skipped, what was
    interrupted goes on.
    """
    from system.compute.device import device_of
    from system.compute.processes import is_first, processes
    from system.experiments.run import compute_features, run_recipe
    from system.experiments.summary import report
    from system.recipe.load import load_recipe
    from system.training.tracking import require_tracker

    changes = _with_imports(changes, imports)
    require_tracker(track)
    if out and name:
        raise KitError("--out and --name both say where the run lies; leave one of them out")
    if name and Path(name).name != name:
        raise KitError(f"--name {name}: must be a single name; give a path with --out")
    if until == "features" and (out or name or track or profile):
        raise KitError("--until features makes no run; leave out --out, --name, --track and --profile")
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
        if until == "features":
            compute_features(loaded.recipe, chosen)
            return
        done = run_recipe(loaded, runs, out or (runs / name if name else None), chosen, track, until, profile)
        if is_first():
            print(report(done) if until == "results" else f"trained: {done.folder}")


@app.command()
def check(
    recipe: Recipe,
    changes: Changes = [],
    imports: Imports = [],
    runs: Runs = Path("runs"),
    step: Annotated[bool, typer.Option("--step", help="Measure a training step of each stage.")] = False,
    device: Device = None,
) -> None:
    """Print all mistakes of a recipe or a study, what it needs, and what is missing."""
    from system.check.report import print_check

    if not print_check(recipe, _with_imports(changes, imports), runs, step, device):
        raise typer.Exit(1)


@app.command()
def download(
    recipe: Annotated[Path, typer.Argument(help="A recipe (.yaml), or the hub name of a model.")],
    changes: Changes = [],
    show: Annotated[bool, typer.Option("--show", help="Print files and addresses only.")] = False,
) -> None:
    """Fetch and verify the published weight files that are missing on this machine."""
    from system.check.download import download_files

    download_files(recipe, changes, show)


@app.command()
def rank(
    model: Model,
    audio: Audio,
    out: Annotated[
        Path | None, typer.Option(help="A score matrix (.npy); with --top a ranked CSV, or pairs for a judge (.jsonl).")
    ] = None,
    queries: Annotated[Path | None, typer.Argument(help="Captions (.csv, .txt); default: those of AUDIO.")] = None,
    split: Split = None,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Only each query's K best clips.")] = None,
    prints_score: Annotated[bool, typer.Option("--score", help="Print the metrics; no file is written.")] = False,
    allow_unknown: Unknown = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Score any clips for any queries with a trained model."""
    from system.experiments.rank import evaluate, rank_files
    from system.retriever import load_model

    if prints_score:
        print(*evaluate(load_model(model, device, cache, changes), audio, split, queries).lines(), sep="\n")
        return
    if out is None:
        raise KitError("--out is missing; name the file to write, or print metrics with --score")
    rank_files(lambda: load_model(model, device, cache, changes), audio, queries, split, out, top, allow_unknown)


@app.command()
def locate(
    model: Model,
    audio: Annotated[Path, typer.Argument(help="The recordings: a manifest (.jsonl).")],
    moments: Annotated[Path, typer.Argument(help="The queries, each with its recording (.jsonl).")],
    out: Annotated[Path, typer.Option(help="The windows (.jsonl), as the challenge's scorer of 2026 reads them.")],
    split: Split = None,
    also: Annotated[list[Path], typer.Option(metavar="MODEL", help="A further model, averaged; repeat.")] = [],
    fit: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Fit scores to windows of this split; for models of clips.")
    ] = None,
    decode: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="How windows are chosen, where it differs from the model's recipe: by (overlap or thresholds), "
            "threshold, round_to, heard, mean_edges, null for none; repeat.",
        ),
    ] = [],
    piece: Annotated[float, typer.Option(min=0.01, max=3600, help="For models of clips: seconds of a piece.")] = 10,
    hop: Annotated[
        float, typer.Option(min=0.01, max=3600, help="For models of clips: seconds from a piece to the next.")
    ] = 1,
    allow_unknown: Unknown = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Find the times of queries in long recordings."""
    from system.experiments.locate import locate_files
    from system.ranking.windows import Sliding
    from system.retriever import load_model

    locate_files(
        [model, *also],
        lambda one: load_model(one, device, cache, changes),
        audio, moments, split, fit, out, Sliding(piece, hop), decode, allow_unknown,
    )  # fmt: skip


@app.command()
def search(
    model: Model,
    audio: Audio,
    queries: Annotated[list[str], typer.Argument(help='Sentences, such as "a dog barks".')],
    split: Split = None,
    top: Annotated[int, typer.Option(min=1, help="Clips to print for a query.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Print the clips of a folder that a trained model finds for queries."""
    from system.experiments.rank import print_found
    from system.retriever import list_clips, load_model

    if not all(text.strip() for text in queries):
        raise KitError("a query is empty; describe a sound, or leave it out")
    listed = list_clips(audio, split)
    retriever = load_model(model, device, cache, changes)
    if not print_found(retriever, retriever.open(*listed), queries, top, as_json):
        raise typer.Exit(1)


@app.command("serve")
def serve_page(
    model: Model,
    audio: Audio,
    split: Split = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses any free port.")] = 8020,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Search clips with a trained model on a page in the browser."""
    from system.retriever import list_clips, load_model
    from system.serve.server import Search, bind, serve

    with bind(port) as listener:  # a taken port is reported before anything is computed
        listed = list_clips(audio, split)
        retriever = load_model(model, device, cache, changes)
        serve(Search(retriever, retriever.open(*listed), audio, split), listener)


@app.command()
def embed(
    model: Model,
    audio: Audio,
    out: Annotated[Path, typer.Option(help="The file to write (.npz).")],
    raw: Annotated[bool, typer.Option("--raw", help="Unscaled vectors; default: unit length.")] = False,
    split: Split = None,
    changes: Changes = [],
    device: Device = None,
    cache: Cache = None,
) -> None:
    """Write a trained model's embeddings of clips and captions, for other programs."""
    from system.experiments.rank import write_embeddings
    from system.retriever import list_clips, load_model

    if out.suffix != ".npz":
        raise KitError(f"--out {out}: must end in .npz")
    listed = list_clips(audio, split)
    retriever = load_model(model, device, cache, changes)
    write_embeddings(retriever, listed, out, normalize=not raw)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or RUN:ENTRY.")],
    out: Annotated[Path, typer.Option(help="New or empty folder of the exported model.")],
    push: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="Upload it to the Hugging Face hub, as a private model.")
    ] = None,
) -> None:
    """Write a trained model as one folder for another machine."""
    from system.runs.export import export_run

    export_run(run, out)
    print(f"exported: {out}")
    if push:
        from system.bridges.hub import push_folder

        print(f"uploaded: {push_folder(out, push)}")


@app.command()
def convert(
    file: Annotated[
        Path, typer.Argument(help="yamnet.tflite, a checkpoint (.ckpt), M2D-CLAP's .zip, or with --words a text model.")
    ],
    out: Annotated[Path, typer.Option(help="A file .npz of yamnet.tflite, .bin of word vectors, or else a folder.")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe of a checkpoint (.ckpt).")] = None,
    text: Annotated[str | None, typer.Option(metavar="MODEL", help="M2D-CLAP's text model on the hub.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Write a text model's input embeddings of words.")] = False,
    changes: Changes = [],
) -> None:
    """Convert published weights to the kit's formats."""
    from system.runs.convert import convert_file

    print(convert_file(file, out, recipe, text, words, changes))


@app.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder of all runs.")] = Path("runs"),
    sort: Annotated[Literal["name", "validation", "test", "time"], typer.Option(help="Order; best first.")] = "name",
) -> None:
    """List all runs: state, epoch, best validation metric, test metric, hours, changed settings."""
    from system.runs.overview import print_runs

    print_runs(folder, sort)


@recipes.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the shipped recipes; `new` copies one."""
    from system.check.shipped import ideas

    if context.invoked_subcommand is None:
        found = ideas()
        width = max(map(len, found))
        print(*(f"{name:{width}}  {idea}" for name, idea in found.items()), sep="\n")


@recipes.command("new")
def new_recipe(
    name: Annotated[str, typer.Argument(help="The new recipe's name.")],
    source: Annotated[str, typer.Option("--from", help="The shipped recipe to copy.")] = "clotho",
) -> None:
    """Write NAME.yaml, a copy of a shipped recipe."""
    from system.check.shipped import copy_recipe

    print(copy_recipe(name, source))


@app.command()
def keys(path: Annotated[str, typer.Argument(help="Such as stages.optimizer; default: a recipe.")] = "") -> None:
    """Print the settings at a path of a recipe, as their source defines and explains them."""
    from system.recipe.keys import fields_of, settings_at

    print(*map(fields_of, settings_at(path)), sep="\n\n")


def _with_imports(changes: list[str], imports: list[Path]) -> list[str]:
    return [*changes, f"imports={json.dumps(list(map(str, imports)))}"] if imports else changes


def main(argv: list[str] | None = None) -> int:
    """Run the command line `lbar VERB ...`, and return its exit status."""
    return run_app(app, "lbar", argv)


def lbar() -> NoReturn:
    """Run the program `lbar`, and end the process."""
    floor = {"data": "data_tools", "submit": "submission"}.get(sys.argv[1] if sys.argv[1:] else "")
    exit_process(import_module(f"{floor}.__main__").main(sys.argv[2:]) if floor else main())


if __name__ == "__main__":
    exit_process(main())
