"""List of scores.

The closed list of scores of clips against captions. Never imports torch.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from data_tools.documents.strict import Strict, closed_list

if TYPE_CHECKING:
    import torch

    from system.models.embeddings import Embeddings


class ScoreSettings(Strict):
    """Settings of a score.

    of_series: Whether it reads a clip's series of frames, instead of one vector. of_words: Whether it reads a caption's
    series of words. unit_length: Whether it depends only on the directions of the embeddings. finds_moments: Whether
    it is trained on moments. meaning: Explanation of a score for readers.
    """

    kind: str

    of_series: ClassVar[bool] = False
    of_words: ClassVar[bool] = False
    unit_length: ClassVar[bool] = True
    finds_moments: ClassVar[bool] = False
    meaning: ClassVar[str]

    @abstractmethod
    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that scores B clips against N captions: (B, N) scores; higher is better.

        dim: Size of embeddings.
        """


class Cosine(ScoreSettings):
    """Cosine of a clip's and a caption's embedding."""

    kind: Literal["cosine"]

    meaning: ClassVar[str] = "the cosine of the embeddings of a query and a clip, from -1 to 1"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that computes cosines."""
        from system.models.cosine import cosine

        return cosine


class FrameWord(ScoreSettings):
    """Dot products of all frames of a clip and all words of a caption, clamped at 0, and reduced to one score. `mean`:
    mean of all. `best_frame`: every word's best frame, averaged over words. `best_word`: every frame's best word,
    averaged over frames.

    Source: Xie et al., "Unsupervised Audio-Caption Aligning Learns Correspondences between Individual Sound Events and
    Textual Phrases" (2022), and "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), which uses `mean`.
    """

    kind: Literal["frame_word"]
    reduce: Literal["mean", "best_frame", "best_word"]  # how the dot products of all frames and words become one score

    of_series: ClassVar[bool] = True
    of_words: ClassVar[bool] = True
    meaning: ClassVar[str] = "similarity of the frames of a clip and the words of a query (dot products), at least 0"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that scores frames against words."""
        from system.models.frame_word import frame_word

        return partial(frame_word, reduce=self.reduce)


class Moments(ScoreSettings):
    """Whether, and when, a sentence is heard. The score of a frame is scale x cosine(frame, sentence) + offset. All
    frames are labelled `none` or `moment`. The weight of a labelling is the sum of its moments' frame scores, and of
    one number each time a moment is entered or left. The score of a clip is the log odds that there is any moment.
    Scale, offset and the two numbers are trained.

    Source: see system/moments/two_state.py.
    """

    kind: Literal["moments"]

    of_series: ClassVar[bool] = True
    finds_moments: ClassVar[bool] = True
    meaning: ClassVar[str] = "the log odds that the query is heard anywhere in the clip"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the trainable score of moments."""
        from system.models.moment_score import MomentScore

        return MomentScore()


class BoundaryMoments(ScoreSettings):
    """Whether, and when, a sentence is heard, as `moments`, with learned boundaries. The weights of entering and of
    leaving a moment depend on the frames and the sentence: a number + 5 r cosine(u, sentence). Both vectors u are
    halves of W [x_t - x_(t-1) ; x_t + x_(t-1)] + b, of the frames x before and after the step. W, b and r are trained.

    Source: ours; weights that depend on the input, as in any conditional random field (system/moments/two_state.py).
    """

    kind: Literal["boundary_moments"]

    of_series: ClassVar[bool] = True
    finds_moments: ClassVar[bool] = True
    meaning: ClassVar[str] = Moments.meaning

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the trainable score of moments."""
        from system.models.boundary_score import BoundaryScore

        return BoundaryScore(dim)


class DotProduct(ScoreSettings):
    """Scale x dot product + offset of a clip's and a caption's embedding, which do not have unit length: PE-AV's logit.
    Scale and offset are those of the text encoder's published model.

    Source: PeAudioModel of transformers. The probability of a match is the sigmoid of the score.
    """

    kind: Literal["dot_product"]

    unit_length: ClassVar[bool] = False
    meaning: ClassVar[str] = "the logit that the query describes the clip; 0 means a probability of one half"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the score with its numbers."""
        from system.models.dot_product import DotProduct

        return DotProduct()


class FrameDotProducts(ScoreSettings):
    """Scale x dot product + offset of every frame of a clip and a caption: PE-A-Frame's logits. The score of a clip is
    its highest logit. Scale and offset are those of the text encoder's published model.

    Source: PeAudioFrameLevelModel of transformers. The score of whole clips is ours; the model's authors have none.
    """

    kind: Literal["frame_dot_products"]

    of_series: ClassVar[bool] = True
    unit_length: ClassVar[bool] = False
    meaning: ClassVar[str] = "the logit of the clip's best frame; 0 means a probability of one half"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the score with its numbers."""
        from system.models.dot_product import FrameDotProducts

        return FrameDotProducts()


def layer_parameters(score: "Callable[[Embeddings, Embeddings], torch.Tensor]") -> dict[str, int]:
    """Count the weights of a built score's trained layers, by the name `score`; an empty dict without layers.

    Single numbers, such as a scale, are not counted.
    """
    from torch import nn

    weights = score.parameters() if isinstance(score, nn.Module) else ()
    count = sum(one.numel() for one in weights if one.dim() > 0)
    return {"score": count} if count else {}


if TYPE_CHECKING:
    Score = ScoreSettings
else:
    Score = closed_list(globals(), ScoreSettings)
