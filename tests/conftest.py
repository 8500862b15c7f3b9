"""What every test may ask for. Fast tests: `python -m pytest`; slow ones: `python -m pytest -m slow`."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real captions, submissions, recordings and goldens; LBAR_SHARED names it.

    Without it the test skips, or fails where LBAR_REQUIRE_DATA is set.
    """
    folder = Path(os.environ.get("LBAR_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        told = f"needs real data: no folder {folder}/data (set LBAR_SHARED)"
        pytest.fail(told) if os.environ.get("LBAR_REQUIRE_DATA") else pytest.skip(told)
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
