"""Compute missing frames of clips.

The frames are stored in the experts' banks.

Any number of processes may compute for the same banks at the same time. They share the missing clips.
"""

import logging
from collections.abc import Collection, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from data_tools.cli import SHOWN, counted, each, progress, ranks
from data_tools.embeddings import Vectors
from data_tools.errors import AudioError, KitError
from data_tools.manifest import Clip
from system.experts.base import LENGTH_TOLERANCE, SPARE, Device, ExpertSettings, Frames, some_file_faults
from system.experts.embedding_file import EmbeddingFile
from system.experts.waveform import Waveform
from system.features.bank import Bank, open_bank
from system.features.contents import ContentKeys, no_garbage_collection
from system.features.decode import GROUP_CLIPS, GROUP_SECONDS, Decoders, decoders, groups
from system.features.shared_work import SharedWork, shared_work
from system.features.stored import waveforms_fit
from system.moments.windows import Grid

if TYPE_CHECKING:
    from data_tools.audio import Sound
    from system.features.audio_files import AudioFiles
    from system.features.piece_bank import PieceBank

BYTES_A_SECOND = 88_200  # of a file whose length is unknown: one channel of 16 bits at 44.1 kHz

Waveforms = Literal["auto", "bank", "files"]

log = logging.getLogger(__name__)


@dataclass
class Features:
    """Frames of several experts and the content keys of clips: the input of training and ranking.

    banks: Dict from an expert's name in the recipe to a table from content key to frames. keys: Dict from clip id to
    content key (checksum of the audio), without clips whose audio is broken. broken: Dict from the id of a clip with
    broken audio to the error message. grids: Dict from an expert's name to the times of its frames.
    """

    banks: Mapping[str, "Bank | AudioFiles | PieceBank | Vectors"]
    keys: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)

    def frames(self, expert: str, clip_id: str) -> np.ndarray:
        """Return the frames (T, D) of a clip that an expert has computed, in the dtype of the expert's bank."""
        return self.banks[expert].read(self.keys[clip_id])

    def summary_lines(self) -> Iterator[str]:
        """Yield a line of text per expert: number, dimension and source of its series of frames."""
        for name, bank in self.banks.items():
            where = f"in {bank.folder}" if isinstance(bank, Bank) else "decoded from the audio files for each batch"
            where = "read from files of embeddings" if isinstance(bank, Vectors) else where
            count = len(bank.keys()) if isinstance(bank, Bank) else len(set(self.keys.values()))
            yield f"{name}: {count} series of dimension {bank.dim}, {where}"

    @cached_property
    def waveforms(self) -> Literal["bank", "files"]:
        """Source of the frames: "bank" if they are stored in banks, "files" if waveforms are decoded for each use."""
        return "bank" if all(bank.threads is None for bank in self.banks.values()) else "files"


def bank_of(expert: ExpertSettings, banks: Path, verify: bool = False) -> Bank:
    """Open the bank of an expert's frames. verify: Read every series now, and drop damaged series.

    The bank's name depends on everything that changes the frames. Dropped series are computed again later.
    """
    verifying = "lbar features RECIPE --verify"
    hint = (
        f"{verifying} finds and recomputes all damaged frames (RECIPE: the recipe, or resolved.json of a run); "
        f"without a recipe, delete {banks / expert.bank_name()} to recompute all frames of this bank"
    )
    return open_bank(banks / expert.bank_name(), expert.dim, expert.dtype, expert.identity(), hint, verify)


def _features_from_files(
    clips: Collection[Clip],
    experts: Mapping[str, ExpertSettings],
    banks: Path,
    strict: bool,
    verify: bool,
    content: ContentKeys | None,
    threads: int | None,
    whole: Container[str],
) -> Features:
    """Return features without stored waveforms: a clip's audio file is decoded each time its waveform is read.

    experts: A dict with one expert, of kind waveform. whole: Ids of clips whose files are decoded now, as a check.
    verify: Read all bytes of all files now, and warn of files that have changed while their size and time are the same.
    content: Computes the content key of a file, a checksum of all its bytes. None: the content keys are checksums of
    the file's size, and of its first and last bytes.
    """
    from system.features.audio_files import AudioFiles, decode_threads
    from system.features.sounds import find_sounds

    ((name, expert),) = experts.items()
    assert isinstance(expert, Waveform)
    files = AudioFiles(expert, banks, ThreadPoolExecutor(threads or decode_threads(), "decoding"))
    features = Features({name: files}, grids={name: Grid(1 / expert.frames_per_second, expert.first_centre)})
    readable: dict[str, tuple[str, str, Sound]] = {}
    with closing(content) if content else nullcontext(), no_garbage_collection():
        for clip, found in find_sounds(clips, banks, files.threads, whole, verify):
            try:
                if found.sound is None:
                    raise AudioError(found.reason)
                readable[clip.id] = content(clip.path) if content else found.quick_sha256, clip.path, found.sound
            except AudioError as error:
                _note_broken(features, clip, error, strict)
    keys = dict(zip(readable, files.add(list(readable.values())), strict=True))
    features.keys = {clip.id: keys[clip.id] for clip in clips if clip.id in keys}
    _warn_of_broken(features)
    return features


