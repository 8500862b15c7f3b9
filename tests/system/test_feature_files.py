"""Published frames in place of audio: from CASTELLA's annotations and files of features to windows and a blind list."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_moments
from threads import one_thread  # noqa: F401  a fixture

from data_tools.__main__ import main as data_tools
from data_tools.errors import AudioError, KitError
from data_tools.manifest import read_manifest
from submission.__main__ import main as submission
from submission.package.meta import count_parameters, external_items, networks
from submission.runs.entry import open_entry
from system.__main__ import main
from system.audio.stored import FeatureFiles
from system.features.extract import build_features
from system.ranking.embedding import require_readable

pytestmark = pytest.mark.usefixtures("one_thread")

VALUES, SECONDS, QUERIES = 12, 30, ("a low tone", "a high tone", "a noise")
EXPERT = FeatureFiles(
    kind="feature_files", values=VALUES, hop_seconds=1.0, model="MS-CLAP", model_parameters=31_000_000
)


@pytest.fixture
def published(tmp_path):
    """Annotations of three splits and a blind list in the published form, and one frame per second: frames for which
    sentence k is true have a 1 at place k."""
    features = tmp_path / "published" / "features"
    features.mkdir(parents=True)
    for number, (name, count) in enumerate([("train", 30), ("val", 6), ("test", 6), ("blind", 4)]):
        lines = []
        for n in range(count):
            rng, vid = np.random.default_rng([number, n]), f"-{name}_{n:02d}"
            frames = rng.normal(0, 0.1, (SECONDS, VALUES)).astype(np.float32)
            first, second = rng.permutation(3)[:2].tolist()
            for part, (kind, start) in enumerate([(first, 3), (second, 14)], 1):
                length = int(rng.integers(3, 9))
                frames[start : start + length, kind] += 1.0
                line: dict[str, Any] = {"qid": f"{vid}_{part}", "query": QUERIES[kind], "duration": SECONDS, "vid": vid}
                line |= {} if name == "blind" else {"relevant_windows": [[start, start + length]]}
                lines.append(json.dumps(line) + "\n")
            np.savez(features / f"{vid}.npz", features=frames)
        form = "list" if name == "blind" else f"castella_{name}_release"
        (tmp_path / "published" / f"{form}.jsonl").write_text("".join(lines))
    return tmp_path / "published"


def made(published: Path, *options: str) -> Path:
    manifest, moments = published.parent / "manifest.jsonl", published.parent / "moments.jsonl"
    named = ["--features", str(published / "features"), "--out", str(manifest), "--moments", str(moments)]
    assert data_tools(["castella", str(published), *named, *options]) == 0
    return manifest


def recipe(manifest: Path, folder: Path, epochs: int = 1) -> dict[str, Any]:
    content = tiny_moments.recipe(manifest, folder, epochs=epochs)
    content["model"]["audio"]["experts"] = {"msclap": EXPERT.model_dump()}
    for name, split in (("train", "train"), ("validation", "val"), ("evaluation", "test")):
        content["data"][name]["split"] = split
    content["data"]["blind"] = content["data"]["evaluation"] | {"split": "blind"}
    entry = content["rank"]["overlap"] | {"decoding": {"round_to": 1}}
    content["rank"] = {"test": entry, "blind": entry | {"data": "blind"}}
    return content


def test_recipe_with_published_features_runs_without_audio(published, tmp_path, capsys):
    manifest = made(published)
    assert "test: 12 queries in 6 recordings" in capsys.readouterr().out
    assert {(clip.seconds, Path(clip.path).suffix) for clip in read_manifest(manifest)} == {(SECONDS, ".npz")}
    path = tiny.write_recipe(tmp_path / "r.yaml", recipe(manifest, tmp_path, epochs=4))
    assert main(["check", str(path)]) == 0
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 0
    found = json.loads((tmp_path / "run/result.json").read_text())["moments"]
    assert found["test"]["figures"]["R1@0.7"] > 0.9
    assert found["test"]["ceiling"]["R1@0.7"] == 1.0
    (about_msclap,) = json.loads((tmp_path / "run/result.json").read_text())["experts"].values()
    assert about_msclap["pretrained"] == "MS-CLAP"
    opened = open_entry(f"{tmp_path / 'run'}:test")
    assert [one.part for one in networks(opened)] == ["msclap"]
    assert count_parameters([opened])[1] == 31_000_000
    assert external_items([opened])["MS-CLAP"]["url"] is None
    assert (
        submission(["check", str(tmp_path / "run/submission/blind.jsonl"), "--queries", str(published / "list.jsonl")])
        == 0
    )
    assert submission(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"no audio: -test_0\d.npz", page)
    assert "data-from" not in re.sub(r"(?s)<script>.*", "", page)
    assert [w % 1 for line in (tmp_path / "run/submission/blind.jsonl").read_text().splitlines()
            for window in json.loads(line)["pred_relevant_windows"] for w in window].count(0.0) > 0  # fmt: skip


def test_moments_of_recordings_that_the_manifest_lacks_are_refused(published, tmp_path, capsys):
    manifest = made(published)
    kept = [line for line in manifest.read_text().splitlines(keepends=True) if "-blind_02" not in line]
    manifest.write_text("".join(kept))
    path = tiny.write_recipe(tmp_path / "r.yaml", recipe(manifest, tmp_path))
    lost = r"moments.jsonl, line \d+: the recording -blind_02 is not"
    assert main(["check", str(path)]) != 0
    assert re.search(lost, capsys.readouterr().out)
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 1
    assert re.search(lost, capsys.readouterr().err)


def test_castella_release_is_a_moments_file(published, tmp_path):
    content = recipe(made(published), tmp_path)
    content["data"]["train"]["moments"] = str(published / "castella_train_release.jsonl")
    assert main(["check", str(tiny.write_recipe(tmp_path / "r.yaml", content))]) == 0


def test_npy_files_of_features_are_found_and_used_and_missing_ones_counted(published, tmp_path, capsys):
    expected = build_features(read_manifest(made(published)), {"msclap": EXPERT}, tmp_path / "banks")
    for path in (published / "features").glob("*.npz"):
        np.save(path.with_suffix(".npy"), np.load(path)["features"])
        path.unlink()
    (published / "features" / "-test_02.npy").unlink()
    capsys.readouterr()
    manifest = made(published)
    output = capsys.readouterr().out
    assert "1 recordings have no file" in output
    assert "test: 10 queries in 5 recordings" in output
    clips = read_manifest(manifest)
    found = build_features(clips, {"msclap": EXPERT}, tmp_path / "banks")
    assert len(clips) == len(found.keys) == 45
    for clip in clips:
        before = tiny.frames(expected, "msclap", clip.id.replace(".npy", ".npz"))
        assert np.array_equal(tiny.frames(found, "msclap", clip.id), before)


def test_frames_are_an_array_of_the_size_that_the_settings_say(tmp_path):
    frames = np.arange(36, dtype=np.float16).reshape(3, VALUES)
    np.savez(tmp_path / "a.npz", features=frames, other=frames[:1], wide=np.zeros((3, VALUES + 1)))
    assert np.array_equal(EXPERT.read(str(tmp_path / "a.npz")), frames.astype(np.float32))
    other, wide = (EXPERT.model_copy(update={"array": name}) for name in ("other", "wide"))
    assert other.read(str(tmp_path / "a.npz")).shape == (1, VALUES)
    with pytest.raises(AudioError, match="values"):
        wide.read(str(tmp_path / "a.npz"))
    assert (EXPERT.frames_per_second, EXPERT.first_centre) == (1.0, 0.5)


def test_check_reads_feature_files_instead_of_audio(published, capsys):
    manifest = made(published)
    assert data_tools(["check", str(manifest)]) == 0
    assert data_tools(["check", str(manifest), "--quick"]) == 0
    np.savez(published / "features" / "-val_01.npz", features=np.full((30, VALUES), np.nan))
    (published / "features" / "-val_02.npz").write_bytes(b"PK")
    capsys.readouterr()
    for quick in ([], ["--quick"]):
        assert data_tools(["check", str(manifest), *quick]) == 1
        said = capsys.readouterr().out
        assert "2  bad audio" in said
        assert "castella/val/-val_01.npz" in said
        assert "castella/val/-val_02.npz" in said


def test_frames_of_another_length_than_the_recording_are_left_out_or_used_with_a_warning(published, tmp_path, caplog):
    clips = [clip for clip in read_manifest(made(published)) if clip.split == "test"]
    clips[4:] = [replace(clip, seconds=60.0) for clip in clips[4:]]
    for number, rows in enumerate((10, 33, 34, 27, 56, 53)):
        np.savez(published / "features" / f"-test_{number:02d}.npz", features=np.zeros((rows, VALUES)))
    features = build_features(clips, {"msclap": EXPERT}, tmp_path / "banks")
    assert set(features.broken) == {clips[n].id for n in (0, 2, 5)}
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("times of 1 recording" in one and "last 56 s" in one for one in said)
    with pytest.raises(KitError, match="manifest"):
        require_readable(clips, features.broken, "clips", every=True)


@pytest.mark.parametrize(("key", "value"), [("hop_seconds", 0.5), ("values", VALUES + 1), ("array", "other")])
def test_feature_settings_that_fit_no_file_give_one_error_before_training(
    published, tmp_path, caplog, capsys, key, value
):
    manifest, expert = made(published), EXPERT.model_copy(update={key: value})
    clips = [clip for clip in read_manifest(manifest) if clip.split == "test"]
    with pytest.raises(KitError, match=f"msclap.*{'other' if key == 'array' else key}"):
        build_features(clips, {"msclap": expert}, tmp_path / "banks")
    assert not caplog.records
    content = recipe(manifest, tmp_path)
    content["model"]["audio"]["experts"] = {"msclap": expert.model_dump()}
    assert main(["check", str(tiny.write_recipe(tmp_path / "r.yaml", content))]) == 1
    assert "MISTAKE  expert msclap" in (said := capsys.readouterr().out)
    assert "WARNING  expert msclap" not in said, "if no file fits, a setting is wrong"
    one = build_features(clips[:1], {"msclap": expert}, tmp_path / "banks")
    assert not one.keys, "of a lone file it may be the file that is wrong"
