"""Windows of any trained model: of a window that slides, of frames against words, by several models."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_frame_word_run
import tiny
import tiny_moments
import torch
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.moments import Moment, read_moments, write_moments
from submission.__main__ import main as submission
from system.__main__ import main
from system.features.bank import open_bank
from system.features.build import Features, build_features
from system.features.pieces import pieces_of
from system.models.moment_score import MomentScore
from system.moments.windows import IOU, Decoding, Grid, iou, overlap_candidates, overlap_probability, overlap_windows
from system.recipe.load import load_recipe
from system.runs.moments import FrameSeries, fitted_score, windows_of, windows_of_several

pytestmark = pytest.mark.usefixtures("one_thread")


def series(*rows: tuple[list[float], float]) -> FrameSeries:
    """Of (values, hop) rows, from second 0 on."""
    grids = [Grid(hop, hop / 2) for _, hop in rows]
    edges = [grid.edges(len(values), len(values) * grid.hop) for (values, _), grid in zip(rows, grids, strict=True)]
    return FrameSeries([torch.tensor(values) for values, _ in rows], edges, grids)


class TestSeveral:
    """Windows that a moment overlaps with, by hand and against every labelling."""

    def test_a_model_twice_says_what_it_says_once(self) -> None:
        score = MomentScore()
        asked = series(([0.1, 0.5, 0.6, 0.2, 0.9], 1.0), ([0.7, 0.0, 0.3], 0.5))
        alone = windows_of(score, asked, "overlap", Decoding())
        for one, other in zip(windows_of_several([(score, asked)] * 2, Decoding()), alone, strict=True):
            assert [w[:2] for w in one.windows] == [w[:2] for w in other.windows]
            assert [w.score for w in one.windows] == pytest.approx([w.score for w in other.windows], abs=1e-12)
            assert one.frames == pytest.approx(other.frames, abs=1e-12)

    def test_overlap_by_hand(self) -> None:
        """Four frames of 1 s. [0, 3] has an IoU of 2 / 3 with [1, 3], and of 0.75 with [0, 4]."""
        table = np.full((4, 4), -np.inf)
        table[1, 2], table[0, 2], table[0, 3], table[3, 3] = np.log([0.4, 0.2, 0.3, 0.1])
        asked = np.array([[1.0, 3.0], [0.0, 3.0], [0.0, 4.0], [3.0, 4.0], [0.8, 3.0], [0.5, 1.0]])
        expected = [0.4, 0.2 + 0.3, 0.2 + 0.3, 0.1, 0.4 + 0.2, 0.0]
        assert overlap_probability(asked, table, np.arange(5.0)) == pytest.approx(expected)

    @pytest.mark.parametrize("seed", range(4))
    def test_overlap_against_every_window(self, seed: int) -> None:
        """Frames of any width, the last two of none; windows with edges of frames and others, some behind the end."""
        rng = np.random.default_rng(seed)
        edges = np.concatenate([[0.0], rng.uniform(0.2, 2.0, 9).cumsum()])
        edges = np.append(edges, edges[[-1, -1]])
        table = np.where(np.triu(np.ones((11, 11))) > 0, np.log(rng.uniform(0, 0.02, (11, 11))), -np.inf)
        asked = [sorted(rng.choice(np.unique(edges), 2, replace=False)) for _ in range(20)]
        asked += [sorted(rng.uniform(0, edges[-1] + 1, 2)) for _ in range(20)]
        for window in np.array(asked):
            inside = np.minimum(window, edges[-1])
            expected = 0.0
            for i in range(11):
                for j in range(i, 11):
                    moment = np.array([[edges[i], edges[j + 1]]])
                    if edges[j + 1] > edges[i] and inside[1] > inside[0] and iou(moment, inside)[0] >= IOU - 1e-9:
                        expected += np.exp(table[i, j])
            assert overlap_probability(window[None], table, edges)[0] == pytest.approx(min(expected, 1.0), abs=1e-9)

    def test_a_moment_to_the_end_of_a_recording_is_found_where_the_last_frames_have_no_width(self) -> None:
        """61 frames of 1 s in 60 s, as the published frames of Clotho-Moment may be."""
        values = torch.tensor([0.0] * 50 + [1.0] * 11)
        grid = Grid(1.0, 0.5)
        asked = FrameSeries([values], [grid.edges(61, 60.0)], [grid])
        (found,) = windows_of(MomentScore(), asked, "overlap", Decoding())
        assert found.windows[0][:2] == (50, 60)
        assert found.windows[0].score > 0.9

    def test_whole_seconds_behind_a_ragged_end_count_as_the_end(self) -> None:
        grid = Grid(1.0, 0.5)
        values = torch.tensor([0.0] * 6 + [1.0] * 2)
        asked = FrameSeries([values], [grid.edges(8, 7.6)], [grid])
        (found,) = windows_of(MomentScore(), asked, "overlap", Decoding(round_to=1))
        assert found.windows[0][:2] == (6, 8)
        assert found.windows[0].score > 0.9

    def test_of_equal_scores_the_earlier_window_comes_first_then_the_shorter(self) -> None:
        asked = np.array([[5.0, 9.0], [2.0, 4.0], [2.0, 9.0], [0.0, 1.0]])
        found = overlap_windows(asked, np.array([0.5, 0.5, 0.5, 0.4]), 10.0, Decoding(max_iou=1.0))
        assert [window[:2] for window in found] == [(2, 4), (2, 9), (5, 9), (0, 1)]

    def test_a_frames_mean_is_over_its_own_width(self) -> None:
        """A last frame of half a second."""
        grid = Grid(1.0, 0.5)
        asked = FrameSeries([torch.tensor([0.0, 0.0, 0.9])], [grid.edges(3, 2.5)], [grid])
        (found,) = windows_of(MomentScore(), asked, "overlap", Decoding())
        (expected,) = windows_of(MomentScore(), asked, "posterior", Decoding())
        assert found.frames == pytest.approx(expected.frames, abs=1e-9)

    def test_thirty_windows_of_every_model_are_looked_at(self) -> None:
        """Fifteen events apart from each other: the eleventh of a model may be another's first."""
        table = np.full((60, 60), -np.inf)
        for n in range(15):
            table[4 * n, 4 * n + 1] = -1.0 - n / 10
        found = overlap_candidates(table, np.arange(61.0), Decoding())
        assert len(found) == 15

    def test_windows_end_with_the_model_that_lasts_longest(self) -> None:
        """40 frames of half a second, and 30 of a second that end with a moment from 24 to 29 s."""
        values = torch.tensor([0.0] * 24 + [1.0] * 5 + [0.0])
        members = [
            (MomentScore(), FrameSeries([torch.zeros(40)], [Grid(0.5, 0.25).edges(40, 30.0)], [Grid(0.5, 0.25)])),
            (MomentScore(), FrameSeries([values], [Grid(1.0, 0.5).edges(30, 30.0)], [Grid(1.0, 0.5)])),
        ]
        (found,) = windows_of_several(members, Decoding(round_to=1))
        assert found.windows[0][:2] == (24, 29)

    @pytest.mark.parametrize("hops", [(0.1, 1.0), (1.0, 0.1), (0.48, 1.0)])
    def test_models_of_unlike_frames_each_say_what_they_are_sure_of(self, hops: tuple[float, float]) -> None:
        """One is sure of 2 to 5 s, the other of 9 to 11 s and less of 2 to 5 s: the mean has both, the first before."""
        members = []
        for hop, sure in zip(hops, ({(2, 5): 1.0}, {(9, 11): 0.9, (2, 5): 0.8}), strict=True):
            grid = Grid(hop, hop / 2)
            centres = grid.centres(round(12 / hop))
            values = np.zeros(len(centres))
            for (start, end), value in sure.items():
                values[(centres >= start) & (centres < end)] = value
            members.append(
                (MomentScore(), FrameSeries([torch.tensor(values)], [grid.edges(len(centres), 12.0)], [grid]))
            )
        (found,) = windows_of_several(members, Decoding())
        first, second = found.windows[:2]
        assert first[:2] == pytest.approx((2, 5), abs=0.25)
        assert second[:2] == pytest.approx((9, 11), abs=0.25)
        assert second.score < 0.7 < first.score
        assert len(found.frames) == round(12 / min(hops))

    def test_frames_are_means_over_time_of_all_models(self) -> None:
        """A frame of 2 s with frames of 1 s: half of each; probabilities of one frame alone by hand."""
        score = MomentScore()
        members = [(score, series(([0.5, 0.5], 1.0))), (score, series(([0.9], 2.0)))]
        (found,) = windows_of_several(members, Decoding())
        e, f = 10 * 0.5 - 3, 10 * 0.9 - 3
        weights = {(0, 0): 0.0, (1, 0): e - 2, (0, 1): e - 2, (1, 1): 2 * e}
        total = sum(map(np.exp, weights.values()))
        one = (np.exp(weights[1, 0]) + np.exp(weights[1, 1])) / total
        assert found.frames == pytest.approx([(one + 1 / (1 + np.exp(-f))) / 2] * 2, abs=1e-6)

    def test_edges_are_rounded_before_they_are_scored(self) -> None:
        (found,) = windows_of_several([(MomentScore(), series(([0.0, 0.0, 1.0, 1.0, 0.0], 0.7)))], Decoding(round_to=1))
        assert found.windows[0][:2] == (1, 3)
        assert all(w[0] % 1 == w[1] % 1 == 0 for w in found.windows)

    def test_scores_of_any_size_end_in_windows(self) -> None:
        score = MomentScore()
        with torch.no_grad():
            score.scale.fill_(200.0), score.offset.fill_(-900.0)
        (found,) = windows_of_several([(score, series(([0.1, 0.2], 1.0)))] * 2, Decoding())
        assert found.windows

    def test_recordings_that_end_within_a_frame(self) -> None:
        """4.6 s: five frames of 1 s, and nine of half a second."""
        members = [
            (MomentScore(), FrameSeries([torch.rand(n)], [Grid(h, h / 2).edges(n, 4.6)], [Grid(h, h / 2)]))
            for n, h in ((5, 1.0), (9, 0.5))
        ]
        (found,) = windows_of_several(members, Decoding())
        assert found.edges[-1] == pytest.approx(4.6)
        assert all(0 <= start < end <= 4.6 for start, end, _ in found.windows)
        assert ((found.frames >= 0) & (found.frames <= 1)).all()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_moments.make_moments(tmp_path_factory.mktemp("moments") / "world")


