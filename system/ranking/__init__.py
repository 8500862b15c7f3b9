"""Kinds of rank entries.

A new one is a class in entries.py, or a file in this folder and its import here.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.ranking.entries import RankEntry

Ranked: TypeAlias = Annotated[SerializeAsAny[RankEntry], BeforeValidator(by_kind(RankEntry))]
