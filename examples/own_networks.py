"""Networks of your own, in the five forms that a sweep can name."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models


class TinyNet(nn.Module):
    """A class without required arguments: `model: [own_networks:TinyNet]`."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return ten scores for each image."""
        return self.head(self.features(images).mean((2, 3)))


def wide() -> nn.Module:
    """Give a network the arguments that it needs: `own_networks:wide`."""
    return TinyNet(width=64)


def ten_classes() -> nn.Module:
    """Give a torchvision network another head: `own_networks:ten_classes`."""
    network = models.resnet18(weights=None)
    network.fc = nn.Linear(network.fc.in_features, 10)
    return network


class Functional(nn.Module):
    """Convolutions that are called as functions: `own_networks:Functional`.

    They are timed, but algorithms are assigned to layers: such a row says `algorithm_absent`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return eight features for each image."""
        return functional.relu(functional.conv2d(images, self.weight, padding=1)).mean((2, 3))


if __name__ == "__main__":  # the fifth form: weights from a file, `weights: [tiny.pt]`
    torch.save(TinyNet().state_dict(), "tiny.pt")
