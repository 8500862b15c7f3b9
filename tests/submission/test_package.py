"""The package: filled from real runs, read again independently, and every planted fault refused."""

import csv
import io
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from pdf import PDF
from reported import about

from data_tools.files import read_json, write_json
from submission.__main__ import main
from submission.editions import EDITIONS, get_edition
from submission.formats.csv_table import format_table
from submission.formats.edition_csv import write_csv
from submission.formats.score_matrix import read_scores, write_scores
from submission.metrics.blend import blend
from submission.package.archive import check_archive
from submission.package.meta import extract_address
from system.__main__ import main as system_main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, four ranked entries, and the participant's facts."""
    folder = tmp_path_factory.mktemp("packed")
    content = tiny.recipe(tiny.make_world(folder / "world", tiny.SIZES), folder, only=tiny.stage(epochs=1))
    entry = content["rank"]["evaluation"]
    mean = {"kind": "mean", "of": ["by_map", "by_loss"], "edition": 2022, "csv": True}
    content["rank"] = {"by_map": entry, "by_loss": entry | {"checkpoint": "loss"}, "mean": mean}
    recipe = tiny.write_recipe(folder / "tiny.yaml", content)
    for seed in (1, 2):
        run = ["run", str(recipe), "--out", str(folder / f"run{seed}"), "--set", f"seed={seed}"]
        assert system_main(run) == 0
    (folder / "about.yaml").write_text(yaml.safe_dump(about()))
    (folder / "report.pdf").write_bytes(PDF)
    return folder


