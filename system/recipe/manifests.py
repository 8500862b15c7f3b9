"""Make the manifests of a recipe by its `make` commands."""

import logging
import os
import shlex
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import lock, write_text
from system.recipe import schema

FEW = 0.9  # share of the published clips; about a tenth of AudioCaps' videos has been deleted
OUTPUTS = ("out", "moments")  # arguments of data_tools that name a file to write

log = logging.getLogger(__name__)


def make_missing(recipe: schema.Recipe) -> None:
    """Make the manifests that are missing.

    MANIFEST.made_by stores the command. If several processes run, one makes a manifest, and the others wait.

    Raises:
        KitError: A weight file is missing; a manifest is missing and has no command, or was made by another command; or
            a command fails.
    """
    recipe.model.require_files()  # before anything is made
    for name, source in recipe.data.items():
        manifest, command = Path(source.manifest), recipe.making(source).make
        if command is None and not manifest.exists():
            cure = "correct the path, or make the manifest: see lbar data --help"
            raise KitError(f"data source {name}: the manifest {manifest} does not exist; {cure}")
        if command is None or _is_made(name, manifest, command):
            continue
        # The lock is not in the manifest's folder, because the command needs that folder empty.
        with lock(Path(recipe.banks) / "make.lock", f"waiting for another process that makes {manifest}", wait=True):
            if not _is_made(name, manifest, command):
                _make(name, manifest, command)


def _is_made(name: str, manifest: Path, command: str) -> bool:
    record = Path(f"{manifest}.made_by")
    if manifest.exists() and record.exists() and (made := record.read_text(encoding="utf-8").strip()) != command:
        cure = "delete it to make it again, or name another manifest"
        raise KitError(f"data source {name}: {manifest} was made by `{made}`, but `make` is `{command}`; {cure}")
    return manifest.exists()


def _make(name: str, manifest: Path, command: str) -> None:
    try:
        require_output(command, manifest)
    except KitError as error:
        raise KitError(f"data source {name}: {error}") from None
    from data_tools.__main__ import main  # imports all verbs

    log.info("data source %s: making its manifest with %s", name, command)
    if main(shlex.split(command)[2:], inside=True) or not manifest.exists():
        raise KitError(f"data source {name}: `{command}` did not make {manifest}; see its output above")
    write_text(Path(f"{manifest}.made_by"), command + "\n")


def few_clips(source: schema.Source, count: int) -> str:
    """Say that a source has well below its published number of clips; "" if it has not."""
    if source.expected is None or count >= FEW * source.expected.clips:
        return ""
    return (
        f"{count:,} of {source.expected.clips:,} published clips; get the missing clips, then delete {source.manifest} "
        "to make it again"
    )


def input_paths(command: str) -> list[Path]:
    """Return the files and folders that a `make` command reads. Raises KitError if data_tools does not accept it."""
    values = [value for key, value in _parsed_arguments(command).items() if key not in OUTPUTS]
    paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
    return [path for path in paths if isinstance(path, Path)]


def require_output(command: str, manifest: Path) -> None:
    """Raise KitError if a `make` command writes a manifest to another path than `manifest`."""
    out = _parsed_arguments(command).get("out")
    if isinstance(out, Path) and out.suffix == ".jsonl" and os.path.abspath(out) != os.path.abspath(manifest):
        raise KitError(f"the command `make` writes {out}, but `manifest` is {manifest}; correct one of them")


def _parsed_arguments(command: str) -> dict[str, object]:
    """Return the parsed arguments of a `make` command. Raises KitError if data_tools does not accept it."""
    import typer

    from data_tools.__main__ import app

    words = shlex.split(command)[2:]
    group: Any = typer.main.get_command(app)
    try:
        context = group.make_context("lbar data", list(words))
        _, verb, rest = group.resolve_command(context, words)
        return dict(verb.make_context(verb.name, rest, parent=context).params)
    except Exception:
        raise KitError(
            f"lbar data does not accept `{shlex.join(words)}`; correct the data source's `make`, see lbar data --help"
        ) from None
