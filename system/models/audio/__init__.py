"""List of audio encoders.

To add an audio encoder, write a file in this folder, and import it here. Never imports torch.
"""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.models.audio.atst_frame import AtstFrame as AtstFrame
from system.models.audio.base import AudioSettings
from system.models.audio.beats import Beats as Beats
from system.models.audio.crnn import Crnn as Crnn
from system.models.audio.crnn import Gru as Gru
from system.models.audio.eat import Eat as Eat
from system.models.audio.efficientat import EfficientAT as EfficientAT
from system.models.audio.embeddings import AudioEmbeddings as AudioEmbeddings
from system.models.audio.heads import ExpertHeads as ExpertHeads
from system.models.audio.heads import FrameTransformer as FrameTransformer
from system.models.audio.heads import PooledMlp as PooledMlp
from system.models.audio.hub_frames import HubFrames as HubFrames
from system.models.audio.hugging_face import HuggingFace as HuggingFace
from system.models.audio.m2d import M2d as M2d
from system.models.audio.m2d import M2dClap as M2dClap
from system.models.audio.panns import Panns as Panns
from system.models.audio.passt import Passt as Passt

if TYPE_CHECKING:
    Audio = AudioSettings
else:
    Audio = closed_list(globals(), AudioSettings)
