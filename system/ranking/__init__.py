"""List of rankers.

List of all kinds of rank entries. To add a kind, write its file in this folder and import it here. Never imports torch.
"""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.ranking.base import RankEntry
from system.ranking.checkpoint import RankBlind as RankBlind
from system.ranking.checkpoint import RankByCheckpoint as RankByCheckpoint
from system.ranking.hub_corrected import RankHubCorrected as RankHubCorrected
from system.ranking.mean import RankByMean as RankByMean
from system.ranking.moments import RankMoments as RankMoments
from system.ranking.teachers import RankByTeachers as RankByTeachers

if TYPE_CHECKING:
    Ranked = RankEntry
else:
    Ranked = closed_list(globals(), RankEntry)
