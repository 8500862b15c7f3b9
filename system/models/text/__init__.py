"""List of text encoders.

To add a text encoder, write a file in this folder, and import it here. Never imports torch.
"""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.models.text.base import TextSettings
from system.models.text.embedding_gemma import EmbeddingGemmaText as EmbeddingGemmaText
from system.models.text.embeddings import TextEmbeddings as TextEmbeddings
from system.models.text.feature_files import TextFeatureFiles as TextFeatureFiles
from system.models.text.pe_audio import PeAudioText as PeAudioText
from system.models.text.pretrained import Clap as Clap
from system.models.text.pretrained import FirstToken as FirstToken
from system.models.text.pretrained import LastToken as LastToken
from system.models.text.pretrained import MeanTokens as MeanTokens
from system.models.text.pretrained import SentenceTransformers as SentenceTransformers
from system.models.text.transformer import Transformer as Transformer
from system.models.text.word_vectors import WordVectors as WordVectors

if TYPE_CHECKING:
    Text = TextSettings
else:
    Text = closed_list(globals(), TextSettings)
