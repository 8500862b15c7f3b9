"""The walkthrough of data_tools/README.md runs as written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import blocks

from data_tools.manifest import read_manifest


@pytest.mark.slow
def test_commands_of_the_freesound_guide_run_as_written(root, tmp_path):
    section = (root / "data_tools/README.md").read_text().partition("# More data from Freesound")[2]
    script = blocks(section, "sh")[0]
    assert script.count("lbar data") == 8
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(root)}
    done = subprocess.run(
        ["bash", "-e", "-m", "-c", script], cwd=tmp_path, env=os.environ | path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    clips = read_manifest(tmp_path / "data/walk/audio/manifest.jsonl")
    assert 50 < len(clips) <= 100
    assert all(Path(clip.path).is_file() for clip in clips)
