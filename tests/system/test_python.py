"""The kit from Python: sounds of any form, scores, metrics, recipes and kinds of one's own."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
from outcomes import refused

import system
from data_tools.errors import KitError
from data_tools.manifest import caption_queries, read_manifest
from submission.formats.score_matrix import read_scores
from submission.metrics.summary import ranks_in_matrix, summarise
from system import evaluate, load_model, run_recipe, table_of_runs
from system.__main__ import main
from system.recipe.load import load_recipe


@pytest.fixture(scope="module")
def model(unbroken):
    return load_model(unbroken)


@pytest.fixture(scope="module")
def sound(world):
    return Path(read_manifest(world)[3].path)


class Decoder:
    """Stands in for torchcodec's AudioDecoder: samples as (channels, n)."""

    def __init__(self, wave: np.ndarray, rate: int) -> None:
        self.data, self.sample_rate = torch.from_numpy(np.stack([wave, wave])), rate

    def get_all_samples(self) -> "Decoder":
        return self


def forms_of(sound: Path, file: Any) -> dict[str, Any]:
    wave, rate = soundfile.read(sound, dtype="int16")
    floats = (wave / 32768).astype(np.float32)
    return {
        "open file": file,
        "bytes in memory": io.BytesIO(sound.read_bytes()),
        "dict of an array": {"array": floats, "sampling_rate": rate, "path": None},
        "dict of bytes": {"bytes": sound.read_bytes(), "path": "a.wav"},
        "dict of a path": {"bytes": None, "path": str(sound)},
        "decoder": Decoder(floats, rate),
        "whole numbers": wave,
        "one channel first": floats[None],
        "stereo": np.stack([floats, floats], 1),
        "tensor": torch.from_numpy(floats),
        "bfloat16": torch.from_numpy(floats).bfloat16(),
        "row of a data set": {"audio": {"array": floats, "sampling_rate": rate}, "id": 1},
    }


