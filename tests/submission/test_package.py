"""The package: filled from recorded runs, read again independently, and every planted fault refused."""

import csv
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pdf import PDF
from ranked import NAMES, TEXTS, small_matrix, table
from recorded_run import about, change, write_found, write_moments_run, write_run

from data_tools.errors import KitError
from submission.__main__ import main
from submission.editions import EDITIONS, MOMENTS
from submission.formats.score_matrix import read_scores, write_scores
from submission.metrics.blend import blend
from submission.metrics.summary import summarise_matrix
from submission.package.archive import check_archive
from submission.package.meta import count_parameters, describe, external_items, extract_address
from submission.runs.entry import open_entry


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_run(folder / "run1")
    write_run(folder / "run2", seed=5)
    write_moments_run(folder / "moments")
    (folder / "about.yaml").write_text(yaml.safe_dump(about(4)))
    (folder / "report.pdf").write_bytes(PDF)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return Path()


def packed(*systems: str, edition: str = "2022", content: dict[str, Any] | None = None, report: bool = True) -> int:
    Path("about.yaml").write_text(yaml.safe_dump(content or about(len(systems))))
    more = ["--report", "report.pdf"] if report else []
    return main(["pack", *systems, "--about", "about.yaml", "--edition", edition, "--out", "mine.zip", *more])


