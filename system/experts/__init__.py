"""List of experts.

To add one, add a file in this folder and import it here. Never imports torch.
"""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.experts.atst_frame import AtstFrameExpert as AtstFrameExpert
from system.experts.base import ExpertSettings
from system.experts.beats import BeatsExpert as BeatsExpert
from system.experts.eat import EatExpert as EatExpert
from system.experts.efficientat import EfficientATExpert as EfficientATExpert
from system.experts.feature_files import FeatureFiles as FeatureFiles
from system.experts.hugging_face import HuggingFaceExpert as HuggingFaceExpert
from system.experts.logmel import LogMel as LogMel
from system.experts.logmel import LogMelSlaney as LogMelSlaney
from system.experts.m2d import M2dClapExpert as M2dClapExpert
from system.experts.m2d import M2dExpert as M2dExpert
from system.experts.openl3 import OpenL3 as OpenL3
from system.experts.panns import PannsCnn14 as PannsCnn14
from system.experts.panns import PannsResNet38 as PannsResNet38
from system.experts.passt import PasstExpert as PasstExpert
from system.experts.vggish import Vggish as Vggish
from system.experts.vggsound import VggSound as VggSound
from system.experts.waveform import Waveform as Waveform
from system.experts.yamnet import Yamnet as Yamnet

if TYPE_CHECKING:
    Expert = ExpertSettings
else:
    Expert = closed_list(globals(), ExpertSettings)
