"""Truncated, joined and streamed audio files: all of their sound is read, or an error names the file and its fault."""

import io
import os
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import findings
from test_ffmpeg import encoded as encoded_by_ffmpeg
from test_ffmpeg import needs_ffmpeg

from data_tools.audio.mpeg import parse_frame_header
from data_tools.audio.read import AudioError, audio_seconds, check_audio, content_key, read_audio
from data_tools.datasets.blind import read_blind
from data_tools.manifest import write_manifest

RATE = 16_000
WAVE = np.random.default_rng(0).normal(0, 0.1, 3 * RATE).astype(np.float32)
CONTAINERS = [
    ("WAV", "PCM_16"),
    ("WAV", "FLOAT"),
    ("WAV", "IMA_ADPCM"),
    ("WAVEX", "PCM_24"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("AIFF", "FLOAT"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("CAF", "ALAC_16"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]
LIST = b"LIST" + struct.pack("<I", 26) + b"INFOISFT\x0e\0\0\0Lavf59.27.100\0"
ID3 = b"ID3\3\0\0" + bytes([0, 0, 1, 0]) + bytes(128)
ID3V1 = b"TAG" + bytes(range(125))
APE = b"APETAGEX" + struct.pack("<IIII", 2000, 1532, 1, 0xA0000000) + bytes(8) + 1500 * b"x"
APE += b"APETAGEX" + struct.pack("<IIII", 2000, 1532, 1, 0x80000000) + bytes(8)
LYRICS = b"LYRICSBEGININD0000200" + 1500 * b"la" + b"003021LYRICS200"
TRAILERS = {
    "zeros": bytes(77),
    "many zeros": bytes(40_000),
    "ID3v1": ID3V1,
    "ID3v1 without a title": b"TAG" + bytes(100) + 25 * b"x",
    "extended ID3v1": b"TAG+" + 223 * b"y" + ID3V1,
    "ID3v2": b"ID3\3\0\0" + bytes([0, 0, 16, 0]) + 2048 * b"x",
    "damaged APE": b"APETAGEX" + bytes(300),
    "APE": APE,
    "APE and ID3v1": APE + ID3V1,
    "Lyrics3 and ID3v1": LYRICS + ID3V1,
    "old Lyrics3 and ID3v1": b"LYRICSBEGIN" + 1500 * b"la" + b"LYRICSEND" + ID3V1,
    "tag and zeros": APE + bytes(3000),
}


def made(kind: str, subtype: str = "PCM_16", wave: np.ndarray = WAVE, **quality: object) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, wave, RATE, subtype, format=kind, **quality)
    return file.getvalue()


def put(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def samples(path: Path, data: bytes) -> np.ndarray:
    return read_audio(written(path, data), RATE)


def refusal(path: Path, data: bytes) -> str:
    """Message of the error that both reading and checking raise."""
    path.write_bytes(data)
    with pytest.raises(AudioError) as caught:
        check_audio(path)
    with pytest.raises(AudioError) as again:
        read_audio(path, RATE)
    message = str(caught.value)
    assert message == str(again.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(("kind", "subtype"), CONTAINERS)
def test_truncated_audio_file_is_refused(tmp_path: Path, kind: str, subtype: str) -> None:
    data = made(kind, subtype)
    samples(tmp_path / "x", data)
    for tenth in range(1, 11):
        message = refusal(tmp_path / "x", data[: len(data) * tenth // 11])
        assert "truncated" in message or "cannot be decoded" in message, tenth
    middle = refusal(tmp_path / "x", data[: len(data) // 2])
    assert "truncated" in middle or kind == "FLAC"
    if kind != "FLAC":
        with pytest.raises(AudioError, match="truncated"):
            audio_seconds(tmp_path / "x")


@pytest.mark.parametrize(("kind", "subtype"), CONTAINERS)
def test_two_concatenated_audio_files_are_refused(tmp_path: Path, kind: str, subtype: str) -> None:
    data, shorter = made(kind, subtype), made(kind, subtype, WAVE[:RATE])
    for joined in (data + data, data + shorter, shorter + data, data + ID3 + data):
        message = refusal(tmp_path / "x", joined)
        assert "contains a second" in message or "has more sound than" in message or "follow the" in message


@pytest.mark.parametrize(("kind", "subtype"), CONTAINERS)
def test_zeros_and_tags_after_the_sound_are_ignored(tmp_path: Path, kind: str, subtype: str) -> None:
    data = made(kind, subtype)
    expected = samples(tmp_path / "x", data)
    for name, after in TRAILERS.items():
        assert np.array_equal(samples(tmp_path / "x", data + after), expected), name


SIZES = [
    0,
    0x7FFFF000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFF - 36,
    *(2 * len(WAVE) + n for n in (1, 2, 8, 36)),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("whole", [None, 0, 36, 0x7FFFF024, 0xFFFFFFFF])
def test_streamed_wav_is_read_to_its_end(tmp_path: Path, size: int, whole: int | None) -> None:
    """whole: the size of RIFF; None: the right one."""
    data = made("WAV")
    expected = samples(tmp_path / "x", data)
    streamed = put(data, 40, struct.pack("<I", size))
    if whole is not None:
        streamed = put(streamed, 4, struct.pack("<I", whole))
    assert np.array_equal(samples(tmp_path / "x", streamed), expected)
    assert audio_seconds(tmp_path / "x") == 3
    both = put(put(data, 4, struct.pack("<I", size + 36 & 0xFFFFFFFF)), 40, struct.pack("<I", size))
    assert np.array_equal(samples(tmp_path / "x", both), expected) or size == 2 * len(WAVE) + 1


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM", "MS_ADPCM", "GSM610"])
@pytest.mark.parametrize("before", [b"", LIST, b"note\x03\x00\x00\x00abc\0"])
def test_streamed_wav_of_any_coding_is_read_to_its_end(tmp_path: Path, subtype: str, before: bytes) -> None:
    data = made("WAV", subtype)
    at = data.index(b"data")
    expected = samples(tmp_path / "x", data)
    for size in (0, 0x7FFFF000, 0xFFFFFFFF):
        streamed = data[:at] + before + b"data" + struct.pack("<I", size) + data[at + 8 :]
        assert np.array_equal(samples(tmp_path / "x", streamed), expected)


def size_of(data: bytes, name: bytes, skipped: int = 0) -> int:
    return data.index(name) + len(name) + skipped


STREAMED = {
    "AIFF 0": ("AIFF", lambda data: put(data, size_of(data, b"SSND"), bytes(4))),
    "AIFF of sox": ("AIFF", lambda data: put(data, size_of(data, b"SSND"), b"\x7f\0\0\x08")),
    "AU": ("AU", lambda data: put(data, 8, b"\xff" * 4)),
    "AU 0": ("AU", lambda data: put(data, 8, bytes(4))),
    "AU 2 GiB": ("AU", lambda data: put(data, 8, b"\x7f\xff\xff\xff")),
    "CAF": ("CAF", lambda data: put(data, size_of(data, b"data"), b"\xff" * 8)),
    "W64": ("W64", lambda data: put(data, size_of(data, b"data", 12), b"\xff" * 8)),
    "W64 of ffmpeg": ("W64", lambda data: put(data, size_of(data, b"data", 12), b"\xff" * 7 + b"\x7f")),
    "RF64 0": ("RF64", lambda data: put(data, size_of(data, b"ds64", 4), bytes(24))),
    "RF64": ("RF64", lambda data: put(data, size_of(data, b"ds64", 4), b"\xff" * 24)),
    "BW64": ("RF64", lambda data: put(data, 0, b"BW64")),
}


@pytest.mark.parametrize("name", STREAMED)
def test_streamed_file_without_a_stated_size_is_read_to_its_end(tmp_path: Path, name: str) -> None:
    kind, streamed = STREAMED[name]
    data = made(kind)
    assert np.array_equal(samples(tmp_path / "x", streamed(data)), samples(tmp_path / "y", data))


@pytest.mark.parametrize("whole", [None, 0, 36, 0x7FFFF024, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("lost", [100, 1000, 1024, 1026, 10_000])
def test_truncated_wav_with_any_riff_size_is_refused(tmp_path: Path, whole: int | None, lost: int) -> None:
    """whole: the size of RIFF; None: the right one of the file before the cut."""
    data = made("WAV")[:-lost]
    cut = data if whole is None else put(data, 4, struct.pack("<I", whole))
    stated, present = 2 * len(WAVE), 2 * len(WAVE) - lost
    assert f"truncated, the header states {stated} bytes of sound, but only {present}" in refusal(tmp_path / "x", cut)


@pytest.mark.parametrize(("excess", "is_read"), [(1000, True), (1024, True), (1026, False), (10_000, False)])
def test_wav_is_refused_if_its_data_size_exceeds_the_file_by_over_a_kilobyte(
    tmp_path: Path, excess: int, is_read: bool
) -> None:
    data = put(made("WAV"), 40, struct.pack("<I", 2 * len(WAVE) + excess))
    if is_read:
        assert len(samples(tmp_path / "x", data)) == len(WAVE)
    else:
        assert "truncated, the header states" in refusal(tmp_path / "x", data)


@pytest.mark.parametrize("kind", ["WAV", "RF64", "W64", "AIFF", "AU", "CAF"])
def test_text_of_five_kilobytes_after_the_sound_is_refused_and_the_error_states_its_size(
    tmp_path: Path, kind: str
) -> None:
    data = made(kind)
    expected = samples(tmp_path / "x", data)
    assert np.array_equal(samples(tmp_path / "x", data + 102 * b"some text "), expected)
    message = refusal(tmp_path / "x", data + 500 * b"some text ")
    assert re.match("5,000 bytes of unknown content follow the 96,00[048] bytes of sound", message)


LONGER = {
    "WAV": lambda data: put(data, 40, struct.pack("<I", len(WAVE))),
    "RIFF and data": lambda data: put(
        put(data, 40, struct.pack("<I", len(WAVE))), 4, struct.pack("<I", len(WAVE) + 36)
    ),
    "RF64": lambda data: put(data, size_of(data, b"ds64", 12), struct.pack("<Q", len(WAVE))),
    "W64": lambda data: put(data, size_of(data, b"data", 12), struct.pack("<Q", len(WAVE) + 24)),
    "AIFF": lambda data: put(data, size_of(data, b"SSND"), struct.pack(">I", len(WAVE) + 8)),
    "AU": lambda data: put(data, 8, struct.pack(">I", len(WAVE))),
    "CAF": lambda data: put(data, size_of(data, b"data"), struct.pack(">Q", len(WAVE))),
    "FLAC": lambda data: put(data, 22, struct.pack(">I", len(WAVE) // 2)),
}


@pytest.mark.parametrize("name", LONGER)
def test_file_with_more_sound_than_its_header_states_is_refused(tmp_path: Path, name: str) -> None:
    data = LONGER[name](made("WAV" if name == "RIFF and data" else name))
    message = refusal(tmp_path / "x", data)
    assert "more sound than its header states (24,000 samples)" in message or re.search(
        "follow the 48,00[048] bytes", message
    )


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "AU", "FLAC", "MP3"])
def test_truncated_file_that_begins_with_a_tag_is_refused(tmp_path: Path, kind: str) -> None:
    data = made(kind, "MPEG_LAYER_III" if kind == "MP3" else "PCM_16")
    assert np.array_equal(samples(tmp_path / "x", ID3 + data), samples(tmp_path / "y", data))
    refusal(tmp_path / "x", ID3 + data[: len(data) // 2])


def test_wav_chunks_around_the_sound_are_ignored(tmp_path: Path) -> None:
    data = made("WAV")
    expected = samples(tmp_path / "x", data)
    for around in (data[:36] + LIST + data[36:] + LIST, data[:36] + LIST + data[36:] + LIST[:20], data + 500 * LIST):
        assert np.array_equal(samples(tmp_path / "x", around), expected)
    odd = made("WAV", "PCM_U8", WAVE[:999])
    for end in (b"\0" + LIST, LIST, b"", b"\0" + 99 * LIST, 99 * LIST):
        assert len(samples(tmp_path / "x", odd[: 44 + 999] + end)) == 999


def test_wav_with_an_empty_sound_chunk_before_another_chunk_is_refused(tmp_path: Path) -> None:
    assert "contains no samples" in refusal(tmp_path / "x", made("WAV", wave=WAVE[:0]) + LIST)


# MP3


def mp3(count: int = 8, **quality: object) -> tuple[bytes, bytes]:
    """The first frame, which states how many follow, and the others. The first half is silent: it takes few bits."""
    data = made("MP3", "MPEG_LAYER_III", np.concatenate([np.repeat(0 * WAVE, count), WAVE]), **quality)
    first = parse_frame_header(data[:4])
    assert first
    return data[: first.size], data[first.size :]


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_mp3_without_stated_length_is_read_completely(tmp_path: Path, mode: str) -> None:
    tag, frames = mp3(bitrate_mode=mode, compression_level=0.5)
    whole = samples(tmp_path / "x", tag + frames)
    assert len(whole) == 9 * len(WAVE)
    found = samples(tmp_path / "x", frames)
    assert 0 <= len(found) - len(whole) < 3 * 1152, "with the delay of the encoder"
    assert np.abs(found[-2 * RATE : -RATE]).max() > 0.2
    assert "truncated, the last MPEG frame" in refusal(tmp_path / "x", frames[:-9])
    assert len(samples(tmp_path / "x", frames + ID3 + frames)) > 2 * len(whole)


def test_mp3_with_fraunhofer_header_is_read_completely(tmp_path: Path) -> None:
    _, frames = mp3(bitrate_mode="VARIABLE", compression_level=0.5)
    expected = samples(tmp_path / "x", frames)
    at = count = 0
    while at < len(frames):
        at += parse_frame_header(frames[at : at + 4]).size  # type: ignore[union-attr]
        count += 1
    header = bytes([frames[0], frames[1] | 1, 0x90 | frames[2] & 0x0C, frames[3]])
    size = parse_frame_header(header).size  # type: ignore[union-attr]
    tag = (header + bytes(32) + b"VBRI" + bytes(10) + struct.pack(">I", count)).ljust(size, b"\0")
    assert np.array_equal(samples(tmp_path / "x", tag + frames), expected)
    assert "truncated, the header states" in refusal(tmp_path / "x", tag + frames[: len(frames) // 2])
    assert "has more sound than" in refusal(tmp_path / "x", tag + frames + frames)


def mp3_of_rate(rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, WAVE, rate, "MPEG_LAYER_III", format="MP3")
    return file.getvalue()


def without_tag(data: bytes) -> bytes:
    first = parse_frame_header(data[:4])
    assert first
    return data[first.size :]


@pytest.mark.parametrize("between", [b"", ID3, ID3V1, APE + ID3V1, LYRICS + ID3V1, bytes(3000)])
@pytest.mark.parametrize("is_stated", [True, False])
def test_mp3_joined_with_another_format_is_refused(tmp_path: Path, between: bytes, is_stated: bool) -> None:
    data = mp3_of_rate(44_100) if is_stated else without_tag(mp3_of_rate(44_100))
    others = [mp3_of_rate(22_050), without_tag(mp3_of_rate(48_000)), made("OGG", "VORBIS"), b"\0\0\0\x20ftypM4A "]
    for second in (*others, *map(made, ("WAV", "AIFF", "AU", "CAF", "W64", "FLAC"))):
        assert "contains a second audio file" in refusal(tmp_path / "x", data + between + second), second[:12]


@pytest.mark.parametrize("between", [b"", ID3V1, bytes(3000)])
def test_ogg_joined_with_another_format_is_refused(tmp_path: Path, between: bytes) -> None:
    for second in (mp3_of_rate(22_050), made("WAV"), made("FLAC")):
        message = refusal(tmp_path / "x", made("OGG", "VORBIS") + between + second)
        assert "contains a second audio file" in message, second[:12]


@pytest.mark.parametrize("is_stated", [True, False])
def test_mp3_frames_inside_a_tag_are_not_counted(tmp_path: Path, is_stated: bool) -> None:
    """An ID3 tag can hold anything, frames of the same or another kind too."""
    tag, frames = mp3()
    other = without_tag(mp3_of_rate(44_100))[:1500]
    at = 0
    for _ in range(10):
        at += parse_frame_header(frames[at : at + 4]).size  # type: ignore[union-attr]
    expected = samples(tmp_path / "x", (tag if is_stated else b"") + frames)
    for body in (frames[:1500], other):
        id3 = b"ID3\3\0\0" + bytes([0, 0, len(body) >> 7, len(body) & 127]) + body
        found = samples(tmp_path / "x", (tag if is_stated else b"") + frames[:at] + id3 + frames[at:] + id3)
        assert abs(len(found) - len(expected)) < 3 * 1152


def layer_2(count: int) -> bytes:
    """Silent frames of 1,152 samples at 44.1 kHz, 128 kbit/s, every tenth one without padding."""
    return b"".join(
        (bytes([0xFF, 0xFD, 0x80 | 2 * (number % 10 > 0), 0xC0])).ljust(417 + (number % 10 > 0), b"\0")
        for number in range(count)
    )


def mpeg_wav(frames: bytes, code: int, after: bytes = b"") -> bytes:
    fmt = struct.pack("<HHIIHHHHIHHH", code, 1, RATE, 8000, 1, 0, 12, 1, 2, 288, 1, 1393)
    fmt = b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"fact" + struct.pack("<II", 4, 3 * RATE)
    body = b"WAVE" + fmt + b"data" + struct.pack("<I", len(frames)) + frames + len(frames) % 2 * b"\0" + after
    return b"RIFF" + struct.pack("<I", len(body)) + body


@needs_ffmpeg
def test_mpeg_layer_2_is_read_completely(tmp_path: Path) -> None:
    frames = layer_2(90)
    assert len(read_audio(written(tmp_path / "x.mp3", frames), 44_100)) == 90 * 1152
    assert audio_seconds(tmp_path / "x.mp3") == 90 * 1152 / 44_100
    assert "truncated, the last MPEG frame, number 90" in refusal(tmp_path / "x.mp3", frames[:-9])


@pytest.mark.parametrize("after", [b"", LIST])
def test_mp3_in_a_wav_is_read_completely(tmp_path: Path, after: bytes) -> None:
    tag, frames = mp3()
    expected = samples(tmp_path / "x", frames)
    data = mpeg_wav(frames, 0x55, after)
    assert np.array_equal(samples(tmp_path / "x", data), expected)
    assert np.array_equal(samples(tmp_path / "x", mpeg_wav(tag + frames, 0x55)), samples(tmp_path / "y", tag + frames))
    streamed = mpeg_wav(frames, 0x55)
    at = streamed.index(b"data") + 4
    assert np.array_equal(samples(tmp_path / "x", put(streamed, at, b"\xff" * 4)), expected)
    assert "truncated" in refusal(tmp_path / "x", data[: len(data) // 2])
    assert "truncated" in refusal(tmp_path / "x", put(streamed, at, b"\xff" * 4)[:-9])


# FLAC


def without_length(data: bytes) -> bytes:
    return put(data, 21, bytes([data[21] & 0xF0, 0, 0, 0, 0]))


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
@pytest.mark.parametrize("block", [1000, 8000, 48_000, 2**20])
@pytest.mark.parametrize("before", [b"", ID3])
def test_flac_without_stated_length_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtype: str, block: int, before: bytes
) -> None:
    monkeypatch.setattr("data_tools.audio.flac._BLOCK", block)
    data = made("FLAC", subtype, np.stack([WAVE, WAVE[::-1]], axis=1) if block == 8000 else WAVE)
    expected = samples(tmp_path / "x", data)
    assert np.array_equal(samples(tmp_path / "x", before + without_length(data)), expected)
    assert audio_seconds(tmp_path / "x") == 3
    assert check_audio(tmp_path / "x") is None


def test_truncated_or_joined_flac_without_stated_length_is_refused(tmp_path: Path) -> None:
    data = without_length(made("FLAC"))
    for tenth in range(1, 11):
        message = refusal(tmp_path / "x", data[: len(data) * tenth // 11])
        assert "damaged or cut after" in message or "cannot be decoded" in message, tenth
    assert "contains a second FLAC" in refusal(tmp_path / "x", data + data)


@pytest.mark.parametrize("second", ["WAV", "RF64", "AIFF", "CAF", "OGG"])
def test_flac_joined_with_another_format_is_refused(tmp_path: Path, second: str) -> None:
    data, other = made("FLAC"), made(second, "VORBIS" if second == "OGG" else "PCM_16")
    assert "contains a second audio file" in refusal(tmp_path / "x", data + other)
    assert "contains a second audio file" in refusal(tmp_path / "x", without_length(data) + other)
    kept = b"\x02" + (4 + 44).to_bytes(3, "big") + b"riff" + made("WAV")[:44]
    assert np.array_equal(samples(tmp_path / "x", data[:42] + kept + data[42:]), samples(tmp_path / "y", data))


# Ogg


def ogg_pages(subtype: str) -> list[bytes]:
    """Pages of a file of one minute: two or three of headers, the others of sound."""
    data = made("OGG", subtype, np.tile(WAVE, 20), compression_level=1.0)
    starts = [at for at in range(len(data)) if data.startswith(b"OggS", at)]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


@pytest.fixture(scope="module", params=["VORBIS", "OPUS"])
def pages(request: pytest.FixtureRequest) -> list[bytes]:
    return ogg_pages(request.param)


def unmarked(page: bytes) -> bytes:
    """The page without the mark of the end."""
    bare = page[:5] + bytes([page[5] & ~4]) + page[6:22] + bytes(4) + page[26:]
    crc = 0
    for byte in bare:
        crc ^= byte << 24
        for _ in range(8):
            crc = crc << 1 ^ (0x104C11DB7 if crc >> 31 else 0)
    return bare[:22] + struct.pack("<I", crc) + bare[26:]


OUT_OF_ORDER = {
    "one missing": lambda pages: pages[:10] + pages[11:],
    "many missing": lambda pages: pages[:10] + pages[-8:],
    "first of the sound missing": lambda pages: pages[:3] + pages[4:],
    "last but one missing": lambda pages: pages[:-2] + pages[-1:],
    "swapped": lambda pages: [*pages[:10], pages[11], pages[10], *pages[12:]],
    "repeated": lambda pages: pages[:10] + pages[9:],
}


@pytest.mark.parametrize("case", OUT_OF_ORDER)
def test_ogg_with_pages_out_of_order_is_refused(tmp_path: Path, pages: list[bytes], case: str) -> None:
    message = refusal(tmp_path / "x", b"".join(OUT_OF_ORDER[case](pages)))
    assert message.startswith("pages are missing or swapped (Ogg page ")
    assert "copy or download the file again" in message
    with pytest.raises(AudioError, match="missing or swapped"):
        audio_seconds(tmp_path / "x")


@pytest.mark.parametrize("at", [18, 200, -1])
def test_ogg_with_a_damaged_page_is_refused(tmp_path: Path, pages: list[bytes], at: int) -> None:
    """libogg skips the page."""
    damaged = bytearray(pages[10])
    damaged[at] ^= 0x10
    message = refusal(tmp_path / "x", b"".join([*pages[:10], damaged, *pages[11:]]))
    assert message.startswith("damaged, Ogg page ")
    assert "wrong checksum" in message
    assert "not an Ogg page" in refusal(tmp_path / "x", b"".join([*pages[:10], b"oggs" + pages[10][4:], *pages[11:]]))


def test_ogg_without_end_mark_is_read_with_one_warning(
    tmp_path: Path, pages: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    expected = samples(tmp_path / "marked", b"".join(pages))
    assert not caplog.records
    found = samples(tmp_path / "x", b"".join([*pages[:-1], unmarked(pages[-1])]))
    assert np.array_equal(found, expected)
    assert check_audio(tmp_path / "x") is None
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith(f"{tmp_path / 'x'}: has no end-of-stream mark")


def test_ogg_cut_between_pages_is_read_with_a_warning(
    tmp_path: Path, pages: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    assert 0 < len(samples(tmp_path / "x", b"".join(pages[:-5]))) < 60 * RATE
    assert "no end-of-stream mark" in caplog.text
    half = refusal(tmp_path / "x", b"".join(pages[:-5])[:-1])
    assert "truncated, the last Ogg page is not complete" in half
    for more in (b"Og", bytes(4096), b"TAG" + bytes(125)):
        assert "the sound has no end mark" in refusal(tmp_path / "x", b"".join(pages[:-5]) + more)


def test_ogg_cut_within_a_packet_is_refused(tmp_path: Path) -> None:
    pages = ogg_pages("VORBIS")
    page = pages[-1]
    open_page = page[:26] + b"\x01\xff" + page[27 + page[26] :][:255]
    assert "the last Ogg packet is not complete" in refusal(
        tmp_path / "x", b"".join([*pages[:-1], unmarked(open_page)])
    )


@needs_ffmpeg
@pytest.mark.parametrize("name", ["s%d.ogg", "s%d.opus", "s%d.flac"])
@pytest.mark.slow
def test_flac_or_ogg_segment_cut_by_ffmpeg_is_read_completely(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_tools.audio.read._BLOCK", 50_000)  # soundfile seeks after each block
    soundfile.write(tmp_path / "in.wav", np.tile(WAVE, 12), 48_000)  # 12 s
    codec = {"ogg": "libvorbis", "opus": "libopus", "flac": "flac"}[name.split(".")[1]]
    options = ["-c:a", codec, "-f", "segment", "-segment_time", "5", str(tmp_path / name)]
    subprocess.run(["ffmpeg", "-v", "error", "-i", str(tmp_path / "in.wav"), *options], check=True)
    lengths = []
    for number in range(3):
        path, decoded = tmp_path / (name % number), tmp_path / f"{number}.wav"
        subprocess.run(["ffmpeg", "-v", "error", "-i", str(path), "-c:a", "pcm_f32le", str(decoded)], check=True)
        found, expected = read_audio(path, 48_000), read_audio(decoded, 48_000)
        assert len(found) == pytest.approx(len(expected), abs=1_000)
        middle = slice(20_000, 40_000)
        assert np.abs(found[middle] - expected[middle]).max() < 1e-3
        lengths.append(len(found))
    assert sum(lengths) == pytest.approx(12 * 48_000, abs=4_000)


# Other files


def test_file_that_yields_fewer_samples_than_stated_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libsndfile ends a block at a gap. The next call reads on after it."""
    read = soundfile.SoundFile.read
    monkeypatch.setattr(
        soundfile.SoundFile, "read", lambda file, count, **options: read(file, max(5, count - 5), **options)
    )
    assert f"truncated, only {len(WAVE) - 5} of {len(WAVE)} samples can be read" in refusal(tmp_path / "x", made("WAV"))


@pytest.mark.parametrize("kind", ["NIST", "VOC", "IRCAM", "SVX", "AVR", "PVF"])
def test_rare_audio_formats_such_as_nist_and_voc_are_refused(tmp_path: Path, kind: str) -> None:
    assert "is not supported; convert it to WAV or FLAC" in refusal(tmp_path / "x", made(kind))


@pytest.mark.parametrize("read", [audio_seconds, check_audio, content_key, lambda path: read_audio(path, RATE)])
def test_pipe_or_device_in_place_of_an_audio_file_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    for path in (tmp_path / "pipe.wav", Path("/dev/zero")):
        with pytest.raises(AudioError, match="is a pipe or a device; give a regular file"):
            read(path)


def test_check_verb_lists_truncated_and_joined_audio_files(tmp_path: Path) -> None:
    for kind, subtype in (("OGG", "OPUS"), ("AU", "PCM_16"), ("W64", "PCM_16"), ("FLAC", "PCM_16")):
        data = made(kind, subtype)
        (tmp_path / f"cut_{kind}.wav").write_bytes(data[: len(data) // 2])
        (tmp_path / f"joined_{kind}.wav").write_bytes(data + data)
        (tmp_path / f"whole_{kind}.wav").write_bytes(data)
    clips, _ = read_blind(tmp_path, "x")
    write_manifest(tmp_path / "m.jsonl", clips)
    corrupt = findings(tmp_path / "m.jsonl")["corrupt audio files"]
    assert sum(len(ids) for ids in corrupt.values()) == 8
    assert not any("whole" in name for ids in corrupt.values() for name in ids)


@needs_ffmpeg
@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.m4a", "t.mp4", "t.wma", "t.webm", "t.mka", "t.aac", "t.ac3", "t.wv"])
def test_truncated_mp4_or_wma_is_refused_and_concatenated_files_are_never_read_in_part(
    tmp_path: Path, name: str
) -> None:
    path, _ = encoded_by_ffmpeg(tmp_path, name)
    data = path.read_bytes()
    whole = samples(path, data)
    for tenth in range(1, 11):
        with pytest.raises(AudioError, match=r"cannot be decoded by ffmpeg|truncated"):
            samples(path, data[: len(data) * tenth // 11])
    try:
        assert len(samples(path, data + data)) >= 2 * len(whole) - 1000
    except AudioError as error:
        assert "contains a second" in str(error) or "cannot be decoded by ffmpeg" in str(error)  # noqa: PT017
