"""Published files that a recipe names: fetch what is missing on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_tools.classify.model_files import fetch, local_folder
from data_tools.datasets.download import download
from data_tools.errors import KitError
from system.audio.base import ExpertSettings
from system.models.settings import Model
from system.recipe.load import load_recipe
from system.runs.names import is_recipe, is_untrained

CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tar", ".safetensors", ".zip")


class PublishedFile(NamedTuple):
    """A published file that a recipe names.

    path: Path on this machine. address: Web address of the file, or a text that describes where to get it. sha256: The
    known first digits of its checksum; "" if unknown.
    """

    path: Path
    address: str
    sha256: str


def download_files(recipe: Path, changes: list[str], only_show: bool = False) -> None:
    """Fetch the missing published files of a recipe, or a hub model by its name; print each with its state.

    Raises KitError with a line per file that cannot be fetched.
    """
    if is_untrained(recipe) and not is_recipe(recipe):
        if changes:
            raise KitError(f"--set {changes[0]}: {recipe} has no settings; leave it out")
        _download_model(str(recipe), only_show)
        return
    download_errors: list[str] = []
    model = load_recipe(recipe, changes).recipe.model
    for name, expert in model.audio.experts.items():
        if expert.hub_model is not None:
            download_errors += _fetch_expert_model(name, expert, expert.hub_model, only_show)
    for file in published_files(model):
        state = "here" if file.path.exists() else "missing"
        if not only_show:
            try:
                state = "fetched" if _download_if_missing(file) else "here"
            except KitError as error:
                download_errors.append(str(error))
                state = "failed"
        print(f"{state:8} {file.path}  published at {file.address}")
    for part in (model.audio, model.text):
        if part.hub_model is None:  # its files were fetched above
            continue
        problems = [] if only_show else [problem for _, problem in part.missing_files()]
        if not problems:
            fact, missing = part.plan_facts()
            print(*([f"{name}: {cure}" for name, cure in missing] or [f"hub model {fact}"]), sep="\n")
        download_errors += problems
    if download_errors:
        raise KitError("\n".join(download_errors))


def _download_model(name: str, only_show: bool) -> None:
    """Fetch a Hugging Face model by its name, unless `only_show`, and print its folder."""
    folder = local_folder(name, "model") if only_show else fetch(name, "model")
    print(f"hub model {name}: {f'in {folder}' if folder else 'not on this machine'}")


def published_files(model: Model) -> Iterator[PublishedFile]:
    """Yield the published weight files that the experts and encoders of a model need.

    Models of the Hugging Face hub are left out, since they consist of several files.
    """
    for expert in model.audio.experts.values():
        if expert.hub_model is not None:
            continue
        addresses, known = expert.published_addresses(), expert.known_sha256()
        for setting, path in expert.weight_files().items():
            yield PublishedFile(path, addresses.get(setting, ""), known.get(setting, ""))
    for part in (model.audio, model.text):
        for path in part.weight_files().values():
            yield PublishedFile(path, part.published_address(), "")


def _fetch_expert_model(name: str, expert: ExpertSettings, model: str, only_show: bool) -> Iterator[str]:
    """Fetch an expert's Hugging Face model, unless `only_show`; print its state and path; yield error messages."""
    (path,) = expert.weight_files().values()
    state = "here" if path.is_file() else "missing"
    if not only_show:
        try:
            fetch(model, "audio model")
            state = "here" if path.is_file() else "fetched"
            (path,) = expert.weight_files().values()
            if not path.is_file():
                raise KitError(f"the audio model {model} has no weight file {path}; name a model that has one")
        except KitError as error:
            state = "failed"
            yield f"expert {name}: {error}"
    print(f"{state:8} {path}  audio model {model}")


def _download_if_missing(file: PublishedFile) -> bool:
    """Download a file if it is missing. Returns: Whether it was downloaded."""
    from system.audio.checkpoint import load_checkpoint

    if not file.path.exists() and (not file.address.startswith(("http://", "https://")) or " " in file.address):
        raise KitError(
            f"{file.path}: the file cannot be fetched automatically; get it from {file.address} and put it at this path"
        )
    opened = load_checkpoint if file.path.suffix in CHECKPOINTS else None
    return download(file.address, file.path, file.sha256, opened)
