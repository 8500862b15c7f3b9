"""Gather the embeddings of several processes."""

from collections.abc import Sequence

import torch

from system.compute.processes import all_gather, process_count
from system.models.embeddings import Embedded

# D embedding, L frames or words


def gather_embeddings(local: Sequence[Embedded], sizes: Sequence[int], device: torch.device) -> list[Embedded]:
    """Exchange embeddings between processes: return those of all processes' chunks, in order, in every process.

    The result has no gradients. Chunk i comes from process i % n, for n processes.
    local: Embeddings of the chunks of this process, in order. sizes: Number of embeddings in each chunk, of all
    processes. Series are padded with zeros to the longest.
    """
    processes = process_count()
    if processes == 1:
        return [Embedded(part.values.detach(), part.lengths) for part in local]
    dim, longest, is_series = _common_shape(local)
    rows = max(sum(sizes[process::processes]) for process in range(processes))
    values = torch.zeros(rows, longest, dim, device=device)
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    start = 0
    for part in local:
        found = part.values.detach() if is_series else part.values.detach()[:, None]
        end = start + len(found)
        values[start:end, : found.shape[1]] = found
        if part.lengths is not None:
            lengths[start:end] = part.lengths
        start = end
    all_values = all_gather(values)
    all_lengths = all_gather(lengths) if is_series else []
    gathered = []
    starts = [0] * processes
    for number, size in enumerate(sizes):
        process = number % processes
        part_rows = slice(starts[process], starts[process] + size)
        starts[process] += size
        part_values = all_values[process][part_rows]
        series = Embedded(part_values, all_lengths[process][part_rows]) if is_series else Embedded(part_values[:, 0])
        gathered.append(series)
    return gathered


def _common_shape(local: Sequence[Embedded]) -> tuple[int, int, bool]:
    """Return the vector size D and the largest length L of all processes' embeddings, and whether they are series.

    Every process gets the same result, even a process without chunks.
    """
    mine = [0, 1, 0]
    if local:
        is_series = local[0].lengths is not None
        longest = max(part.values.shape[1] for part in local) if is_series else 1
        mine = [local[0].values.shape[-1], longest, int(is_series)]
    dim, longest, series = torch.stack(all_gather(torch.tensor(mine))).amax(0).tolist()
    return dim, longest, bool(series)
