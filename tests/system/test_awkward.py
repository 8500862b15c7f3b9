"""Orders, keys and limits that show only where recordings, processes and settings differ (helpers/awkward.py)."""

import awkward
import pytest
import tiny
import torch
import torch.nn.functional as F

from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.models import batch as embeddings
from system.models.batch import Embedded, Ragged
from system.models.scores import MomentScore, cosines_of_queries


def test_scores_in_a_batch_of_mixed_lengths_use_the_frames_of_each_recording():
    score, clips, captions = MomentScore(), awkward.recordings(), awkward.sentences()
    with torch.inference_mode():
        together = score(clips, captions)
        for number in range(len(awkward.LENGTHS)):
            assert torch.allclose(together[number : number + 1], score(clips.rows([number]), captions), atol=1e-5)
    clips, captions = awkward.recordings(), awkward.sentences()
    frames = clips.values.split(list(awkward.LENGTHS))
    found = cosines_of_queries(MomentScore(), clips, awkward.CLIP_OF, captions)
    for query, number in enumerate(awkward.CLIP_OF):
        assert torch.allclose(found[query], F.cosine_similarity(frames[number], captions.values[query], -1), atol=1e-6)


def test_very_low_moment_scores_keep_their_order():
    """Z - 1 is e^score for one frame, so that the log odds equal the score."""
    score = MomentScore()
    clips, captions = Ragged([torch.ones(1, 2)]), Embedded(torch.ones(1, 2))
    with torch.inference_mode():
        for name in ("enter", "leave", "offset"):
            getattr(score, name).fill_(0.0)
        for wanted in (-14.5, -15.0):
            score.scale.fill_(wanted)
            assert float(score(clips, captions)) == pytest.approx(wanted, abs=0.15)


def test_series_are_padded_in_blocks_that_stay_within_the_limit_of_padded_values(monkeypatch):
    clips = awkward.recordings()
    for bound in (3 * awkward.DIM, 10 * awkward.DIM, 15 * awkward.DIM, 30 * awkward.DIM):
        monkeypatch.setattr(embeddings, "MAX_PADDED", bound)
        parts = list(clips.padded_parts())
        assert sorted(place for places, _ in parts for place in places) == [0, 1, 2, 3]
        assert all(part.values.numel() <= bound or len(places) == 1 for places, part in parts)


def test_custom_edition_with_seven_clips_works_in_all_verbs(tmp_path, capsys):
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
