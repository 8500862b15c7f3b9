"""Tables of studies, worked by hand."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from submission.formats.score_matrix import ScoreMatrix, write_scores
from submission.metrics.intervals import paired_difference
from system.experiments.tables import Figures, StudyRow, StudyTable, figures_of_run


def figures(*precisions: float, clips: int = 9) -> Figures:
    values = np.array(precisions)
    return Figures({"T2A mAP@10": values, "A2T HR@1": 1 - values}, np.arange(len(values)), clips)


FACTS: dict[str, float | None] = {"chance mAP@10": 0.1, "ceiling mAP@10": None}
GOOD = StudyRow("good_one", "evaluation", [figures(1, 0.5), figures(0.5, 0.5)], FACTS, [0.7, None])
BAD = StudyRow("bad", "evaluation", [figures(0.25, 0.25), figures(0.25, 0.25)], FACTS)
TABLE = StudyTable([BAD, GOOD], ["T2A mAP@10", "A2T HR@1"], percent=False)


def test_mean_and_deviation_and_bold_values_in_a_study_table_match_hand_values() -> None:
    lines = TABLE.markdown().splitlines()
    assert (
        lines[0]
        == "| cell | data | seeds | clips | T2A mAP@10 | A2T HR@1 | p of T2A mAP@10 | chance mAP@10 | ceiling mAP@10 |"
    )
    # Means of the seeds: .75 and .5; their deviation .25 / sqrt 2 x 1 = .1768. HR@1 is highest for the bad one, .75.
    assert lines[2].startswith("| bad | evaluation | 2 | 9 | 0.2500 ± 0.0000 | **0.7500 ± 0.0000** | ")
    assert lines[3] == "| good_one | evaluation | 2 | 9 | **0.6250 ± 0.1768** | 0.3750 ± 0.1768 | best | 0.1000 |  |"
    assert lines[4] == "| good_one, paper |  |  |  | 0.7 |  |  |  |  |"
    # Two queries, the better one better at both: 2 of 4 ways to flip them differ as much, give or take the draw.
    assert float(lines[2].split("|")[7]) == pytest.approx(0.5, abs=0.03)
    assert "A2T HR@k" in TABLE.markdown()
    assert "A2T R@k" not in TABLE.markdown()


def test_study_table_in_percent_has_one_decimal() -> None:
    assert StudyTable([GOOD], ["T2A mAP@10"], percent=True).markdown().splitlines()[2].split("|")[5:9] == [
        " 62.5 ± 17.7 ",
        " best ",
        " 10.0 ",
        "  ",
    ]


def test_study_table_with_audio_to_text_columns_also_has_text_to_audio_chance_columns() -> None:
    other = StudyRow("other", "evaluation", BAD.runs, {"chance mAP@16": 0.2})
    lines = StudyTable([GOOD, other], ["A2T HR@1"], percent=False).markdown().splitlines()
    assert lines[0].endswith("| p of T2A mAP@10 | chance mAP@10 | ceiling mAP@10 | chance mAP@16 |")
    assert lines[2].endswith("| best | 0.1000 |  |  |")
    assert lines[4].endswith("|  |  | 0.2000 |")


def test_study_table_marks_the_best_value_of_each_ranked_source() -> None:
    other = StudyRow("bad", "validation", [figures(0.1, 0.1)], FACTS)
    lines = StudyTable([BAD, GOOD, other], ["T2A mAP@10"], percent=False).markdown().splitlines()
    assert "**0.1000**" in lines[5]
    assert "best" in lines[5]


def test_study_table_has_validation_columns_before_test_columns() -> None:
    good = replace(GOOD, validation=[{"mAP@10": 0.5}, {"mAP@10": 0.25}], chosen_by="mAP@10")
    bad = replace(BAD, validation=[{"loss": -1.5, "mAP@10": 0.125}, {"loss": -2.5}], chosen_by="loss")
    table = StudyTable([bad, good], ["T2A mAP@10", "A2T HR@1"], percent=True)
    lines = table.markdown().splitlines()
    assert lines[0].startswith("| cell | data | seeds | clips | validation loss | validation mAP@10 | T2A mAP@10 |")
    assert lines[2].startswith("| bad | evaluation | 2 | 9 | -2.0000 ± 0.7071 |  | 25.0 ± 0.0 |")
    assert lines[3].startswith("| good_one | evaluation | 2 | 9 |  | 37.5 ± 17.7 | **62.5 ± 17.7** |")
    assert lines[4].startswith("| good_one, paper |  |  |  |  |  | 0.7 |")
    assert {len(line.split("|")) for line in lines[:5]} == {len(lines[0].split("|"))}
    assert "you choose on the test set" in table.markdown()
    assert "you choose on the test set" not in TABLE.markdown()
    assert "Beware" not in table.markdown()
    watched = StudyTable([replace(bad, monitors_test=True), good], ["T2A mAP@10"], percent=True).markdown()
    assert "\nBeware: the validation of bad uses a test split.\n" in watched
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert (rows[0]["validation loss mean"], rows[0]["validation mAP@10 mean"]) == ("-2.0", "")
    assert float(rows[1]["validation mAP@10 std"]) == pytest.approx(0.25 / np.sqrt(2))


def test_study_table_as_latex_is_escaped_and_has_rules() -> None:
    lines = TABLE.latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lcccccccc}"
    assert lines[1] == r"\toprule"
    assert r"good\_one & evaluation & 2 & 9 & \textbf{0.6250 $\pm$ 0.1768} &" in lines[5]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_study_table_as_csv_has_plain_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert [row["cell"] for row in rows] == ["bad", "good_one"]
    assert float(rows[1]["T2A mAP@10 mean"]) == pytest.approx(0.625)
    assert float(rows[1]["T2A mAP@10 std"]) == pytest.approx(0.25 / np.sqrt(2))
    assert (rows[1]["T2A mAP@10 paper"], rows[1]["A2T HR@1 paper"], rows[0]["T2A mAP@10 paper"]) == ("0.7", "", "")


def test_metrics_of_study_tables_match_hand_values(tmp_path) -> None:  # type: ignore[no-untyped-def]
    # Two captions a clip. Query 0 and 1 ask for a, 2 and 3 for b.
    values = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.5]], np.float32)
    ids = ["0", "1", "2", "3"]
    relevant: list[list[str] | None] = [["a"], ["a"], ["b"], ["b"]]
    write_scores(
        tmp_path / "s.npy", ScoreMatrix(ids, list("wxyz"), ["a", "b"], ["a.wav", "b.wav"], relevant, values=values)
    )
    found = figures_of_run(tmp_path / "s.npy").values
    assert found["T2A R@1"].tolist() == [1, 0, 1, 0]
    assert found["T2A mAP"].tolist() == found["T2A mAP@10"].tolist() == [1, 0.5, 1, 0.5]
    # Clip a ranks captions 0, 3, 2, 1: its own at 1 and 4. Clip b ranks 1, 2, 3, 0: its own at 2 and 3.
    assert found["A2T HR@1"].tolist() == [1, 0]
    assert found["A2T R@1"].tolist() == [0.5, 0]
    assert found["A2T pooled R@1"].tolist() == [0.25]
    assert found["A2T mAP"].tolist() == pytest.approx([(1 + 2 / 4) / 2, (1 / 2 + 2 / 3) / 2])


def test_p_value_averages_seeds_and_groups_captions_by_clip() -> None:
    """Six captions of two clips; the second seed turns the first one's difference round for the second clip."""
    groups = np.array([0, 0, 0, 1, 1, 1])

    def run(*values: float) -> Figures:
        return Figures({"T2A mAP@10": np.array(values)}, groups, 9)

    best = StudyRow("best", "evaluation", [run(1, 1, 1, 1, 1, 1), run(1, 1, 1, 0.5, 0.5, 0.5)], {})
    other = StudyRow("other", "evaluation", [run(0, 0, 0, 0.9, 0.9, 0.9), run(0, 0, 0, 0.5, 0.5, 0.5)], {})
    table = StudyTable([best, other], ["T2A mAP@10"], percent=False)
    assert best.per_query("T2A mAP@10").tolist() == [1, 1, 1, 0.75, 0.75, 0.75]
    expected = paired_difference(best.per_query("T2A mAP@10"), other.per_query("T2A mAP@10"), groups)
    assert table.format_p(other) == f"{expected.p:.4f}"
    assert float(table.format_p(other)) == pytest.approx(0.5, abs=0.03), (
        "two clips: two of four ways to flip, not of 64"
    )


def test_special_latex_characters_are_escaped() -> None:
    row = StudyRow("5%_more", "eval_set", [figures(1, 0.5)], {})
    assert r"5\%\_more & eval\_set" in StudyTable([row], ["T2A mAP@10"], percent=False).latex()
