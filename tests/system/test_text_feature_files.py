"""Published features of queries as the text encoder of a model of moments."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_moments
import torch
from outcomes import digest, refused
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from data_tools.moments import write_moments
from system.__main__ import main
from system.models.text import TextFeatureFiles

pytestmark = pytest.mark.usefixtures("one_thread", "short_fits")
short_fits = tiny_moments.short_fits


def settings(folder: Path, queries: Path, **changes: object) -> dict[str, object]:
    """Settings of the encoder of 8-value tokens."""
    found = {"kind": "feature_files", "files": str(folder), "queries": [str(queries)], "values": 8}
    return found | {"pooling": "mean", "hidden": None, "dim": 16} | changes


def write_features(folder: Path, manifest: Path) -> None:
    """Write an array (W, 8) for each query, whose mean is determined by the words of its text."""
    folder.mkdir()
    for moment in tiny_moments.moments_of(manifest):
        tokens = [np.random.default_rng(sum(map(ord, word))).normal(size=8) for word in moment.text.split()]
        np.savez(folder / f"qid{moment.id}.npz", last_hidden_state=np.stack(tokens).astype(np.float32))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Moments with features of their queries. Returns: The manifest."""
    manifest = tiny_moments.make_moments(tmp_path / "world", {"development": 8, "validation": 4, "evaluation": 4})
    write_features(tmp_path / "features", manifest)
    return manifest


def test_text_feature_files_are_pooled_and_followed_by_trained_layers(world: Path, tmp_path: Path) -> None:
    moments = tiny_moments.moments_of(world)
    first = {moment.text: moment.id for moment in reversed(moments)}
    texts = list(first)[:3]
    arrays = [np.load(tmp_path / f"features/qid{first[text]}.npz")["last_hidden_state"] for text in texts]
    for pooling, expected in (
        ("mean", [one.mean(0) for one in arrays]),
        ("first", [one[0] for one in arrays]),
        ("last", [one[-1] for one in arrays]),
    ):
        text = settings(tmp_path / "features", world.parent / "moments.jsonl", pooling=pooling)
        encoder = TextFeatureFiles.model_validate(text).build([], tmp_path)
        with torch.no_grad():
            wanted = encoder.mlp(torch.from_numpy(np.stack(expected)))  # type: ignore[operator]
            assert torch.allclose(encoder(texts).values, wanted, atol=1e-6)
    assert encoder.without_known_words([texts[0], "another text"]) == ["another text"]


@pytest.mark.slow
def test_moment_model_with_stored_query_features_trains_reproducibly_and_works_in_search(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = tiny_moments.recipe(world, tmp_path, epochs=2, steps_per_epoch=2)
    content["model"]["text"] = settings(Path("features"), Path("world/moments.jsonl"))
    path = tiny.write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["check", str(path)]) == 0
    assert "features of queries in" in capsys.readouterr().out
    for name in ("one", "two"):
        assert main(["run", str(path), "--out", str(tmp_path / "runs" / name)]) == 0
    assert digest(tmp_path / "runs/one") == digest(tmp_path / "runs/two")
    result = json.loads((tmp_path / "runs/one/result.json").read_text())
    assert set(result["moments"]) == {"posterior", "thresholds"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    known = tiny_moments.moments_of(world)[-1]
    capsys.readouterr()
    assert main(["search", str(tmp_path / "runs/one"), str(world), known.text, "--split", "evaluation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"][0]["clips"][0]["windows"]
    one = replace(known, text="a sound of no list")
    write_moments(tmp_path / "blind.jsonl", [one], read_manifest(world))
    asked = ["--moments", tmp_path / "blind.jsonl", "--out", tmp_path / "w.jsonl"]
    text = refused(capsys, "rank", tmp_path / "runs/one", "--audio", world, *asked, "--windows")
    assert "a sound of no list" in text


def test_missing_or_wrongly_sized_text_feature_files_are_errors(world: Path, tmp_path: Path) -> None:
    queries = world.parent / "moments.jsonl"
    text = tiny_moments.moments_of(world)[0].text
    narrow = TextFeatureFiles.model_validate(settings(tmp_path / "features", queries, values=7)).build([], tmp_path)
    with pytest.raises(KitError, match="tokens"):
        narrow([text])
    (tmp_path / "empty").mkdir()
    absent = TextFeatureFiles.model_validate(settings(tmp_path / "empty", queries)).build([], tmp_path)
    with pytest.raises(KitError, match="features"):
        absent.prepare([text])
    (tmp_path / "other.jsonl").write_text('{"qid": 1}\n')
    other = TextFeatureFiles.model_validate(settings(tmp_path / "features", tmp_path / "other.jsonl"))
    with pytest.raises(KitError, match="query"):
        other.build([], tmp_path)
    line = '{"qid": "1", "query": "a", "vid": "x"}\n'
    (tmp_path / "twice.jsonl").write_text(line + line.replace('"a"', '"b"'))
    twice = TextFeatureFiles.model_validate(settings(tmp_path / "features", tmp_path / "twice.jsonl"))
    with pytest.raises(KitError, match="already"):
        twice.build([], tmp_path)
