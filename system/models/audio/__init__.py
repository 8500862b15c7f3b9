"""The audio encoders.

To add one, write its file here and import it below.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.models.audio.base import AudioSettings
from system.models.audio.crnn import Crnn as Crnn
from system.models.audio.crnn import Gru as Gru
from system.models.audio.heads import AudioEmbeddings as AudioEmbeddings
from system.models.audio.heads import ExpertHeads as ExpertHeads
from system.models.audio.heads import FrameTransformer as FrameTransformer
from system.models.audio.heads import PooledMlp as PooledMlp
from system.models.audio.segments import Segments as Segments

Audio: TypeAlias = Annotated[SerializeAsAny[AudioSettings], BeforeValidator(by_kind(AudioSettings))]
