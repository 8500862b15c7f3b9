"""The printed form of a plan: sections, problems by kind, counts."""

from system.plan.lines import MISSING, MISTAKE, WARNING, Problem, Row, problem_summary, section_lines


def test_values_of_a_plan_section_are_aligned_and_warnings_are_counted() -> None:
    rows = [Row("data", "train", "a.jsonl"), Row("stages", "only", "4 updates"), Row("data", "test", "b.jsonl")]
    assert list(section_lines(rows)) == ["data", "  train  a.jsonl", "  test   b.jsonl", "stages", "  only  4 updates"]
    warnings = list(problem_summary([Problem(WARNING, "stage only", "too large")]))
    assert warnings == ["to fix", "  WARNING  stage only: too large", "1 WARNING", "nothing is missing"]


def test_plan_problems_are_ordered_by_kind_and_equal_messages_share_one_line() -> None:
    problems = [
        Problem(WARNING, "stage a", "too large"),
        Problem(MISTAKE, "rank b", "set csv: false"),
        Problem(MISSING, "x.wav", "fetch it"),
        Problem(MISSING, "y.wav", "fetch it"),
        Problem(MISSING, "x.wav", "fetch it"),
    ]
    assert list(problem_summary(problems)) == [
        "to fix",
        "  MISSING  x.wav, y.wav: fetch it",
        "  MISTAKE  rank b: set csv: false",
        "  WARNING  stage a: too large",
        "1 MISSING, 1 MISTAKE, 1 WARNING",
    ]


def test_plan_without_problems_prints_that_nothing_is_missing() -> None:
    assert list(problem_summary([])) == ["nothing is missing"]