def _features_from_embeddings(clips: Collection[Clip], name: str, expert: EmbeddingFile, strict: bool) -> Features:
    """Return features of clips, read from files of embeddings. strict: A clip without an embedding is an error."""
    vectors, clip_of = expert.read_embeddings(), dict[str, str]()
    features = Features({name: vectors}, grids={name: Grid(1 / expert.frames_per_second, expert.first_centre)})
    for clip in clips:
        if key := vectors.name_of(clip):
            features.keys[clip.id] = key
            if (other := clip_of.setdefault(key, clip.id)) != clip.id:
                files = " and ".join(expert.files)
                raise KitError(f"{files}: {key!r} fits two clips, {other} and {clip.id}; name embeddings by clip ids")
        else:
            features.broken[clip.id] = expert.missing_embedding(clip)
    if features.broken:
        first = next(iter(features.broken.values()))
        if strict:
            raise KitError(first)
        log.warning("skipped %s without an embedding, first: %s", counted(len(features.broken), "clip"), first)
    return features


def build_features(
    clips: Collection[Clip],
    experts: Mapping[str, ExpertSettings],
    banks: Path,
    strict: bool = False,
    verify: bool = False,
    device: "Device | None" = None,
    content: ContentKeys | None = None,
    workers: int | None = None,
    waveforms: Waveforms = "bank",
    threads: int | None = None,
    whole: Container[str] = (),
) -> Features:
    """Compute and store the missing frames of clips; return all frames.

    A progress bar is shown. Unless `strict`, broken files are reported and left out. The frames of clips with the same
    content are computed once, even if several processes run at the same time. At the end, the banks also contain the
    frames that other processes have computed.

    Args:
        strict: Raise KitError for the first broken file.
        verify: Read all series of the banks and compute damaged series again; read all audio files again.
        device: None for the machine's default. mps is replaced by the CPU, since experts may need float64.
        content: Table of the files' content keys (checksums of all bytes); None: the table in the folder `banks`.
        workers: Number of processes that decode; None for threads of this process.
        waveforms: Whether waveforms are stored in a bank ("bank"), or decoded each time they are read ("files"). "auto"
            stores them if the disk has room.
        threads: Number of decoding threads; None: the machine's usable cores, divided by its number of processes.
        whole: Ids of clips whose files are decoded now if waveforms are not stored, so that damage is found early.
    """
    from system.compute.device import device_of

    if len(experts) == 1 and isinstance(expert := next(iter(experts.values())), EmbeddingFile):
        return _features_from_embeddings(clips, next(iter(experts)), expert, strict)
    for name, expert in experts.items():
        _, of_all = some_file_faults(expert, list(clips))
        if of_all:
            raise KitError(f"expert {name}: {of_all}")
    if not any(isinstance(expert, Waveform) for expert in experts.values()):
        waveforms = "bank"
    if waveforms == "auto":
        waveforms = "bank" if waveforms_fit(clips, experts, banks) else "files"
    if waveforms == "files":
        return _features_from_files(clips, experts, banks, strict, verify, content, threads, whole)

    stores = {name: bank_of(expert, banks, verify) for name, expert in experts.items()}
    features = Features(stores)
    features.grids |= {name: Grid(1 / one.frames_per_second, one.first_centre) for name, one in experts.items()}
    with closing(content or ContentKeys(banks)) as content, decoders(workers) as decoding:
        if verify:
            content.delete_all()
        build = _Build(features, stores, clips, content, decoding, strict)
        build.look_up()
        while lacking := [name for name in experts if build.missing(name)]:
            # Open all weights before the first frame is computed: a damaged file is then reported in seconds, not after
            # hours.
            device = device or device_of()
            device = device_of("cpu") if device.type == "mps" else device
            networks = {name: experts[name].load(device) for name in lacking}
            for name in lacking:
                build.fill(name, experts[name], networks.pop(name))
    for name, expert in experts.items():
        if not expert.computed:
            _leave_out_other_lengths(features, clips, name, strict)
            warn_of_other_lengths(features, clips, name)
    _warn_of_broken(features)
    return features


