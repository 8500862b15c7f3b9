"""A folder of one's own: the same clips and the same words for every verb, and no clip embedded twice."""

import errno
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
from formats import stereo, write_format
from hub_models import hub_folder
from outcomes import on_call, run_recipe

from data_tools.errors import KitError
from data_tools.manifest import Clip
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.experiments import run as experiment
from system.features.bank import Bank
from system.models.audio.heads import ExpertHeadsEncoder
from system.models.audio.segments import Segments
from system.models.batch import Embeddings, Series
from system.ranking import embedding
from system.ranking.embedding import _bank, cache_folder, embed_cached
from system.retriever import Retriever, list_clips
from system.runs.open import Trained, open_trained
from system.serve.server import Search

TEXT = "A deep tone sounds."


def cached(trained: Trained, clips: list[Clip], folder: Path) -> tuple[list[Clip], Embeddings, dict[str, str]]:
    return embed_cached(trained.model, trained.recipe.model, clips, Path(trained.recipe.banks), folder, "", False)


def embed(trained: Trained, clips: list[Clip], folder: Path) -> Embeddings:
    return Retriever(trained, folder).open(clips).embedded


@pytest.fixture
def folder(world, tmp_path):
    """Two tones, one in a subfolder, a silent one and an .m4a; a broken file, an empty one, a text, a hidden one."""
    folder = tmp_path / "sounds"
    (folder / "more").mkdir(parents=True)
    for name, tone in zip(("a.wav", "more/b.wav"), sorted((world.parent / "evaluation").glob("*.wav")), strict=False):
        shutil.copy(tone, folder / name)
    soundfile.write(folder / "silent.wav", np.zeros(16_000), 16_000)
    (folder / "more/broken.wav").write_bytes(b"RIFF")
    (folder / "empty.flac").touch()
    (folder / "notes.txt").write_text("x")
    (folder / ".hidden.wav").write_bytes(b"x")
    wave = stereo(16_000, 1 + np.random.default_rng().random())  # of which no other test has computed the frames
    write_format(tmp_path / "x.m4a", wave, 16_000).rename(folder / "song.m4a")
    return folder


