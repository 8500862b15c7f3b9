"""Scores of clips against captions."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data_tools.errors import KitError
from system.kinds import OfKind
from system.models.batch import Embedded, Embeddings, Ragged, unit_vectors
from system.moments.labellings import length_mask, log_partition

# B clips, N captions, T frames, W words, V different words, D embedding, R pairs of clip and caption

AT_ONCE = 1 << 24  # most products of frames and captions in memory at a time: 64 MiB in float32
IN_CACHE = 1 << 20  # values of frames that are compared with their queries at a time
SCALE, OFFSET, TRANSITION = 10.0, -3.0, -2.0  # initial values of a score of moments
STEPS = 5.0  # factor of the cosines of changes, in addition to the trained one

Scorer = Callable[[Embeddings, Embeddings], Tensor]


class ScoreSettings(OfKind):
    """Settings of a score."""

    of_series: ClassVar[bool] = False  # whether it needs one vector per frame of a clip
    of_words: ClassVar[bool] = False  # whether it needs one vector per word of a caption
    unit_length: ClassVar[bool] = True  # whether it depends only on directions
    finds_moments: ClassVar[bool] = False  # whether it is trained on moments
    meaning: ClassVar[str]  # for users

    @abstractmethod
    def build(self, dim: int) -> Scorer:
        """Build the function or module that scores clips.

        Returns:
            From clips and captions to scores (B, N); higher is better.
        """


class Cosine(ScoreSettings):
    """Cosine of a clip's and a caption's embedding."""

    kind: Literal["cosine"]

    meaning: ClassVar = "the cosine of the embeddings of a query and a clip, from -1 to 1"

    def build(self, dim: int) -> Scorer:
        return cosine


class FrameWord(ScoreSettings):
    """Mean of the dot products of all frames and words.

    Products below 0 count as 0.

    Source: "On Negative Sampling for Contrastive Audio-Text Retrieval" (2023), section 4.2. Deviation: padding never
    counts here, but in training some encoders declare padding as frames or words, as in the public code.
    """

    kind: Literal["frame_word"]

    of_series: ClassVar = True
    of_words: ClassVar = True
    meaning: ClassVar = "similarity of the frames of a clip and the words of a query (dot products), at least 0"

    def build(self, dim: int) -> Scorer:
        return frame_word


class DotProduct(ScoreSettings):
    """The logit of PE-AV, from a dot product.

    It is scale x (dot product of a clip's and a caption's embedding) + offset; both numbers are published with the text
    encoder. The probability of a match is its sigmoid.

    Source: PeAudioModel of transformers.
    """

    kind: Literal["dot_product"]

    unit_length: ClassVar = False
    meaning: ClassVar = "the logit that the query describes the clip; 0 means a probability of one half"

    def build(self, dim: int) -> Scorer:
        return ClipLogits()


class FrameDotProducts(ScoreSettings):
    """The highest logit of a clip's frames, for PE-A-Frame.

    A logit is scale x (dot product of a frame's and a caption's embedding) + offset; both numbers are published with
    the text encoder.

    Source: PeAudioFrameLevelModel of transformers. The score of whole clips is ours; the model's authors have none.
    """

    kind: Literal["frame_dot_products"]

    of_series: ClassVar = True
    unit_length: ClassVar = False
    meaning: ClassVar = "the logit of the clip's best frame; 0 means a probability of one half"

    def build(self, dim: int) -> Scorer:
        return FrameLogits()


class Moments(ScoreSettings):
    """Whether, and when, a sentence is heard.

    A frame's score is scale x cosine(frame, sentence) + offset. A labelling of all frames as `none` or `moment` has a
    weight: the scores of its `moment` frames, plus one number per start of a moment and one per end. The score of a
    clip is the log odds that there is a moment. The four numbers are trained.

    Source: a linear-chain conditional random field (Lafferty, McCallum and Pereira, 2001) of two states.
    """

    kind: Literal["moments"]

    of_series: ClassVar = True
    finds_moments: ClassVar = True
    meaning: ClassVar = "the log odds that the query is heard anywhere in the clip"

    def build(self, dim: int) -> Scorer:
        return MomentScore()


class BoundaryMoments(Moments):
    """As `moments`, with edges weighted by changes between frames.

    The weight of a start is a trained number + 5 r cosine(u, sentence), and that of an end the same with v. At frame
    x_t, [u ; v] is W [x_t - x_(t-1) ; x_t + x_(t-1)] + b; the start is at the frame, the end before it. W, b and r are
    trained.

    Source: ours; in any conditional random field, such weights may depend on the input.
    """

    kind: Literal["boundary_moments"]  # type: ignore[assignment]

    def build(self, dim: int) -> Scorer:
        return BoundaryScore(dim)


def cosine(clips: Embeddings, captions: Embeddings) -> Tensor:
    """Compute cosines (B, N); zeros have cosine 0."""
    return unit_vectors(clips) @ unit_vectors(captions).T


def frame_word(clips: Embeddings, captions: Embeddings) -> Tensor:
    """Compute the mean dot products of frames and words.

    At most AT_ONCE dot products are in memory at a time; the backward pass computes them again if there are more.

    Returns:
        (B, N); a series of length 0 scores 0.
    """
    vectors, counts = captions.values, _counts(captions)
    if isinstance(captions, Embedded):
        vectors = vectors[length_mask(counts, vectors.shape[1])]
    index = torch.arange(len(vectors), device=vectors.device)
    if not vectors.requires_grad:  # repeated words are compared once
        vectors, index = torch.unique(vectors, dim=0, return_inverse=True)
    starts = counts.cumsum(0) - counts
    return _by_parts(clips, lambda part: _word_means(part, vectors, index, starts))


def _by_parts(clips: Embeddings, score: Callable[[Embedded], Tensor]) -> Tensor:
    """Score clips; those without padding by groups of similar length."""
    if isinstance(clips, Embedded):
        return score(clips)
    found = {row: one for rows, part in clips.padded_parts() for row, one in zip(rows, score(part), strict=True)}
    return torch.stack([found[row] for row in range(clips.size)])


def _word_means(clips: Embedded, vectors: Tensor, index: Tensor, starts: Tensor) -> Tensor:
    """Average the words of each caption, (B, N).

    Args:
        vectors: (V, D) of different words.
        index: Place among `vectors` of every word of all captions.
        starts: (N,) first word of each caption.
    """
    lengths, longest = _counts(clips), clips.values.shape[1]
    frames = clips.values.masked_fill(~length_mask(lengths, longest)[..., None], 0.0)
    work: Callable[..., Tensor] = _product_sums
    if torch.is_grad_enabled() and len(vectors) * frames[..., 0].numel() > AT_ONCE:
        work = partial(checkpoint, work, use_reentrant=False, preserve_rng_state=False)
    some_words = vectors.split(max(1, AT_ONCE // max(1, longest)))
    some_clips = frames.split(max(1, AT_ONCE // max(1, longest * len(some_words[0]))))
    sums = torch.cat([torch.cat([work(clip, word) for clip in some_clips], 1) for word in some_words])  # (V, B)
    means: Tensor = F.embedding_bag(index, sums / lengths.clamp(min=1), starts, mode="mean")
    return means.T


def _product_sums(frames: Tensor, words: Tensor) -> Tensor:
    """Sum each word's clamped products with a clip's frames.

    Returns:
        (V, B).
    """
    products = (words @ frames.flatten(0, 1).T).relu_()
    return products.view(len(words), *frames.shape[:2]).sum(2)


class ClipLogits(nn.Module):
    """Logits of clips (B, D) and captions (N, D).

    A logit is scale x dot product + offset.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, clips: Embeddings, captions: Embedded) -> Tensor:
        return self.scale * (clips.values @ captions.values.T) + self.offset


