"""Sounds and texts of composed scenes: classes that are separable, texts that are true."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from data_files import wordings

from data_tools.scenes import mix
from data_tools.scenes.captions import SOUNDS, TEMPLATES, describe, describe_noisily, not_held_out, phrasings
from data_tools.scenes.mix import KINDS, SECONDS, Event, Recording, draw_events, render
from data_tools.scenes.synth import CLASSES, SAMPLE_RATE, synthesise

N = round(SECONDS * SAMPLE_RATE)
SYNTHESISED: dict[str, list[Recording]] = {name: [] for name in CLASSES}


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# Sounds


def log_mel_mean(samples: np.ndarray) -> np.ndarray:
    """(40,) mean over time of log-mel energies of a sound at a common RMS."""
    samples = 0.1 * samples / np.sqrt(np.mean(samples**2))
    frames = np.lib.stride_tricks.sliding_window_view(samples, 512)[::256] * np.hanning(512)
    power = np.abs(np.fft.rfft(frames)) ** 2
    edges = 700 * (10 ** (np.linspace(70, 2840, 42) / 2595) - 1)
    hz = np.fft.rfftfreq(512, 1 / SAMPLE_RATE)
    rise = (hz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - hz) / np.diff(edges)[1:, None]
    return np.log(power @ np.maximum(0, np.minimum(rise, fall)).T + 1e-6).mean(axis=0)


@pytest.mark.slow
def test_synthesised_sound_classes_are_separable_by_their_mean_spectrum():
    def features(first: int, count: int) -> np.ndarray:
        return np.array(
            [
                [
                    log_mel_mean(synthesise(name, rng := generator(n), int(rng.uniform(1.5, 3.5) * SAMPLE_RATE)))
                    for name in CLASSES
                ]
                for n in range(first, first + count)
            ]
        )

    means = features(0, 20).mean(axis=0)
    fresh = features(100, 12)  # (instances, classes, bands)
    distances = ((fresh[:, :, None] - means) ** 2).sum(axis=-1)
    right = distances.argmin(axis=-1) == np.arange(len(CLASSES))
    assert right.mean() > 0.9
    assert right.mean(axis=0).min() >= 0.7, dict(zip(CLASSES, right.mean(axis=0), strict=True))


@pytest.mark.parametrize("name", CLASSES)
def test_synthesised_sounds_have_the_requested_length_and_differ(name):
    for n in (1, 2, 160, 30_000, N):
        samples = synthesise(name, generator(1), n)
        assert samples.shape == (n,)
        assert np.isfinite(samples).all()
    again, other = synthesise(name, generator(1), N), synthesise(name, generator(2), N)
    np.testing.assert_array_equal(samples, again)
    assert abs(np.corrcoef(samples, other)[0, 1]) < 0.5
    seconds = np.sqrt(np.mean(samples.reshape(8, -1) ** 2, axis=1))
    assert (seconds > 0.02 * seconds.max()).all(), "a second of silence"


# One scene


@pytest.mark.parametrize("kind", KINDS)
def test_events_follow_each_other_or_overlap_as_the_scene_kind_states(kind):
    for seed in range(200):
        rng = generator(seed)
        lengths = [
            round(rng.uniform(*mix._LENGTHS[kind]) * SAMPLE_RATE)
            for _ in range(min(KINDS[kind], 2 + (kind == "sequence_3")))
        ]
        if seed % 2:
            lengths[0] = 400  # a short recording
        starts = mix._draw_starts(rng, kind, lengths, N)
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        assert min(starts) >= 0
        assert max(ends) <= N
        if kind == "overlap":
            shared = min(ends) - max(starts)
            assert shared >= 0.59 * min(lengths)
        else:
            assert all(later - end >= 0.1 * SAMPLE_RATE - 1 for later, end in zip(starts[1:], ends[:-1], strict=True))


@pytest.mark.parametrize(
    ("kind", "parts"), [("one", 1), ("sequence_2", 2), ("overlap", 1), ("sequence_3", 3), ("background", 1)]
)
def test_rendered_scene_contains_the_sound_of_its_events(monkeypatch, kind, parts):
    monkeypatch.setattr(mix, "synthesise", lambda name, rng, n: np.ones(n))
    levels = []
    for seed in range(20):
        rng = generator(seed)
        samples = render(rng, kind, draw_events(rng, kind, SYNTHESISED))
        assert samples.shape == (N,)
        assert 0.01 < np.abs(samples).max() <= 0.95
        smooth = np.convolve(samples, np.ones(400) / 400, "same")
        heard = smooth > 0.08 * smooth.max()
        assert np.sum(np.diff(heard.astype(int)) == 1) + heard[0] == parts
        floor = samples[~heard].std()
        assert 10 ** (-82 / 20) < floor < 10 ** (-50 / 20)
        levels.append(20 * np.log10(np.abs(samples).max()))
    assert max(levels) - min(levels) > 6  # dB


def test_background_sound_spans_the_sequence_of_events_and_is_quieter(monkeypatch):
    drawn: list[tuple[str, int]] = []

    def ones(name: str, rng: np.random.Generator, n: int) -> np.ndarray:
        drawn.append((name, n))
        return np.ones(n)

    monkeypatch.setattr(mix, "synthesise", ones)
    ratios = []
    for seed in range(20):
        samples = render(generator(seed), "background", [Event(name, None) for name in ("siren", "rain", "wind")])
        (_, first), (_, second), (name, under) = drawn[-3:]
        assert name == "wind"
        assert under > first + second
        smooth = np.convolve(samples, np.ones(200) / 200, "same")
        begin = int(np.argmax(smooth > 0.05 * smooth.max())) + 1000
        alone = smooth[begin : begin + 2000].mean()  # the background begins first
        ratios.append(20 * np.log10(alone / (smooth.max() - alone)))
    assert -17 < np.mean(ratios) < -8  # dB


def test_loud_scenes_are_attenuated_instead_of_clipped(monkeypatch):
    def click(name: str, rng: np.random.Generator, n: int) -> np.ndarray:
        out = np.zeros(n)
        out[n // 2] = 1.0
        return out

    monkeypatch.setattr(mix, "synthesise", click)
    peaks = [
        np.sort(np.abs(render(generator(seed), "sequence_2", [Event("a", None), Event("b", None)])))[-2:]
        for seed in range(10)
    ]
    assert max(peak[1] for peak in peaks) == pytest.approx(0.95)
    assert all(peak[0] < peak[1] for peak in peaks)


# Texts


def test_every_sound_class_and_scene_kind_has_five_wordings():
    assert set(CLASSES) <= set(SOUNDS)
    assert set(TEMPLATES) == set(KINDS)
    for pairs in map(phrasings, [*SOUNDS, "can_opening"]):
        assert len(pairs) >= 5
        assert len({text for pair in pairs for text in pair}) == 2 * len(pairs)
    everything = [text for name in SOUNDS for pair in phrasings(name) for text in pair]
    assert len(set(everything)) == len(everything), "a wording of two classes"
    assert phrasings("vacuum_cleaner")[0] == ("vacuum cleaner can be heard", "the sound of vacuum cleaner")
    assert len(describe(generator(1), "one", ["vacuum_cleaner"], 5, 0.5)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_caption_templates_name_every_event_once_in_order(kind):
    assert len(set(TEMPLATES[kind])) >= 5
    for template in TEMPLATES[kind]:
        letters = [character for before, character in pairwise(template) if before == "{"]
        assert sorted(letter.lower() for letter in letters) == list("abc")[: KINDS[kind]]
        output = [letter.lower() for letter in letters if kind != "background" or letter.lower() != "c"]
        if "sequence" in kind or kind == "background":
            reverse = template == "{b} after {A}"
            assert output == sorted(output, reverse=reverse)
            assert any(word in template for word in ("then", "followed", "afterwards", "after", "before", "next"))
        if kind == "overlap":
            assert any(word in template for word in ("while", "same time", " as ", "together", "mixed"))
        if kind == "background":
            assert any(word in template for word in ("background", "whole time", "backdrop"))


@pytest.mark.parametrize("kind", KINDS)
def test_captions_are_distinct_and_name_all_events(kind):
    capitals = stops = 0
    for seed in range(60):
        rng = generator(seed)
        names = [event.name for event in draw_events(rng, kind, SYNTHESISED)]
        captions = describe(rng, kind, names, 5, 0.5)
        assert len({caption.lower().rstrip(".") for caption in captions}) == 5
        for caption in captions:
            assert all(any(text in caption[0].lower() + caption[1:] for text in wordings(name)) for name in names)
            assert "{" not in caption
            capitals += caption[0].isupper()
            stops += caption.endswith(".")
    assert 0.85 < capitals / 300 < 1
    assert 0.75 < stops / 300 < 0.95


def test_overlaps_are_described_in_both_orders_but_sequences_in_one():
    firsts = Counter()
    for seed in range(100):
        for kind in ("overlap", "sequence_2"):
            caption = describe(generator(seed), kind, ["dog", "rain"], 1, 0.0)[0].lower()
            at = {
                name: min(caption.index(text) for text in wordings(name) if text in caption) for name in ("dog", "rain")
            }
            reverse = " after " in caption
            firsts[kind, (at["dog"] < at["rain"]) != reverse] += 1
    assert firsts["sequence_2", True] == 100
    assert 30 < firsts["overlap", True] < 70


@pytest.mark.parametrize(("share", "left"), [(0.0, 5), (0.01, 4), (0.2, 4), (0.4, 3), (0.5, 3)])
def test_holding_out_a_share_of_a_list_removes_the_expected_number_of_items(share, left):
    assert list(not_held_out("abcde", share)) == list("abcde")[:left]


def test_noisy_descriptions_name_only_true_events_and_often_miss_some():
    missed = 0
    for seed in range(300):
        rng = generator(seed)
        names = [event.name for event in draw_events(rng, "sequence_3", SYNTHESISED)]
        text = describe_noisily(rng, names).lower().replace("_", " ").replace("-", " ")
        output = [name for name in names if any(tag in text for tag in SOUNDS[name]["tags"])]
        assert output
        missed += len(output) < 3
    assert 60 < missed < 240
