"""Parts of the page, which page.html draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from submission.runs.files import FrameScores

NONE = "–"


class Table(NamedTuple):
    """A table with its caption."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Drawing(NamedTuple):
    """A figure with its content in a sentence."""

    path: Path
    title: str
    alt: str


class Player(NamedTuple):
    """A clip that a query found.

    Attributes:
        audio: Number of its audio; None if there is none, for the reason `why`.
    """

    name: str
    rank: int
    score: float
    seconds: float
    relevant: bool
    audio: int | None
    why: str


class Listened(NamedTuple):
    """A query with players. rank: Of the first relevant clip."""

    text: str
    rank: int
    clips: list[Player]


class Span(NamedTuple):
    """A window on a time axis, in seconds.

    Attributes:
        weight: Its opacity, in [0, 1].
    """

    start: float
    end: float
    weight: float

    @property
    def label(self) -> str:
        """Start and end, such as `0:05.0 – 0:12.0`."""
        return " – ".join(f"{round(10 * at) // 600}:{round(10 * at) % 600 / 10:04.1f}" for at in (self.start, self.end))


class Axis(NamedTuple):
    """The time axis of a query's recording.

    Attributes:
        ap: Average precision of the query.
    """

    text: str
    name: str
    seconds: float
    ap: float
    true: Sequence[Span]
    found: Sequence[Span]
    audio: int | None
    why: str
    frames: FrameScores

    @property
    def outline(self) -> str:
        """The probabilities of frames as an SVG path."""
        edges = self.frames.edges
        steps = zip(edges[:-1], edges[1:], 100 - 100 * self.frames.frames, strict=True)
        return (
            "M0 100 " + " ".join(f"L{a:.2f} {y:.1f} L{b:.2f} {y:.1f}" for a, b, y in steps) + f" L{edges[-1]:.2f} 100"
        )


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        folded: Titles and texts that open by a click.
    """

    anchor: str
    title: str
    headline: str = ""
    paragraphs: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    queries: Sequence[Listened] = ()
    axes: Sequence[Axis] = ()
    folded: dict[str, str] = field(default_factory=dict)
