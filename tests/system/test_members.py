"""Clips inside of tar and parquet files: training, frames, ranking and the search page."""

import json
import os
from pathlib import Path

import augmented
import numpy as np
import packed
import pytest
import tiny
import torch
from outcomes import digest, lines
from served import Letters, clip_of, model_of, searching, served
from slow_builds import LOGMEL
from threads import one_thread  # noqa: F401  a fixture

from data_tools.__main__ import main as data_tools
from data_tools.audio.members import container_of
from data_tools.manifest import Clip, read_manifest
from system.__main__ import main
from system.features.build import build_features
from system.models.embeddings import Embedded

pytestmark = pytest.mark.usefixtures("one_thread")


def shards(manifest: Path, folder: Path, form: str) -> Path:
    """A manifest of the same clips in shards."""
    assert data_tools(["export", str(manifest), "--format", form, "--out", str(folder / form)]) == 0
    out = folder / f"{form}.jsonl"
    assert data_tools(["hub", str(folder / form), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world as FLAC and MP3 files of 1 to 7 s."""
    folder = tmp_path_factory.mktemp("world")
    return tiny.make_compressed_world(folder / "plain", {"development": 16, "validation": 8, "evaluation": 12})


@pytest.mark.slow
@pytest.mark.parametrize("waveforms", ["files", "bank"])
def test_training_on_audio_in_archives_and_in_plain_files_gives_equal_weights(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waveforms: str
) -> None:
    tiny.narrowed(monkeypatch)
    manifests = {form: shards(world, tmp_path, form) for form in ("webdataset", "parquet")} | {"plain": world}
    found = {}
    for form, manifest in manifests.items():
        stage = tiny.stage(epochs=2, steps_per_epoch=3)
        content = tiny.recipe(manifest, tmp_path / f"of {form}", only=stage) | {"waveforms": waveforms}
        content["model"]["audio"] = tiny.panns(max_seconds=0.8)
        (tmp_path / f"of {form}").mkdir()
        path = tiny.write_recipe(tmp_path / f"of {form}" / "recipe.yaml", content)
        assert main(["run", str(path), "--out", str(tmp_path / "runs" / form)]) == 0
        result = json.loads((tmp_path / "runs" / form / "result.json").read_text())["rank"]["evaluation"]
        trained_on = (tmp_path / "runs" / form / "trained_on.csv").read_text()
        found[form] = digest(tmp_path / "runs" / form), result["mAP@10"], trained_on
    assert found["webdataset"] == found["plain"]
    assert found["parquet"] == found["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_interrupted_and_resumed_run_on_audio_in_archives_matches_uninterrupted_run(
    form: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.narrowed(monkeypatch)
    stage = tiny.stage(epochs=2, steps_per_epoch=3)
    content = tiny.recipe(shards(world, tmp_path, form), tmp_path, only=stage) | {"waveforms": "files"}
    content["model"]["audio"] = tiny.panns(max_seconds=0.8)
    path = tiny.write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    augmented.killed_and_resumed(path, tmp_path / "again", 5, monkeypatch)
    assert digest(tmp_path / "again") == digest(tmp_path / "run")
    assert lines(tmp_path / "again") == lines(tmp_path / "run")


def test_frames_of_audio_archives_match_plain_files_and_a_new_archive_is_computed_again(
    world: Path, tmp_path: Path
) -> None:
    manifest = shards(world, tmp_path, "webdataset")
    experts = {"logmel": LOGMEL}
    plain = build_features(read_manifest(world), experts, tmp_path / "banks")
    clips = read_manifest(manifest)
    found = build_features(clips, experts, tmp_path / "others")
    assert found.keys == plain.keys
    for clip in clips:
        assert np.array_equal(found.frames("logmel", clip.id), plain.frames("logmel", clip.id))
    shard = container_of(clips[0].path)
    data = bytearray(shard.read_bytes())
    data[data.index(b"fLaC")] = 0
    shard.write_bytes(data)
    os.utime(shard, ns=(0, 0))
    changed = build_features(clips, experts, tmp_path / "others")
    assert len(changed.broken) == 1


def test_search_page_sends_audio_stored_in_archives(tmp_path: Path) -> None:
    files = {f"clip{number}.{packed.sound(number)[0]}": packed.sound(number)[1] for number in range(4)}
    packed.write_tar(tmp_path / "a.tar", files | {f"clip{number}.txt": b"noise" for number in range(4)})
    (tmp_path / "link.tar").symlink_to(tmp_path / "a.tar")
    assert data_tools(["hub", str(tmp_path / "link.tar"), "--out", str(tmp_path / "m.jsonl")]) == 0
    clips: list[Clip] = [*read_manifest(tmp_path / "m.jsonl"), clip_of(tmp_path / "absent.wav")]
    with served(searching(model_of(Letters()), clips, Embedded(torch.ones(5, 3)))) as site:
        for row, (name, content) in enumerate(files.items()):
            reply = site.ask(f"/audio/{row}")
            assert (reply.status, reply.body) == (200, content), name
            assert site.ask(f"/audio/{row}", Range="bytes=5-14").body == content[5:15]
            assert max(site.ask(f"/peaks/{row}").json) == 100
        assert reply.headers["content-type"] == "audio/ogg"
        (tmp_path / "link.tar").unlink()
        packed.write_tar(tmp_path / "link.tar", {"other.wav": b"secret" * 1000})
        assert site.ask("/audio/0").body == files["clip0.wav"], "the archive of the start, not that of the link"
        packed.write_tar(tmp_path / "a.tar", {"other.wav": b"secret" * 1000})
        assert site.ask("/audio/0").status == 404, "another file has replaced the archive"