def members() -> dict[str, bytes]:
    with zipfile.ZipFile("mine.zip") as archive:
        return {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("edition", EDITIONS)
def test_package_of_four_systems(here, edition, capsys):
    assert packed("run1:best", "run1:last", "run1:mean", "run2", edition=edition) == 0, capsys.readouterr().err
    labels = [f"de-la-Cruz_U-X_task{EDITIONS[edition].task}_{index}" for index in range(1, 5)]
    with zipfile.ZipFile("mine.zip") as archive:
        folder = f"mine/task{EDITIONS[edition].task}"
        expected = {f"{folder}/{label}/{label}.{kind}" for label in labels for kind in ("output.csv", "meta.yaml")}
        assert set(archive.namelist()) == expected | {f"{folder}/{labels[0]}.technical_report.pdf"}
    header, *rows = csv.reader(io.StringIO(members()[f"{labels[0]}.output.csv"].decode()))
    assert [row[0] for row in rows] == [f"blind {n}" for n in range(24)], "the blind set of the same checkpoint"
    if edition == "2025":
        assert header[1:] == NAMES
        values = np.array([row[1:] for row in rows], dtype=np.float32)
        assert np.array_equal(values, read_scores(Path("run1/scores/blind.npy")).values)
    assert main(["check", "mine.zip", "--edition", edition, "--truth", "run1/scores/blind.npy"]) == 1
    said = capsys.readouterr().out
    assert "no row for the query" in said, "systems 2 and 3 have no blind set"
    assert said.count("warning: not ready") == 2
    assert main(["check", "mine.zip", "--edition", edition]) == 0
    assert main(["check", "mine.zip", "--edition", "2024" if edition == "2025" else "2025"]) == 1


def test_meta_yaml_by_hand(here):
    sources = about()["sources"] | {"more": {"url": "https://x.org"}}
    assert packed("run1:mean", content=about(1, sources=sources, source_code="https://code.org")) == 0
    meta = yaml.safe_load(members()["de-la-Cruz_U-X_task6b_1.meta.yaml"])
    values = summarise_matrix(read_scores(Path("run1/scores/mean.npy")), EDITIONS["2022"]).values
    assert meta["submission"]["name"] == "System 1"
    assert [author["corresponding"] for author in meta["submission"]["authors"]] == [True, False]
    assert meta["system"] == {
        "description": {
            "input_sampling_rate": "16kHz", "acoustic_features": "panns, logmel", "acoustic_embeddings": "panns",
            "data_augmentation": None, "machine_learning_method": "expert_heads, published",
            "learning_scheme": "supervised", "audio_modelling": "expert_heads", "word_embeddings": "minilm",
            "word_modelling": "published", "loss_function": "ranking (weight 1.0, margin 0.2)",
            "optimizer": "adamw", "learning_rate": 0.001, "weight_decay": None,
            "metric_monitored": "validation mAP@10, none (last checkpoint)", "ensemble": 2,
        },
        "complexity": {"total_parameters": 2 * 100 + 500 + 70},
        "external_datasets": [
            {"name": "world", "purpose": "training", "url": None, "has_audio": True, "has_captions": True,
             "nb_captions_per_audio": 1.75, "total_audio_length": 31.0, "licences": {"CC0": 3, "not known": 1}},
            {"name": "panns", "purpose": "audio_modelling", "url": "https://panns.org", "total_audio_length": None,
             "licences": "MIT"},
            {"name": "minilm", "purpose": "word_modelling", "url": None, "total_audio_length": None},
            {"name": "castella", "purpose": "other", "url": None, "total_audio_length": None},
            {"name": "more", "purpose": "other", "url": "https://x.org", "total_audio_length": None},
        ],
        "source_code": "https://code.org",
    }  # fmt: skip
    rounded = {name.replace("@", ""): round(value, 4) for name, value in values.items()}
    assert meta["results"] == {"development_testing": rounded}


def test_figures_of_a_package_are_of_the_annotated_queries(here):
    matrix = read_scores(Path("run1/scores/best.npy"))
    found = NAMES[int(matrix.values[0].argmax())]
    Path("a.csv").write_bytes(table([["query", "audio_filenames"], [matrix.query_texts[0], repr([found])]]))
    assert packed("run1:best", edition="2025", content=about(1, annotations="a.csv")) == 0
    meta = yaml.safe_load(members()["de-la-Cruz_U-X_task6_1.meta.yaml"])
    assert meta["results"] == {"development_testing": dict.fromkeys(("R1", "R5", "R10", "mAP16", "mAP10"), 1.0)}


def test_frozen_networks_count_once_and_addresses_are_listed(here):
    one, last, two = (open_entry(name) for name in ("run1:best", "run1:last", "run2"))
    assert count_parameters([one]) == (100, 570)
    assert count_parameters([one, one]) == (100, 570), "one checkpoint"
    assert count_parameters([one, last]) == (200, 570)
    assert count_parameters([one, two]) == (200, 570)
    model = json.loads(Path("run2/resolved.json").read_text())["model"]
    change(Path("run2/resolved.json"), model=model | {"text": {"kind": "bert", "model": "bert"}})
    assert count_parameters([one, open_entry("run2")]) == (200, 640)
    assert describe([one, two])["word_embeddings"] == ["minilm"]
    recipe, result = (json.loads(Path(f"run1/{name}.json").read_text()) for name in ("resolved", "result"))
    recipe["model"]["audio"]["weights"] = "weights/m2d.pth"
    result["data"]["train"]["published"] = "zenodo.org/1, see there"
    change(Path("run1/resolved.json"), **recipe)
    change(Path("run1/result.json"), **result)
    run = open_entry("run1")
    expected = {"world": "https://zenodo.org/1", "panns": "https://panns.org", "m2d.pth": None, "minilm": None}
    assert {name: item["url"] for name, item in external_items([run]).items()} == expected
    assert count_parameters([run]) == (100, 570), "the weights are trained on, not frozen"


@pytest.mark.parametrize(
    ("published", "address"),
    [(None, None), ("Clotho 2.1", None), ("zenodo.org/record/1, see there", "https://zenodo.org/record/1"),
     ("http://a.org/b(c)", "https://a.org/b")],
)  # fmt: skip
def test_address_of_a_data_set_is_the_start_of_its_text(published, address):
    assert extract_address(published) == address


def test_blend_of_runs_needs_and_uses_its_scores(here, capsys):
    assert packed("run1:best,run2") == 1
    assert "scored" in capsys.readouterr().err
    for name, of in (("b.npy", ("run1:best", "run2:best")), ("one.npy", ("run1:best", "run1:last"))):
        write_scores(Path(name), blend({part: open_entry(part).matrix for part in of}))
    blind = blend({run: read_scores(Path(f"{run}/scores/blind.npy")) for run in ("run1", "run2")})
    write_scores(Path("blind.npy"), blind)
    content = about()
    content["systems"][0] |= {"output": "blind.npy", "scored": "b.npy"}
    assert packed("run1:best,run2", content=content) == 0, capsys.readouterr().err
    meta = yaml.safe_load(members()["de-la-Cruz_U-X_task6b_1.meta.yaml"])
    assert meta["system"]["description"]["ensemble"] == 2
    content["systems"][0]["scored"] = "one.npy"
    assert packed("run1:best,run2", content=content) == 1
    assert "models" in capsys.readouterr().err


def test_mean_with_another_run_is_reported_but_packed_only_as_a_blend(here, capsys):
    rank = json.loads(Path("run1/resolved.json").read_text())["rank"]
    rank["mean"]["of"] = ["best", "runs/other"]
    change(Path("run1/resolved.json"), rank=rank)
    assert main(["report", "run1:mean", "--out", "page.html"]) == 0, capsys.readouterr().err
    assert packed("run1:mean") == 1
    assert "runs/other" in capsys.readouterr().err


def test_scores_of_another_program_are_packed(here, capsys):
    write_scores(Path("tested.npy"), small_matrix(facts={}))
    keys = ("input_sampling_rate", "acoustic_features", "machine_learning_method", "loss_function", "optimizer")
    facts = {"name": "A", "abbreviation": "a", "parameters": 1234, "description": dict.fromkeys(keys, "x")}
    content = about() | {"systems": [facts], "sources": {}}
    assert packed("tested.npy", content=content, report=False) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("warning: not ready") == 2, "no report, and no blind set"
    meta = yaml.safe_load(members()["de-la-Cruz_U-X_task6b_1.meta.yaml"])
    assert meta["system"]["complexity"] == {"total_parameters": 1234}
    content["systems"][0] = facts | {"parameters": None, "description": {}}
    assert packed("tested.npy", content=content) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in ("systems.0.parameters", *keys))


