"""Searching a folder from the command line and from Python: the order of rank, and nothing dropped without a word."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from outcomes import refused

from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
from submission.ordering import ranked_columns
from system.__main__ import main
from system.retriever import list_clips, load_model

TEXTS = ["A deep tone sounds.", "a shrill hum goes on"]


@pytest.fixture(scope="module")
def model(unbroken):
    return load_model(unbroken)


@pytest.fixture
def folder(world, tmp_path):
    """Five tones, two of them in a subfolder, one broken file, a text, an .m4a, and a hidden file."""
    folder = tmp_path / "sounds"
    (folder / "more/deep").mkdir(parents=True)
    tones = sorted((world.parent / "evaluation").glob("*.wav"))[:5]
    for n, tone in enumerate(tones):
        shutil.copy(tone, folder / ("more/deep" if n > 2 else ".") / f"{n}.wav")
    (folder / "more/broken.wav").write_bytes(b"RIFF")
    (folder / "notes.txt").write_text("x")
    (folder / "song.m4a").write_bytes(b"x")
    (folder / ".hidden.wav").write_bytes(b"x")
    return folder


def search(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    capsys.readouterr()
    assert main(["search", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_verb_rank_and_verb_search_and_the_python_interface_order_clips_equally(
    unbroken, model, folder, tmp_path, capsys
):
    captions = tmp_path / "captions.csv"
    captions.write_text("caption\n" + "\n".join(TEXTS) + "\n")
    out = tmp_path / "s.npy"
    argv = ["rank", str(unbroken), str(folder), str(captions), "--out", str(out)]
    assert main(argv) == 0
    matrix = read_scores(out)
    columns = ranked_columns(matrix.values, matrix.file_names, 5)
    expected = [[str(folder / matrix.file_names[column]) for column in row] for row in columns]
    assert {len(row) for row in expected} == {5}
    document = json.loads(search(capsys, unbroken, folder, *TEXTS, "--top", "4", "--json"))
    assert [[clip["path"] for clip in query["clips"]] for query in document["queries"]] == [row[:4] for row in expected]
    assert [query["query"] for query in document["queries"]] == TEXTS
    first = document["queries"][0]["clips"][0]["score"]
    assert first == pytest.approx(matrix.values[0].max(), abs=1e-6)
    found = model.search(TEXTS, folder, top=5)
    assert [[clip.path for clip in row] for row in found] == expected
    assert found[0][0].score == pytest.approx(first, abs=1e-6)


def test_clips_found_in_a_relative_folder_are_shown_with_absolute_paths(unbroken, model, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder / "more")
    document = json.loads(search(capsys, unbroken, "../more/deep/../..", TEXTS[0], "--json"))
    shown = [clip["path"] for clip in document["queries"][0]["clips"]] + list(document["skipped"])
    assert len(shown) == 7
    assert all(Path(path).is_file() and path.startswith(f"{folder}/") and ".." not in path for path in shown)
    assert [Path(clip.path) for clip in list_clips(["../0.wav"])] == [folder / "0.wav"]


def test_query_of_unknown_words_alone_is_refused_and_unknown_words_are_named(unbroken, folder, tmp_path, capsys):
    asked = "search", unbroken, folder, TEXTS[0], "xylophone", "--cache", tmp_path / "new"
    assert "xylophone" in refused(capsys, *asked)
    assert not list(tmp_path.rglob("*.frames")), "it is said before clips are embedded"
    mixed = f"{TEXTS[0]} or Xylophone"
    lines = search(capsys, unbroken, folder, mixed).splitlines()
    assert len(lines) == 2 + 5
    assert lines[1].strip() == "words that the model does not know: or, xylophone"
    document = json.loads(search(capsys, unbroken, folder, mixed, TEXTS[0], "--json"))
    assert [query["unknown"] for query in document["queries"]] == [["or", "xylophone"], []]


def test_embeddings_are_written_as_npz(unbroken, model, world, tmp_path, capsys):
    clips = read_manifest(world)
    assert main(["embed", str(unbroken), str(world), "--out", str(tmp_path / "new/e.npz")]) == 0
    assert f"{len(clips)} clips, {5 * len(clips)} captions" in capsys.readouterr().out
    arrays = np.load(tmp_path / "new/e.npz")
    assert arrays["kind"].tolist() == ["clip"] * len(clips) + ["caption"] * 5 * len(clips)
    assert arrays["text"][0] == clips[0].path
    assert np.allclose(arrays["embedding"][: len(clips)], model.encode_audio(world), atol=1e-6)
    assert np.allclose(arrays["embedding"][len(clips) :][:1], model.encode_text([clips[0].captions[0]]), atol=1e-6)
    assert "end in .npz" in refused(capsys, "embed", unbroken, world, "--out", tmp_path / "e.csv")
    assert np.allclose(np.linalg.norm(arrays["embedding"], axis=1), 1, atol=1e-5)
    assert main(["embed", str(unbroken), str(world), "--raw", "--out", str(tmp_path / "raw.npz")]) == 0
    raw = np.load(tmp_path / "raw.npz")["embedding"]
    assert np.allclose(raw[: len(clips)], model.encode_audio(world, normalize=False), atol=1e-6)


def test_texts_without_known_words_are_counted_in_a_warning(model, caplog):
    model.encode_text(TEXTS)
    assert not caplog.messages
    model.encode_text([TEXTS[0], "zzz", ""])
    assert caplog.messages == ["the model knows no word of 2 texts, such as 'zzz'; such texts have equal embeddings"]
