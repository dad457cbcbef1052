"""The first convolution of a network, over blocks of 2 x 2 pixels: the same sums, laid out for tensor cores.

A k x k convolution of stride 2 over 3 channels uses an eighth of a tensor core's width. With every block of 2 x 2
pixels folded into 4 x 3 channels, filled up to 16, it is a (k + 1)/2 x (k + 1)/2 convolution of stride 1 whose kernel
has a row and a column of zeros in front. Weight and state_dict stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 16  # channels that the folded convolution sees


class FoldedStem(nn.Module):
    """Computes what `conv` does and shares its weight."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.kernel, self.padding = conv.kernel_size[0], int(conv.padding[0])

    def forward(self, images: Tensor) -> Tensor:
        before = self.padding + 1
        height, width = (self._reach(side) - side - before for side in images.shape[2:])
        blocks = functional.pixel_unshuffle(functional.pad(images, (before, width, before, height)), 2)
        weight = functional.pixel_unshuffle(functional.pad(self.weight, (1, 0, 1, 0)), 2)
        fill = (0, 0, 0, 0, 0, WIDTH - weight.shape[1])
        blocks = functional.pad(blocks, fill).contiguous(memory_format=torch.channels_last)
        return functional.conv2d(blocks, functional.pad(weight, fill), self.bias)

    def _reach(self, side: int) -> int:
        """Pixels from the first that the kernel touches to the last, padding and the zero in front included."""
        return 2 * ((side + 2 * self.padding - self.kernel) // 2) + self.kernel + 1


def fold_stem(net: nn.Module) -> None:
    """Put a FoldedStem in the place of the first convolution, where that is one of stride 2 over a few channels."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            if _folds(module):
                parent, _, child = name.rpartition(".")
                setattr(net.get_submodule(parent), child, FoldedStem(module))
            return


def _folds(conv: nn.Conv2d) -> bool:
    square, odd = conv.kernel_size[0] == conv.kernel_size[1], conv.kernel_size[0] % 2 == 1
    plain = conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    even = not isinstance(conv.padding, str) and conv.padding[0] == conv.padding[1]
    return square and odd and plain and even and conv.stride == (2, 2) and 4 * conv.in_channels <= WIDTH
