"""Packages of score matrices that another program wrote, without any run of the kit."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pdf import PDF

from submission.__main__ import main

CLIPS = 20


def write_handmade(path: Path, values: np.ndarray, relevant: bool) -> None:
    """Write a score matrix and its sidecar as PACKAGE.md describes them, by numpy and json alone."""
    np.save(path, values.astype(np.float32))
    rows = range(len(values))
    queries = [{"id": str(n), "text": f"sound {n}", "relevant": [f"c{n}"] if relevant else None} for n in rows]
    clips = [{"id": f"c{n}", "file_name": f"{n}.wav"} for n in range(values.shape[1])]
    path.with_suffix(".json").write_text(json.dumps({"queries": queries, "clips": clips}))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    write_handmade(Path("tested.npy"), rng.normal(size=(CLIPS, CLIPS)) + 2 * np.eye(CLIPS), relevant=True)
    write_handmade(Path("blind.npy"), rng.normal(size=(5, CLIPS)), relevant=False)
    Path("blind").mkdir()
    for number in range(CLIPS):
        Path(f"blind/{number}.wav").write_bytes(b"")
    Path("queries.csv").write_text("caption\n" + "".join(f"sound {n}\n" for n in range(5)))
    Path("report.pdf").write_bytes(PDF)
    return tmp_path


def filled(text: str) -> str:
    """Fill in a template: a number where a number is asked for."""
    text = text.replace("sources: {}", 'sources: {pairs: {url: "https://example.org/pairs"}}')
    text = text.replace('parameters: "FILL IN"', "parameters: 1234").replace('output: "FILL IN"', "output: blind.npy")
    return text.replace('email: "FILL IN"', "email: jo@example.org").replace("FILL IN", "Abc")


@pytest.mark.parametrize("edition", ["2022", "2024", "2025"])
def test_package_of_score_matrices_made_by_hand_passes_check(
    here: Path, edition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "tested.npy", "--template", "about.yaml", "--edition", edition]) == 0
    template = Path("about.yaml").read_text()
    assert re.search(r'output: "FILL IN", parameters: "FILL IN", description: \{input_sampling_rate: ', template)
    Path("about.yaml").write_text(filled(template))
    pack = ["pack", "tested.npy", "--about", "about.yaml", "--edition", edition, "--report", "report.pdf"]
    assert main([*pack, "--out", "mine.zip"]) == 0, capsys.readouterr().err
    assert "wrote mine.zip" in capsys.readouterr().out
    blind = ["--queries", "queries.csv", "--audio", "blind"]
    assert main(["check", "mine.zip", "--edition", edition, *blind]) == 0, capsys.readouterr().out


def test_meta_yaml_of_a_package_has_the_given_facts_and_the_figures_of_the_matrix(here: Path) -> None:
    assert main(["pack", "tested.npy", "--template", "about.yaml"]) == 0
    about = filled(Path("about.yaml").read_text())
    Path("about.yaml").write_text(about)
    assert main(["pack", "tested.npy", "--about", "about.yaml", "--edition", "2024", "--out", "p.zip"]) == 0
    meta = read_meta(Path("p.NOT_READY.zip"))
    assert meta["system"]["complexity"]["total_parameters"] == 1234
    assert meta["system"]["description"]["optimizer"] == "Abc"
    (source,) = meta["system"]["external_datasets"]
    assert (source["name"], source["url"]) == ("pairs", "https://example.org/pairs")
    values = np.load("tested.npy")
    first = float(np.mean(values.argmax(1) == np.arange(CLIPS)))
    (results,) = meta["results"].values()
    assert results["R1"] == round(first, 4)


def read_meta(path: Path) -> dict[str, Any]:
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("meta.yaml")]
        content: dict[str, Any] = yaml.safe_load(archive.read(name))
    return content


def test_pack_reports_each_missing_submission_fact_by_its_yaml_key(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "tested.npy", "--template", "about.yaml"]) == 0
    about = yaml.safe_load(filled(Path("about.yaml").read_text()))
    del about["systems"][0]["parameters"]
    del about["systems"][0]["description"]["optimizer"]
    Path("about.yaml").write_text(yaml.safe_dump(about))
    capsys.readouterr()
    assert main(["pack", "tested.npy", "--about", "about.yaml", "--edition", "2024", "--out", "p.zip"]) == 1
    error = capsys.readouterr().err
    assert "systems.0.parameters: is missing, and the runs do not have the numbers of parameters of all models" in error
    assert "systems.0.description.optimizer: is missing, and is not in the runs" in error
    assert main(["pack", "tested.npy", "--about", "about.yaml", "--out", "p.zip"]) == 1
    assert "known" in capsys.readouterr().err


def test_pack_refuses_a_missing_matrix_and_a_matrix_of_a_blind_set_and_a_wrong_edition(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, expected in (
        (["gone.npy", "--template", "x.yaml"], "gone.npy is missing; a score matrix needs both"),
        (["blind.npy", "--template", "x.yaml"], "blind.npy has queries without relevant clips, like a blind set"),
    ):
        assert main(["pack", *arguments]) == 1
        assert expected in capsys.readouterr().err
    assert main(["pack", "tested.npy", "--template", "about.yaml"]) == 0
    Path("about.yaml").write_text(filled(Path("about.yaml").read_text()))
    assert main(["pack", "tested.npy", "--about", "about.yaml", "--edition", "2026", "--out", "p.zip"]) == 1
    assert "edition 2026 finds moments, but a score matrix (.npy) ranks clips" in capsys.readouterr().err