@pytest.fixture
def here(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files of one test, with links to the runs."""
    for name in ("run1", "run2"):
        (tmp_path / name).symlink_to(runs / name)
    for name in ("about.yaml", "report.pdf"):
        shutil.copy(runs / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FOUR = ["run1:by_map", "run1:by_loss", "run1:mean", "run2"]


def packed(edition: str, *extra: str, systems: list[str] = FOUR) -> int:
    return main(["pack", *systems, "--about", "about.yaml", "--edition", edition, "--out", "mine.zip", *extra])


def task(edition: str) -> str:
    return f"task{EDITIONS[edition].task}"


@pytest.mark.parametrize("edition", EDITIONS)
def test_package_of_four_systems_passes_check(here: Path, edition: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed(edition) == 0
    assert "mine.NOT_READY.zip: NOT READY, the package has no technical report" in capsys.readouterr().out
    assert packed(edition, "--report", "report.pdf") == 0
    assert not (here / "mine.NOT_READY.zip").exists()
    capsys.readouterr()
    assert main(["check", "mine.zip", "--edition", edition]) == 0
    assert "\nnote: the queries and file names were " in capsys.readouterr().out
    known = edition not in ("2022", "2023")  # two years of one task, whose files are named alike
    assert main(["check", "mine.zip"]) == (0 if known else 1)
    other = "2024" if edition == "2025" else "2025"
    assert main(["check", "mine.zip", "--edition", other]) == 1
    assert f"not of {other}; add --edition " in capsys.readouterr().out
    labels = [f"de-la-Cruz_U-X_{task(edition)}_{index}" for index in range(1, 5)]
    with zipfile.ZipFile("mine.zip") as archive:
        assert archive.testzip() is None
        expected = {f"mine/{task(edition)}/{labels[0]}.technical_report.pdf"}
        for label in labels:
            folder = f"mine/{task(edition)}/{label}"
            expected |= {f"{folder}/{label}.output.csv", f"{folder}/{label}.meta.yaml"}
        assert set(archive.namelist()) == expected
        for label, entry in zip(labels, ("by_map", "by_loss", "mean", "by_map"), strict=True):
            folder = f"mine/{task(edition)}/{label}"
            meta = yaml.safe_load(archive.read(f"{folder}/{label}.meta.yaml"))
            scores = here / ("run2" if label[-1] == "4" else "run1") / "scores" / f"{entry}.npy"
            check_meta_by_hand(meta, label, edition, read_scores(scores))
            rows = list(csv.reader(io.StringIO(archive.read(f"{folder}/{label}.output.csv").decode())))
            check_output_by_hand(rows, edition, scores)


def check_meta_by_hand(meta: dict[str, Any], label: str, edition: str, matrix: Any) -> None:
    submission, system = meta["submission"], meta["system"]
    assert submission["label"] == label
    assert (submission["name"], submission["abbreviation"]) == (f"System {label[-1]}", f"sys{label[-1]}")
    assert [author["corresponding"] for author in submission["authors"]] == [True, False]
    described = system["description"]
    assert described["input_sampling_rate"] == "16kHz"
    assert described["optimizer"] == "adamw"
    assert described["learning_rate"] == 0.001
    assert (
        described["loss_function"]
        == "ranking (weight 1.0, margin 0.2, relax none, negatives all, reduce sum), matching (weight 3.0)"
    )
    mean = label.endswith("_3")
    assert described["metric_monitored"] == {
        "1": "validation mAP@10",
        "2": "validation loss",
        "4": "validation mAP@10",
    }.get(label[-1], "validation mAP@10, validation loss")
    assert described["ensemble"] == (2 if mean else None)
    heads, text = 14_864, 11_472  # counted once more in test_model.py
    assert system["complexity"]["total_parameters"] == (heads + text) * (2 if mean else 1)
    (world,) = system["external_datasets"]
    assert (world["name"], world["purpose"], world["licences"]) == ("world", "training", {"not known": 48})
    assert world["total_audio_length"] == round(sum(0.6 + 0.1 * (n % 9) for n in range(48)) / 60, 1)
    values = matrix.values
    ranks = [1 + sum(values[row] > values[row, row // 5]) for row in range(120)]  # no ties in these scores
    results = meta["results"]["development_testing"]
    for k in (1, 5, 10):
        assert results[f"R{k}"] == pytest.approx(sum(rank <= k for rank in ranks) / 120, abs=1e-4)
    for k in get_edition(edition).map_ks:
        assert results[f"mAP{k}"] == pytest.approx(sum(1 / rank for rank in ranks if rank <= k) / 120, abs=1e-4)


def check_output_by_hand(rows: list[list[str]], edition: str, scores: Path) -> None:
    header, *lists = rows
    matrix = read_scores(scores)
    assert len(lists) == 120
    if edition == "2025":
        assert header == ["index", *matrix.file_names]
        assert [[float(value) for value in row[1:]] for row in lists[:3]] == [
            pytest.approx(row) for row in matrix.values[:3].tolist()
        ]
        return
    assert header[0] == ("query" if edition == "custom" else "caption")
    assert header[1:] == [f"{'fname' if edition in ('2023', '2024') else 'file_name'}_{n}" for n in range(1, 11)]
    for row, values in zip(lists, matrix.values, strict=True):
        assert row[1] == matrix.file_names[int(values.argmax())]
        assert len(set(row[1:])) == 10


LABEL_2024 = "de-la-Cruz_U-X_task8_1"


def test_pack_notes_outputs_for_queries_whose_answers_are_known(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = read_scores(here / "run1/scores/by_map.npy")
    texts = [f"blind {text}" for text in matrix.query_texts]
    write_scores(here / "blind.npy", replace(matrix, relevant=[None] * len(matrix)))
    write_csv(replace(matrix, query_texts=texts), here / "blind.csv", get_edition("2024"))
    write_csv(matrix, here / "scored.csv", get_edition("2024"))
    for output, known in ((None, "by_map"), ("run1/scores/by_loss.npy",) * 2, ("scored.csv", "by_map")):
        assert pack_one(output) == 0
        said = f"note: {LABEL_2024} submits queries whose answers are known ({known!r}), not the blind set; rank the"
        assert said in capsys.readouterr().out
    for output in ("blind.npy", "blind.csv"):
        assert pack_one(output) == 0
        said = capsys.readouterr().out
        assert "answers are known" not in said
        assert ("--edition 2024 --queries QUERIES.csv --audio FOLDER\n" in said) == (output == "blind.csv")


def pack_one(output: str | None) -> int:
    Path("about.yaml").write_text(yaml.safe_dump(about(1) | {"systems": [about(1)["systems"][0] | {"output": output}]}))
    return packed("2024", "--report", "report.pdf", systems=["run1:by_map"])


def test_packing_twice_gives_the_same_bytes(here: Path) -> None:
    assert packed("2024") == 0
    first = (here / "mine.NOT_READY.zip").read_bytes()
    assert packed("2024") == 0
    assert (here / "mine.NOT_READY.zip").read_bytes() == first


def test_package_in_the_style_named_task_has_the_file_names_of_the_2023_task(here: Path) -> None:
    assert packed("2023", "--style", "task") == 0
    with zipfile.ZipFile("mine.NOT_READY.zip") as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    stem = "de-la-Cruz_U-X_task6b_submission_1"
    assert {f"{stem}_output.csv", f"{stem}_metadata.yaml"} <= names


def test_blend_of_runs_is_packed_as_one_system(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {name: read_scores(here / name / "scores" / "by_map.npy") for name in ("run1", "run2")}
    write_scores(here / "blend.npy", blend(parts))
    named = [{"name": "Blend", "abbreviation": "blend", "output": "blend.npy", "scored": "blend.npy"}]
    content = about() | {"systems": named}
    (here / "about.yaml").write_text(yaml.safe_dump(content))
    assert packed("2022", systems=["run1,run2"]) == 0
    with zipfile.ZipFile("mine.NOT_READY.zip") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".meta.yaml")]
        meta = yaml.safe_load(archive.read(name))
    assert meta["system"]["description"]["ensemble"] == 2
    assert meta["system"]["complexity"]["total_parameters"] == 2 * (14_864 + 11_472)
    assert meta["system"]["external_datasets"][0]["licences"] == {"not known": 48}, "one set, though two runs name it"
    assert packed("2022", systems=["run1"]) == 1
    assert "blend.npy: has scores of run1, run2, not of run1" in capsys.readouterr().err
    (here / "about.yaml").write_text(yaml.safe_dump(about(systems=1)))
    assert packed("2022", systems=["run1,run2"]) == 1
    assert re.search("systems.0.output: is missing; .*2 runs.*score matrix", capsys.readouterr().err)


def test_results_in_a_2025_package_are_computed_from_the_given_annotations_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two queries: one whose three best clips are relevant, one whose worst is."""
    matrix = read_scores(here / "run1/scores/by_map.npy")
    order = [sorted(range(24), key=lambda column, row=row: -matrix.values[row, column]) for row in (0, 7)]
    relevant = [[matrix.file_names[column] for column in order[0][:3]], [matrix.file_names[order[1][-1]]]]
    rows = [[matrix.query_texts[row], repr(names)] for row, names in zip((0, 7), relevant, strict=True)]
    (here / "annotations.csv").write_bytes(format_table([["query", "audio_filenames"], *rows]))
    (here / "about.yaml").write_text(yaml.safe_dump(about(1, annotations="annotations.csv")))
    assert packed("2025", systems=["run1"]) == 0
    assert "the system submits the ranked entry 'by_map' (24 clips)" in capsys.readouterr().out
    with zipfile.ZipFile("mine.NOT_READY.zip") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".meta.yaml")]
        results = yaml.safe_load(archive.read(name))["results"]["development_testing"]
    assert results == {"R1": pytest.approx(1 / 6, abs=1e-4), "R5": 0.5, "R10": 0.5, "mAP16": 0.5, "mAP10": 0.5}


