"""Parts of the page.

Classes for the parts of the report page, and functions that format its numbers. The template page.html draws them.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from submission.editions import format_metric
from submission.formats.frame_scores import FrameScores

NONE = "–"
BLANK = "\N{NO-BREAK SPACE}"  # between a number and its unit


class Table(NamedTuple):
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Drawing(NamedTuple):
    """A figure of the page: its file, its title, its description in words (alt), and its numbers as a table."""

    path: Path
    title: str
    alt: str
    table: Table


class Player(NamedTuple):
    """A clip that a query found, with a player on the report page.

    Attributes:
        rank: Rank of the clip for the query.
        audio: Number of the clip's audio on the page; None if the page has no audio of it.
        why: Reason why the page has no audio of the clip; "" if it has audio.
    """

    name: str
    rank: int
    score: float
    seconds: float
    relevant: bool
    audio: int | None
    why: str


class QueryPlayers(NamedTuple):
    """A query and the players of its clips on the report page.

    Attributes:
        text: Text of the query.
        rank: Rank of the first relevant clip.
        margin: Highest score of a relevant clip minus the highest score of any other clip.
        clips: The players.
        further: Number of relevant clips without a player.
    """

    text: str
    rank: int
    margin: float
    clips: list[Player]
    further: int


class Span(NamedTuple):
    """A window drawn on a time axis. start, end: In seconds. weight: Opacity of the drawn window, in [0, 1]."""

    start: float
    end: float
    weight: float

    @property
    def label(self) -> str:
        """Start and end of the window as times, e.g. `0:05.0 – 0:12.0`."""
        return f"{_format_time(self.start)} – {_format_time(self.end)}"


class Axis(NamedTuple):
    """The time axis of a query's recording, with true and found windows.

    Attributes:
        text: Text of the query.
        name: Id of the recording.
        seconds: Length of the recording.
        iou: IoU of the first found window with the true window that fits best.
        true: True windows.
        predicted: Found windows.
        audio: Number of the recording's audio on the page; None if the page has no audio of it.
        why: Reason why the page has no audio; "" if it has audio.
        frames: Probability that each frame is in a moment of the query.
    """

    text: str
    name: str
    seconds: float
    iou: float
    true: Sequence[Span]
    predicted: Sequence[Span]
    audio: int | None
    why: str
    frames: FrameScores

    @property
    def outline(self) -> str:
        """Return the probability of each frame to be in the moment as an SVG path over the time axis, 0 to 100 high."""
        starts, ends = self.frames.edges[:-1], self.frames.edges[1:]
        steps = zip(starts, ends, 100 - 100 * self.frames.frames, strict=True)
        return "M0 100 " + " ".join(f"L{a:.2f} {y:.1f} L{b:.2f} {y:.1f}" for a, b, y in steps) + f" L{ends[-1]:.2f} 100"

    @property
    def ticks(self) -> list[str]:
        """Return the five labels of the time axis: 0, each quarter of the recording, and its end."""
        return [_format_time(part * self.seconds / 4).partition(".")[0] for part in range(5)]


def _format_time(seconds: float) -> str:
    """Format a time in seconds as minutes and seconds, e.g. `1:05.2`."""
    tenths = round(10 * seconds)
    return f"{tenths // 600}:{tenths % 600 / 10:04.1f}"


@dataclass(frozen=True)
class Section:
    """A section of the report page.

    Attributes:
        anchor: Name of the section in links.
        headline: A number in large type, and the text below it.
        facts: Pairs of a name and a value.
        folded: Pairs of a title and a text that readers can expand.
        points: Items of a bulleted list.
        listening: Dict from a title to a group of queries with players.
        axes: Dict from a title to a group of queries on time axes (only for moments).
    """

    anchor: str
    title: str
    headline: tuple[str, str] | None = None
    facts: Sequence[tuple[str, str]] = ()
    paragraphs: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[tuple[str, str]] = ()
    points: Sequence[str] = ()
    listening: dict[str, list[QueryPlayers]] = field(default_factory=dict)
    axes: dict[str, list[Axis]] = field(default_factory=dict)


def figure4(value: float) -> str:
    """Format a metric or a score with four decimals; a dash for NaN."""
    return NONE if math.isnan(value) else f"{value:.4f}"


def percent(share: float) -> str:
    """Format a share in [0, 1] in per cent."""
    return f"{100 * share:.1f}{BLANK}%"


def figure(metric: str, value: float) -> str:
    """Format the value of a metric in the challenge's unit; a dash for NaN."""
    return NONE if math.isnan(value) else format_metric(metric, value).replace(" ", BLANK)


def interval_text(interval: tuple[float, float], metric: str = "") -> str:
    """Format a confidence interval of a metric in the metric's unit; a dash for NaN."""
    low, high = (figure(metric, bound) for bound in interval)
    return NONE if math.isnan(interval[0]) else f"{low.removesuffix(f'{BLANK}%')}{BLANK}to{BLANK}{high}"


_START = r"(?<![\w./~…$-])"  # start of a path: no part of a longer path precedes it
_NAME = r"[^\s/\\\"'<>|,;:(){}\[\]=]+"
_FOLDER = r"(?!\s)[^/\\\"'<>|,;:(){}\[\]=\n]+(?<!\s)"  # may contain blanks, but not at its ends
_PATHS = re.compile(
    rf"""(?P<quote>["'])(?P<quoted>(?:/|[A-Za-z]:[\\/]|\\\\)[^"'\n]*)(?P=quote)"""
    rf"|file:/+(?P<url>[^\s\"'<>,;(){{}}\[\]]+)"
    rf"|{_START}(?P<windows>(?:[A-Za-z]:[\\/]|\\\\)(?:{_FOLDER}[\\/])*(?:{_NAME})?)"
    rf"|{_START}(?P<posix>/(?:{_FOLDER}/)+(?:{_NAME})?)"
)


def without_folders(value: Any) -> Any:
    """Return a JSON value with all absolute paths shortened to `…/NAME`, because reports must not show private folders.

    An absolute path, as the whole text or within it, is cut to its last part, e.g. `…/evaluation.csv`. Within a text, a
    path ends at the first blank after its last slash. If the path is not quoted, it also ends at one of `,;:(){}[]=`.
    """
    if isinstance(value, dict):
        return {name: without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    if not isinstance(value, str):
        return value
    setting, equals, path = value.rpartition("=")  # as in --set
    whole = any(kind(path).is_absolute() for kind in (PurePosixPath, PureWindowsPath))
    if whole and not re.search(r"[,:;]\s|\n|\s(/|[A-Za-z]:[\\/]|\\\\)", path):
        return f"{_PATHS.sub(_shortened_path, setting)}{equals}…/{_file_name(path)}"
    return _PATHS.sub(_shortened_path, value)


def _shortened_path(match: re.Match[str]) -> str:
    """Return the text that replaces a path: `…/` and the last part of the path; quotes around the path stay."""
    quote = match["quote"] or ""
    return f"{quote}…/{_file_name(match['quoted'] or match['url'] or match['windows'] or match['posix'])}{quote}"


def _file_name(path: str) -> str:
    """Return the last part (file name) of a path in the form of Windows or of Unix."""
    return PureWindowsPath(path).name if PureWindowsPath(path).is_absolute() else PurePosixPath(path).name
