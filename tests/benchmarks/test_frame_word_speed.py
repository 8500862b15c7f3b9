"""The frame-word score at the size of an evaluation and of a training batch, each in a process of its own for its peak
memory: `python -m pytest -m benchmark -s`. Nothing here fails for being slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

_COMMON = """
import json, resource, sys, time
import torch
from system.models.batch import Embedded
from system.models.scores import frame_word
torch.manual_seed(0)
unit = lambda *shape: torch.nn.functional.normalize(torch.randn(*shape), dim=-1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
def timed(work):
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - began, time.process_time() - cpu, found
"""

_EVALUATION = (
    _COMMON
    + """
CLIPS, CAPTIONS, WORDS = 1045, 5225, 3900
words = unit(WORDS, 300)[torch.randint(WORDS, (CAPTIONS, 20))]
word_counts = torch.randint(8, 15, (CAPTIONS,))
frames = torch.empty(CLIPS, 1500, 300)
for row in frames:
    row.copy_(unit(1500, 300))
frame_counts = torch.randint(750, 1451, (CLIPS,))
captions = Embedded(words, word_counts)
before = peak()
with torch.inference_mode():
    seconds, cpu, scores = timed(lambda: frame_word(Embedded(frames, frame_counts), captions))
    after = peak()
    pairs = [(int(i), int(j)) for i, j in zip(torch.randint(CLIPS, (500,)), torch.randint(CAPTIONS, (500,)))]
    def pairwise():
        found = []
        for i, j in pairs:
            dots = (frames[i, : frame_counts[i]] @ words[j, : word_counts[j]].T).clamp(min=0)
            found.append(dots.mean())
        return torch.stack(found)
    slow, _, expected = timed(pairwise)
found = torch.stack([scores[i, j] for i, j in pairs])
print(json.dumps({"seconds": seconds, "cpu": cpu, "inputs": before, "peak": after,
    "pairwise": slow / len(pairs) * CLIPS * CAPTIONS, "off": float((found - expected).abs().max())}))
"""
)

_TRAINING = (
    _COMMON
    + """
frames, counts = unit(32, 1500, 300).requires_grad_(), torch.full((32,), 1500)
words = unit(32, 20, 300).requires_grad_(sys.argv[1] == "trained")
def step():
    scores = frame_word(Embedded(frames, counts), Embedded(words, torch.full((32,), 20)))
    (scores.mean() - scores.diagonal().mean()).backward()
before = peak()
step()
after = peak()
seconds = min(timed(step)[0] for _ in range(5))
def pairwise():
    (frames[0] @ words[0].T).clamp(min=0).mean().backward()
slow = min(timed(pairwise)[0] for _ in range(20)) * 32 * 32
print(json.dumps({"seconds": seconds, "peak": after - before, "pairwise": slow}))
"""
)


def measured(root: Path, code: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_time_and_memory_of_scoring_frames_against_words_in_evaluation_are_measured(root):
    found = measured(root, _EVALUATION)
    print(
        f"\n1,045 clips of 15 to 29 s, 5,225 captions, {found['seconds']:.0f} s ({found['cpu']:.0f} s of CPU "
        f"time); memory {found['inputs']:.2f} GiB of the embeddings, peak {found['peak']:.2f} GiB; pair by pair "
        f"{found['pairwise'] / 60:.0f} min, {found['pairwise'] / found['seconds']:.0f} x; off by {found['off']:.1e}"
    )


@pytest.mark.parametrize("words", ["trained", "frozen"])
def test_time_and_memory_of_scoring_frames_against_words_in_training_are_measured(words, root):
    found = measured(root, _TRAINING, words)
    print(
        f"\n{words} words: 32 clips of 1,500 frames, 32 captions of 20 words, forward and backward "
        f"{found['seconds']:.2f} s, {found['peak']:.2f} GiB above the embeddings; "
        f"pair by pair {found['pairwise']:.1f} s"
    )
