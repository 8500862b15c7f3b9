"""Frames of clips: which bank an expert's frames are in, and how missing ones are computed.

Any number of processes may compute at once, for the same banks: see dealing.py.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np

from data_tools.audio.read import AudioError
from data_tools.cli import SHOWN, counted, each, progress, ranks
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.experts.base import Device, ExpertSettings, Frames
from system.features.bank import Bank, open_bank
from system.features.contents import ContentKeys
from system.features.dealing import Dealing, dealing
from system.features.decode import GROUP_CLIPS, GROUP_SECONDS, Decoders, decoders, groups
from system.moments.windows import Grid

LENGTH_TOLERANCE = 2.0  # seconds, by which published lengths are off, see the faults that `castella` names
BYTES_A_SECOND = 88_200  # of audio of unknown length: one channel of 16 bits at 44.1 kHz

log = logging.getLogger(__name__)


@dataclass
class Features:
    """Banks of several experts and the content keys of clips: what training and ranking read.

    banks: by the expert's name in the recipe. keys: clip id -> content key; a clip whose audio is broken is not in it.
    broken: clip id -> why. grids: by the expert's name, when its frames are heard.
    """

    banks: dict[str, Bank]
    keys: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)

    def frames(self, expert: str, clip_id: str) -> np.ndarray:
        """(T, D) float16 frames of a clip."""
        return self.banks[expert].read(self.keys[clip_id])


def bank_of(expert: ExpertSettings, banks: Path, verify: bool = False) -> Bank:
    """The bank of an expert's frames, in a folder named by all that decides the frames. verify: see open_bank."""
    verifying = "python -m system features RECIPE --verify"
    hint = (
        f"{verifying} finds all that is damaged and computes it again (RECIPE: the recipe, or resolved.json of a run); "
        f"without a recipe delete {banks / expert.key()}, then all of it is computed again"
    )
    return open_bank(banks / expert.key(), expert.dim, expert.dtype, expert.identity(), hint, verify)


def build_features(
    clips: Collection[Clip],
    experts: dict[str, ExpertSettings],
    banks: Path,
    strict: bool = False,
    verify: bool = False,
    device: "Device | None" = None,
    content: ContentKeys | None = None,
    workers: int | None = None,
) -> Features:
    """Compute what the banks lack for these clips, with progress; a broken file is reported and left out.

    A content that several clips share is computed once, and by one of all processes that compute at the same time; when
    this returns the banks have all, whoever computed it. strict: raise KitError for the first broken file instead.
    verify: read all that the banks hold, and compute again what is damaged; read all audio files again.
    device: None for this machine's; what experts need float64 for, mps leaves to the CPU.
    content: what is known of the files (default: what is remembered in `banks`).
    workers: processes that decode; None for threads of this one.
    """
    from system.compute.device import device_of

    features = Features({name: bank_of(expert, banks, verify) for name, expert in experts.items()})
    features.grids |= {name: Grid(1 / one.frames_per_second, one.first_centre) for name, one in experts.items()}
    with closing(content or ContentKeys(banks)) as content, decoders(workers) as decoding:
        if verify:
            content.forget()
        build = _Build(features, clips, content, decoding, strict)
        build.look_up()
        while lacking := [name for name in experts if build.missing(name)]:
            # All weights are opened before the first frame is computed: a damaged file is reported in seconds, not
            # after hours.
            device = device or device_of()
            device = device_of("cpu") if device.type == "mps" else device
            networks = {name: experts[name].load(device) for name in lacking}
            for name in lacking:
                build.fill(name, experts[name], networks.pop(name))
    for name, expert in experts.items():
        if not expert.computed:
            warn_of_other_lengths(features, clips, name)
    if features.broken:
        log.warning("%s with broken audio left out", counted(len(features.broken), "clip"))
    return features


