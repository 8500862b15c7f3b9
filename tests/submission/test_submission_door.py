"""The command line of submission: every verb from files to files, and every refusal."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ranked import good_lines, small_matrix

from submission.__main__ import main
from submission.formats.score_matrix import write_scores
from submission.metrics import retrieval as metrics


def split_lines(text: str, begin: str) -> tuple[list[str], list[str]]:
    """Return the lines that begin with a word, and the other lines."""
    lines = text.splitlines()
    return [line for line in lines if line.startswith(begin)], [line for line in lines if not line.startswith(begin)]


def test_verbs_write_check_and_score_a_submission(
    tmp_path: Path, truth_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    scores, out, truth = str(tmp_path / "s.npy"), str(tmp_path / "out.csv"), str(truth_path)
    assert main(["write", scores, "--edition", "2022", "--out", out]) == 0
    assert capsys.readouterr().out == f"wrote {out}: 24 queries x 10 file names\n"
    for against in ([], ["--truth", truth], ["--scores", scores]):
        assert main(["check", out, "--edition", "2022", *against]) == 0
        good, _, note = capsys.readouterr().out.partition("\n")
        assert good == "ok: 24 queries x 10 file names"
        assert note.startswith("note: the queries and file names were not compared with a truth") == (against == [])
    assert main(["score", out, "--truth", truth]) == 0
    from_csv = capsys.readouterr().out.splitlines()
    assert main(["score", scores, "--edition", "2022"]) == 0
    (hubs,), from_matrix = split_lines(capsys.readouterr().out, "hubs")
    assert "skewness of the number of queries" in hubs
    assert len(from_csv) == len(from_matrix) > 6
    # Only the matrix knows ranks beyond the tenth.
    differing = {line.split()[0] for line, other in zip(from_csv, from_matrix, strict=True) if line != other}
    assert differing <= {"median"}
    assert "queries 24" in from_csv
    assert any(line.startswith(f"chance  {metrics.chance(12):.4f} ") for line in from_csv)


def test_check_lists_problems_of_a_file_that_score_refuses(
    tmp_path: Path, truth_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = good_lines(tmp_path)
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"".join([*lines[:3], b"new\n", *lines[5:]]))
    assert main(["check", str(bad), "--edition", "2022", "--truth", str(truth_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "line 4: unknown query 'new'",
        "line 4: found 1 of 11 columns: a row needs one query and 10 file names",
        "whole file: no row for the query 'Sound 1, near' (line 3 of captions.csv)",
        "whole file: no row for the query 'Sound 1 far' (line 3 of captions.csv)",
    ]
    assert shown.err == f"error: {bad}: the file has 4 problems, listed above; a row has the number of its first line\n"
    assert main(["score", str(bad), "--truth", str(truth_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(rf"error: {bad}: line 4: .*'new' \(and 3 more.*`check`.*\n", shown.err)


@pytest.mark.parametrize(
    "arguments",
    [[], ["rank"], ["check"], ["write", "s.npy"], ["check", "a", "--truth", "b", "--scores", "c"],
     ["check", "a", "--truth", "b", "--queries", "c"], ["a.csv"]],
)  # fmt: skip
def test_wrong_usage_of_submission_exits_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "usage: lbar submit" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["write", "check", "score"])
def test_help_of_every_submission_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"example:\n  lbar submit {verb} " in shown
    assert "--edition YEAR" in shown


def run(root: Path, code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=root, env={**os.environ, **environment}, capture_output=True, timeout=60)


def test_checking_and_scoring_a_csv_import_only_numpy(
    root: Path, baseline: Path, clotho: Callable[[str], Path]
) -> None:
    code = (
        "import sys; from submission.__main__ import main; code = main(sys.argv[1:])\n"
        "print({'torch', 'pandas', 'scipy', 'pydantic', 'system'} & set(sys.modules), code)"
    )
    done = run(root, code, "check", baseline, "--edition", "2022", "--truth", clotho("evaluation"))
    assert done.stdout.decode() == "ok: 5225 queries x 10 file names\nset() 0\n"
    done = run(root, code, "score", baseline, "--truth", clotho("evaluation"))
    shown = done.stdout.decode()
    for line in ("R@1     0.0316", "R@5     0.1095", "R@10    0.1883", "mAP@10  0.0679", "95 %    0.0626 to 0.0732"):
        assert line in shown
    assert shown.endswith("set() 0\n")
    assert done.stderr == b""


def test_full_disk_prints_one_line_and_keeps_the_old_submission(root: Path, tmp_path: Path) -> None:
    write_scores(tmp_path / "s.npy", small_matrix())
    (tmp_path / "out.csv").write_text(old := "index,a.wav\n")
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))\n"
    door = "from submission.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run(
        root, limit + door, "write", tmp_path / "s.npy", "--out", tmp_path / "out.csv", "--edition", "2022", "--force"
    )
    assert (done.returncode, done.stderr.decode()) == (1, f"error: {tmp_path / 'out.csv'}: File too large\n")
    assert (tmp_path / "out.csv").read_text() == old
    done = run(root, limit + door, "write", tmp_path / "s.npy", "--out", tmp_path / "out.csv", "--edition", "2025")
    assert (done.returncode, done.stderr.decode()) == (1, f"error: {tmp_path / 'out.csv'}: File too large\n")
    assert (tmp_path / "out.csv").read_text() == old
    copy = (
        "from pathlib import Path; from submission.formats.score_matrix import read_scores, write_scores\n"
        "matrix = read_scores(Path(sys.argv[1]))\n"
        "try: write_scores(Path(sys.argv[2]), matrix)\n"
        "except OSError as error: print(error.filename)"
    )
    done = run(root, limit + copy, tmp_path / "s.npy", tmp_path / "copy.npy")
    assert done.stdout.decode() == f"{tmp_path / 'copy.npy'}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "s.json", "s.npy"]