FORMS = [
    "open file", "bytes in memory", "dict of an array", "dict of bytes", "dict of a path", "decoder", "whole numbers",
    "one channel first", "stereo", "tensor", "bfloat16", "row of a data set",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_sound_of_any_form_has_the_embedding_of_its_file(form, model, sound):
    rate = soundfile.info(sound).samplerate
    expected = model.encode_audio(sound)
    assert expected.shape == (1, model.dim)
    with sound.open("rb") as file:
        close = 0.1 if form == "bfloat16" else 1e-6
        assert np.allclose(model.encode_audio(forms_of(sound, file)[form], rate=rate), expected, atol=close)


def test_sounds_of_unlike_forms_keep_their_order_and_leave_no_frames(model, world, sound):
    paths = [clip.path for clip in read_manifest(world)[:5]]
    waves = [soundfile.read(path, dtype="float32") for path in paths]
    mixed = [paths[0], waves[1][0], {"array": waves[2][0], "sampling_rate": waves[2][1]}, Path(paths[3]), waves[4][0]]
    assert np.allclose(model.encode_audio(mixed, rate=waves[0][1]), model.encode_audio(paths), atol=1e-6)
    banks = Path(model.recipe.banks)
    before = {path for path in banks.rglob("*") if path.is_file()}
    model.encode_audio(np.random.default_rng(5).normal(0, 0.1, 9000), rate=16_000)
    assert {path for path in banks.rglob("*") if path.is_file()} == before


def test_similarity_and_evaluate_give_the_scores_and_metrics_of_the_run(unbroken, model, world, capsys):
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    texts = model.encode_text([one.text for one in caption_queries(clips)])
    written = read_scores(unbroken / "scores/evaluation.npy")
    scores = model.similarity(texts, model.encode_audio(clips))
    assert np.array_equal(scores, written.values)
    raw = [model.encode_text([clips[0].captions[0]], normalize=False), model.encode_audio(clips[:4], normalize=False)]
    assert np.allclose(model.similarity(*raw), written.values[:1, :4], atol=1e-6)
    expected = summarise(ranks_in_matrix(written)).values
    assert evaluate(model, world, "evaluation").values == pytest.approx(expected, abs=1e-12)
    assert evaluate(unbroken, str(world), "evaluation").values == pytest.approx(expected, abs=1e-12)
    capsys.readouterr()
    assert main(["rank", str(unbroken), str(world), "--split", "evaluation", "--score"]) == 0
    assert f"{expected['mAP@10']:.4f}" in capsys.readouterr().out
    assert "--out is missing" in refused(capsys, "rank", unbroken, world)
    assert "--score" in refused(capsys, "rank", unbroken, world, "--score", "--out", "s.npy")


def test_public_names_and_facts_of_a_model(model, unbroken):
    assert (model.dim, model.sampling_rate) == (32, 16_000)
    assert str(unbroken) in repr(model)
    assert "finetune epoch 3" in repr(model)
    assert not model.model.training, "a thread that ends would turn on dropout for others"
    with pytest.raises(AttributeError, match="load_modle"):
        system.load_modle  # noqa: B018


def page(root: Path) -> str:
    """The script of the page, with words that the tiny model knows."""
    block = re.search(r"## From Python\n\n```python\n(.*?)```", (root / "system/README.md").read_text(), re.DOTALL)
    assert block
    return block[1].replace("a bell", "a deep tone")


def test_script_of_the_page_runs_and_its_model_works_after_everything_has_moved(
    root, recipe, world, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    (here / "recipes").mkdir(parents=True)
    shutil.copy(recipe, here / "recipes/quickstart.yaml")
    shutil.copytree(world.parent, here / "data/quickstart/scenes")
    (here / "data/sounds").mkdir()
    for number, clip in enumerate(read_manifest(world)[:5]):
        shutil.copy(clip.path, here / f"data/sounds/{number}.wav")
    monkeypatch.chdir(here)
    names: dict[str, Any] = {}
    exec(page(root), names)
    assert (len(names["found"]), names["scores"].shape) == (5, (1, 2))
    monkeypatch.chdir(tmp_path)
    here.rename(tmp_path / "there")
    model = load_model("there/runs/short")
    clips = model.encode_audio(["there/data/sounds/0.wav", "there/data/sounds/1.wav"])
    assert np.allclose(model.similarity(model.encode_text(["a deep tone"]), clips), names["scores"], atol=1e-6)


@pytest.mark.slow
def test_script_of_the_page_passes_a_type_checker(root, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "page.py").write_text(page(root))
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "page.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout


LOSS = '''
from typing import Literal

from torch import Tensor

from system.losses.terms import BatchScores, Term


class Plain(Term):
    """Minus the mean score of matching pairs."""

    kind: Literal["plain"]
    power: int  # of the score

    def value(self, batch: BatchScores) -> Tensor:
        return -(batch.scores.diagonal() ** self.power).mean()
'''


@pytest.fixture
def own(world, tmp_path):
    """A recipe with a loss of its own, in losses.py beside it."""
    (tmp_path / "losses.py").write_text(LOSS)
    loss = {"kind": "plain", "weight": 1, "power": 1}
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1, losses=[loss]))
    return tiny.write_recipe(tmp_path / "own.yaml", content)


def test_recipe_with_a_loss_of_ones_own_runs_and_keeps_its_source(own, world, tmp_path):
    losses = tmp_path / "losses.py"
    changes = {"imports": [str(losses)], "stages.only.epochs": 2}
    done = run_recipe(own, changes, name="short", runs=tmp_path / "runs")
    assert done.folder == tmp_path / "runs/short"
    assert [line.epoch for line in done.read_metrics()] == [1, 2]
    assert set(done.metrics) == {"evaluation"}
    assert table_of_runs(tmp_path / "runs")["test"].tolist() == [done.metrics["evaluation"]["mAP@10"]]
    assert run_recipe(own, changes, name="short", runs=tmp_path / "runs").metrics == done.metrics
    expected = evaluate(load_model(done.folder), world, "evaluation").values
    assert expected == pytest.approx(done.metrics["evaluation"], abs=1e-12)

    losses.write_text(LOSS.replace("-(batch", "-2 * (batch"))
    with pytest.raises(KitError, match="imports changed"):
        run_recipe(own, changes, name="short", runs=tmp_path / "runs")
    losses.unlink()
    assert main(["export", str(done.folder), "--out", str(tmp_path / "model")]) == 0
    for folder in (done.folder, tmp_path / "model"):
        assert (folder / "imports/0_losses.py").read_text() == LOSS
        assert evaluate(folder, world, "evaluation").values == expected


