"""The recipe for features of other programs, on made features in the organisers' formats."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from data_tools.__main__ import main as data_tools
from system.__main__ import main


@pytest.mark.slow
def test_recipe_for_own_features_learns_when_a_query_is_heard(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
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

    blind = tmp_path / "data/blind"
    for name in ("clap", "clap_text"):
        (blind / name).mkdir(parents=True)
    lines = []
    for number, sound in enumerate(draw.integers(6, size=4)):
        frames = 0.3 * draw.standard_normal((30, 768)).astype(np.float32)
        frames[5:15] += sounds[sound]
        np.savez(blind / f"clap/blind{number}.npz", features=frames)
        np.savez(blind / f"clap_text/qid{number}.npz", last_hidden_state=np.stack([sounds[sound]] * 3))
        lines.append({"qid": number, "query": f"unknown {number}", "vid": f"blind{number}", "duration": 30})
    (blind / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["--out", "data/blind/manifest.jsonl", "--moments", "data/blind/moments.jsonl"]
    assert data_tools(["castella", "data/blind", "--features", "data/blind/clap", *files]) == 0
    content = yaml.safe_load(Path(recipe).read_text())
    content["data"]["blind"] = {"manifest": files[1], "moments": files[3], "split": "blind"}
    content["model"]["text"] |= {"blind_files": ["data/blind/clap_text"], "blind_queries": ["data/blind/list.jsonl"]}
    content["rank"]["blind"] = content["rank"]["evaluation"] | {"data": "blind"}
    Path("with_blind.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    weights = sorted(Path("runs/own/train").glob("*.safetensors"))
    stamps = [path.stat().st_mtime_ns for path in weights]
    again = ["run", "with_blind.yaml", "--name", "own", *(part for one in shorter for part in ("--set", one))]
    assert main(again) == 0
    assert [path.stat().st_mtime_ns for path in weights] == stamps, "nothing is trained again"
    found_windows = [json.loads(line) for line in Path("runs/own/scores/blind.windows.jsonl").read_text().splitlines()]
    assert [str(line["qid"]) for line in found_windows] == list("0123")
    assert sum(abs(line["pred_relevant_windows"][0][0] - 5) <= 1 for line in found_windows) >= 3
    assert main(again) == 0
    assert "finished already" in caplog.text
    np.savez(blind / "clap_text/qid0.npz", last_hidden_state=np.stack([sounds[0] + sounds[1]] * 3))
    caplog.clear()
    assert main(again) == 0
    assert "rank entries blind, without training" in caplog.text