def _note_broken(features: Features, clip: Clip, error: AudioError, strict: bool) -> None:
    """Move a broken clip from `features.keys` to `features.broken`, and log a warning. Raises KitError if `strict`."""
    if strict:
        raise KitError(str(error)) from error
    features.keys.pop(clip.id, None)
    if clip.id not in features.broken:
        features.broken[clip.id] = str(error)
        log.warning("skipped a clip: %s", error)


def _warn_of_broken(features: Features) -> None:
    """Log a warning with the number of clips that were left out because they cannot be used."""
    if features.broken:
        log.warning("skipped %s that cannot be used; see the warnings above", counted(len(features.broken), "clip"))


@dataclass
class _Build:
    """One computation of missing frames. strict: Raise KitError for the first broken file."""

    features: Features
    banks: dict[str, Bank]
    clips: Collection[Clip]
    content: ContentKeys
    decoding: Decoders
    strict: bool

    def look_up(self) -> None:
        """Store the content key of every clip, a checksum of its audio file, in the features.

        The processes begin at different clips, so that each file is read by only one process.
        """
        (number, count), total = ranks(), len(self.clips)
        start = number * total // count
        keys: dict[str, str] = {}
        for clip in each(chain(islice(self.clips, start, None), islice(self.clips, start)), "content", "clip", total):
            try:
                keys[clip.id] = self.content(clip.path)
            except AudioError as error:
                self._leave_out(clip, error)
        self.features.keys |= {clip.id: keys[clip.id] for clip in self.clips if clip.id in keys}

    def missing(self, name: str) -> dict[str, list[Clip]]:
        """Return the clips without frames in the bank of the expert `name`, by content key (checksum of audio)."""
        bank, keys = self.banks[name], self.features.keys
        found: dict[str, list[Clip]] = {}
        for clip in self.clips:
            if (key := keys.get(clip.id)) and key not in bank:
                found.setdefault(key, []).append(clip)
        return found

    def fill(self, name: str, expert: ExpertSettings, frames_of: Frames) -> None:
        """Compute and store the missing frames of an expert. frames_of: Function that computes frames of waves."""
        from system.compute.device import memory_errors

        bank, missing = self.banks[name], self.missing(name)
        log.info("expert %s: computing the frames of %s", name, counted(len(missing), "clip"))
        costs = {key: _estimate_seconds(clips[0]) for key, clips in missing.items()}
        computed = 0
        with (
            progress(f"{name} frames", len(missing), "clip") as bar,
            shared_work(bank, costs, (GROUP_CLIPS, GROUP_SECONDS)) as work,
        ):

            def fails(key: str, error: AudioError) -> None:
                """Report and leave out all clips whose audio, with the checksum `key`, cannot be decoded."""
                work.drop(key)
                self._leave_out_all(missing[key], error)

            while work.wait_for_keys():
                waves = self.decoding.waves(self._verified_keys(work, missing), expert)
                for group in groups(waves, fails, GROUP_SECONDS * expert.rate):
                    hint = "stop other programs, or use a machine with more memory"
                    with memory_errors(f"{name}: {counted(len(group), 'clip')}", hint):
                        frames = frames_of(list(group.values()))
                    for key, series in zip(group, frames, strict=True):
                        if bank.dtype.kind == "i" or np.abs(series).max() <= np.finfo(bank.dtype).max:
                            work.store(key, series)
                            computed += 1
                            bar.advance()
                        else:
                            unfit = f"{missing[key][0].path}: frames by {name} have values too large for {bank.dtype}"
                            fails(key, AudioError(f"{unfit}; repair or remove this audio file"))
                    bar.advance(work.stored_elsewhere())
            bar.advance(work.stored_elsewhere())
        log.info("expert %s: computed the frames of %s, stored in %s", name, counted(computed, "clip"), bank.folder)

    def _verified_keys(self, work: SharedWork, missing: dict[str, list[Clip]]) -> Iterator[tuple[str, Clip]]:
        """Yield each content key (checksum of audio) to compute frames for, with a clip whose file still has this key.

        Stored content keys are not sufficient, since a file may be replaced by a file with the same size and time.
        """
        for key in work.take_keys():
            for clip in missing[key]:
                self._update_key(clip)
            same = [clip for clip in missing[key] if self.features.keys.get(clip.id) == key]
            if same:
                yield key, same[0]
            else:
                work.drop(key)

    def _update_key(self, clip: Clip) -> None:
        """Compute the content key (checksum) of a clip's file again, and log a warning if it has changed."""
        if clip.id not in self.features.keys:
            return
        try:
            before, self.features.keys[clip.id] = self.features.keys[clip.id], self.content.read_key(clip.path)
        except AudioError as error:
            self._leave_out(clip, error)
        else:
            if self.features.keys[clip.id] != before:
                log.warning(
                    "%s: the file's content has changed, but not its size and modification time; "
                    "the new content is used",
                    clip.path,
                )

    def _leave_out_all(self, clips: list[Clip], error: AudioError) -> None:
        """Remove clips with the same broken audio from the features; log warnings. error: Error of the first clip."""
        self._leave_out(clips[0], error)
        for clip in clips[1:]:
            same = f"{clip.path} has the same content as the broken file {clips[0].path}; repair or remove both files"
            self._leave_out(clip, AudioError(same))

    def _leave_out(self, clip: Clip, error: AudioError) -> None:
        """Remove a clip with a broken audio file from the features, and log a warning. Raises KitError if `strict`."""
        _note_broken(self.features, clip, error, self.strict)