@pytest.mark.parametrize(
    ("published", "address"),
    [
        ("zenodo.org/records/1 (Clotho v2.1; unpack the archives there)", "https://zenodo.org/records/1"),
        ("https://doi.org/10.5281/zenodo.1, audio", "https://doi.org/10.5281/zenodo.1"),
        ("github.com/owner/name", "https://github.com/owner/name"),
        ("ask the authors (x.org)", None),
        ("", None),
        (None, None),
    ],
)
def test_web_address_is_recognised_only_at_the_start_of_a_text(published: str | None, address: str | None) -> None:
    assert extract_address(published) == address


def test_pack_warns_of_weights_that_differ_from_the_published_file(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (here / "run1").unlink()
    shutil.copytree(here.parent / (here / "run2").resolve().parent / "run1", here / "run1")
    record = here / "run1/result.json"
    found = read_json(record)
    found["experts"]["logmel"]["unpublished"] = ["/somewhere/weights/x.pth"]
    write_json(record, found)
    assert packed("2022") == 0, capsys.readouterr().err
    said = "run1: the file /somewhere/weights/x.pth of logmel differs from the published file"
    assert said in caplog.text
    assert main(["report", "run1:by_map", "--out", "page.html"]) == 0
    caveat = "x.pth, which is not the published file."
    page = (here / "page.html").read_text()
    assert caveat in page
    assert "/somewhere" not in page


def test_filled_template_is_sufficient_for_pack(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = ["pack", "run1:by_map", "run1:by_loss,run2", "--template", "mine.yaml", "--edition", "2024"]
    assert main(template) == 0
    text = (here / "mine.yaml").read_text()
    assert '"world": {url: "FILL IN"}' in text
    assert text.index("# run1:by_map\n") < text.index("# run1:by_loss,run2\n")
    assert 'abbreviation: "FILL IN", output: "FILL IN"}\n  # run1:by_loss,run2\n' in text
    assert 'abbreviation: "FILL IN", output: "FILL IN", scored: "FILL IN"}\n' in text
    assert "# `scored`: path of the scores (.npy) of the split that you report, relative to this file\n" in text
    assert "scores (.npy) or CSV of the blind set, relative to this file\n" in text
    assert text.count("- {name: ") == 2
    capsys.readouterr()
    assert main(template) == 1
    assert "already" in capsys.readouterr().err
    pack = ["pack", "run1:by_map", "--about", "mine.yaml", "--edition", "2024", "--out", "p.zip"]
    assert main(pack) == 1
    errors = capsys.readouterr().err
    assert errors.count("the text still contains") == text.count("FILL IN") - 1, "all but that of the comment"
    assert main(["pack", "run1:by_map", "--template", "one.yaml"]) == 0
    filled = (here / "one.yaml").read_text().replace('email: "FILL IN"', "email: jo@example.org")
    filled = filled.replace('output: "FILL IN"', "output: null").replace('{url: "FILL IN"}', "{url: null}")
    filled = filled.replace('institute: "FILL IN"', 'institute: "Abc, {Def}: 1"')  # values that need quotes have them
    (here / "mine.yaml").write_text(filled.replace("FILL IN", "Abc"))
    capsys.readouterr()
    assert main(pack) == 0, capsys.readouterr().err
    assert main(["pack", "run1:by_map"]) == 1
    assert "give --about ABOUT.yaml and --out NAME.zip" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sources": {}}, ["sources.world.url: is missing; give the address of world, or null if it is not published"]),
        ({"authors": []}, ["authors: must have 1 or more entries"]),
        (
            {"authors": [{"lastname": "X"}]},
            ["authors.0.firstname: is missing", "authors.0.email: is missing", "authors.0.affiliation: is missing"],
        ),
        ({"authors": [about()["authors"][1]]}, ["authors: write corresponding: true for exactly one author"]),
        ({"authors": [about()["authors"][0]] * 2}, ["authors: write corresponding: true for exactly one author"]),
        ({"systems": about(3)["systems"]}, ["systems: 3 systems are described, but 4 are submitted"]),
        ({"systems": [{"name": "N", "abbreviation": "eleven_char"}] * 4}, ["systems.0.abbreviation: has more than 10"]),
        ({"systems": [{"name": "N"}] * 4}, ["systems.3.abbreviation: is missing"]),
        *(
            (
                {"authors": [about()["authors"][0] | {"email": email}]},
                [f"authors.0.email: {email!r} is not an e-mail address"],
            )
            for email in ("jo", "jo@", "@example.org", "jo@example", "a b@example.org", "jo@example.")
        ),
        ({"autors": []}, ["autors: unknown key"]),
    ],
)
def test_missing_submission_facts_are_reported_by_yaml_key(
    here: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: list[str]
) -> None:
    (here / "about.yaml").write_text(yaml.safe_dump(about() | change))
    assert packed("2024") == 1
    errors = capsys.readouterr().err
    assert all(f"error: about.yaml: {word}" in errors for word in words)
    assert not list(here.glob("*.zip"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run1:none"], "run1: has no ranked entry 'none'; choose one of by_map, by_loss, mean"),
        (["nowhere"], "nowhere: no such folder; give the folder of a finished run"),
        (["run1", "--style", "own"], "edition 2022 has no naming style 'own'; use label, task"),
        (["run1", "--report", "none.pdf"], "none.pdf: no such file"),
        (["run1", "--report", "about.yaml"], "technical_report.pdf: is no PDF"),
        (["run1", "--about", "none.yaml"], "none.yaml: no such file"),
        (["run1", "--about", "run1/scores/mean.npy"], "mean.npy: not YAML"),
        (["run1", "--out", "mine.tar"], "the name of a package must end in .zip"),
        ([*FOUR, "run2:mean", "--about", "five.yaml"], "5 systems are submitted, but edition 2022 accepts at most 4"),
    ],
)
def test_pack_refuses_invalid_arguments_with_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (here / "about.yaml").write_text(yaml.safe_dump(about(1)))
    (here / "five.yaml").write_text(yaml.safe_dump(about(5)))
    defaults = [] if "--about" in arguments else ["--about", "about.yaml"]
    defaults += [] if "--out" in arguments else ["--out", "mine.zip"]
    assert main(["pack", *arguments, *defaults]) == 1
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.startswith("error: ")
    assert not list(here.glob("*.zip"))


