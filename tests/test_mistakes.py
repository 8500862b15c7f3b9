"""Mistakes of participants: each gives one error message, and the folder is unchanged.

A case is a command line in the folder that desk.py makes, and words that must be in the error message.
"""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from desk import contents, make_desk

IS_FOLDER, IS_FILE = ": is a folder; name a file", ": is a file; name a folder"
NO_MANIFEST = ": is not a manifest, one line of JSON per clip; make one with lbar data clotho, audiocaps or table"
NO_RECIPE = " is not a recipe: its name must end in .yaml; shipped recipes and studies are in recipes/"
NO_STORE = ": not a usable store"
NO_PART = " column 1 (char {})); give a JSON file of WavCaps, such as fsd_final.json"
NO_CLOTHO = "give Clotho's folder as published, or choose other splits by --splits"
UNTRAINED = "has stages that must be trained first; train it with lbar run recipe.yaml"
NO_MODEL = "is neither a run (resolved.json) nor an exported model (model.safetensors); name such a folder"
SPLITS = "use development, evaluation, validation"
JSONL = "argument --out: {}: give a file name that ends in .jsonl"

DATA = [
    # a path that names nothing, a folder for a file, a file for a folder
    ("check nowhere.jsonl", "nowhere.jsonl: no such file; correct the path"),
    ("check clotho", f"clotho{IS_FOLDER}"),
    ("table audio --audio file_name --caption caption_1 --out x.jsonl", f"audio{IS_FOLDER}"),
    ("queries audio --out x.jsonl", f"audio{IS_FOLDER}"),
    ("status audio", "audio: no such store"),
    ("classify audio --captions captions.csv --out x", f"audio{IS_FOLDER}"),
    ("clotho nowhere --out x.jsonl", "nowhere: no such folder; correct the path"),
    ("clotho captions.csv --out x.jsonl", f"captions.csv{IS_FILE}"),
    ("blind nowhere --out x.jsonl", "nowhere: no such folder; correct the path"),
    ("blind captions.csv --out x.jsonl", f"captions.csv{IS_FILE}"),
    ("blind empty --out x.jsonl", "empty: no audio files in this folder; unpack the data set"),
    ("scenes manifest.jsonl --seed 1", f"manifest.jsonl{IS_FILE}"),
    (
        "status nowhere.sqlite",
        "nowhere.sqlite: no such store",
    ),
    ("status recipe.yaml", f"recipe.yaml{NO_STORE}"),
    ("classify recipe.yaml --captions captions.csv --out x", f"recipe.yaml{NO_STORE}"),
    ("status empty.csv", "empty.csv: not a usable store"),
    (
        "wavcaps captions.csv --audio audio --out x.jsonl",
        f"captions.csv: not JSON (Expecting value: line 1{NO_PART.format(0)}",
    ),
    ("wavcaps manifest.jsonl --audio audio --out x.jsonl", "manifest.jsonl: not JSON (Extra data: line 2 "),
    (
        "wavcaps scores.json --audio audio --out x.jsonl",
        "scores.json: not a JSON file of WavCaps, which has the form {",
    ),
    ("wavcaps audio --audio audio --out x.jsonl", f"audio{IS_FOLDER}"),
    ("clotho audio --out x.jsonl", f"audio/clotho_captions_development.csv: no such file; {NO_CLOTHO}"),
    ("clotho manifest.jsonl --out x.jsonl", f"manifest.jsonl{IS_FILE}"),
    ("audiocaps captions.csv --out x.jsonl", f"captions.csv{IS_FILE}"),
    ("audiocaps nowhere --out x.jsonl", "nowhere: no such folder; correct the path"),
    (
        "audiocaps clotho --out x.jsonl",
        "clotho/train.csv: no such file; give the folder of AudioCaps that contains this file, or",
    ),
    # another file than is meant
    ("check captions.csv", f"captions.csv{NO_MANIFEST}"),
    ("check recipe.yaml", f"recipe.yaml{NO_MANIFEST}"),
    ("queries empty.csv --out x.jsonl", "empty.csv: the file is empty"),
    ("clotho clotho --out x.jsonl", f"clotho/clotho_captions_validation.csv: no such file; {NO_CLOTHO}"),
    # columns, keys, values, splits
    ("table captions.csv --audio file --caption caption_1 --out x.jsonl", "no column file; the first line has file_na"),
    ("table captions.csv --audio file_name --caption caption --out x.jsonl", "no column caption; the first line has"),
    (
        "table captions.csv --audio file_name --caption caption_1 --folder nowhere --out x.jsonl",
        "cannot read any of the table's 24 audio files in this folder",
    ),
    ("classify captions.csv --captions captions.csv --out x", "no column"),
    ("check broken/no_id.jsonl", "broken/no_id.jsonl, line 1: not a clip (id: is missing)"),
    ("check broken/number.jsonl", "line 1: not a clip (id: must be text, not 5)"),
    ("check broken/typo.jsonl", "line 1: not a clip (capshun: unknown key; correct it, or remove it)"),
    ("check broken/split.jsonl", "(split: must be 'development', 'validation', 'evaluation', 'train', 'val', 'test'"),
    ("check broken/captions.jsonl", "line 1: not a clip (captions: must be a list, not 'A dog')"),
    ("queries manifest.jsonl --split train --out x.jsonl", f"manifest.jsonl has no split train; {SPLITS}"),
    ("queries manifest.jsonl --split dev --out x.jsonl", "invalid choice: 'dev' (choose from 'development', "),
    # --out
    ("clotho clotho --keep-missing --splits development --out x.txt", JSONL.format("x.txt")),
    ("clotho clotho --keep-missing --splits development --out notes", JSONL.format("notes")),
    ("blind audio --out x.csv", JSONL.format("x.csv")),
    ("table captions.csv --audio file_name --caption caption_1 --out x.csv", JSONL.format("x.csv")),
    ("queries blind.csv --out x.txt", JSONL.format("x.txt")),
    ("queries blind.csv --out blind.csv", JSONL.format("blind.csv")),
    ("queries manifest.jsonl --out manifest.jsonl", "manifest.jsonl would overwrite the input file manifest.jsonl"),
    ("check manifest.jsonl --quick --list notes", "argument --list: notes: give a file name that ends in .csv"),
    ("scenes notes --seed 1", "notes: contains files but no scenes.json; choose a new or empty folder"),
    # Freesound
    ("crawl store.sqlite", "no API key"),
    ("fetch store.sqlite --scores captions.csv --exclude none --out x", "no API key"),
]
SYSTEM = [
    ("check nowhere.yaml", "nowhere.yaml: no such file; shipped recipes and studies are in recipes/"),
    ("check audio", f"audio{IS_FOLDER}"),
    ("run run", f"run{IS_FOLDER}"),
    ("study audio", f"audio{IS_FOLDER}"),
    ("runs recipe.yaml", f"recipe.yaml{IS_FILE}"),
    ("run manifest.jsonl", f"manifest.jsonl{NO_RECIPE}"),
    ("features captions.csv", f"captions.csv{NO_RECIPE}"),
    ("run two.study.yaml", "two.study.yaml is a study; run it with: lbar study two.study.yaml"),
    ("study recipe.yaml", "recipe.yaml is a recipe; run it with: lbar run recipe.yaml"),
    ("rank recipe.yaml --audio audio --queries blind.csv --out x.npy", f"recipe.yaml {UNTRAINED}"),
    ("serve recipe.yaml", f"recipe.yaml {UNTRAINED}"),
    ("export nowhere --out x", f"nowhere {NO_MODEL}"),
    ("rank run --audio blind.csv --queries audio --out x.npy", f"blind.csv{NO_MANIFEST}"),
    ("rank run --audio captions.csv --queries blind.csv --out x.npy", f"captions.csv{NO_MANIFEST}"),
    ("rank run --audio audio --queries nowhere.csv --out x.npy", "nowhere.csv: no such file; correct the path"),
    (
        "rank run --audio audio --queries recipe.yaml --out x.npy",
        "not a file of queries; use one that ends in .jsonl",
    ),
    ("rank run --audio audio --out x.npy", "audio has no captions as queries; name a file of queries with --queries"),
    ("rank run --audio manifest.jsonl --split train --out x.npy", f"manifest.jsonl has no split train; {SPLITS}"),
    ("search run manifest.jsonl tone --split train", f"manifest.jsonl has no split train; {SPLITS}"),
    ("relevance manifest.jsonl --split train", f"manifest.jsonl has no split train; {SPLITS}"),
    (
        "rank run --audio audio --queries blind.csv --out x.csv",
        "--out x.csv: the name of a score matrix must end in .npy",
    ),
    (
        "rank run --audio audio --queries blind.csv --stage two --out x.npy",
        "run has no stage 'two'; name one of its stages: pretrain",
    ),
    ("export run --out notes", "notes is not empty, or is the current folder; name a new or empty folder"),
    ("export run --out captions.csv", f"captions.csv{IS_FILE}"),
    # recipes and studies
    ("check typo.yaml", "stages.only.batchsize: unknown key; did you mean batch_size?"),
    ("check kind.yaml", "model.text: unknown kind 'transfromer'; did you mean transformer?"),
    ("check text_for_number.yaml", "stages.only.epochs: must be a whole number, not 'two'"),
    ("check odd_split.yaml", "data.train.split: must be 'development', 'validation', 'evaluation', 'train', 'val'"),
    ("check tests.yaml", "'train' is a test split (evaluation); train on another split"),
    (
        "check edition.yaml",
        "rank.evaluation.edition: edition 2021 is not known; known editions: 2022, 2023, 2024, 2025, custom",
    ),
    ("check no_seed.yaml", "no_seed.yaml:1: seed: this key is missing, but required; add it"),
    ("check indented.yaml", "indented.yaml:2: not YAML: mapping values are not allowed in this context"),
    ("check tab.yaml", "not YAML: found the character '\\t', which cannot begin a value"),
    ("check csv_as_manifest.yaml", f"other.csv{NO_MANIFEST}"),
    ("check no_seeds.study.yaml", "no_seeds.study.yaml:1: seeds: is missing"),
    ("check text_seed.study.yaml", "text_seed.study.yaml:4: seeds.0: must be a whole number, not 'one'"),
    ("check recipe_number.study.yaml", "recipe_number.study.yaml:2: recipe: must be text, not 5"),
    ("check wrong_cell.study.yaml", "wrong_cell.study.yaml:7: sells: unknown key; correct it, or remove it"),
    ("check wrong_key.study.yaml", "cell one: stages.only.batchsize: unknown key; did you mean batch_size?"),
    (
        "check wrong_recipe.study.yaml",
        "cell as_is: nowhere.yaml: no such file; shipped recipes and studies are in recipes/",
    ),
    ("check indented.study.yaml", "indented.study.yaml:2: not YAML: mapping values are not allowed in this context"),
    (
        "check recipe.yaml --set stages.only.batchsize=8",
        "--set stages.only.batchsize: unknown key; did you mean batch_",
    ),
    ("run recipe.yaml --set stages.only.batch_size=many", "--set stages.only.batch_size: must be a whole number, not"),
    (
        "run recipe.yaml --set stages.only.batch_size",
        "--set stages.only.batch_size: this text is not a setting; write a setting as key.key=value",
    ),
    ("run recipe.yaml --set stages.no.batch_size=8", "--set stages.no.batch_size: the recipe has no such key"),
    # before and while a run begins
    (
        "run no_manifest.yaml",
        "data source train: the manifest nowhere.jsonl does not exist; correct the path (relative",
    ),
    ("run csv_as_manifest.yaml", f"other.csv{NO_MANIFEST}"),
    ("run no_split.yaml", f"data source train: manifest.jsonl has no split train; {SPLITS}"),
    (
        "run no_weights.yaml",
        "vggish: the weight file no.pth is missing; published at https://github.com/harritaylor/torchvggish/",
    ),
    ("train no_split.yaml", f"data source train: manifest.jsonl has no split train; {SPLITS}"),
    ("run no_split.yaml --out deep/er/run", f"data source train: manifest.jsonl has no split train; {SPLITS}"),
    ("run recipe.yaml --out captions.csv", f"captions.csv{IS_FILE}"),
    ("train recipe.yaml --out captions.csv", f"captions.csv{IS_FILE}"),
    ("train recipe.yaml --out notes", "notes is neither a run nor empty; name another folder"),
    ("run recipe.yaml --runs captions.csv", f"captions.csv{IS_FILE}"),
    ("train recipe.yaml --runs captions.csv", f"captions.csv{IS_FILE}"),
    ("study two.study.yaml --runs captions.csv", f"captions.csv{IS_FILE}"),
    # models of the hub, without a network
    ("word_vectors nobody/nothing --out x.bin", "text model nobody/nothing: not a folder, not in the cache "),
]
CASES = [
    pytest.param(floor, line, words, id=f"{floor} {line}")
    for floor, cases in (("data_tools", DATA), ("system", SYSTEM))
    for line, words in cases
]


