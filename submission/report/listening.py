"""Section: queries with audio.

Make the section "Listening": queries with players for the best clips that the run found, and for relevant clips.
"""

import base64
from pathlib import Path

import numpy as np

from data_tools.audio import encoded, read_audio
from data_tools.errors import AudioError, sentences
from data_tools.frames import holds_frames
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.summary import Summary
from submission.ordering import ranked_columns
from submission.report.elements import Player, QueryPlayers, Section
from submission.report.statistics import ScoreGaps, choose_queries
from submission.runs.clips import Clips

TOP = 3  # best clips shown per query
FURTHER = 3  # maximum of additional relevant clips
LONGEST = 10.0  # maximum embedded seconds of a clip
RATE = 24_000  # Hz
COMPRESSION = 0.79  # of libsndfile's range at this rate: 40 kbit/s

TITLES = {"best": "The best", "median": "The middle", "worst": "The worst"}
ORDINALS = {"best": "first", "median": "middle", "worst": "last"}


class AudioStore:
    """Audio that is embedded in the page, as numbered data URIs; each clip is stored once, and cut if it is long."""

    def __init__(self, seconds: float = LONGEST) -> None:
        """Create an empty store of a page's audio. seconds: Maximum length of the embedded audio of a clip."""
        self._seconds = seconds
        self.uris: list[str] = []
        self._known: dict[Path, tuple[int | None, str]] = {}

    def add(self, path: Path) -> tuple[int | None, str]:
        """Store the audio of a file for the page; return (number of the audio, ""), or (None, reason) without audio."""
        if path not in self._known:
            self._known[path] = self._encode(path)
        return self._known[path]

    def _encode(self, path: Path) -> tuple[int | None, str]:
        """Encode an audio file and store it for the page; return (its number, ""), or (None, reason) for a failure."""
        if not path.is_file():
            return None, f"no audio: {path.name} no longer exists"
        if holds_frames(path):
            return None, f"no audio: {path.name} contains published frames, not audio"
        try:
            self.uris.append(f"data:audio/mpeg;base64,{base64.b64encode(to_mp3(path, self._seconds)).decode()}")
        except (AudioError, OSError) as error:
            reason = " ".join(sentences(error)).removeprefix(f"{path}: ")
            return None, f"no audio: {path.name} cannot be read ({reason})"
        return len(self.uris) - 1, ""


def to_mp3(path: Path, seconds: float = LONGEST) -> bytes:
    """Return the first `seconds` of an audio file as the bytes of a mono MP3 of 24 kHz and 40 kbit/s.

    Raises AudioError for a file that cannot be read.
    """
    wave = np.clip(read_audio(path, RATE, seconds=seconds), -1, 1)
    return encoded(wave, RATE, "MP3", "MPEG_LAYER_III", compression_level=COMPRESSION, bitrate_mode="CONSTANT")


def listening_section(
    matrix: ScoreMatrix, summary: Summary, gaps: ScoreGaps, clips: Clips, store: AudioStore
) -> Section:
    """Return the section with the best, middle and worst queries and players of their clips; add audio to `store`."""
    first = summary.queries.ranks.min(axis=1)
    chosen = {name: rows for name, rows in choose_queries(first, gaps.margin).items() if rows}
    columns = matrix.relevant_columns()

    def query_players(row: int) -> QueryPlayers:
        """Return the players for the best clips and the relevant clips of the query in the given row."""
        order = ranked_columns(matrix.values[row : row + 1], matrix.file_names, len(matrix.clip_ids))[0]
        relevant = set(columns[row])
        ranks = [rank for rank, column in enumerate(order, start=1) if rank <= TOP or int(column) in relevant]
        shown = ranks[: TOP + FURTHER]
        players = [_make_player(matrix, clips, store, row, int(order[rank - 1]), rank, relevant) for rank in shown]
        margin = float(gaps.margin[row])
        return QueryPlayers(matrix.query_texts[row], int(first[row]), margin, players, len(ranks) - len(shown))

    ranges = [f"the {ORDINALS[name]} {len(rows)}" for name, rows in chosen.items()]
    return Section(
        anchor="listening",
        title="Listening",
        paragraphs=[
            "Queries are sorted by the rank of their first relevant clip, then by margin: the score of their best "
            "relevant clip minus that of their hardest negative. This section shows "
            f"{' and '.join(ranges)} of these queries. Each query has players for its {TOP} best clips, and for up to "
            f"{FURTHER} further relevant clips.",
            f"Players contain at most the first {LONGEST:g} s of a clip, as mono MP3 of {RATE // 1000} kHz.",
        ],
        listening={TITLES[name]: [query_players(row) for row in rows] for name, rows in chosen.items()},
    )


def _make_player(
    matrix: ScoreMatrix, clips: Clips, store: AudioStore, row: int, column: int, rank: int, relevant: set[int]
) -> Player:
    """Return a player with a clip's audio, and its rank, score and relevance for a query.

    row, column: Row of the query and column of the clip in the score matrix. relevant: Columns of the relevant clips.
    """
    number, why = store.add(clips.paths[column])
    return Player(
        name=matrix.file_names[column],
        rank=rank,
        score=float(matrix.values[row, column]),
        seconds=float(clips.seconds[column]),
        relevant=column in relevant,
        audio=number,
        why=why,
    )
