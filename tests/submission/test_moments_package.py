"""The package of 2026: four systems of moments, a blind list, and invalid input."""

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import tiny_moments
import torch
import yaml
from outcomes import without_checksums
from pdf import PDF
from reported import about as about_of

from data_tools.manifest import of_split, read_manifest
from data_tools.moments import write_moments
from submission.__main__ import main
from submission.package.moments_meta import _format_millions
from submission.runs.overview import Figure, overview
from system.__main__ import main as system

SYSTEMS = ["run1:posterior", "run1:thresholds", "run2:posterior", "run2:thresholds"]
SOURCES = {"tones": {"url": None}}
LABEL = "de-la-Cruz_U-X_task6"
NOT_COMPARED = "were not compared with a truth"
LIST = 177  # queries of 100 recordings, as in 2026


@pytest.mark.parametrize(
    ("parameters", "said"),
    [(26_400, "0.0264 M"), (9_930_000, "9.93 M"), (123_456_789, "123 M"), (999_700_000, "1000 M"), (3e9, "3000 M")],
)
def test_meta_yaml_gives_parameter_counts_in_millions(parameters: int, said: str) -> None:
    assert _format_millions(parameters) == said


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs with two entries each, which have also found windows of a blind list."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("packed")
    manifest = tiny_moments.make_moments(folder / "world", {**tiny_moments.SIZES, "test": 100})
    blind = {clip.id: clip for clip in of_split(read_manifest(manifest), "test", "")}
    everything = tiny_moments.moments_of(manifest)
    asked = [replace(m, windows=None) for m in everything if m.clip in blind][:LIST]
    write_moments(folder / "blind.jsonl", asked, blind.values())
    shutil.copy(folder / "blind.jsonl", folder / "list.jsonl")
    made = tiny_moments.recipe(manifest, folder, epochs=2)
    made["data"]["blind"] = made["data"]["evaluation"] | {"split": "test", "moments": str(folder / "blind.jsonl")}
    made["rank"] |= {f"blind_{name}": entry | {"data": "blind"} for name, entry in made["rank"].items()}
    path = tiny.write_recipe(folder / "r.yaml", made)
    for seed in (1, 2):
        assert system(["run", str(path), "--out", str(folder / f"run{seed}"), "--set", f"seed={seed}"]) == 0
    (folder / "about.yaml").write_text(yaml.safe_dump(about_of(sources=SOURCES)))
    (folder / "report.pdf").write_bytes(PDF)
    return folder