def test_package_of_moments_by_hand(here, capsys):
    assert packed("moments", edition="2026") == 0, capsys.readouterr().err
    files = members()
    lines = [json.loads(line) for line in files["de-la-Cruz_U-X_task6_1.output.jsonl"].splitlines()]
    assert [line["qid"] for line in lines] == ["a_1", "a_2", "b_1", "c_1"]
    assert lines[1]["pred_relevant_windows"] == [[50, 60], [20, 30]]
    meta = yaml.safe_load(files["de-la-Cruz_U-X_task6_1.meta.yaml"])
    assert meta["system"] == {
        "model": {
            "audio_models": ["panns"], "text_models": ["minilm"], "LLMs": [], "trainable_parameters": "0.0001 M",
            "freezed_parameters": "0.00057 M", "loss_function": ["ranking (weight 1.0, margin 0.2)"],
        },
        "dataset": {
            "data_augmentation": None, "audio_captions": 14,
            "external_data_resources": [
                {"name": "world", "url": None}, {"name": "panns", "url": "https://panns.org"},
                {"name": "minilm", "url": None},
            ],
        },
        "ensemble": False,
    }  # fmt: skip
    assert meta["results"] == {"development_testing": {"Recall1@0.7": 66.67, "Recall1@0.5": 66.67}}
    blind = ["--queries", "moments/scores/blind.truth.jsonl"]
    assert main(["check", "mine.zip", *blind]) == 0, capsys.readouterr().out


def test_submitted_windows_with_known_answers_are_warned_of(here, capsys):
    content = about()
    write_found(Path("own.jsonl"))
    content["systems"][0] |= {"output": "own.jsonl", "scored": "own.jsonl"}
    assert packed("moments", edition="2026", content=content) == 0, capsys.readouterr().err
    assert "known" in capsys.readouterr().out
    meta = yaml.safe_load(members()["de-la-Cruz_U-X_task6_1.meta.yaml"])
    assert meta["results"]["development_testing"] == {"Recall1@0.7": 66.67, "Recall1@0.5": 66.67}


REFUSED: list[tuple[str, list[str], dict[str, Any], str]] = [  # edition, systems, changes of about.yaml, word
    ("2022", ["run1"] * 5, {}, "allowed"),
    ("2022", ["run1"], about(2), "describe"),
    ("2022", ["run1:validation"], {}, "validation"),
    ("2022", ["moments"], {}, "task"),
    ("2026", ["run1"], {}, "task"),
    ("2022", ["run1"], {"sources": {}}, "world"),
    ("2022", ["run1"], {"authors": []}, "authors"),
    ("2022", ["run1"], {"authors": about()["authors"][1:]}, "corresponding"),
    ("2022", ["run1"], {"authors": [about()["authors"][0] | {"email": "none"}]}, "email"),
    ("2022", ["run1"], {"systems": [{"name": "A", "abbreviation": "longer than 10"}]}, "abbreviation"),
    ("2022", ["run1"], {"systems": [{"name": "A", "abbreviation": "a", "odd": 1}]}, "odd"),
    ("2022", ["run1"], {"systems": [{"name": "A", "abbreviation": "a", "description": {"odd": 1}}]}, "odd"),
    ("2022", ["run1"], {"systems": [{"name": "A", "abbreviation": "a", "output": "x.npy"}]}, "x.npy"),
    ("2026", ["moments:blind"], {}, "blind"),
]


@pytest.mark.parametrize(("edition", "systems", "changes", "word"), REFUSED)
def test_systems_that_cannot_be_packed_are_refused(here, edition, systems, changes, word, capsys):
    assert packed(*systems, edition=edition, content=about(len(systems)) | changes) == 1
    assert word in capsys.readouterr().err
    assert not Path("mine.zip").exists()


