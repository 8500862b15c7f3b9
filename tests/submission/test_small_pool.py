"""Pools with fewer clips than a list has names: `custom` lists all of them, the years refuse them."""

from dataclasses import replace
from pathlib import Path

import pytest
from ranked import small_matrix

from submission.__main__ import main
from submission.editions import get_edition
from submission.errors import SubmissionError
from submission.formats.ranked_csv import write_ranked_csv
from submission.formats.score_matrix import ScoreMatrix, write_scores
from submission.metrics.scoring import ranks_in_matrix
from submission.metrics.summary import summarise

CUSTOM = ["--edition", "custom"]


def matrix_of(clips: int) -> ScoreMatrix:
    """The first clips of ranked.py's pool, and their queries."""
    matrix, n = small_matrix(), 2 * clips
    return replace(
        matrix,
        values=matrix.values[:n, :clips],
        query_ids=matrix.query_ids[:n],
        query_texts=matrix.query_texts[:n],
        clip_ids=matrix.clip_ids[:clips],
        file_names=matrix.file_names[:clips],
        relevant=matrix.relevant[:n],
    )


def test_metrics_at_10_in_a_pool_of_7_clips_equal_metrics_at_7() -> None:
    found = ranks_in_matrix(matrix_of(7))
    values = summarise(found, recall_ks=(7, 10), map_ks=(10, 7)).values
    assert values["mAP@10"] == values["mAP@7"] < 1
    assert values["R@10"] == values["R@7"] == 1


def test_ranked_csv_of_a_small_pool_with_a_missing_column_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, out = tmp_path / "s.npy", tmp_path / "s.csv"
    write_scores(scores, matrix_of(7))
    assert main(["write", str(scores), "--out", str(out), *CUSTOM]) == 0
    lines = out.read_text(encoding="utf-8").splitlines()
    out.write_text("\n".join([lines[0].rpartition(",")[0], *lines[1:]]) + "\n", encoding="utf-8")
    assert main(["check", str(out), "--scores", str(scores), *CUSTOM]) == 1
    assert "found 7 of 8 columns; the header of edition custom is query,file_name_1,...,file_name_7" in (
        capsys.readouterr().out
    )
    assert main(["check", str(out), *CUSTOM]) == 1
    assert "found 8 of 7 columns: a row needs one query and 6 file names" in capsys.readouterr().out


@pytest.mark.parametrize("year", ["2022", "2023", "2024"])
def test_yearly_editions_refuse_small_pools(tmp_path: Path, year: str) -> None:
    with pytest.raises(
        SubmissionError, match=rf"the pool has 7 clips, but a row of edition {year} lists 10 clips; rank a"
    ):
        write_ranked_csv(matrix_of(7), tmp_path / "x.csv", get_edition(year))
    assert get_edition(year).for_pool(7) == get_edition(year)
    assert get_edition("custom").for_pool(12) == get_edition("custom")
