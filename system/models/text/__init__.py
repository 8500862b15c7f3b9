"""The text encoders. To add one, write its file here and import it below."""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.models.text.encoder import TextSettings
from system.models.text.given import TextEmbeddings as TextEmbeddings
from system.models.text.joint import Clap as Clap
from system.models.text.joint import PeAudioText as PeAudioText
from system.models.text.published import Published as Published
from system.models.text.small import Transformer as Transformer
from system.models.text.words import WordVectors as WordVectors

if TYPE_CHECKING:
    Text = TextSettings
else:
    Text = closed_list(globals(), TextSettings)