@pytest.fixture
def embedded(monkeypatch):
    """Record the number of clips in every pass of an audio encoder."""
    counts: list[int] = []
    forward = ExpertHeadsEncoder.forward

    def counting(self: ExpertHeadsEncoder, audio: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> object:
        counts.append(len(next(iter(audio.values()))[0]))
        return forward(self, audio)  # type: ignore[arg-type]

    monkeypatch.setattr(ExpertHeadsEncoder, "forward", counting)
    return counts


def verbs(model: Path, folder: Path, out: Path) -> dict[str, list[str]]:
    """The four command lines."""
    (out / "q.csv").write_text(f"caption\n{TEXT}\n")
    return {
        "rank": ["rank", f"{model}", f"{folder}", f"{out}/q.csv", f"--out={out}/s.npy"],
        "search": ["search", f"{model}", f"{folder}", TEXT, "--json"],
        "embed": ["embed", f"{model}", f"{folder}", f"--out={out}/e.npz"],
        "serve": ["serve", f"{model}", f"{folder}", "--port=0"],
    }


def test_all_verbs_use_the_same_clips_of_a_folder_and_report_skipped_files(
    unbroken, folder, tmp_path, monkeypatch, capsys, caplog
):
    def ended(search: Search, *rest: object) -> None:
        print(f"serves {len(search.pool.clips)} clips, {len(search.pool.skipped)} skipped")

    monkeypatch.setattr("system.serve.server.serve", ended)
    expected = {
        *("broken.wav: cannot be decoded", "empty.flac: contains no audio", "such as notes.txt"),
        "using 4 clips; skipped 2 files",
    }
    output = {}
    for verb, argv in verbs(unbroken, folder, tmp_path).items():
        caplog.clear()
        assert main(argv) == 0, verb
        output[verb] = capsys.readouterr().out
        found = [words for line in caplog.messages for words in expected if words in line]
        assert sorted(found) == sorted(expected), (verb, caplog.messages)
        assert ".hidden" not in caplog.text
    document = json.loads(output["search"])
    assert document["clips"] == 4
    assert {Path(path).name for path in document["skipped"]} == {"broken.wav", "empty.flac"}
    names = ["a.wav", "more/b.wav", "silent.wav", "song.m4a"]
    assert read_scores(tmp_path / "s.npy").file_names == names
    assert [Path(path).relative_to(folder).as_posix() for path in np.load(tmp_path / "e.npz")["text"]] == names
    assert "1 query x 4 clips" in output["rank"]
    assert "4 clips, 0 captions" in output["embed"]
    assert output["serve"] == "serves 4 clips, 2 skipped\n"


def test_only_new_and_changed_clips_are_embedded_again(unbroken, folder, tmp_path, embedded):
    (folder / "song.m4a").unlink()
    argv = verbs(unbroken, folder, tmp_path)
    for verb in ("search", "rank", "search", "embed"):
        assert main(argv[verb]) == 0
    assert embedded == [3]
    before = read_scores(tmp_path / "s.npy").values
    samples, rate = soundfile.read(folder / "a.wav")
    soundfile.write(folder / "a.wav", samples[::-1] ** 3, rate)  # of the same size
    assert main(argv["rank"]) == 0
    assert embedded == [3, 1]
    after = read_scores(tmp_path / "s.npy").values
    assert after[0, 0] != before[0, 0]
    assert np.array_equal(after[0, 1:], before[0, 1:])
    other = ["--set", "rank.evaluation.stage=pretrain"]
    assert main([*argv["search"], *other]) == 0
    assert embedded == [3, 1, 3], "another checkpoint embeds otherwise"
    assert main([*argv["search"], "--cache", str(tmp_path / "other")]) == 0
    assert embedded == [3, 1, 3, 3]
    assert list((tmp_path / "other").glob("embeddings-*"))


def test_cached_embeddings_equal_computed_ones(unbroken, world, tmp_path):
    trained, clips = open_trained(unbroken), list(list_clips(world, "evaluation"))
    first, again = (embed(trained, clips, tmp_path).values for _ in range(2))
    assert torch.equal(first, again)
    part = embed(trained, clips[5:2:-1], tmp_path)
    assert torch.equal(part.values, first[[5, 4, 3]])


def test_killed_embedding_resumes_from_the_cache(unbroken, world, tmp_path, embedded, monkeypatch):
    monkeypatch.setattr(embedding, "CLIPS_PER_BATCH", 8)
    trained, clips = open_trained(unbroken), list(list_clips(world, "evaluation"))
    clips += [replace(clips[0], id=f"twin {n}") for n in range(2)]
    expected = embed(trained, clips, tmp_path / "unbroken").values
    assert embedded == [8, 8, 8]
    forward = ExpertHeadsEncoder.forward

    def killed(self: ExpertHeadsEncoder, audio: dict[str, Series]) -> object:
        if len(embedded) == 5:
            raise KeyboardInterrupt
        return forward(self, audio)

    with monkeypatch.context() as patched:
        patched.setattr(ExpertHeadsEncoder, "forward", killed)
        with pytest.raises(KeyboardInterrupt):
            cached(trained, clips, tmp_path / "again")
    assert embedded == [8] * 5
    readable, found, broken = cached(trained, clips, tmp_path / "again")
    assert embedded == [8] * 6, "stored clips are not embedded again"
    assert (readable, broken) == (clips, {})
    assert torch.equal(found.values, expected)


def test_ranking_by_a_mean_of_checkpoints_embeds_no_clip_again(tmp_path, world, embedded, monkeypatch):
    """Once untrained and once a checkpoint: scores come of one pass, a mean of the files."""
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    one = content["rank"]["evaluation"]
    content["rank"] = {name: one | {"checkpoint": name} for name in ("loss", "m1", "m2")}
    content["rank"]["mean"] = {"kind": "mean", "of": ["loss", "m1", "m2"], "edition": 2022, "csv": True}

    def only_ranking(call: partial[Any], *_: object) -> Any:
        embedded.clear()
        return call()

    on_call(monkeypatch, experiment.RunRanking, "rank", 1, only_ranking)
    run = run_recipe(content, tmp_path)
    assert sum(embedded) == 4 * 24
    assert (run / "scores/mean.clips.csv").read_text().splitlines()[0] == "clip,path,seconds"


def test_strict_pool_is_refused_before_its_clips_are_embedded(unbroken, folder, tmp_path, embedded):
    with pytest.raises(KitError, match="2 of"):
        Retriever(open_trained(unbroken), tmp_path).open(list_clips(folder), strict=True)
    assert embedded == []


def test_unwritable_cache_is_refused(unbroken, folder, tmp_path, capsys):
    command = [*verbs(unbroken, folder, tmp_path)["search"], "--cache", str(folder / "notes.txt")]
    assert main(command) == 1
    assert "notes.txt" in capsys.readouterr().err
    assert (folder / "notes.txt").read_text() == "x"


def test_ranking_on_a_full_disk_goes_on_once_there_is_room(unbroken, folder, tmp_path, capsys, monkeypatch):
    def full(call: partial[None], bank: Bank, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", f"{bank.folder}/x.frames")

    argv = verbs(unbroken, folder, tmp_path)
    assert main([*argv["rank"], "--cache", str(tmp_path / "other")]) == 0  # from here on there are frames
    expected = read_scores(tmp_path / "s.npy")
    with monkeypatch.context() as patch:
        on_call(patch, Bank, "store", 2, full)
        assert main(argv["rank"]) == 1
    assert "x.frames: No space left on device" in capsys.readouterr().err
    assert main(argv["rank"]) == 0
    assert np.allclose(read_scores(tmp_path / "s.npy").values, expected.values, atol=1e-5)


def test_cache_folder_follows_xdg_cache_home_or_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine/lbar-kit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/lbar-kit"


@pytest.mark.slow
def test_two_concurrent_searches_share_the_cache(unbroken, world, tmp_path, root):
    argv = [unbroken, world.parent / "evaluation", TEXT, "--json", "--cache", tmp_path / "cache"]
    command = [sys.executable, "-m", "system", "search", *map(str, argv)]
    both = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert output[0] == output[1]
    (folder,) = (tmp_path / "cache").glob("embeddings-*")
    facts = json.loads((folder / "bank.json").read_text())
    assert len(Bank(folder, facts["dim"], facts["dtype"], facts["identity"]).places) == 24


def hub_audio(folder: Path, **changes: object) -> dict[str, object]:
    network = {"kind": "clap", "weights": str(folder), "segment_seconds": 2.0, "output": "clip"}
    return {"kind": "segments", "network": network, "trainable": False, "max_seconds": 30} | changes


def embeddings_folder(audio: dict[str, object], folder: Path) -> Path:
    """The folder that keeps an untrained encoder's embeddings of clips; the network's weights are the same for all."""
    settings = Segments.model_validate(audio)
    model = SimpleNamespace(audio=settings, text=SimpleNamespace(dim=8))
    torch.manual_seed(1)
    return _bank(SimpleNamespace(audio=torch.nn.Linear(2, 2)), model, folder).folder  # type: ignore[arg-type]


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_changed_hub_model_files_use_another_cache_folder(file, tmp_path):
    same, changed = (Path(shutil.copytree(hub_folder("clap"), tmp_path / name)) for name in ("same", "changed"))
    (changed / file).write_text((changed / file).read_text().rstrip() + " ")
    folders = [embeddings_folder(hub_audio(m), tmp_path) for m in (hub_folder("clap"), same, changed)]
    assert folders[0] == folders[1]
    assert folders[0] != folders[2]


@pytest.mark.parametrize("change", [{"hidden": 4}, {"pooling": "seconds"}, {"max_seconds": 20}])
def test_other_encoder_settings_use_another_cache_folder(change, tmp_path):
    audio = hub_audio(hub_folder("clap"))
    assert embeddings_folder(audio, tmp_path) != embeddings_folder(audio | change, tmp_path)
