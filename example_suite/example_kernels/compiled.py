"""Functions for ``torch.compile`` to make kernels of; nothing in them is written in Triton."""

import torch


def mlp(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    """A multilayer perceptron: matrix products, each with a bias and a ReLU but the last."""
    for number, weight in enumerate(weights):
        x = x @ weight + biases[number]
        if number < len(weights) - 1:
            x = torch.relu(x)
    return x


def normalised_sums(x: torch.Tensor) -> torch.Tensor:
    """The sum of each column of a matrix whose rows have been normalised."""
    return torch.softmax(x.float(), dim=-1).sum(dim=0)


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products of the matrices of two batches, without what is negative."""
    return torch.relu(torch.bmm(a, b))