def test_two_imports_of_one_name_and_a_moved_one_are_told_apart(own, world, tmp_path):
    other = LOSS.replace('"plain"', '"plainer"').replace("class Plain", "class Plainer")
    for folder, code in (("a", LOSS), ("imports", other)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kinds.py").write_text(code)
    both = {"imports": [str(tmp_path / "a/kinds.py"), str(tmp_path / "imports/kinds.py")], "seed": np.int64(3)}
    done = run_recipe(own, both, name="both", runs=tmp_path / "runs")
    kept = sorted(path.name for path in (done.folder / "imports").iterdir())
    assert kept == ["0_kinds.py", "1_kinds.py"]
    for folder in ("a", "imports"):
        (tmp_path / folder / "kinds.py").rename(tmp_path / folder / "moved.py")
    assert evaluate(done.folder, world, "evaluation").values == pytest.approx(done.metrics["evaluation"], abs=1e-12)
    (tmp_path / "a/moved.py").write_text(LOSS.replace("-(batch", "-3 * (batch"))
    moved = both | {"imports": [str(tmp_path / "a/moved.py"), str(tmp_path / "imports/moved.py")]}
    with pytest.raises(KitError, match="imports changed"):
        run_recipe(own, moved, name="both", runs=tmp_path / "runs")


def test_an_import_that_returns_to_its_earlier_text_is_used_as_it_is(own, tmp_path):
    (tmp_path / "other.py").write_text("")
    both, found = [f"imports=[{tmp_path}/losses.py, {tmp_path}/other.py]"], []
    for word in ("Minus", "Twice", "Minus"):
        (tmp_path / "losses.py").write_text(LOSS.replace("Minus", word) + "raise ValueError\n")
        with pytest.raises(KitError, match="ValueError"):
            load_recipe(own, both)
        (tmp_path / "losses.py").write_text(LOSS.replace("Minus", word))
        found.append(type(load_recipe(own, both).recipe.stages["only"].losses[0]))
        assert str(found[-1].__doc__).startswith(word)
    assert found[0] is found[2], "it ran once"


def test_odd_vectors_and_texts_are_kit_errors(model, sound):
    texts, clips = model.encode_text(["a deep tone"]), model.encode_audio(sound)
    assert np.allclose(model.similarity(texts.astype(np.float64), clips), model.similarity(texts, clips))
    for odd in (clips[:, :5], clips * np.nan, clips[0]):
        with pytest.raises(KitError, match="finite"):
            model.similarity(texts, odd)
    for call in (lambda: model.encode_text([None]), lambda: model.score_sounds(["a"], []),  # type: ignore[list-item]
                 lambda: model.search("a deep tone", sound, top=0)):  # fmt: skip
        with pytest.raises(KitError):
            call()


def test_python_interface_takes_lists_numpy_arrays_or_one(model, world):
    folder = world.parent / "evaluation"
    paths = [str(path) for path in sorted(folder.glob("*.wav"))[:2]]
    expected = model.encode_audio(paths)
    for names in (np.array(paths), list(np.array(paths)), (path for path in paths)):
        assert np.array_equal(model.encode_audio(names), expected)
    assert model.search(["a deep tone", "a shrill hum"], folder, top=np.int64(2)) == model.search(
        ["a deep tone", "a shrill hum"], folder, top=2
    )
    wave, rate = soundfile.read(paths[0])
    assert np.allclose(model.encode_audio(wave, rate=np.int64(rate)), expected[:1], atol=1e-4)
    assert np.array_equal(model.encode_text("a deep tone"), model.encode_text(["a deep tone"]))
    assert np.array_equal(model.encode_audio(Path(paths[0])), model.encode_audio(paths[:1]))
    assert model.search("a deep tone", folder) == model.search(["a deep tone"], folder)


WAVE = np.zeros(1000)


def _closed() -> io.BytesIO:
    file = io.BytesIO(b"a")
    file.close()
    return file


ODD_CALLS = {
    "waves without a rate": (lambda m: m.encode_audio([WAVE]), "the rate of a wave is None"),
    "a rate of 0": (lambda m: m.encode_audio([WAVE], rate=0), "the rate of a wave is 0"),
    "bytes": (lambda m: m.encode_audio(np.zeros(9, np.uint8), rate=16_000), "type uint8; give"),
    "channels first": (lambda m: m.encode_audio(np.zeros((2, 9)), rate=16_000), r"shape \(2, 9\)"),
    "no samples": (lambda m: m.encode_audio(np.zeros(0), rate=16_000), r"shape \(0,\)"),
    "overflow": (lambda m: m.encode_audio(np.full(16_000, 1e300), rate=16_000), "far above full scale"),
    "NaN": (lambda m: m.encode_audio(WAVE * np.nan, rate=16_000), "NaN"),
    "16 bits as floats": (lambda m: m.encode_audio(np.full(16_000, 9000.0), rate=16_000), "far above full scale"),
    "16 bits as int64": (lambda m: m.encode_audio([{"array": [9] * 99, "sampling_rate": 16_000}]), "type int64"),
    "a file at its end": (lambda m: m.encode_audio(io.BytesIO()), "rewind"),
    "a text file": (lambda m: m.encode_audio(io.StringIO("a")), "binary mode"),
    "a closed file": (lambda m: m.encode_audio(_closed()), "closed"),
    "None for a sound": (lambda m: m.encode_audio(None), "a sound is None"),
    "None for a text": (lambda m: m.encode_text(None), "a text is no str"),
    "an offset below 0": (lambda m: m.search("a deep tone", "evaluation", offset=-2), "offset -2"),
    "no folder of runs": (lambda m: table_of_runs("none"), "none: no such folder"),
    "waves to rank": (lambda m: m.search("a", [WAVE]), "search needs audio files"),
    "no file": (lambda m: m.encode_audio(["none.wav"]), r"none\.wav: no such"),
    "a broken file": (lambda m: m.encode_audio([__file__]), r"test_python\.py: "),
    "no known word": (lambda m: m.search(["xylophone"], "evaluation"), "knows"),
    "no text": (lambda m: m.encode_text([]), "the list of texts is empty; give at least one text"),
    "no query": (lambda m: m.search([], "evaluation"), "the list of texts is empty; give at least one text"),
    "no audio": (lambda m: m.encode_audio([]), "manifest"),
    "no audio to search": (lambda m: m.search("a deep tone", []), "manifest"),
    "no model": (lambda m: load_model(Path(__file__).parent), "exported"),
}


@pytest.mark.parametrize("call", ODD_CALLS)
def test_every_invalid_call_of_the_python_interface_raises_a_kit_error(call, model, world, monkeypatch):
    monkeypatch.chdir(world.parent)
    made, message = ODD_CALLS[call]
    with pytest.raises(KitError, match=message):
        made(model)


def test_imports_that_fail_are_refused_with_their_line(own, tmp_path, capsys):
    (tmp_path / "bad.py").write_text("import no_such_package_at_all\n")
    assert "no_such_package_at_all" in refused(capsys, "check", own, "--import", tmp_path / "bad.py")
    assert "gone.py" in refused(capsys, "check", own, "--import", tmp_path / "gone.py")
    (tmp_path / "kinds.txt").write_text(LOSS)
    assert ".py" in refused(capsys, "check", own, "--import", tmp_path / "kinds.txt")
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)\n")
    assert "ends.py" in refused(capsys, "check", own, "--import", tmp_path / "ends.py")
    assert "kind" in refused(capsys, "check", own, "--set", "stages.only.losses.0.kind=[plain]")
    known = ["--import", tmp_path / "losses.py"]
    assert "plain" in refused(capsys, "check", own, *known, "--set", "stages.only.losses.0.kind=plian")
    assert main(["check", str(own), *map(str, known)]) == 0


def test_recipe_errors_are_kit_errors(tmp_path):
    with pytest.raises(KitError, match=r"no\.yaml"):
        run_recipe(tmp_path / "no.yaml")
    assert len(table_of_runs(tmp_path)) == 0
