"""data_tools and submission work in a new environment without torch."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_data_tools_and_submission_work_without_torch(root, shared, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", root], check=True, capture_output=True)

    def run(*arguments: object) -> str:
        done = subprocess.run([python, "-m", *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    packages = run("pip", "list")
    assert "lbar-kit" in packages
    assert "torch" not in packages
    captions = shared / "data/clotho/clotho_captions_evaluation.csv"
    text = run("submission", "score", shared / "data/dcase2022_baseline/test.output.csv", "--truth", captions)
    for metric, value in (("R@1", "0.0316"), ("R@5", "0.1095"), ("R@10", "0.1883"), ("mAP@10", "0.0679")):
        assert f"{metric} {value}" in " ".join(text.split())
    run("data_tools", "scenes", "scenes", "--seed", 1, "--development", 5, "--validation", 5, "--evaluation", 5)
    run("data_tools", "check", "scenes/manifest.jsonl")
    run("data_tools", "clotho", "scenes", "--out", "again.jsonl")
    commands = ("crawl sounds.sqlite", "status sounds.sqlite")
    assert "sounds stored" in run("data_tools", "sandbox", "--port", 0, "--sounds", 30, *commands)
    run("system", "--help")