@pytest.fixture
def here(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("run1", "run2"):
        (tmp_path / name).symlink_to(runs / name)
    for name in ("about.yaml", "report.pdf", "list.jsonl"):
        shutil.copy(runs / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def packed(*extra: str, systems: list[str] = SYSTEMS) -> int:
    return main(["pack", *systems, "--about", "about.yaml", "--out", "mine.zip", *extra])


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(name: str, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(name, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)


def test_moments_found_for_a_blind_list_are_written_and_pass_check(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((here / "run1" / "result.json").read_text())["moments"]["blind_posterior"]
    assert (found["queries"], found["figures"]) == (LIST, None)
    assert main(["write", found["windows"], "--out", "out.jsonl"]) == 0
    assert main(["check", "out.jsonl", "--queries", "list.jsonl"]) == 0
    lines = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    listed = [json.loads(line) for line in (here / "list.jsonl").read_text().splitlines()]
    assert [line["qid"] for line in lines] == [line["qid"] for line in listed]
    assert (here / "out.jsonl").read_bytes() == Path(found["answers"]).read_bytes()
    capsys.readouterr()
    assert main(["score", found["answers"], "--truth", "list.jsonl"]) == 1
    assert "organisers" in capsys.readouterr().err


def test_package_of_four_moment_systems_passes_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed() == 0
    assert "mine.NOT_READY.zip: NOT READY, the package has no technical report" in capsys.readouterr().out
    assert packed("--report", "report.pdf") == 0
    assert main(["check", "mine.zip", "--edition", "2026", "--queries", "list.jsonl"]) == 0
    label = LABEL
    files = members(here / "mine.zip")
    assert {name.partition("/")[2] for name in files} == {
        f"task6/{label}_1.technical_report.pdf",
        *(f"task6/{label}_{n}/{label}_{n}.{end}" for n in range(1, 5) for end in ("output.jsonl", "meta.yaml")),
    }
    listed = [json.loads(line) for line in (here / "list.jsonl").read_text().splitlines()]
    for number, system_name in enumerate(SYSTEMS, 1):
        folder, _, entry = system_name.partition(":")
        found = json.loads((here / folder / "result.json").read_text())
        output, info = (f"mine/task6/{label}_{number}/{label}_{number}.{end}" for end in ("output.jsonl", "meta.yaml"))
        lines = [json.loads(line) for line in files[output].splitlines()]
        assert [(line["qid"], line["query"], line["vid"]) for line in lines] == [
            (line["qid"], line["query"], line["vid"]) for line in listed
        ]
        answers = Path(found["moments"][f"blind_{entry}"]["answers"]).read_text()
        assert lines == [json.loads(line) for line in answers.splitlines()]
        assert all(len(window) == 2 for line in lines for window in line["pred_relevant_windows"])
        meta = yaml.safe_load(files[info])
        assert meta["submission"]["label"] == f"{label}_{number}"
        figures = found["moments"][entry]["figures"]
        assert meta["results"] == {
            "development_testing": {
                "Recall1@0.7": round(100 * figures["R1@0.7"], 2),
                "Recall1@0.5": round(100 * figures["R1@0.5"], 2),
            }
        }
        model = meta["system"]["model"]
        assert model["trainable_parameters"] == "0.0264 M"
        assert model["freezed_parameters"] == "0 M"
        assert model["loss_function"] == ["two_state (weight 1.0, per_frame False)"]
        assert meta["system"]["dataset"]["audio_captions"] == found["data"]["train"]["moments"]
        assert meta["system"]["ensemble"] is False


def test_check_reports_harmless_oddities_of_a_package_and_that_no_truth_was_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The edition follows from the file names; the lines are in reverse order, and a window ends late."""
    assert packed("--report", "report.pdf", systems=SYSTEMS[:1] * 4) == 0
    capsys.readouterr()
    assert main(["check", "mine.zip", "--queries", "list.jsonl"]) == 0
    assert capsys.readouterr().out == "ok: a package of edition 2026\n"
    assert main(["check", "mine.zip"]) == 0
    said = ["ok: a package of edition 2026", f"note: the queries {NOT_COMPARED}; add --truth, or --queries"]
    assert [line[: len(start)] for line, start in zip(capsys.readouterr().out.splitlines(), said, strict=True)] == said
    member = f"mine/task6/{LABEL}_2/{LABEL}_2.output.jsonl"
    files = members(here / "mine.zip")
    first, *others = files[member].decode().splitlines(keepends=True)
    late = json.loads(first)
    late["pred_relevant_windows"][0][1] = 999
    write_zip("odd.zip", files | {member: "".join([*others, json.dumps(late) + "\n"]).encode()})
    assert main(["check", "odd.zip", "--queries", "list.jsonl"]) == 0
    *notes, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "ok: a package of edition 2026"
    assert notes[0].startswith(f"note: {member}: line {LIST}: window 1, [")
    assert "ends after the recording" in notes[0]
    assert notes[1:] == [
        f"note: {member}: whole file: the queries of this file are in another order than in list.jsonl"
    ]
    assert main(["check", "odd.zip", "--queries", "list.jsonl", "--json"]) == 0
    assert [note["sentence"] for note in json.loads(capsys.readouterr().out)["notes"]] == [n[6:] for n in notes]


def test_package_that_matches_no_edition_needs_the_edition_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert packed("--report", "report.pdf") == 0
    files = members(here / "mine.zip")
    for number, change in enumerate(({"mine/task6/notes.txt": b""}, {"mine/task6/other/x.meta.yaml": b""})):
        write_zip(f"{number}.zip", files | change)
        assert main(["check", f"{number}.zip"]) == 1
        assert "YEAR" in capsys.readouterr().err
    Path("none.zip").write_bytes(b"PK")
    assert main(["check", "none.zip"]) == 1
    assert "archive" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["output", "meta"])
def test_damaged_packages_are_refused_with_the_reason(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert packed("--report", "report.pdf", systems=SYSTEMS[:1] * 4) == 0
    files = members(here / "mine.zip")
    changes: dict[str, dict[str, Callable[[str], str]]] = {
        "output": {
            "no line for the query": lambda text: text.partition("\n")[2],
            "windows have scores": with_scores,
            "ends before it starts": reversed_once,
            "vid is missing": lambda text: text.replace('"vid"', '"video"', 1),
        },
        "meta": {
            "system.model is missing": lambda text: text.replace("  model:", "  modell:"),
            "audio_captions is 'many', not a whole number": lambda text: changed(
                text, "dataset", "audio_captions", "many"
            ),
            "system.model.LLMs is 'none', not a list": lambda text: changed(text, "model", "LLMs", "none"),
            "Recall1@0.7 is 170, not a number from 0 to 100": lambda text: with_result(text, 170),
            "submission.label is 'other'": lambda text: text.replace(f"label: {LABEL}_1", "label: other"),
        },
    }
    for said, change in changes[name].items():
        of_first = {member for member in files if f"task6_1.{name}." in member}
        write_zip("damaged.zip", {m: change(d.decode()).encode() if m in of_first else d for m, d in files.items()})
        capsys.readouterr()
        assert main(["check", "damaged.zip", "--edition", "2026", "--queries", "list.jsonl"]) == 1, said
        assert said in capsys.readouterr().out


def with_scores(text: str) -> str:
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line["pred_relevant_windows"] = [[*window, 0.5] for window in line["pred_relevant_windows"]]
    return "".join(json.dumps(line) + "\n" for line in lines)


def reversed_once(text: str) -> str:
    first, _, rest = text.partition("\n")
    line = json.loads(first)
    line["pred_relevant_windows"][0].reverse()
    return json.dumps(line) + "\n" + rest


def changed(text: str, block: str, key: str, value: object) -> str:
    meta = yaml.safe_load(text)
    meta["system"][block][key] = value
    return yaml.safe_dump(meta, allow_unicode=True)


def with_result(text: str, value: float) -> str:
    meta = yaml.safe_load(text)
    meta["results"]["development_testing"]["Recall1@0.7"] = value
    return yaml.safe_dump(meta, allow_unicode=True)


@pytest.mark.parametrize(
    ("systems", "changes", "said"),
    [
        (["run1:blind_posterior"], {}, "'blind_posterior' ranks a blind list, which has no metrics; use run1:post"),
        (
            ["run1,run2"],
            {},
            "systems.0.output: is missing; a blend of 2 runs needs a file of windows to submit",
        ),
        (["run1"], {"output": "other.jsonl"}, "no line for the query"),
        (["run1:other"], {}, "has no entry 'other' that finds moments"),
        (["run1"] * 5, {}, "5 systems are submitted, but edition 2026 accepts at most 4"),
    ],
)
def test_pack_refuses_invalid_runs_or_facts(
    here: Path, systems: list[str], changes: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = about_of(sources=SOURCES)
    document["systems"] = [document["systems"][0] | changes for _ in systems]
    (here / "about.yaml").write_text(yaml.safe_dump(document))
    answers = (here / "run1" / "submission" / "blind_posterior.jsonl").read_text()
    (here / "other.jsonl").write_text(answers.partition("\n")[2])
    assert packed(systems=systems) == 1
    assert said in capsys.readouterr().err
    assert not list(here.glob("*.zip"))


@pytest.fixture
def without_blind(here: Path) -> Path:
    """A run without windows of a blind list."""
    shutil.copytree((here / "run1").resolve(), here / "alone", ignore=shutil.ignore_patterns("blind_*"))
    for name, key in (("result.json", "moments"), ("resolved.json", "rank")):
        content = json.loads((here / "alone" / name).read_text())
        content[key] = {entry: each for entry, each in content[key].items() if not entry.startswith("blind_")}
        (here / "alone" / name).write_text(json.dumps(content))
    without_checksums(here / "alone")
    return here / "alone"


def pack_alone(output: str | None, *extra: str) -> int:
    document = about_of(1, sources=SOURCES)
    document["systems"][0] |= {"output": output}
    Path("about.yaml").write_text(yaml.safe_dump(document))
    return packed("--report", "report.pdf", *extra, systems=["alone:posterior"])


def test_package_for_queries_whose_answers_are_known_is_marked_not_ready(
    without_blind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tested with the windows of the run, of an ensemble over the same queries, and of some of the queries."""
    shutil.copy(without_blind / "scores" / "thresholds.windows.jsonl", "all.jsonl")
    Path("some.jsonl").write_text("".join(Path("all.jsonl").read_text().splitlines(keepends=True)[:3]))
    for output in (None, "all.jsonl", "some.jsonl"):
        assert pack_alone(output) == 0
        *_, last = capsys.readouterr().out.splitlines()
        said = f"NOT READY, {LABEL}_1 submits queries whose answers are known ('posterior'), not the blind set; "
        assert f"mine.NOT_READY.zip: {said}" in last
        assert not Path("mine.zip").exists()


def test_pack_notes_that_an_output_was_not_compared_with_a_truth(
    without_blind: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("run1/scores/blind_posterior.windows.jsonl", "mean.jsonl")
    assert pack_alone("mean.jsonl") == 0
    *_, note, last = capsys.readouterr().out.splitlines()
    check = "lbar submit check mine.zip --edition 2026 --queries LIST.jsonl"
    assert (note, last) == (
        f"note: {LABEL}_1: the queries were not compared with the blind set; to compare them: {check}",
        "wrote mine.zip",
    )
    assert main(check.replace("LIST", "list").split()[2:]) == 0


def test_ensemble_of_moment_runs_is_packed_from_its_window_files(here: Path) -> None:
    """The windows have scores and any order; the output has the order of the list, and the figures are those of
    `scored`.
    """
    document = about_of(sources=SOURCES)
    document["systems"] = [document["systems"][0] | {"output": "mean.jsonl", "scored": "scored.jsonl"}]
    (here / "about.yaml").write_text(yaml.safe_dump(document, allow_unicode=True))
    lines = (here / "run1" / "scores" / "blind_posterior.windows.jsonl").read_text().splitlines(keepends=True)
    (here / "mean.jsonl").write_text("".join(reversed(lines)))
    shutil.copy(here / "run2" / "scores" / "posterior.windows.jsonl", here / "scored.jsonl")
    assert packed("--report", "report.pdf", systems=["run1,run2"]) == 0
    assert main(["check", "mine.zip", "--edition", "2026", "--queries", "list.jsonl"]) == 0
    files = {name.rpartition(".")[0].rpartition(".")[2]: data for name, data in members(here / "mine.zip").items()}
    assert files["output"] == (here / "run1" / "submission" / "blind_posterior.jsonl").read_bytes()
    meta = yaml.safe_load(files["meta"])
    assert meta["system"]["ensemble"] is True
    assert meta["system"]["model"]["trainable_parameters"] == "0.0528 M"
    figures = json.loads((here / "run2" / "result.json").read_text())["moments"]["posterior"]["figures"]
    assert meta["results"]["development_testing"]["Recall1@0.7"] == round(100 * figures["R1@0.7"], 2)


def test_pack_template_asks_for_facts_missing_in_the_runs(here: Path) -> None:
    assert main(["pack", *SYSTEMS, "--template", "new.yaml"]) == 0
    text = (here / "new.yaml").read_text()
    assert text.count("which has ranked the blind set") == 4
    assert "output:" not in text.partition("systems:")[2].partition("\n")[2].partition("sources:")[0]
    assert "`output`: path of the file of windows (.jsonl) of the blind set, relative to this file" in text
    assert "annotations" not in text
    assert "scored" not in text


def test_filled_template_of_an_ensemble_suffices_for_pack(here: Path) -> None:
    ensemble = ["run1,run2"]
    assert main(["pack", *ensemble, "--template", "new.yaml"]) == 0
    text = Path("new.yaml").read_text()
    assert (
        "# `scored`: path of the file of windows (.jsonl) of the split that you report, relative to this file" in text
    )
    shutil.copy("run1/scores/blind_posterior.windows.jsonl", "blind.jsonl")
    shutil.copy("run1/scores/posterior.windows.jsonl", "test.jsonl")
    for key, value in (("email", "jo@example.org"), ("output", "blind.jsonl"), ("scored", "test.jsonl")):
        assert text.count(f'{key}: "FILL IN"') == 1
        text = text.replace(f'{key}: "FILL IN"', f"{key}: {value}")
    Path("about.yaml").write_text(text.replace('"FILL IN"', "Abc"))
    assert packed("--report", "report.pdf", systems=ensemble) == 0


def test_pack_with_option_template_refuses_a_rank_entry_without_known_answers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "run1", "run1:blind_posterior", "--template", "new.yaml"]) == 1
    said = "error: run1: 'blind_posterior' ranks a blind list, which has no metrics; use run1:posterior\n"
    assert capsys.readouterr().err == said
    assert not Path("new.yaml").exists()


def test_overview_of_a_moments_run_shows_its_first_entry_with_figures(here: Path) -> None:
    found = json.loads((here / "run1" / "result.json").read_text())["moments"]
    expected = Figure(metric="R1@0.7", value=found["posterior"]["figures"]["R1@0.7"], where="posterior")
    assert overview(here / "run1").test == expected
    shutil.copytree((here / "run1").resolve(), here / "mine")
    without_checksums(here / "mine")
    result = json.loads((here / "mine" / "result.json").read_text())
    order = ("blind_posterior", "thresholds", "posterior")
    for names, where in ((order, "thresholds"), (order[:1], None)):
        moments = {name: found[name] for name in names}
        (here / "mine" / "result.json").write_text(json.dumps(result | {"moments": moments}))
        test = overview(here / "mine").test
        assert (test and test.where) == where


def test_pack_refuses_a_clip_retrieval_edition_for_moment_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed("--edition", "2025", systems=["run1"] * 4) == 1
    assert (
        "edition 2025 ranks clips, but run1:posterior finds moments; give an entry that ranks clips"
        in capsys.readouterr().err
    )


def test_pack_refuses_entry_missing_in_the_recipe(without_blind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = without_blind / "resolved.json"
    content = json.loads(resolved.read_text())
    del content["rank"]["posterior"]
    resolved.write_text(json.dumps(content))
    assert pack_alone(None) == 1
    assert "alone" in capsys.readouterr().err
