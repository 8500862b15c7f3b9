"""The recipe for features of other programs, on made features in the organisers' formats."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from system.__main__ import main


@pytest.mark.slow
def test_recipe_for_own_features_learns_when_a_query_is_heard(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames hold the query's vector while it is heard; the baseline's names of files, sizes and arrays."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    sounds = draw.standard_normal((6, 768)).astype(np.float32)
    folder = tmp_path / "data/castella"
    for name in ("clap", "clap_text"):
        (folder / name).mkdir(parents=True)
    qid = 0
    for split, count in (("train", 96), ("val", 12), ("test", 12)):
        lines = []
        for number in range(count):
            sound, start, length = draw.integers(6), int(draw.integers(20)), int(draw.integers(4, 10))
            frames = 0.3 * draw.standard_normal((30, 768)).astype(np.float32)
            frames[start : start + length] += sounds[sound]
            np.savez(folder / f"clap/{split}{number}.npz", features=frames)
            np.savez(folder / f"clap_text/qid{qid}.npz", last_hidden_state=np.stack([sounds[sound]] * 3))
            line = {"qid": qid, "query": f"sound {sound} of {qid}", "vid": f"{split}{number}", "duration": 30}
            lines.append(line | {"relevant_windows": [[start, start + length]]})
            qid += 1
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"castella_{split}_release.jsonl").write_text(text)
    shorter = ["stages.train.epochs=4", "stages.train.schedule.warmup_steps=6", "stages.train.optimizer.lr=1e-3"]
    recipe = str(root / "recipes/moments2026/own_features.yaml")
    assert main(["run", recipe, "--name", "own", *(part for one in shorter for part in ("--set", one))]) == 0
    found = re.search(r"R1@0\.7 +([\d.]+) %", capsys.readouterr().out)
    assert found
    assert float(found[1]) >= 50