def test_edition_of_a_package_must_be_chosen_if_the_blind_set_has_another(here, capsys):
    argv = ["pack", "run1", "--about", "about.yaml", "--report", "report.pdf", "--out", "mine.zip"]
    Path("about.yaml").write_text(yaml.safe_dump(about(1)))
    assert main(argv) == 0
    assert "edition 2022" in capsys.readouterr().out
    recipe = json.loads(Path("run1/resolved.json").read_text())
    recipe["rank"]["blind"]["edition"] = 2025
    Path("run1/resolved.json").write_text(json.dumps(recipe))
    assert main(argv) == 1
    assert "add the --edition" in capsys.readouterr().err
    assert main([*argv, "--edition", "2025"]) == 0


LABEL = "de-la-Cruz_U-X_task6b_1"
Files = dict[str, bytes]


def edited(suffix: str, edit: Callable[[bytes], bytes]) -> Callable[[Files], Files]:
    return lambda files: {name: edit(data) if name.endswith(suffix) else data for name, data in files.items()}


def renamed(old: str, new: str) -> Callable[[Files], Files]:
    return lambda files: {name.replace(old, new): data for name, data in files.items()}


def without(suffix: str) -> Callable[[Files], Files]:
    return lambda files: {name: data for name, data in files.items() if not name.endswith(suffix)}


def meta(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Files], Files]:
    def change_yaml(data: bytes) -> bytes:
        content = yaml.safe_load(data)
        edit(content)
        return yaml.safe_dump(content).encode()

    return edited(".yaml", change_yaml)


PLANTED: list[tuple[Callable[[Files], Files], str]] = [
    (without(".pdf"), "report"),
    (lambda files: files | {"mine/task6b/two.pdf": PDF}, "report"),
    (edited(".pdf", lambda data: b"x" + data), "PDF"),
    (edited(".pdf", lambda data: data[:20]), "PDF"),
    (without(".yaml"), "meta.yaml"),
    (without(".csv"), "output.csv"),
    (lambda files: files | {"mine/task6b/notes.txt": b""}, "place"),
    (lambda files: files | {"other/task6b/x.pdf": PDF}, "place"),
    (renamed("task6b/", "task8/"), "place"),
    (renamed(LABEL, "Doe_X_task6b_5"), "label"),
    (renamed(LABEL, "Doe.X_task6b_1"), "label"),
    (edited(".csv", lambda data: data.replace(b"blind 3", b"blind 4")), "repeated"),
    (edited(".yaml", lambda data: b"{"), "YAML"),
    (meta(lambda content: content.pop("results")), "results"),
    (meta(lambda content: content["submission"].update(label="x")), "submission.label"),
    (meta(lambda content: content["submission"]["authors"].clear()), "submission.authors"),
    (meta(lambda content: content["results"]["development_testing"].update(R1=2)), "development_testing.R1"),
    (meta(lambda content: content["system"]["description"].update(optimizer="")), "optimizer"),
    (meta(lambda content: content["system"]["complexity"].update(total_parameters="9")), "total_parameters"),
]


@pytest.mark.parametrize(("edit", "word"), PLANTED)
def test_each_fault_of_a_package_is_found(here, edit, word):
    assert packed("run1") == 0
    with zipfile.ZipFile("mine.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile("bad.zip", "w") as archive:
        for name, data in edit(files).items():
            archive.writestr(name, data)
    assert any(word in problem for problem in check_archive(Path("bad.zip"), EDITIONS["2022"]).problems)
    assert check_archive(Path("mine.zip"), EDITIONS["2022"]).problems == []


def test_windows_with_scores_and_cut_archives_are_found(here):
    assert packed("moments", edition="2026") == 0
    data = Path("mine.zip").read_bytes()
    Path("cut.zip").write_bytes(data[:-30])
    assert any("zip" in problem for problem in check_archive(Path("cut.zip"), MOMENTS["2026"]).problems)
    write_found(Path("own.jsonl"))
    with zipfile.ZipFile("mine.zip") as archive, zipfile.ZipFile("bad.zip", "w") as other:
        for name in archive.namelist():
            other.writestr(name, Path("own.jsonl").read_bytes() if name.endswith(".jsonl") else archive.read(name))
    assert any("scores" in problem for problem in check_archive(Path("bad.zip"), MOMENTS["2026"]).problems)


def test_entries_are_opened_by_name(here):
    assert open_entry("run1").name == "best"
    assert open_entry("run1:mean").matrix.query_texts == TEXTS
    assert open_entry("moments").of_moments
    blind = open_entry("run1:best").blind
    assert blind.scores == Path("run1/scores/blind.npy")
    assert open_entry("run1:last").blind is None
    for name in ("run1:blind", "run1:odd", "about.yaml", "none"):
        with pytest.raises(KitError):
            open_entry(name)
