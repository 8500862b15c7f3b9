"""What every test may ask for. Fast tests: `python -m pytest`; slow ones: `python -m pytest -m slow`."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real captions, submissions, recordings and goldens; LBAR_SHARED names it."""
    folder = Path(os.environ.get("LBAR_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"needs real data: no folder {folder}/data (set LBAR_SHARED)")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
