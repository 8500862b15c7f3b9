"""Parameters of tests, some of them only in the slow suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(values: Iterable[Any], count: int) -> list[Any]:
    """Return `values` as parameters, and mark all but the first `count` as slow. A tuple has several values."""
    listed = list(values)
    several = [one if isinstance(one, tuple) else (one,) for one in listed[count:]]
    return [*listed[:count], *(pytest.param(*one, marks=pytest.mark.slow) for one in several)]
