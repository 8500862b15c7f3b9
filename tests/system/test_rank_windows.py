"""Windows of any trained model: of a window that slides, of frames against words, by several models."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame_words
import numpy as np
import pytest
import tiny
import tiny_moments
import torch
from outcomes import refused
from threads import one_thread  # noqa: F401  a fixture
from tiny_moments import short_fits  # noqa: F401  a fixture

from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import write_moments
from submission.__main__ import main as submission
from system.__main__ import main
from system.features.bank import Bank
from system.features.extract import Features, build_features
from system.features.pieces import pieces_of
from system.moments.windows import Grid
from system.recipe.load import load_recipe

pytestmark = pytest.mark.usefixtures("one_thread", "short_fits")


@pytest.fixture(scope="module")
def manifest(moments_manifest):
    return moments_manifest


@pytest.fixture(scope="module")
def runs(manifest, moments_run, tmp_path_factory):
    """`own`: of moments. `clips`: cosine of whole clips. `words`: frames against words. None but the first is any
    good."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    frame_words.write_words(folder / "words.bin", manifest)
    made: dict[str, dict[str, Any]] = {
        "clips": tiny.recipe(manifest, folder, only=tiny.stage(epochs=1, steps_per_epoch=4)),
        "words": frame_words.content(manifest, folder),
    }
    (folder / "own").symlink_to(moments_run)
    for name in made:
        made[name]["rank"] = {"evaluation": made[name]["rank"]["evaluation"] | {"edition": "custom", "csv": False}}
    corrected = {"kind": "hub_corrected", "of": "evaluation", "bank": ["train"], "validation": "validation"}
    made["clips"]["rank"]["corrected"] = corrected | {"edition": "custom", "csv": False}
    for name, content in made.items():
        path = tiny.write_recipe(folder / f"{name}.yaml", content)
        assert main(["run", str(path), "--out", str(folder / name)]) == 0
    return folder


def ranked(manifest: Path, out: Path, *arguments: object) -> int:
    moments = manifest.parent / "moments.jsonl"
    named = [manifest, moments, "--cache", out.parent / "cache", "--out", out]
    return main(["locate", *map(str, arguments), *map(str, named)])


def windows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rank_with_windows_option_matches_the_rank_entry_of_a_moment_run(manifest, runs, tmp_path):
    asked = ["--split", "evaluation", "--decode", "by=overlap"]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / "own", *asked) == 0
    expected = windows(runs / "own/scores/overlap.windows.jsonl")
    for one, other in zip(windows(tmp_path / "a.jsonl"), expected, strict=True):
        assert (one["qid"], one["vid"]) == (other["qid"], other["vid"])
        np.testing.assert_allclose(one["pred_relevant_windows"], other["pred_relevant_windows"], atol=1e-5)
    assert (
        ranked(manifest, tmp_path / "b.jsonl", runs / "own", "--split", "evaluation", "--decode", "by=thresholds") == 0
    )
    assert windows(tmp_path / "b.jsonl") == windows(runs / "own/scores/thresholds.windows.jsonl")


@pytest.mark.parametrize("name", ["clips", "words"])
def test_windows_are_found_by_clip_models_and_by_frame_models(manifest, runs, tmp_path, name):
    out = tmp_path / "a.jsonl"
    asked = ["--split", "evaluation", "--fit", "validation", "--piece", "0.6", "--hop", "0.2"]
    assert ranked(manifest, out, runs / name, *asked) == 0
    assert submission(["check", str(out), "--truth", str(tmp_path / "a.truth.jsonl")]) == 0
    assert submission(["write", str(out), "--out", str(tmp_path / "mine.jsonl")]) == 0
    for line in windows(out):
        assert all(0 <= start < end <= tiny_moments.SECONDS for start, end, _ in line["pred_relevant_windows"])
    if name == "clips":
        edges = {edge for line in windows(out) for window in line["pred_relevant_windows"] for edge in window[:2]}
        assert max(abs(edge / 0.2 - round(edge / 0.2)) for edge in edges) < 1e-9