@dataclass
class _Build:
    """What is computed now. strict: KitError for the first broken file."""

    features: Features
    clips: Collection[Clip]
    content: ContentKeys
    decoding: Decoders
    strict: bool

    def look_up(self) -> None:
        """The content of every clip; of ranks each begins elsewhere, so that a file is read by one of them."""
        (number, count), total = ranks(), len(self.clips)
        start = number * total // count
        keys: dict[str, str] = {}
        for clip in each(chain(islice(self.clips, start, None), islice(self.clips, start)), "content", "clip", total):
            try:
                keys[clip.id] = self.content(clip.path)
            except AudioError as error:
                self._broken(clip, error)
        self.features.keys |= {clip.id: keys[clip.id] for clip in self.clips if clip.id in keys}

    def missing(self, name: str) -> dict[str, list[Clip]]:
        """The contents that the expert's bank lacks, with the clips of each."""
        bank, keys = self.features.banks[name], self.features.keys
        found: dict[str, list[Clip]] = {}
        for clip in self.clips:
            if (key := keys.get(clip.id)) and key not in bank:
                found.setdefault(key, []).append(clip)
        return found

    def fill(self, name: str, expert: ExpertSettings, frames_of: Frames) -> None:
        """Have the expert's bank get what it lacks."""
        from system.compute.device import memory_errors

        bank, missing = self.features.banks[name], self.missing(name)
        log.info("%s: computing the frames of %s", name, counted(len(missing), "clip"))
        costs = {key: _seconds(clips[0]) for key, clips in missing.items()}
        computed = 0
        with (
            progress(f"{name} frames", len(missing), "clip") as bar,
            dealing(bank, costs, (GROUP_CLIPS, GROUP_SECONDS)) as work,
        ):

            def fails(key: str, error: AudioError) -> None:
                work.drop(key)
                self._all_broken(missing[key], error)

            while work.more():
                waves = self.decoding.waves(self._as_they_are(work, missing), expert)
                for group in groups(waves, fails, GROUP_SECONDS * expert.rate):
                    hint = "free what else uses it, or compute on a larger one"
                    with memory_errors(f"{name}: {counted(len(group), 'clip')}", hint):
                        frames = frames_of(list(group.values()))
                    for key, series in zip(group, frames, strict=True):
                        if bank.dtype.kind == "i" or np.abs(series).max() <= np.finfo(bank.dtype).max:
                            work.store(key, series)
                            computed += 1
                            bar.advance()
                        else:
                            unfit = f"{missing[key][0].path}: {name} gives frames that are not finite in {bank.dtype}"
                            fails(key, AudioError(unfit))
                    bar.advance(work.stored_elsewhere())
            bar.advance(work.stored_elsewhere())
        log.info("%s: %s computed, in %s", name, counted(computed, "clip"), bank.folder)

    def _as_they_are(self, work: Dealing, missing: dict[str, list[Clip]]) -> Iterator[tuple[str, Clip]]:
        """The keys that are to be computed, with a clip for each, whose content was read just now: remembered contents
        are not enough, for files may be copied over with their size and time kept."""
        for key in work.free():
            for clip in missing[key]:
                self._read_again(clip)
            same = [clip for clip in missing[key] if self.features.keys.get(clip.id) == key]
            if same:
                yield key, same[0]
            else:
                work.drop(key)

    def _read_again(self, clip: Clip) -> None:
        """The content of a clip from its bytes; says where it is another one."""
        if clip.id not in self.features.keys:
            return
        try:
            before, self.features.keys[clip.id] = self.features.keys[clip.id], self.content.again(clip.path)
        except AudioError as error:
            self._broken(clip, error)
        else:
            if self.features.keys[clip.id] != before:
                log.warning("%s: its content changed, while its size and time of change stayed", clip.path)

    def _all_broken(self, clips: list[Clip], error: AudioError) -> None:
        """For clips that share the content of a broken file."""
        self._broken(clips[0], error)
        for clip in clips[1:]:
            self._broken(clip, AudioError(f"{clip.path}: same content as a broken file"))

    def _broken(self, clip: Clip, error: AudioError) -> None:
        if self.strict:
            raise KitError(str(error)) from error
        self.features.keys.pop(clip.id, None)
        if clip.id not in self.features.broken:
            self.features.broken[clip.id] = str(error)
            log.warning("left out: %s", error)


def warn_of_other_lengths(features: Features, clips: Collection[Clip], name: str) -> None:
    """Says where frames last other than the manifest says, since windows would be wrong: published ones may be of other
    recordings, or a recipe names another hop, or the manifest is of other files."""
    bank, hop = features.banks[name], features.grids[name].hop
    found = []
    for clip in clips:
        if clip.seconds and (key := features.keys.get(clip.id)):
            lasts = bank.rows_of(key) * hop
            if abs(lasts - clip.seconds) > LENGTH_TOLERANCE + hop:
                found.append(f"{clip.path}: {lasts:g} s of frames, and {clip.seconds:g} s by the manifest")
    if found:
        hint = f"see {name}'s hop_seconds where it has one, or make the manifest again"
        said = f"{counted(len(found), 'recording')} of {len(clips):,}"
        log.warning("%s: frames of another length than the recording's, in %s; %s", name, said, hint)
        more = [f"and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
        for line in [*found[:SHOWN], *more]:
            log.warning("  %s", line)


def _seconds(clip: Clip) -> float:
    """How long a clip is, about: what its frames cost."""
    if clip.seconds is not None:
        return clip.seconds
    try:
        return Path(clip.path).stat().st_size / BYTES_A_SECOND
    except OSError:  # it is said when it is read
        return 0.0
