"""A recipe that ranks seven clips in the edition `custom`: planned, run, ranked again and reported."""

from pathlib import Path

import pytest
import tiny

from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main


def test_custom_edition_with_seven_clips_works_in_all_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tiny.make_world(tmp_path / "tones", {"development": 12, "validation": 4, "evaluation": 7})
    content = tiny.recipe(world, tmp_path, only=tiny.stage(epochs=1, steps_per_epoch=1))
    strict = tiny.write_recipe(tmp_path / "strict.yaml", content)
    assert main(["check", str(strict)]) == 1
    assert "a ranked CSV needs 10 clips, not 7" in capsys.readouterr().out
    content["rank"]["evaluation"]["edition"] = "custom"
    recipe, run = tiny.write_recipe(tmp_path / "r.yaml", content), tmp_path / "run"
    assert main(["check", str(recipe)]) == 0
    assert main(["run", str(recipe), "--out", str(run)]) == 0
    assert len((run / "submission/evaluation.csv").read_text().splitlines()[0].split(",")) == 8
    assert submission(["check", str(run / "submission/evaluation.csv"), "--edition", "custom"]) == 0
    argv = ["rank", str(run), str(world), "--split", "evaluation", "--out", str(tmp_path / "s.npy")]
    assert main(argv) == 0
    assert read_scores(tmp_path / "s.npy").values.shape == (35, 7)
    assert submission(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "R@10, mAP@10, mAP@16: only 7 clips are ranked" in page