@pytest.fixture(scope="module")
def original(world: Path, tmp_path_factory: pytest.TempPathFactory, unbroken: Path) -> Path:
    folder = tmp_path_factory.mktemp("original") / "desk"
    folder.mkdir()
    make_desk(folder, world, unbroken)
    return folder


@pytest.fixture
def desk(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the folder as the current one; it must be unchanged at the end."""
    shutil.copytree(original, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    for variable in ("FREESOUND_API_KEY", "FREESOUND_API"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = contents(tmp_path / "desk")
    yield tmp_path / "desk"
    assert contents(tmp_path / "desk") == before


def sentence(floor: str, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the single error message of a failing command."""
    status = import_module(f"{floor}.__main__").main(shlex.split(line))
    output, errors = capsys.readouterr()
    assert status in (1, 2)
    assert "Traceback" not in errors
    found = [text for text in errors.splitlines() if "error: " in text]
    assert len(found) == 1, errors
    assert len(found[0]) < 400, "a sentence can be read at a glance"
    return found[0] if "listed above" not in found[0] else output


@pytest.mark.parametrize(("floor", "line", "words"), CASES)
@pytest.mark.usefixtures("desk")
def test_users_mistake_gives_one_error_message_and_changes_no_file(
    floor: str, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in sentence(floor, line, capsys)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_manifest", "MISSING  nowhere.jsonl: "),
        ("no_split", "MISSING  data train: manifest.jsonl has no split train; use"),
        ("no_weights", "MISSING  no.pth: "),
        ("large_batch", "batch_size 99 is more than the 48 items of the stage's data"),
    ],
)
def test_check_fails_if_a_file_of_the_recipe_is_missing(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_module("system.__main__").main(["check", f"{name}.yaml"]) == 1
    shown = capsys.readouterr().out
    assert words in shown
    assert "nothing is missing" not in shown
    assert shown.endswith("\n1 MISTAKE\n" if name == "large_batch" else "\n1 MISSING\n")


def test_check_accepts_a_missing_manifest_if_the_recipe_has_a_command_that_makes_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (desk / "no_manifest.yaml").read_text()
    made = "{manifest: nowhere.jsonl, make: lbar data scenes x --seed 1"
    text = text.replace(
        "  train:\n    manifest: nowhere.jsonl\n    split: development", f"  train: {made}, split: train}}"
    )
    (desk.parent / "made.yaml").write_text(text)
    assert import_module("system.__main__").main(["check", "../made.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "not made yet; `run` makes it with: lbar data scenes x --seed 1" in shown
    assert shown.endswith("nothing is missing\n")


@pytest.mark.usefixtures("desk")
def test_bad_descriptions_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("data_tools.classify.embed.load_sentence_transformer", loaded)
    line = "classify {} --captions captions.csv --out x"
    assert "no column id, description" in sentence("data_tools", line.format("captions.csv"), capsys)
    assert f"recipe.yaml{NO_STORE}" in sentence("data_tools", line.format("recipe.yaml"), capsys)


def test_run_that_fails_before_training_keeps_its_computed_frames(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Computed frames are used again; nothing is left of the run."""
    for verb in ("run", "train"):
        assert "batch_size 99 needs at least 99" in sentence("system", f"{verb} large_batch.yaml", capsys)
        assert not (desk / "runs").exists()
    assert (desk / "banks").is_dir()
    shutil.rmtree(desk / "banks")


@pytest.mark.usefixtures("desk")
def test_missing_hub_model_without_network_is_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "text model nobody/nothing: not a folder, not in the cache "
    assert missing in sentence("system", "run hub.yaml", capsys)
    assert not (desk / "banks").exists(), "before any frame is computed"


@pytest.mark.parametrize(
    ("floor", "line", "words"),
    [
        ("data_tools", "blind one --out {}/x.jsonl", "x.jsonl: 1 clip\n"),
        ("data_tools", "queries one.csv --out {}/x.jsonl", "x.jsonl: 1 query, 0 with known"),
        (
            "data_tools",
            "clotho one --splits development --out {}/x.jsonl",
            "development: 1 clip, 1 caption, 1 with audio",
        ),
        ("system", "rank run --audio one --queries one.csv --out {}/x.npy", "x.npy: 1 query x 1 clip\n"),
    ],
)
def test_messages_about_one_item_use_the_singular(
    floor: str, line: str, words: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(original)
    assert import_module(f"{floor}.__main__").main(shlex.split(line.format(tmp_path))) == 0
    assert words in capsys.readouterr().out


def test_verbs_use_the_singular_for_one_query_and_one_clip(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """All steps from a folder with one clip to its checked CSV."""
    monkeypatch.chdir(original)
    for floor, line in (
        ("system", "rank run --audio one --queries one.csv --out {}/x.npy"),
        ("system", "search run one 'a deep tone'"),
        ("submission", "write {}/x.npy --out {}/x.csv --edition custom"),
        ("submission", "check {}/x.csv --edition custom"),
        ("data_tools", "blind one --out {}/one.jsonl"),
        ("data_tools", "check {}/one.jsonl"),
    ):
        assert import_module(f"{floor}.__main__").main(shlex.split(line.replace("{}", str(tmp_path)))) == 0, line
    shown = capsys.readouterr().out + caplog.text
    for words in (
        "1 query x 1 clip\n",
        "using 1 clip; skipped 1 file that",
        "wrote",
        "ok: 1 query x 1\n",
    ):
        assert words in shown, words
    assert not re.findall(r"(?<![\d.,])1 (?:clips|queries|names|scores|sounds|rows|captions|files)\b", shown)


WRITING = [
    ("data_tools", "queries blind.csv --out {}/x.jsonl"),
    ("data_tools", "clotho clotho --keep-missing --splits development --out {}/x.jsonl"),
    ("submission", "write scores.npy --out {}/x.csv"),
    ("system", "run recipe.yaml --runs {}/runs"),
    ("system", "export run --out {}/x"),
]


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("floor", "line"), WRITING)
def test_read_only_output_folder_is_reported(
    floor: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is that of a read-only disk: permissions do not stop root, who may run the tests."""
    opened, made = os.open, os.mkdir

    def refuse(path: object) -> None:
        if "notes" in str(path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("os.mkdir", lambda path, *rest, **more: (refuse(path), made(path, *rest, **more))[1])
    monkeypatch.setattr("io.open", _unless(open, refuse))
    monkeypatch.setattr("os.open", lambda path, *rest, **more: (refuse(path), opened(path, *rest, **more))[1])
    words = "reading or writing is not permitted; change the permissions, or use another path"
    assert words in sentence(floor, line.format("notes"), capsys)


def _unless(function: object, refuse: object) -> object:
    def checked(path: object, mode: str = "r", *rest: object, **more: object) -> object:
        if set(mode) & set("wax+"):
            refuse(path)  # type: ignore[operator]
        return function(path, mode, *rest, **more)  # type: ignore[operator]

    return checked


@pytest.mark.parametrize(("floor", "line"), WRITING[:3])
def test_verbs_report_a_full_disk(floor: str, line: str, desk: Path, root: Path) -> None:
    """A file may have 100 bytes; longer ones fail as on a full disk."""
    code = (
        "import resource, sys; from importlib import import_module\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        f"sys.exit(import_module('{floor}.__main__').main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *shlex.split(line.format("notes"))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=desk, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 1
    assert done.stderr.startswith("error: notes/x.")
    assert done.stderr.endswith(": File too large\n")