@pytest.fixture(scope="module")
def runs(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`own`: of moments. `clips`: cosine of whole clips. `words`: frames against words. None but the first is any
    good."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    test_frame_word_run.write_words(folder / "words.bin", manifest)
    made: dict[str, dict[str, Any]] = {
        "own": tiny_moments.recipe(manifest, folder),
        "clips": tiny.recipe(manifest, folder),
        "words": test_frame_word_run.content(manifest, folder),
    }
    for name in ("clips", "words"):
        made[name]["rank"] = {"evaluation": made[name]["rank"]["evaluation"] | {"edition": "custom", "csv": False}}
    for name, content in made.items():
        path = tiny.write_recipe(folder / f"{name}.yaml", content)
        assert main(["run", str(path), "--out", str(folder / name)]) == 0
    return folder


def ranked(manifest: Path, out: Path, *arguments: object) -> int:
    moments = manifest.parent / "moments.jsonl"
    named = ["--audio", manifest, "--moments", moments, "--cache", out.parent / "cache", "--out", out]
    return main(["rank", *map(str, arguments), "--windows", *map(str, named)])


def windows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_table_that_would_fill_the_memory_is_refused() -> None:
    grid, size = Grid(0.1, 0.05), 20_001
    series = FrameSeries([torch.zeros(size)], [grid.edges(size, 2000.1)], [grid])
    said = "a recording of 2,000 s has 20,001 frames; windows are compared of up to 20,000"
    for found in (
        lambda: windows_of(MomentScore(), series, "posterior", Decoding()),
        lambda: windows_of(MomentScore(), series, "thresholds", Decoding()),
        lambda: windows_of_several([(MomentScore(), series)] * 2, Decoding()),
    ):
        with pytest.raises(KitError, match=said):
            found()


def test_a_run_of_moments_finds_what_its_own_entry_found(manifest: Path, runs: Path, tmp_path: Path) -> None:
    asked = ["--split", "evaluation", "--by", "posterior"]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / "own", *asked) == 0
    expected = windows(runs / "own/scores/posterior.windows.jsonl")
    for one, other in zip(windows(tmp_path / "a.jsonl"), expected, strict=True):
        assert (one["qid"], one["vid"]) == (other["qid"], other["vid"])
        np.testing.assert_allclose(one["pred_relevant_windows"], other["pred_relevant_windows"], atol=1e-5)
    assert ranked(manifest, tmp_path / "b.jsonl", runs / "own", "--split", "evaluation", "--by", "thresholds") == 0
    assert windows(tmp_path / "b.jsonl") == windows(runs / "own/scores/thresholds.windows.jsonl")


