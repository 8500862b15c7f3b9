"""List of loss terms.

A new one is a file in this folder and its import here. Never imports torch.
"""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.losses.base import Term
from system.losses.distill import Distill as Distill
from system.losses.frame_cross_entropy import FrameCrossEntropy as FrameCrossEntropy
from system.losses.hard_negative_nce import HardNegativeNce as HardNegativeNce
from system.losses.matching import Matching as Matching
from system.losses.nt_xent import NtXent as NtXent
from system.losses.ranking import Ranking as Ranking
from system.losses.sigmoid import Sigmoid as Sigmoid
from system.losses.two_state import TwoState as TwoState
from system.losses.weighted_triplet import WeightedTriplet as WeightedTriplet

if TYPE_CHECKING:
    Loss = Term
else:
    Loss = closed_list(globals(), Term)