class FrameWeights(NamedTuple):
    """Log weights of labellings of R series of frames.

    A labelling has the sum of those of all frames in moments, and of all starts and ends.
    """

    scores: Tensor  # (R, T), of a frame in a moment
    enter: Tensor  # of a moment's start, (), or (R, T) by frame
    leave: Tensor  # of a moment's end


class MomentScore(nn.Module):
    """Log odds that a sentence is heard in a clip.

    Frames (B, T, D) and sentences (N, D) give (B, N).
    """

    unit_length = True  # compare by cosines; false: by dot products
    published_threshold: float | None = None  # least probability of a frame in a window, if no weights are trained
    frame_share = 1.0  # k: if a query is known to be heard, k d is added to frames and (1 - k) d to starts

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(SCALE)), nn.Parameter(torch.tensor(OFFSET))
        self.enter, self.leave = nn.Parameter(torch.tensor(TRANSITION)), nn.Parameter(torch.tensor(TRANSITION))

    def forward(self, clips: Embeddings, captions: Embedded) -> Tensor:
        return _by_parts(clips, lambda part: self._padded_scores(part, captions))

    def _padded_scores(self, clips: Embedded, captions: Embedded) -> Tensor:
        lengths, frames, vectors = _counts(clips), self.vectors(clips.values), self._scaled(captions.values)
        columns = []
        for some in vectors.split(max(1, AT_ONCE // frames[..., 0].numel())):
            products = torch.einsum("b...td,nd->bn...t", frames, some).flatten(0, 1)
            scores = self.clip_scores(self.weights(products), lengths.repeat_interleave(len(some)))
            columns.append(scores.view(len(frames), -1))
        return torch.cat(columns, 1)

    def clip_scores(self, weights: FrameWeights, lengths: Tensor) -> Tensor:
        """Compute the log odds of a moment, log(Z - 1).

        Returns:
            (R,).
        """
        log_z = log_partition(weights.scores, lengths, weights.enter, weights.leave).clamp(min=1e-30)
        return log_z + torch.log(-torch.expm1(-log_z))

    def trained_numbers(self) -> dict[str, float]:
        """Return the trained numbers that are in no layer."""
        return {name: value.item() for name, value in self.named_parameters() if value.dim() == 0}

    def cosines(self, clips: Embeddings, captions: Embedded) -> tuple[Tensor, Tensor]:
        """Compare each clip's frames with the clip's only caption.

        Returns:
            Cosines (B, T), or (B, K, T) if a frame has K vectors, and lengths (B,).
        """
        padded = clips.padded() if isinstance(clips, Ragged) else clips
        frames, words = self.vectors(padded.values), self._scaled(captions.values)
        return torch.einsum("b...td,bd->b...t", frames, words), _counts(padded)

    def weights(self, cosines: Tensor) -> FrameWeights:
        """Compute the weights of labellings from cosines."""
        return FrameWeights(self.scale * cosines + self.offset, self.enter, self.leave)

    def vectors(self, frames: Tensor) -> Tensor:
        """Return the vectors of frames to compare with sentences.

        Returns:
            (B, ..., T, D).
        """
        return self._scaled(frames)

    def _scaled(self, values: Tensor) -> Tensor:
        return F.normalize(values, dim=-1) if self.unit_length else values


class FrameLogits(MomentScore):
    """The highest logit of a clip's frames, (B, N)."""

    unit_length = False
    published_threshold = 0.3  # github.com/facebookresearch/perception_models, apps/pe

    def clip_scores(self, weights: FrameWeights, lengths: Tensor) -> Tensor:
        mask = length_mask(lengths, weights.scores.shape[1])
        return weights.scores.masked_fill(~mask, -torch.inf).amax(1)


class BoundaryScore(MomentScore):
    """A score of moments whose edges depend on the sentence.

    The weights of starts and ends depend on the frames and the sentence.
    """

    frame_share = 0.5

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rate, self.changes = nn.Parameter(torch.tensor(1.0)), nn.Linear(2 * dim, 2 * dim)

    def weights(self, cosines: Tensor) -> FrameWeights:
        """Compute the weights of labellings from cosines.

        Args:
            cosines: (B, 3, T) of frames, starts and ends.
        """
        frames, entering, leaving = cosines.unbind(-2)
        steps = STEPS * self.rate
        scores, enter, leave = super().weights(frames)
        return FrameWeights(scores, enter + steps * entering, leave + steps * leaving)

    def vectors(self, frames: Tensor) -> Tensor:
        """Return unit vectors of frames, starts and ends.

        Returns:
            (B, 3, T, D): of a frame, of a start at it, of an end before it. Zeros come before the first frame.
        """
        earlier = F.pad(frames, (0, 0, 1, 0))[:, :-1]
        entering, leaving = self.changes(torch.cat((frames - earlier, frames + earlier), -1)).chunk(2, -1)
        return self._scaled(torch.stack((frames, entering, leaving), 1))


def _counts(series: Embeddings) -> Tensor:
    if series.lengths is None:
        raise KitError("this score needs one embedding per frame; use an encoder that returns series, or score_sounds")
    return series.lengths


def cosines_of_queries(
    score: MomentScore, clips: Embeddings, clip_of: Sequence[int], captions: Embedded
) -> list[Tensor]:
    """Compare each query with the frames of its clip.

    Returns:
        Cosines (T,) of each query on the CPU, or (K, T) if a frame has K vectors.
    """
    found: list[Tensor] = []
    size = max(1, IN_CACHE // int(clips.lengths.max() * captions.values.shape[-1])) if clips.lengths is not None else 1
    for queries in torch.arange(len(clip_of)).split(size):
        rows = [clip_of[query] for query in queries.tolist()]
        cosines, lengths = score.cosines(clips.rows(rows), captions.rows(queries))
        found += [one[..., :length] for one, length in zip(cosines.cpu(), lengths.tolist(), strict=True)]
    return found