def _other_lengths(features: Features, clips: Collection[Clip], name: str) -> Iterator[tuple[Clip, float]]:
    """Yield each clip whose length in the manifest is not the length of its frames; yield the frames' seconds, too."""
    bank, hop = features.banks[name], features.grids[name].hop
    for clip in clips:
        if clip.seconds and (key := features.keys.get(clip.id)):
            frame_seconds = bank.rows_of(key) * hop
            if abs(frame_seconds - clip.seconds) > LENGTH_TOLERANCE + hop:
                yield clip, frame_seconds


def _leave_out_other_lengths(features: Features, clips: Collection[Clip], name: str, strict: bool) -> None:
    """Remove clips whose published frames are longer or shorter than the clip.

    The times of moments would be wrong in these clips. A difference of up to the share SPARE of the clip's length is
    allowed. strict: Raise KitError for the first such clip.
    """
    for clip, frame_seconds in list(_other_lengths(features, clips, name)):
        if clip.seconds and abs(frame_seconds - clip.seconds) > SPARE * clip.seconds:
            wrong = f"the frames last {frame_seconds:g} s, but the recording lasts {clip.seconds:g} s in the manifest"
            error = AudioError(f"{clip.path}: {wrong}; replace the file, or correct the manifest")
            _note_broken(features, clip, error, strict)


def warn_of_other_lengths(features: Features, clips: Collection[Clip], name: str) -> None:
    """Warn if the frames and the manifest disagree about a duration, since the times of moments would be wrong.

    Possible causes: the published frames are of other recordings, their hop is not that of the recipe, or the manifest
    lists other files.
    """
    differing = list(_other_lengths(features, clips, name))
    if differing:
        recordings = f"{counted(len(differing), 'recording')} of {len(clips):,}"
        log.warning(
            "expert %s: frames and manifest disagree about the length of %s; "
            "correct the expert's setting hop_seconds if it exists, or make the manifest again", name, recordings,
        )  # fmt: skip
        for clip, frame_seconds in differing[:SHOWN]:
            log.warning("  %s: frames last %g s, but %g s in the manifest", clip.path, frame_seconds, clip.seconds)
        if len(differing) > SHOWN:
            log.warning("  and %s more recordings with different lengths", f"{len(differing) - SHOWN:,}")


def _estimate_seconds(clip: Clip) -> float:
    """Return the length of a clip in seconds, estimated from its file size if it is not known; 0 without a file."""
    if clip.seconds is not None:
        return clip.seconds
    try:
        return Path(clip.path).stat().st_size / BYTES_A_SECOND
    except OSError:  # reading the clip will report it
        return 0.0