@pytest.mark.parametrize("name", ["clips", "words"])
def test_models_of_clips_and_of_frames_say_when(manifest: Path, runs: Path, tmp_path: Path, name: str) -> None:
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


def test_a_fit_changes_the_windows_and_is_to_nothing_behind_the_end(manifest: Path, runs: Path, tmp_path: Path) -> None:
    clips, moments = read_manifest(manifest), read_moments(manifest.parent / "moments.jsonl")
    asked, known = ([one for one in moments if f"/{split}/" in one.clip] for split in ("evaluation", "validation"))
    at_the_end = [(tiny_moments.SECONDS, tiny_moments.SECONDS + 1)]
    behind = [one.model_copy(update={"id": f"{one.id}_behind", "windows": at_the_end}) for one in known[:4]]
    for name, each in (("known", []), ("more", behind)):
        (tmp_path / name).mkdir()
        write_moments(tmp_path / name / "moments.jsonl", [*asked, *known[:4], *each])
        write_manifest(tmp_path / name / "manifest.jsonl", clips)
        named = (tmp_path / name / "manifest.jsonl", tmp_path / f"{name}.jsonl", runs / "own")
        assert ranked(*named, "--split", "evaluation", "--fit", "validation") == 0
    fitted, more = (windows(tmp_path / f"{name}.jsonl") for name in ("known", "more"))
    assert more == fitted
    first, before = (
        [line["pred_relevant_windows"][0] for line in each]
        for each in (fitted, windows(runs / "own/scores/posterior.windows.jsonl"))
    )
    assert np.abs(np.subtract(first, before)).max() > 0.01


