"""Facts of a run, which fill its package and its report."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from outcomes import rewrite

from data_tools.manifest import caption_queries, read_manifest, write_manifest
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from submission.package import meta
from submission.runs.entry import open_entry
from submission.runs.record import write_clips
from system.experiments import run
from system.experiments.summary import describe_data, report
from system.features.extract import Features, build_features
from system.ranking.embedding import embed_clips
from system.recipe.data import Data
from system.recipe.load import load_recipe
from system.retriever import Retriever
from system.runs.open import open_trained
from system.runs.provenance import TrainedClip, shared_clips


def test_result_lists_parameters_experts_and_data(unbroken, world):
    result = json.loads((unbroken / "result.json").read_text())
    trained = open_trained(unbroken)
    heads = sum(p.numel() for p in trained.model.audio.parameters())
    text = sum(p.numel() for p in trained.model.text.parameters())
    assert result["parameters"] == {"trained": {"logmel": heads, "text": text}, "frozen": {}, "total": heads + text}
    assert result["experts"]["logmel"]["rate"] == tiny.RATE
    clips = [clip for clip in read_manifest(world) if clip.split == "development"]
    hours = pytest.approx(sum(clip.seconds or 0 for clip in clips) / 3600)
    assert result["data"]["train"] == {
        "sets": {"tones": {"clips": 48, "captions": 240, "hours": hours, "licences": {"not known": 48}}},
        "trains": ["pretrain", "finetune"],
        "published": None,
    }
    assert result["data"]["evaluation"]["trains"] == []


def test_data_sets_licences_and_shared_recordings_are_counted(recipe, world, tmp_path):
    clips = [clip for clip in read_manifest(world) if clip.split == "development"][:5]
    licences = ["CC0", None, "CC0", "CC BY 4.0", "CC0"]
    mixed = [
        replace(clip, licence=licence, source="other" if n > 2 else "tones")
        for n, (clip, licence) in enumerate(zip(clips, licences, strict=True))
    ]
    loaded = load_recipe(recipe).recipe
    (found,) = describe_data(loaded, Data({"train": mixed}, None)).values()  # type: ignore[arg-type]  # features are not asked for
    assert {name: (own.clips, own.licences) for name, own in found.sets.items()} == {
        "tones": (3, {"CC0": 2, "not known": 1}),
        "other": (2, {"CC BY 4.0": 1, "CC0": 1}),
    }
    # Data sets keep different excerpts of one recording: other bytes, the same id.
    clips = [clip for clip in read_manifest(world) if clip.split == "development"][:4]
    ids = ["7", None, "7", None]
    named = [replace(clip, freesound_id=id_) for clip, id_ in zip(clips, ids, strict=True)]
    trained, data = (
        [TrainedClip(clip.id, clip.freesound_id or "", "other") for clip in named[:2]],
        Data({}, Features({})),
    )
    assert shared_clips(trained, named[2:], data) == [named[2]]
    assert shared_clips(trained[1:], named[3:], data) == [], "no id is no match"
    assert shared_clips([trained[1]._replace(quick_sha256=data.quick_checksum(named[3]))], named, data) == [named[3]]


def test_clips_csv_lists_paths_and_lengths(unbroken, tmp_path, world):
    rows = list(csv.DictReader((unbroken / "scores/evaluation.clips.csv").read_text().splitlines()))
    assert [row["clip"] for row in rows] == read_scores(unbroken / "scores/evaluation.npy").clip_ids
    assert all(Path(row["path"]).is_file() for row in rows)
    assert rows[3]["seconds"] == "0.900"
    write_clips(tmp_path / "clips.csv", [replace(clip, seconds=None) for clip in read_manifest(world)[:2]])
    again = csv.DictReader((tmp_path / "clips.csv").read_text().splitlines())
    assert [row["seconds"] for row in again] == ["", ""]


def test_package_describes_augmentation_and_word_vector_files(unbroken, tmp_path):
    folder = shutil.copytree(unbroken, tmp_path / "run")
    model = json.loads((folder / "resolved.json").read_text())["model"]
    model["audio"] |= {"kind": "panns", "weights": "w/ResNet38.pth", "spec_augment": {"time_stripes": 2}}
    model["text"] = {"kind": "word_vectors", "vectors": "w/news.bin"}
    rewrite(folder / "resolved.json", model=model)
    finished = open_entry(str(folder))
    described = meta.describe([finished])
    assert (described["data_augmentation"], described["word_embeddings"]) == (["SpecAugment"], ["news.bin"])
    assert meta.external_items([finished]).keys() >= {"ResNet38.pth", "news.bin"}


def test_scores_are_in_clip_order_and_leave_out_clips_without_frames(unbroken, world):
    # An order by length that is not its own inverse: of three clips, each goes to the place of the next.
    trained = open_trained(unbroken)
    pool = sorted((clip for clip in read_manifest(world) if clip.split == "evaluation"), key=lambda clip: clip.seconds)
    clips = [pool[9], pool[18], pool[0]]
    features = build_features(clips, dict(trained.recipe.model.audio.experts), Path(trained.recipe.banks))
    together = embed_clips(trained.model, clips, features).values
    alone = torch.cat([embed_clips(trained.model, [clip], features).values for clip in clips])
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-5)
    trained = open_trained(unbroken)
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"][:5]
    features = build_features(clips, dict(trained.recipe.model.audio.experts), Path(trained.recipe.banks))
    del features.keys[clips[2].id]
    queries = caption_queries(clips[:2])
    retriever = Retriever(trained, features=features)
    found = retriever.matrix(queries, retriever.open(clips))
    assert found.clip_ids == [clips[n].id for n in (0, 1, 3, 4)]
    assert found.values.shape == (len(queries), 4)


def test_run_with_a_single_query_is_reported_without_interval(tmp_path, world, capsys):
    clips = read_manifest(world)
    first = next(n for n, clip in enumerate(clips) if clip.split == "evaluation")
    for n, clip in enumerate(clips[first:], first):
        clips[n] = replace(clip, captions=clip.captions[:1] if n == first else [])
    write_manifest(tmp_path / "m.jsonl", clips)
    content = tiny.recipe(tmp_path / "m.jsonl", tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    path = tiny.write_recipe(tmp_path / "r.yaml", content)
    for _ in range(2):  # made, then opened
        print(report(run.run_steps(load_recipe(path), tmp_path, tmp_path / "run")))
        assert "(one query: no interval)" in capsys.readouterr().out
    assert submission(["report", str(tmp_path / "run")]) == 0
