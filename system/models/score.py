"""List of scores.

The closed list of scores of clips against captions. Never imports torch.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from data_tools.settings import Strict, closed_list

if TYPE_CHECKING:
    import torch

    from system.models.embeddings import Embeddings


class ScoreSettings(Strict):
    """Settings of a score.

    of_series: Whether the score needs one vector per frame of a clip, instead of one per clip. of_words: Whether it
    needs one vector per word of a caption. unit_length: Whether it depends only on the directions of the embeddings.
    finds_moments: Whether it is trained on moments. meaning: Explanation of a score for users.
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
        """Return the function that scores clips against captions by the cosines of their embeddings."""
        from system.models.cosine import cosine

        return cosine


class FrameWord(ScoreSettings):
    """Dot products of all frames of a clip and all words of a caption, clamped at 0, and reduced to one score. `mean`:
    the mean of all dot products. `best_frame`: the highest dot product of each word, averaged over words. `best_word`:
    the highest dot product of each frame, averaged over frames.

    Source: Xie et al., "Unsupervised Audio-Caption Aligning Learns Correspondences between Individual Sound Events and
    Textual Phrases" (2022), and "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), which uses `mean`.
    """

    kind: Literal["frame_word"]
    reduce: Literal["mean", "best_frame", "best_word"]  # how the dot products of all frames and words become one score

    of_series: ClassVar[bool] = True
    of_words: ClassVar[bool] = True
    meaning: ClassVar[str] = "similarity of the frames of a clip and the words of a query (dot products), at least 0"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that scores clips against captions by comparing their frames with words."""
        from system.models.frame_word import frame_word

        return partial(frame_word, reduce=self.reduce)


class Moments(ScoreSettings):
    """Whether, and when, a sentence is heard. The score of a frame is scale x cosine(frame, sentence) + offset. Each
    frame is labelled `none` or `moment`. A labelling of all frames has a weight: the sum of the scores of its `moment`
    frames, plus one number per start of a moment and another number per end. The score of a clip is the log odds that
    there is any moment. Scale, offset and the two numbers are trained.

    Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states.
    """

    kind: Literal["moments"]

    of_series: ClassVar[bool] = True
    finds_moments: ClassVar[bool] = True
    meaning: ClassVar[str] = "the log odds that the query is heard anywhere in the clip"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the trainable function that scores whether, and when, a sentence is heard in a clip."""
        from system.models.moment_score import MomentScore

        return MomentScore()


class BoundaryMoments(ScoreSettings):
    """Whether, and when, a sentence is heard: as `moments`, with learned boundaries. The weights of a moment's start
    and of its end depend on the frames and the sentence. Each is a trained number + 5 r cosine(u, sentence). At frame
    x_t, let y be W [x_t - x_(t-1) ; x_t + x_(t-1)] + b. The vector u is the first half of y for a moment that starts at
    this frame, and the second half for a moment that ends before it. W, b and r are trained.

    Source: ours; in any conditional random field, such weights may depend on the input.
    """

    kind: Literal["boundary_moments"]

    of_series: ClassVar[bool] = True
    finds_moments: ClassVar[bool] = True
    meaning: ClassVar[str] = Moments.meaning

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the trainable function that scores whether, and when, a sentence is heard, by learned boundaries."""
        from system.models.boundary_score import BoundaryScore

        return BoundaryScore(dim)


class DotProduct(ScoreSettings):
    """The logit of PE-AV: scale x (dot product of a clip's and a caption's embedding) + offset. The embeddings do not
    have unit length. Scale and offset come from the published model of the text encoder.

    Source: PeAudioModel of transformers. The probability of a match is the sigmoid of the score.
    """

    kind: Literal["dot_product"]

    unit_length: ClassVar[bool] = False
    meaning: ClassVar[str] = "the logit that the query describes the clip; 0 means a probability of one half"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that scores by scale x (dot product of the embeddings) + offset."""
        from system.models.dot_product import DotProduct

        return DotProduct()


class FrameDotProducts(ScoreSettings):
    """The logits of PE-A-Frame: scale x (dot product of a frame's and a caption's embedding) + offset. The score of a
    clip is its highest logit. Scale and offset come from the published model of the text encoder.

    Source: PeAudioFrameLevelModel of transformers. The score of whole clips is ours; the model's authors have none.
    """

    kind: Literal["frame_dot_products"]

    of_series: ClassVar[bool] = True
    unit_length: ClassVar[bool] = False
    meaning: ClassVar[str] = "the logit of the clip's best frame; 0 means a probability of one half"

    def build(self, dim: int) -> "Callable[[Embeddings, Embeddings], torch.Tensor]":
        """Return the function that scores by scale x (highest dot product of a clip's frames) + offset."""
        from system.models.dot_product import FrameDotProducts

        return FrameDotProducts()


def count_layer_parameters(score: "Callable[[Embeddings, Embeddings], torch.Tensor]") -> dict[str, int]:
    """Return {"score": number of weights in the score's layers}; an empty dict for a score without layers.

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
