"""Batch norms of several processes against one that sees all of the batch."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import nn

from system.compute.distributed import GradientSums, process_index, processes
from system.networks.synchronised import synchronise

SIZES = [3, 1, 2]  # of the parts
Parts = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]


def sum_gradients(model: nn.Module) -> None:
    sums = GradientSums()
    sums.begin(list(model.parameters()))
    sums.finish()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.BatchNorm1d(4 * 3 * 5)).double().train()


def outcome(part: slice) -> dict[str, torch.Tensor]:
    """Outputs, gradients and running statistics after two steps on rows of a batch, of a loss that is no plain sum."""
    torch.manual_seed(1)
    batches = torch.randn(2, sum(SIZES), 2, 5, 7, dtype=torch.float64) * 3 + 1
    weights = torch.randn(sum(SIZES), 60, dtype=torch.float64)
    model = network()
    synchronise(model, True)
    for batch in batches:
        given = batch[part].requires_grad_()
        output = model(given)
        (output.tanh() * weights[part]).sum().backward()
    sum_gradients(model)
    found = {f"gradient of {name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert given.grad is not None
    return found | dict(model.state_dict()) | {"output": output.detach(), "given": given.grad}


def trained(part: slice) -> dict[str, torch.Tensor]:
    """Losses of this part of 20 steps, and the weights and statistics then."""
    torch.manual_seed(1)
    batches = torch.randn(20, sum(SIZES), 2, 5, 7, dtype=torch.float64) * 3 + 1
    targets = torch.randn(sum(SIZES), 60, dtype=torch.float64)
    model, losses = network(), []
    synchronise(model, True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        loss = (model(batch[part]) - targets[part]).square().sum()
        loss.backward()
        sum_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
    return dict(model.state_dict()) | {"losses": torch.stack(losses)}


def take_part(rank: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(SIZES)), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with processes(torch.device("cpu")):
        begin = sum(SIZES[: process_index()])
        part = slice(begin, begin + SIZES[process_index()])
        torch.save((outcome(part), trained(part)), Path(folder) / f"{process_index()}.pt")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Return the results of all processes, in order."""
    folder = tmp_path_factory.mktemp("parts")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(take_part, (port, str(folder)), len(SIZES))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(len(SIZES))]


@pytest.mark.slow
def test_synchronised_batch_norm_over_parts_of_a_batch_matches_the_whole_batch(parts: Parts) -> None:
    expected = outcome(slice(None))
    for name, value in expected.items():
        found = torch.cat([one[name] for one, _ in parts]) if name in ("output", "given") else parts[1][0][name]
        assert torch.allclose(found.double(), value.double(), rtol=1e-9, atol=1e-9), name


@pytest.mark.slow
def test_synchronised_training_matches_one_process_for_20_steps(parts: Parts) -> None:
    expected = trained(slice(None))
    for name, value in expected.items():
        found = sum(one[name] for _, one in parts) if name == "losses" else parts[1][1][name]
        assert torch.allclose(found.double(), value.double(), rtol=1e-6, atol=1e-6), name
    assert expected["losses"][-1] < expected["losses"][0]


def test_synchronised_batch_norm_of_one_process_keeps_names_and_results() -> None:
    plain, model = network(), network()
    synchronise(model, True)
    assert model.state_dict().keys() == plain.state_dict().keys()
    values = torch.randn(4, 2, 5, 7, dtype=torch.float64)
    assert torch.equal(model(values), plain(values))
    synchronise(model, False)
    assert [type(layer) for layer in model] == [type(layer) for layer in plain]
    assert type(model[0]) is nn.BatchNorm2d
    with pytest.raises(ValueError, match="value"):
        nn.BatchNorm1d(3)(torch.ones(1, 3))
