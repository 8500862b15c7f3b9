"""Verbs that accept a finished run as well as its files, and the edition of each."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from ranked import small_matrix, write_truth
from reported import make_run

from submission.__main__ import main
from submission.editions import EDITIONS
from submission.formats.matrix_csv import write_matrix_csv
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import read_scores, write_scores
from submission.verbs.options import edition_in_facts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("systems"))


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run, whose entries are `last` (of 2025), `best` and `mean` (of 2022)."""
    monkeypatch.chdir(tmp_path)
    return str(made)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_run_is_scored_like_its_score_matrix_and_in_the_edition_of_the_rank_entry(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = output(capsys, "score", run)
    assert "mAP@16" in first, "the first entry is of 2025"
    assert first == output(capsys, "score", f"{run}:last")
    assert first == output(capsys, "score", f"{run}/scores/last.npy", "--edition", "2025")
    best = output(capsys, "score", f"{run}:best")
    assert "mAP@16" not in best
    assert best == output(capsys, "score", f"{run}/scores/best.npy", "--edition", "2022")
    assert "mAP@16" in output(capsys, "score", f"{run}:best", "--edition", "2025"), "without training anything again"


def test_comparing_runs_of_two_editions_needs_the_edition_option(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "compare", f"{run}:mean", f"{run}:best", f"{run}/scores/best.npy", "--edition", "2022")
    figure = json.loads(Path(run, "result.json").read_text())["rank"]["mean"]["mAP@10"]
    assert shown.splitlines()[0] == f"{figure:.4f}  {run}:mean"
    assert main(["compare", f"{run}:last", f"{run}:best"]) == 1
    said = capsys.readouterr().err
    assert f"the files have different editions ({run}:last: 2025, {run}:best: 2022); add --edition YEAR" in said


def test_score_matrices_of_a_run_record_the_edition_of_their_rank_entry(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = {name: edition_in_facts(read_scores(Path(run, f"scores/{name}.npy"))) for name in ("last", "best", "mean")}
    assert noted == {"last": "2025", "best": "2022", "mean": "2022"}
    assert output(capsys, "score", f"{run}/scores/mean.npy") == output(capsys, "score", f"{run}:mean")
    apart = ["blend", f"{run}/scores/last.npy", f"{run}/scores/best.npy", "--out", "apart.npy"]
    output(capsys, *apart)
    assert edition_in_facts(read_scores(Path("apart.npy"))) is None


def test_edition_of_a_blended_score_matrix_without_listed_sources_is_unknown() -> None:
    assert edition_in_facts(small_matrix(facts={"of": {}})) is None


def written(folder: Path, editions: Mapping[str, str]) -> str:
    """CSVs of the small pool, each of an edition, and their captions; returns the captions' path."""
    for name, edition in editions.items():
        write = write_ranked_csv if EDITIONS[edition].output == "ranked" else write_matrix_csv
        write(small_matrix(), folder / name, EDITIONS[edition])
    return str(write_truth(folder))


def test_csv_that_fits_two_editions_is_comparable_with_matrices_of_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    compared = ["compare", "of24.csv", "s.npy", "--truth", written(tmp_path, {"of24.csv": "2024"})]
    for edition in ("2023", "2024"):
        write_scores(tmp_path / "s.npy", small_matrix(facts={"edition": edition}))
        output(capsys, *compared)
    for facts in ({"edition": "2022"}, {}):
        write_scores(tmp_path / "s.npy", small_matrix(facts=facts))
        assert main(compared) == 1
        assert "; add --edition 2023 or --edition 2024\n" in capsys.readouterr().err
        output(capsys, *compared, "--edition", "2024")
