"""Make the manifests of a recipe.

Run the `make` commands of a recipe's data sources, if a manifest is missing or if more audio files have arrived.
"""

import hashlib
import io
import logging
import os
import shlex
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

from data_tools.__main__ import VERBS
from data_tools.__main__ import main as data_tools_main
from data_tools.cli import make_parser
from data_tools.errors import KitError
from data_tools.files import checksum, lock, write_text
from data_tools.frames import FRAME_SUFFIXES
from data_tools.names import is_audio_name, tree_files
from system.recipe import schema

FEW = 0.9  # share of the published clips; about a tenth of AudioCaps' videos has been deleted
OUTPUTS = ("out", "moments")  # arguments of data_tools that name a file to write

log = logging.getLogger(__name__)


def make_missing(recipe: schema.Recipe, again: bool = True) -> None:
    """Make missing manifests by the recipe's `make` commands and, if `again`, also outdated manifests.

    A manifest is outdated if the audio files have changed since it was made. A manifest that was edited is kept.
    again: False for a run that has begun, whose manifests must not change.

    The file MANIFEST.made_by stores the command, the number of audio files, digests of their names and of the manifest,
    and the folders that the command reads. If several processes run, one makes the manifest and all others wait.

    Raises KitError for a missing weight file, a missing manifest without a command, a manifest that another command
    made, and a command that fails.
    """
    for expert in recipe.model.audio.experts.values():
        expert.checksums()  # a missing weight file is reported before anything is made
    if missing := recipe.model.missing_files():
        raise KitError(missing[0])
    sources = {(source.manifest, source.make): (name, source) for name, source in reversed(recipe.data.items())}
    for name, source in reversed(sources.values()):
        if source.make is None and not Path(source.manifest).exists():
            raise KitError(
                f"data source {name}: the manifest {source.manifest} does not exist; correct the path (relative to the "
                "current folder), or make the manifest: see lbar data --help"
            )
        if source.make is not None and _must_be_made(name, source, again):
            # The lock is not in the manifest's folder, because the command needs that folder empty.
            waiting = f"waiting for another process that makes {source.manifest}"
            with lock(Path(recipe.banks) / "make.lock", waiting, wait=True):
                if _must_be_made(name, source, again):
                    _run_make_command(name, source.make, Path(source.manifest))


def few_clips(source: schema.Source, count: int) -> str:
    """Return a message if `count`, a data source's number of clips, is well below the published number; else "".

    Clips are enough if their number is at least the share FEW of the published number of clips.
    """
    if source.expected is None or count >= FEW * source.expected.clips:
        return ""
    by_run = _record_path(Path(source.manifest)).exists()
    cure = "`run` makes the manifest again" if by_run else f"make {source.manifest} again"
    return f"{count:,} of {source.expected.clips:,} published clips; get the missing clips, then {cure}"


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
    words = shlex.split(command)[2:]
    try:
        with redirect_stderr(io.StringIO()):
            return vars(make_parser("data_tools", "", VERBS, words).parse_args(words))
    except SystemExit:
        raise KitError(
            f"lbar data does not accept `{shlex.join(words)}`; correct the data source's `make`, see lbar data --help"
        ) from None


def _must_be_made(name: str, source: schema.Source, again: bool) -> bool:
    """Return whether a data source's manifest must be made, because it is missing or, with `again`, outdated.

    A manifest is outdated if the audio files have changed since it was made. A manifest that was written or edited by
    hand is kept.
    """
    manifest = Path(source.manifest)
    note = _record_path(manifest)
    if not manifest.exists() or not note.exists():
        return not manifest.exists()
    command, number, names, made, *folders = [*note.read_text(encoding="utf-8").splitlines(), "", "", ""]
    if command != source.make:
        raise KitError(
            f"data source {name}: {source.manifest} was made by `{command}`, but `make` is `{source.make}`; "
            "delete its folder to make it again, or name another manifest"
        )
    if not again:
        return False
    present, present_names = _audio_files([folder for folder in folders if folder])
    recorded = int(number) if number.isdecimal() else 0
    if present_names == names or present < recorded:
        return False
    if checksum(manifest) != made:
        log.warning(
            "%s does not list new audio files, but is kept, since it was edited; delete it to make it again", manifest
        )
        return False
    log.info("%s was made from %d audio files, but now %d exist: making it again", manifest, recorded, present)
    return True


def _run_make_command(name: str, command: str, manifest: Path) -> None:
    """Run the command that makes a manifest, and record the command's inputs."""
    try:
        require_output(command, manifest)
    except KitError as error:
        raise KitError(f"data source {name}: {error}") from None
    log.info("data source %s: making its manifest with %s", name, command)
    folders = [str(path) for path in input_paths(command) if path.is_dir()]
    count, names = _audio_files(folders)  # files that arrive during the command count as new
    status = data_tools_main(shlex.split(command)[2:], inside=True)
    if status or not manifest.exists():
        raise KitError(
            f"data source {name}: `{command}` did not make {manifest}; see its output above, "
            "and check that `make` writes the file that `manifest` names"
        )
    lines = [command, str(count), names, checksum(manifest), *folders]
    write_text(_record_path(manifest), "\n".join(lines) + "\n")


def _record_path(manifest: Path) -> Path:
    """Return the path of the file MANIFEST.made_by, which records how a manifest was made."""
    return Path(f"{manifest}.made_by")


def _audio_files(folders: Sequence[str]) -> tuple[int, str]:
    """Count the audio files in folders. Returns: The number of files, and a digest of their names.

    Files of features, such as .npy, count as audio files.
    """
    names = [f"{folder}/{name}" for folder in folders if Path(folder).is_dir() for name in tree_files(Path(folder))]
    audio = [name for name in names if is_audio_name(Path(name).name) or name.endswith(FRAME_SUFFIXES)]
    return len(audio), hashlib.sha256("\n".join(audio).encode(errors="surrogateescape")).hexdigest()