# --- planted faults ----------------------------------------------------------------------------------------------

LABEL = "de-la-Cruz_U-X_task8_1"
FOLDER = f"mine/task8/{LABEL}"
Members = dict[str, bytes]


def meta_change(edit: Callable[[dict[str, Any]], object]) -> Callable[[Members], object]:
    def change(members: Members) -> None:
        name = f"{FOLDER}/{LABEL}.meta.yaml"
        content = yaml.safe_load(members[name])
        edit(content)
        members[name] = yaml.safe_dump(content).encode()

    return change


def move(members: Members, old: str, new: str) -> None:
    for name in [name for name in members if old in name]:
        members[name.replace(old, new)] = members.pop(name)


FAULTS: dict[str, tuple[Callable[[Members], object], str]] = {
    "no report": (lambda m: m.pop(f"mine/task8/{LABEL}.technical_report.pdf"), "technical report (.pdf) is missing"),
    "no output": (lambda m: m.pop(f"{FOLDER}/{LABEL}.output.csv"), f"{LABEL}.output.csv is missing"),
    "no meta": (lambda m: m.pop(f"{FOLDER}/{LABEL}.meta.yaml"), f"{LABEL}.meta.yaml is missing"),
    "wrong task": (lambda m: move(m, "task8_1", "task6b_1"), "task6b_1: is not a label of this task"),
    "wrong index": (lambda m: move(m, "task8_1", "task8_5"), "task8_5: is not a label of this task"),
    "three parts": (lambda m: move(m, "de-la-Cruz_U-X_task8_1", "de-la-Cruz_task8_1"), "is not a label of this task"),
    "five parts": (lambda m: move(m, "de-la-Cruz_U-X_task8_1", "de_la-Cruz_U-X_task8_1"), "is not a label of this"),
    "wrong folder": (lambda m: move(m, "mine/task8", "mine/task9"), "is in the wrong place"),
    "five systems": (
        lambda m: [
            m.update({name.replace("task8_1", "task8_01"): data}) for name, data in list(m.items()) if FOLDER in name
        ],
        "has 5 systems, but at most 4 are allowed",
    ),
    "two tops": (lambda m: move(m, f"{FOLDER}/", f"other/task8/{LABEL}/"), "several top folders: mine, other"),
    "stray file": (lambda m: m.update({f"{FOLDER}/notes.txt": b"x"}), "notes.txt: does not belong here"),
    "path above": (lambda m: m.update({"mine/task8/../../x": b"x"}), "mine/task8/../../x: is in the wrong place"),
    "no pdf": (
        lambda m: m.update({f"mine/task8/{LABEL}.technical_report.pdf": b"text"}),
        "technical_report.pdf: is no PDF",
    ),
    "broken output": (
        lambda m: m.update({f"{FOLDER}/{LABEL}.output.csv": b"caption,fname_1\na,b\n"}),
        f"{LABEL}.output.csv: line 1: ",
    ),
    "not yaml": (lambda m: m.update({f"{FOLDER}/{LABEL}.meta.yaml": b"{"}), f"{LABEL}.meta.yaml: not YAML"),
    "yaml of another shape": (lambda m: m.update({f"{FOLDER}/{LABEL}.meta.yaml": b"- 1\n"}), "not a mapping"),
    "two corresponding": (
        meta_change(lambda c: c["submission"]["authors"][1].update(corresponding=True)),
        "submission.authors: 2 authors have corresponding: true",
    ),
    "none corresponding": (
        meta_change(lambda c: c["submission"]["authors"][0].update(corresponding=False)),
        "submission.authors: 0 authors have corresponding: true",
    ),
    "no authors": (meta_change(lambda c: c["submission"].update(authors=[])), "is an empty list; add the authors"),
    "author without email": (
        meta_change(lambda c: c["submission"]["authors"][0].pop("email")),
        "authors.0.email is missing",
    ),
    "no institute": (
        meta_change(lambda c: c["submission"]["authors"][0]["affiliation"].pop("institute")),
        "authors.0.affiliation.institute is missing",
    ),
    "other label": (
        meta_change(lambda c: c["submission"].update(label="x")),
        "submission.label is 'x', but the name of the system's folder",
    ),
    "long abbreviation": (
        meta_change(lambda c: c["submission"].update(abbreviation="eleven_char")),
        "'eleven_char', which has more than 10 characters",
    ),
    "no system": (meta_change(lambda c: c.pop("system")), ".meta.yaml: system is missing\n"),
    "no rate": (
        meta_change(lambda c: c["system"]["description"].update(input_sampling_rate=None)),
        "system.description.input_sampling_rate is missing",
    ),
    "parameters in words": (
        meta_change(lambda c: c["system"]["complexity"].update(total_parameters="2,000")),
        "total_parameters is '2,000', not a whole number",
    ),
    "data set without length": (
        meta_change(lambda c: c["system"]["external_datasets"][0].pop("total_audio_length")),
        "external_datasets.0.total_audio_length is missing",
    ),
    "no results": (meta_change(lambda c: c.update(results={})), "results.development_testing is missing"),
    "result in words": (
        meta_change(lambda c: c["results"]["development_testing"].update(mAP10="high")),
        "results.development_testing.mAP10 is 'high', not a number from 0 to 1",
    ),
    "percent": (
        meta_change(lambda c: c["results"]["development_testing"].update(R1=12.5)),
        "R1 is 12.5, not a number from",
    ),
}