def test_fit_of_scores_below_chance_is_refused(manifest, runs, tmp_path, capsys):
    """The known windows are where the sounds are not."""
    moments = []
    for one in tiny_moments.moments_of(manifest):
        edges = [0.0, *(edge for window in one.windows for edge in window), tiny_moments.SECONDS]
        silent = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
        moments.append(replace(one, windows=silent))
    write_moments(tmp_path / "moments.jsonl", moments, read_manifest(manifest))
    asked = ["--split", "evaluation", "--fit", "validation", "--out", tmp_path / "a.jsonl"]
    assert "no better than chance" in refused(
        capsys, "locate", runs / "own", manifest, tmp_path / "moments.jsonl", *asked
    )
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.slow
def test_option_fit_changes_found_windows_and_ignores_true_windows_beyond_the_recording(manifest, runs, tmp_path):
    clips, moments = read_manifest(manifest), tiny_moments.moments_of(manifest)
    asked, known = ([one for one in moments if f"/{split}/" in one.clip] for split in ("evaluation", "validation"))
    at_the_end = [(tiny_moments.SECONDS, tiny_moments.SECONDS + 1)]
    behind = [replace(one, id=f"{one.id}_behind", windows=at_the_end) for one in known[:4]]
    for name, each in (("known", []), ("more", behind)):
        (tmp_path / name).mkdir()
        write_moments(tmp_path / name / "moments.jsonl", [*asked, *known[:4], *each], clips)
        write_manifest(tmp_path / name / "manifest.jsonl", clips)
        named = (tmp_path / name / "manifest.jsonl", tmp_path / f"{name}.jsonl", runs / "own")
        assert ranked(*named, "--split", "evaluation", "--fit", "validation") == 0
    fitted, more = (windows(tmp_path / f"{name}.jsonl") for name in ("known", "more"))
    assert more == fitted
    first, before = (
        [line["pred_relevant_windows"][0] for line in each]
        for each in (fitted, windows(runs / "own/scores/overlap.windows.jsonl"))
    )
    assert np.abs(np.subtract(first, before)).max() > 0.001, "of start, end and probability"


def test_windows_of_several_models_are_averaged_and_rounded(manifest, runs, tmp_path, capsys):
    out = tmp_path / "a.jsonl"
    asked = ["--split", "evaluation", "--fit", "validation", "--piece", "0.6", "--hop", "0.2", "--decode", "round_to=1"]
    assert ranked(manifest, out, runs / "own", "--also", runs / "clips", *asked) == 0
    assert re.search(r"R1@0.7 +\d+\.\d\d %  95 % ", capsys.readouterr().out)
    assert all(w[0] % 1 == w[1] % 1 == 0 for line in windows(out) for w in line["pred_relevant_windows"])


def test_ranked_windows_of_a_blind_list_have_no_metrics(manifest, runs, tmp_path, capsys):
    moments = [replace(one, windows=None) for one in tiny_moments.moments_of(manifest)]
    clips = [clip for clip in read_manifest(manifest) if clip.split == "evaluation"]
    ids = {clip.id for clip in clips}
    write_manifest(tmp_path / "manifest.jsonl", clips)
    write_moments(tmp_path / "moments.jsonl", [moment for moment in moments if moment.clip in ids], clips)
    assert ranked(tmp_path / "manifest.jsonl", tmp_path / "a.jsonl", runs / "own") == 0
    assert "R1" not in capsys.readouterr().out
    assert submission(["check", str(tmp_path / "a.jsonl"), "--queries", str(tmp_path / "a.truth.jsonl")]) == 0


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("clips", ["--split", "evaluation"], "trained"),
        ("own", ["--split", "evaluation", "--fit", "evaluation"], "evaluation"),
        ("own", ["--fit", "validation"], "validation"),
        ("own", ["--split", "other"], "development"),
        ("own", ["--also", "clips", "--split", "evaluation", "--decode", "by=thresholds"], "overlap"),
        ("own", ["--split", "evaluation", "--fit", "other"], "manifest"),
    ],
)
def test_incompatible_window_options_are_refused(manifest, runs, tmp_path, capsys, model, arguments, said):
    named = [str(runs / one) if one in ("own", "clips") else one for one in arguments]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / model, *named) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "a.jsonl").exists()


def test_window_files_never_overwrite_input_files(manifest, runs, tmp_path, capsys):
    moments = tmp_path / "q.truth.jsonl"
    moments.write_bytes((manifest.parent / "moments.jsonl").read_bytes())
    for out in ("q.jsonl", "q.truth.jsonl"):
        named = [str(manifest), str(moments), "--out", str(tmp_path / out)]
        assert main(["locate", str(runs / "own"), "--split", "evaluation", *named]) == 1
        assert "overwrite" in capsys.readouterr().err
    assert moments.read_bytes() == (manifest.parent / "moments.jsonl").read_bytes()


def test_moments_with_and_without_true_windows_in_one_file_are_refused(manifest, runs, tmp_path, capsys):
    moments = [
        replace(one, windows=None) if "/evaluation/" in one.clip else one for one in tiny_moments.moments_of(manifest)
    ]
    write_moments(tmp_path / "moments.jsonl", moments, read_manifest(manifest))
    named = [str(manifest), str(tmp_path / "moments.jsonl"), "--out", str(tmp_path / "a.jsonl")]
    assert main(["locate", str(runs / "own"), *named]) == 1
    assert "with and without windows" in capsys.readouterr().err
    assert not (tmp_path / "a.truth.jsonl").exists()