def test_several_models_are_averaged_and_rounded(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    asked = ["--split", "evaluation", "--fit", "validation", "--piece", "0.6", "--hop", "0.5", "--round-to", "1"]
    assert ranked(manifest, out, runs / "own", runs / "clips", *asked) == 0
    assert re.search(r"R1@0.7 +\d+\.\d\d  \(95 % ", capsys.readouterr().out)
    assert all(w[0] % 1 == w[1] % 1 == 0 for line in windows(out) for w in line["pred_relevant_windows"])


def test_a_blind_list_has_no_figures(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = [one.model_copy(update={"windows": None}) for one in read_moments(manifest.parent / "moments.jsonl")]
    clips = [clip for clip in read_manifest(manifest) if clip.split == "evaluation"]
    ids = {clip.id for clip in clips}
    write_manifest(tmp_path / "manifest.jsonl", clips)
    write_moments(tmp_path / "moments.jsonl", [moment for moment in moments if moment.clip in ids])
    assert ranked(tmp_path / "manifest.jsonl", tmp_path / "a.jsonl", runs / "own") == 0
    assert "R1" not in capsys.readouterr().out
    assert submission(["check", str(tmp_path / "a.jsonl"), "--queries", str(tmp_path / "a.truth.jsonl")]) == 0


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("clips", ["--split", "evaluation"], "clips was never trained on windows, .* by --fit"),
        ("own", ["--split", "evaluation", "--fit", "evaluation"], "--fit evaluation: is a test split"),
        ("own", ["--fit", "validation"], "--fit validation: is among what is ranked"),
        ("own", ["--split", "other"], "no moment of the split other .* there are development, evaluation, validation"),
        ("own", ["--split", "evaluation", "--top", "3"], "leave out --queries and --top"),
        ("own", ["clips", "--split", "evaluation", "--by", "thresholds"], "--by thresholds is of one model"),
        ("own", ["own", "--split", "evaluation"], "one model is named twice"),
        (
            "own",
            ["--split", "evaluation", "--fit", "other"],
            "--fit other: .* no recording of that split, only of .*; name",
        ),
    ],
)
def test_what_does_not_go_together(
    manifest: Path,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    arguments: list[str],
    said: str,
) -> None:
    named = [str(runs / one) if one in ("own", "clips") else one for one in arguments]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / model, *named) == 1
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "a.jsonl").exists()


