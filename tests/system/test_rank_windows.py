"""Windows of any trained model: of a window that slides, of frames against words, by several models."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame_words
import numpy as np
import pytest
import tiny
import tiny_moments
from threads import one_thread  # noqa: F401  a fixture
from tiny_moments import SECONDS, short_fits  # noqa: F401  a fixture

from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import Moment, write_moments
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
    """`own`: of moments. `clips`: cosine of whole clips. `words`: frames against words. Only the first is any good."""
    folder = tmp_path_factory.mktemp("runs")
    frame_words.write_words(folder / "words.bin", manifest, seed=3)
    made: dict[str, dict[str, Any]] = {
        "clips": tiny.recipe(manifest, folder, only=tiny.stage(epochs=1, steps_per_epoch=4)),
        "words": frame_words.content(manifest, folder),
    }
    (folder / "own").symlink_to(moments_run)
    for name, content in made.items():
        content["rank"] = {"evaluation": content["rank"]["evaluation"] | {"edition": "custom", "csv": False}}
        path = tiny.write_recipe(folder / f"{name}.yaml", content)
        assert main(["run", str(path), "--out", str(folder / name)]) == 0
    return folder


def locate(model: Path, manifest: Path, out: Path, *options: object, moments: Path | None = None) -> int:
    named = [model, manifest, moments or manifest.parent / "moments.jsonl", "--cache", out.parent / "cache"]
    return main(["locate", *map(str, [*named, "--out", out, *options])])


EVALUATION = ("--split", "evaluation")
FITTED = (*EVALUATION, "--fit", "validation")
PIECES = ("--piece", 0.6, "--hop", 0.2)


def windows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def edges(path: Path) -> set[float]:
    return {edge for line in windows(path) for window in line["pred_relevant_windows"] for edge in window[:2]}


def test_rank_with_windows_option_matches_the_rank_entry_of_a_moment_run(manifest, runs, tmp_path):
    for by in ("overlap", "thresholds"):
        assert locate(runs / "own", manifest, tmp_path / "a.jsonl", *EVALUATION, "--decode", f"by={by}") == 0
        expected = windows(runs / f"own/scores/{by}.windows.jsonl")
        for one, other in zip(windows(tmp_path / "a.jsonl"), expected, strict=True):
            assert (one["qid"], one["vid"]) == (other["qid"], other["vid"])
            np.testing.assert_allclose(one["pred_relevant_windows"], other["pred_relevant_windows"], atol=1e-5)
        assert by == "overlap" or windows(tmp_path / "a.jsonl") == expected


@pytest.mark.parametrize("name", ["clips", "words"])
def test_windows_of_clip_models_and_of_frame_models_begin_and_end_at_their_edges(manifest, runs, tmp_path, name):
    out = tmp_path / "a.jsonl"
    assert locate(runs / name, manifest, out, *FITTED, *PIECES) == 0
    assert submission(["check", str(out), "--truth", str(tmp_path / "a.truth.jsonl")]) == 0
    assert submission(["write", str(out), "--out", str(tmp_path / "mine.jsonl")]) == 0
    assert all(0 <= start < end <= SECONDS for line in windows(out) for start, end, _ in line["pred_relevant_windows"])
    if name == "clips":
        assert max(abs(edge / 0.2 - round(edge / 0.2)) for edge in edges(out)) < 1e-9
    else:
        (expert,) = load_recipe(runs / "words/resolved.json").recipe.model.audio.experts.values()
        grid = Grid(1 / expert.frames_per_second, expert.first_centre)
        assert edges(out) <= set(grid.edges(1000, SECONDS).round(4).tolist())


def test_windows_of_several_models_are_averaged_and_rounded(manifest, runs, tmp_path, capsys):
    asked = ["--also", runs / "clips", *FITTED, *PIECES, "--decode", "round_to=1"]
    assert locate(runs / "own", manifest, tmp_path / "a.jsonl", *asked) == 0
    assert re.search(r"R1@0.7 +\d+\.\d\d %  95 % ", capsys.readouterr().out)
    assert all(edge % 1 == 0 for edge in edges(tmp_path / "a.jsonl"))


def test_ranked_windows_of_a_blind_list_have_no_metrics(manifest, runs, tmp_path, capsys):
    clips = {clip.id: clip for clip in read_manifest(manifest) if clip.split == "evaluation"}
    moments = [replace(one, windows=None) for one in tiny_moments.moments_of(manifest) if one.clip in clips]
    write_manifest(tmp_path / "manifest.jsonl", list(clips.values()))
    write_moments(tmp_path / "moments.jsonl", moments, list(clips.values()))
    assert locate(runs / "own", tmp_path / "manifest.jsonl", tmp_path / "a.jsonl") == 0
    assert "R1" not in capsys.readouterr().out
    assert submission(["check", str(tmp_path / "a.jsonl"), "--queries", str(tmp_path / "a.truth.jsonl")]) == 0


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("clips", EVALUATION, "trained"),
        ("own", [*EVALUATION, "--fit", "evaluation"], "evaluation"),
        ("own", ["--fit", "validation"], "validation"),
        ("own", ["--split", "other"], "development"),
        ("own", ["--also", "clips", *EVALUATION, "--decode", "by=thresholds"], "overlap"),
        ("own", [*EVALUATION, "--fit", "other"], "manifest"),
    ],
)
def test_incompatible_window_options_are_refused(manifest, runs, tmp_path, capsys, model, options, said):
    named = [runs / one if one in ("own", "clips") else one for one in options]
    assert locate(runs / model, manifest, tmp_path / "a.jsonl", *named) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists()


def silent(moment: Moment) -> Moment:
    """The windows where the sound is not."""
    at = [0.0, *(edge for window in moment.windows or [] for edge in window), SECONDS]
    between = zip(at[::2], at[1::2], strict=True)
    return replace(moment, windows=[(start, end) for start, end in between if start < end])


def blind_evaluation(moment: Moment) -> Moment:
    return replace(moment, windows=None) if "/evaluation/" in moment.clip else moment


def gone(part: str) -> Callable[[Clip], Clip]:
    """The recordings with this part in their ids."""
    return lambda clip: replace(clip, path="gone.wav") if part in clip.id else clip


UNFIT: dict[str, tuple[Callable[[Clip], Clip], Callable[[Moment], Moment], tuple[str, ...], str]] = {
    "scores below chance": (lambda clip: clip, silent, FITTED, "no better than chance"),
    "true windows for some": (lambda clip: clip, blind_evaluation, (), "with and without windows"),
    "other lengths": (lambda clip: replace(clip, seconds=300.0), lambda one: one, EVALUATION, "300 s in the manifest"),
    "unknown words": (lambda clip: clip, lambda one: replace(one, text="Zzyzx"), EVALUATION, "model"),
    "no recording": (gone("evaluation_001"), lambda one: one, EVALUATION, "evaluation_001.wav"),
    "no recording to fit": (gone("/validation/"), lambda one: one, FITTED, "4 of 4 clips"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_recordings_and_moments_that_do_not_fit_are_refused(manifest, runs, tmp_path, capsys, name):
    of_clip, of_moment, options, said = UNFIT[name]
    clips = read_manifest(manifest)
    write_manifest(tmp_path / "manifest.jsonl", [of_clip(clip) for clip in clips])
    write_moments(tmp_path / "moments.jsonl", [of_moment(one) for one in tiny_moments.moments_of(manifest)], clips)
    assert locate(runs / "own", tmp_path / "manifest.jsonl", tmp_path / "a.jsonl", *options) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("a.*"))
    if name == "unknown words":
        assert locate(runs / "own", tmp_path / "manifest.jsonl", tmp_path / "a.jsonl", *options, "--allow-unknown") == 0


def test_unreadable_recordings_of_option_fit_are_skipped(manifest, runs, tmp_path):
    clips = read_manifest(manifest)
    write_manifest(tmp_path / "manifest.jsonl", [gone("validation_002")(clip) for clip in clips])
    moments = manifest.parent / "moments.jsonl"
    assert locate(runs / "own", tmp_path / "manifest.jsonl", tmp_path / "a.jsonl", *FITTED, moments=moments) == 0


def test_window_files_never_overwrite_input_files(manifest, runs, tmp_path, capsys):
    moments, before = tmp_path / "q.truth.jsonl", (manifest.parent / "moments.jsonl").read_bytes()
    moments.write_bytes(before)
    for out in ("q.jsonl", "q.truth.jsonl"):
        assert locate(runs / "own", manifest, tmp_path / out, *EVALUATION, moments=moments) == 1
        assert "overwrite" in capsys.readouterr().err
    assert moments.read_bytes() == before


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