def test_unreadable_recordings_are_counted_and_skipped_with_option_fit(manifest, runs, tmp_path, capsys):
    gone = [
        replace(clip, path=str(tmp_path / "gone.wav"))
        if clip.file_name in ("evaluation_001.wav", "validation_002.wav")
        else clip
        for clip in read_manifest(manifest)
    ]
    write_manifest(tmp_path / "manifest.jsonl", gone)
    moments = str(manifest.parent / "moments.jsonl")
    named = [moments, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "a.jsonl")]
    asked = ["locate", str(runs / "own"), str(tmp_path / "manifest.jsonl"), *named, "--split"]
    assert main([*asked, "evaluation"]) == 1
    said = capsys.readouterr().err
    assert "evaluation_001.wav" in said
    assert main([*asked, "development", "--fit", "validation"]) == 0
    lost = {"path": str(tmp_path / "gone.wav")}
    every = [replace(clip, **lost) if clip.split == "validation" else clip for clip in gone]
    write_manifest(tmp_path / "manifest.jsonl", every)
    assert main([*asked, "development", "--fit", "validation"]) == 1
    assert "8 clips cannot be read" in capsys.readouterr().err


def test_finding_windows_of_queries_without_known_words_requires_option_allow_unknown(manifest, runs, tmp_path, capsys):
    moments = tiny_moments.moments_of(manifest)
    moments = [replace(one, text="Zzyzx") for one in moments if "/evaluation/" in one.clip]
    write_moments(tmp_path / "moments.jsonl", moments, read_manifest(manifest))
    named = [str(manifest), str(tmp_path / "moments.jsonl"), "--cache", str(tmp_path / "cache")]
    asked = ["locate", str(runs / "own"), *named, "--out", str(tmp_path / "a.jsonl")]
    assert main(asked) == 1
    assert "model" in capsys.readouterr().err
    assert main([*asked, "--allow-unknown"]) == 0


def test_rank_reports_recording_lengths_in_the_manifest_that_differ_from_the_audio(manifest, runs, tmp_path, capsys):
    clips = [replace(clip, seconds=300.0) for clip in read_manifest(manifest)]
    write_manifest(tmp_path / "manifest.jsonl", clips)
    named = [str(tmp_path / "manifest.jsonl"), str(manifest.parent / "moments.jsonl")]
    named += ["--split", "evaluation", "--out", str(tmp_path / "a.jsonl"), "--cache", str(tmp_path / "cache")]
    assert main(["locate", str(runs / "own"), *named]) == 1
    assert "300 s in the manifest" in capsys.readouterr().err


def test_windows_found_by_scores_of_frames_against_words_begin_and_end_at_frame_edges(manifest, runs, tmp_path):
    asked = ["--split", "evaluation", "--fit", "validation"]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / "words", *asked) == 0
    recipe = load_recipe(runs / "words" / "resolved.json").recipe
    ((_, expert),) = recipe.model.audio.experts.items()
    grid = Grid(1 / expert.frames_per_second, expert.first_centre)
    edges = set(grid.edges(1000, tiny_moments.SECONDS).round(4).tolist())
    found = {edge for line in windows(tmp_path / "a.jsonl") for w in line["pred_relevant_windows"] for edge in w[:2]}
    assert found <= edges


def test_each_piece_of_a_recording_consists_of_the_frames_centred_within_the_piece(manifest, tmp_path):
    """Frames of 0.08 s; pieces of 1 s every 0.5 s, shorter at both ends of 8 s."""
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))).recipe
    clips = read_manifest(manifest)[:2]
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    pieces, cut = pieces_of(clips, features, 1.0, 0.5)
    assert [len(each) for each in pieces] == [16, 16]
    (grid,) = features.grids.values()
    (name,) = features.banks
    for clip, each in zip(clips, pieces, strict=True):
        whole = tiny.frames(features, name, clip.id)
        centres = grid.centres(len(whole))
        for number, piece in enumerate(each):
            middle = 0.25 + 0.5 * number
            expected = whole[(centres >= middle - 0.5) & (centres < middle + 0.5)]
            np.testing.assert_array_equal(tiny.frames(cut, name, piece.id), expected)
            assert cut.banks[name].rows_of(cut.keys[piece.id]) == len(expected) > 0
    with pytest.raises(KitError, match="limit"):
        pieces_of(clips[:1], features, 1.0, 0.0001)
    _, short = pieces_of(clips[:1], features, 0.01, 0.04)
    assert {len(tiny.frames(short, name, piece)) for piece in short.keys} == {1}


def test_piece_of_a_recording_with_no_frame_centre_has_the_frame_nearest_to_its_middle(tmp_path):
    """Frames at 0.5, 1.5, 2.5 and 3.5 s; pieces of 0.06 s around 0.35, 1.05, 1.75, 2.45, 3.15 and 3.85 s. 4.2 s are six
    hops of 0.7 s, though 4.2 / 0.7 is more than 6."""
    bank = Bank(tmp_path / "frames", 1, "float32", {})
    tiny.store_all(bank, [("a", np.arange(4, dtype=np.float32)[:, None])])
    clip = Clip(id="c", path="c.wav", captions=[], seconds=4.2)  # type: ignore[call-arg]
    features = Features({"any": bank}, {"c": "a"}, grids={"any": Grid(1.0, 0.5)})
    ((*pieces,),), cut = pieces_of([clip], features, 0.06, 0.7)
    assert [tiny.frames(cut, "any", piece.id).tolist() for piece in pieces] == [[[n]] for n in (0, 1, 1, 2, 3, 3)]