def test_options_of_windows_belong_to_windows(runs: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["rank", str(runs / "clips"), "--audio", str(manifest), "--out", "a.npy"]
    assert main([*asked, "--fit", "validation"]) == 1
    assert "--fit is of --windows" in capsys.readouterr().err
    assert main(["rank", str(runs / "own"), *asked[1:]]) == 1
    assert "one model ranks clips; blend score matrices" in capsys.readouterr().err


def test_options_of_windows_alone_are_refused(
    runs: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["rank", str(runs / "clips"), "--audio", str(manifest), "--out", str(tmp_path / "a.npy")]
    for option in (["--by", "posterior"], ["--piece", "3"], ["--hop", "0.5"]):
        assert main([*asked, *option]) == 1
        assert f"{option[0]} is of --windows; add that, or leave it out" in capsys.readouterr().err


def test_neither_the_windows_nor_their_queries_are_written_over_what_is_read(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = tmp_path / "q.truth.jsonl"
    moments.write_bytes((manifest.parent / "moments.jsonl").read_bytes())
    for out in ("q.jsonl", "q.truth.jsonl"):
        named = ["--audio", str(manifest), "--moments", str(moments), "--out", str(tmp_path / out)]
        assert main(["rank", str(runs / "own"), "--windows", "--split", "evaluation", *named]) == 1
        assert f"{moments} would be written over {moments}, which is read here" in capsys.readouterr().err
    assert moments.read_bytes() == (manifest.parent / "moments.jsonl").read_bytes()


def test_known_windows_and_a_blind_list_are_not_ranked_together(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = [
        one.model_copy(update={"windows": None}) if "/evaluation/" in one.clip else one
        for one in read_moments(manifest.parent / "moments.jsonl")
    ]
    write_moments(tmp_path / "moments.jsonl", moments)
    named = ["--audio", str(manifest), "--moments", str(tmp_path / "moments.jsonl"), "--out", str(tmp_path / "a.jsonl")]
    assert main(["rank", str(runs / "own"), "--windows", *named]) == 1
    said = capsys.readouterr().err
    assert "has known windows and a blind list; name one split by --split, of development, evaluation" in said
    assert not (tmp_path / "a.truth.jsonl").exists()


def test_recordings_that_cannot_be_read_are_counted_and_those_of_a_fit_left_out(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = [
        clip.model_copy(update={"path": str(tmp_path / "gone.wav")})
        if clip.file_name in ("evaluation_001.wav", "validation_002.wav")
        else clip
        for clip in read_manifest(manifest)
    ]
    write_manifest(tmp_path / "manifest.jsonl", gone)
    moments = str(manifest.parent / "moments.jsonl")
    named = ["--windows", "--moments", moments, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "a.jsonl")]
    asked = ["rank", str(runs / "own"), *named, "--audio", str(tmp_path / "manifest.jsonl"), "--split"]
    assert main([*asked, "evaluation"]) == 1
    said = capsys.readouterr().err
    assert "1 of 12 recordings cannot be read, first tones/evaluation/evaluation_001.wav (" in said
    assert main([*asked, "development", "--fit", "validation"]) == 0
    known = [one for one in read_moments(moments) if "/validation/" in one.clip and "_002" not in one.clip]
    assert len(known) < len([one for one in read_moments(moments) if "/validation/" in one.clip])
    lost = {"path": str(tmp_path / "gone.wav")}
    every = [clip.model_copy(update=lost) if clip.split == "validation" else clip for clip in gone]
    write_manifest(tmp_path / "manifest.jsonl", every)
    assert main([*asked, "development", "--fit", "validation"]) == 1
    assert "8 of 8 recordings cannot be read" in capsys.readouterr().err


def test_queries_of_unknown_words_are_ranked_where_that_is_allowed(
    manifest: Path, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = read_moments(manifest.parent / "moments.jsonl")
    moments = [one.model_copy(update={"text": "Zzyzx"}) for one in moments if "/evaluation/" in one.clip]
    write_moments(tmp_path / "moments.jsonl", moments)
    named = ["--audio", str(manifest), "--moments", str(tmp_path / "moments.jsonl"), "--cache", str(tmp_path / "cache")]
    asked = ["rank", str(runs / "own"), "--windows", *named, "--out", str(tmp_path / "a.jsonl")]
    assert main(asked) == 1
    assert "the model knows no word of 24 queries" in capsys.readouterr().err
    assert main([*asked, "--allow-unknown"]) == 0


def test_lengths_that_are_not_the_audios_are_named(
    manifest: Path, runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = [clip.model_copy(update={"seconds": 300.0}) for clip in read_manifest(manifest)]
    write_manifest(tmp_path / "manifest.jsonl", clips)
    named = ["--audio", str(tmp_path / "manifest.jsonl"), "--moments", str(manifest.parent / "moments.jsonl")]
    named += ["--split", "evaluation", "--out", str(tmp_path / "a.jsonl"), "--cache", str(tmp_path / "cache")]
    assert main(["rank", str(runs / "own"), "--windows", *named]) == 0
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("frames of another length than the recording's, in 12 recordings of 12" in line for line in said)


def test_frames_against_words_are_heard_when_their_experts_are(manifest: Path, runs: Path, tmp_path: Path) -> None:
    """The frames of an encoder that gives one for each of its expert's."""
    asked = ["--split", "evaluation", "--fit", "validation", "--by", "posterior"]
    assert ranked(manifest, tmp_path / "a.jsonl", runs / "words", *asked) == 0
    recipe = load_recipe(runs / "words" / "resolved.json").recipe
    ((_, expert),) = recipe.model.audio.experts.items()
    grid = Grid(1 / expert.frames_per_second, expert.first_centre)
    edges = set(grid.edges(1000, tiny_moments.SECONDS).round(4).tolist())
    found = {edge for line in windows(tmp_path / "a.jsonl") for w in line["pred_relevant_windows"] for edge in w[:2]}
    assert found <= edges


def test_pieces_have_the_frames_around_their_hop(manifest: Path, tmp_path: Path) -> None:
    """Frames of 0.08 s; pieces of 1 s every 0.5 s, shorter at both ends of 8 s."""
    recipe = load_recipe(tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path))).recipe
    clips = read_manifest(manifest)[:2]
    features = build_features(clips, dict(recipe.model.audio.experts), tmp_path / "banks")
    pieces, cut = pieces_of(clips, features, 1.0, 0.5)
    assert [len(each) for each in pieces] == [16, 16]
    (grid,) = features.grids.values()
    (name,) = features.banks
    for clip, each in zip(clips, pieces, strict=True):
        whole = features.frames(name, clip.id)
        centres = grid.centres(len(whole))
        for number, piece in enumerate(each):
            middle = 0.25 + 0.5 * number
            expected = whole[(centres >= middle - 0.5) & (centres < middle + 0.5)]
            np.testing.assert_array_equal(cut.frames(name, piece.id), expected)
            assert cut.banks[name].rows_of(cut.keys[piece.id]) == len(expected) > 0
    with pytest.raises(KitError, match=r"8 s have 80,000 pieces every 0.0001 s; windows are compared of up to 20,000"):
        pieces_of(clips[:1], features, 1.0, 0.0001)
    _, short = pieces_of(clips[:1], features, 0.01, 0.04)
    assert {len(short.frames(name, piece)) for piece in short.keys} == {1}


def test_a_scale_below_zero_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Frames that are lower where the sentence is heard."""
    asked = series(([0.9, 0.9, 0.1, 0.1, 0.9, 0.9], 1.0))
    moments = [Moment(id="q", text="?", clip="c", windows=[(2.0, 4.0)])]
    assert fitted_score(MomentScore(), asked, moments, "runs/A").scale < 0
    assert "runs/A fits the moments best with a scale below 0" in caplog.text


def test_a_piece_between_two_frames_has_the_nearer_one(tmp_path: Path) -> None:
    """Frames at 0.5, 1.5, 2.5 and 3.5 s; pieces of 0.06 s around 0.35, 1.05, 1.75, 2.45, 3.15 and 3.85 s. 4.2 s are six
    hops of 0.7 s, though 4.2 / 0.7 is more than 6."""
    bank = open_bank(tmp_path / "frames", 1, "float32", {})
    tiny.store_all(bank, [("a", np.arange(4, dtype=np.float32)[:, None])])
    clip = Clip(id="c", path="c.wav", captions=[], seconds=4.2)  # type: ignore[call-arg]
    features = Features({"any": bank}, {"c": "a"}, grids={"any": Grid(1.0, 0.5)})
    ((*pieces,),), cut = pieces_of([clip], features, 0.06, 0.7)
    assert [cut.frames("any", piece.id).tolist() for piece in pieces] == [[[n]] for n in (0, 1, 1, 2, 3, 3)]
