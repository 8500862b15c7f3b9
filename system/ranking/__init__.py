"""Kinds of rank entries.

To add a kind, write its file in this folder and import it here.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.ranking.entries import RankBlind as RankBlind
from system.ranking.entries import RankByCheckpoint as RankByCheckpoint
from system.ranking.entries import RankByMean as RankByMean
from system.ranking.entries import RankByTeachers as RankByTeachers
from system.ranking.entries import RankEntry
from system.ranking.entries import RankHubCorrected as RankHubCorrected
from system.ranking.entries import RankMoments as RankMoments

Ranked: TypeAlias = Annotated[SerializeAsAny[RankEntry], BeforeValidator(by_kind(RankEntry))]
