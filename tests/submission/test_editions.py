"""Editions: each year of the challenge is one record, with the sources of its facts."""

import dataclasses
from pathlib import Path

import pytest
from ranked import E2022, score_csv, small_matrix

from submission.editions import EDITIONS, Edition, format_metric, get_edition
from submission.errors import SubmissionError
from submission.formats.ranked_csv import write_ranked_csv


def test_edition_2022_has_published_columns_and_ranking_length_and_metric() -> None:
    edition = get_edition(2022)
    assert ",".join(edition.columns) == (
        "caption,file_name_1,file_name_2,file_name_3,file_name_4,file_name_5,"
        "file_name_6,file_name_7,file_name_8,file_name_9,file_name_10"
    )
    assert (edition.task, edition.ranking_length, edition.metric) == ("6b", 10, "mAP@10")
    with pytest.raises(SubmissionError, match="unknown"):
        get_edition(1999)


SURE = {"confirmed", "secondary", "inferred", "remembered"}


def test_every_fact_of_every_edition_has_a_source() -> None:
    facts = {field.name for field in dataclasses.fields(Edition)} - {"name", "sources"}
    for year, edition in EDITIONS.items():
        assert year == edition.name
        assert set(edition.sources) == facts
        assert {source.sure for source in edition.sources.values()} <= SURE
        assert all(source.where for source in edition.sources.values())


CONFIRMED = {  # facts read in the organisers' code or pages; all else was not
    "2022": "task output query_column rank_prefix ranking_length map_ks recall_ks systems abbreviation",
    "2023": "task map_ks recall_ks systems abbreviation",
    "2024": "task map_ks recall_ks systems abbreviation",
    "2025": "task query_column map_ks recall_ks systems abbreviation excluded",
    "custom": "",
}
EXCLUDED = {
    "2022": None,
    "2023": None,
    "2024": "dcase.community/documents/challenge2024/dcase2024_task6_excluded_freesound_ids.csv",
    "2025": "resources/dcase2025_task6_excluded_freesound_ids.csv of github.com/CPJKU/dcase2025_task6_baseline",
    "custom": None,
}


def test_each_edition_has_the_expected_confirmed_facts_and_exclusion_list() -> None:
    for year, edition in EDITIONS.items():
        found = {fact for fact, source in edition.sources.items() if source.sure == "confirmed"}
        assert found == set(CONFIRMED[year].split()), year
        assert edition.excluded == EXCLUDED[year]
    assert EDITIONS["2023"].sources["output"].sure == "secondary"


def test_new_edition_needs_only_one_record_in_the_code(tmp_path: Path, truth_path: Path) -> None:
    edition = dataclasses.replace(
        E2022, name="2030", query_column="query", rank_prefix="f_", ranking_length=3, recall_ks=(1, 3), map_ks=(3,)
    )
    write_ranked_csv(small_matrix(), tmp_path / "new.csv", edition)
    assert (tmp_path / "new.csv").read_bytes().startswith(b"query,f_1,f_2,f_3\n")
    summary = score_csv(tmp_path / "new.csv", truth_path, edition)
    assert list(summary.values) == ["R@1", "R@3", "mAP@3"]


@pytest.mark.parametrize(
    ("metric", "value", "sign", "text"),
    [("mAP@10", 0.73594, "", "0.7359"), ("R1@0.7", 0.66667, "", "66.67 %"), ("mAP", -0.0123, "+", "-1.23 %")],
)
def test_metrics_are_printed_in_the_unit_of_the_challenge(metric: str, value: float, sign: str, text: str) -> None:
    assert format_metric(metric, value, sign) == text