@pytest.fixture(scope="module")
def members(runs: Path) -> Members:
    arguments = [
        *(f"{runs}/{name}" for name in FOUR),
        "--about",
        f"{runs}/about.yaml",
        "--report",
        f"{runs}/report.pdf",
    ]
    assert main(["pack", *arguments, "--edition", "2024", "--out", f"{runs}/mine.zip"]) == 0
    with zipfile.ZipFile(runs / "mine.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_package_with_planted_faults_is_refused(
    tmp_path: Path, members: Members, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, words = FAULTS[fault]
    mine = dict(members)
    plant(mine)
    path = write_zip(tmp_path / "mine.zip", mine)
    assert main(["check", str(path), "--edition", "2024"]) == 1
    shown = capsys.readouterr()
    assert words in shown.out
    assert "submitted" in shown.err


def test_damaged_archives_are_refused(tmp_path: Path, members: Members) -> None:
    edition = get_edition(2024)
    good = write_zip(tmp_path / "mine.zip", members).read_bytes()
    assert list(check_archive(tmp_path / "mine.zip", edition)) == []
    (tmp_path / "none.zip").write_bytes(b"text")
    assert list(check_archive(tmp_path / "none.zip", edition)) == [
        "the file is no zip archive (File is not a zip file); pack it again"
    ]
    flipped = bytearray(good)
    flipped[good.index(b"caption,fname_1") + 3] ^= 1
    (tmp_path / "flipped.zip").write_bytes(flipped)
    (problem,) = check_archive(tmp_path / "flipped.zip", edition)
    assert problem.endswith(".output.csv: is damaged (wrong checksum); pack it again")
    with zipfile.ZipFile(tmp_path / "mine.zip", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(next(iter(members)), b"again")
    assert any("occurs twice" in problem for problem in check_archive(tmp_path / "mine.zip", edition))
