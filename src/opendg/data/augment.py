"""Augmentation in batches, on the device the images live on.

The random numbers are not drawn here: `Augment.plan` draws them ahead, on the host, one row an image, and
`Augment.apply` is a pure function of the images and their rows. The same plan gives the same images on CPU and GPU,
eager or in a captured CUDA graph: no draw, no wait for the host, no copy from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from opendg.errors import OpenDGError, unknown_name

# Columns of a plan: the crop box as fractions of the image, then what the other operations need.
LEFT, TOP, WIDTH, HEIGHT, FLIP, BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAY = range(10)
UNCHANGED = np.array([0, 0, 1, 1, 0, 1, 1, 1, 0, 0], dtype=np.float32)  # the row that leaves an image as it is
CROP_TRIES = 10


@dataclass(frozen=True)
class Augment:
    """Which random changes a training image meets, and how strong they are. 0 or None switches one off.

    The operations are torchvision's RandomResizedCrop, RandomHorizontalFlip, ColorJitter and RandomGrayscale, with
    the jitter in a fixed order (brightness, contrast, saturation, hue) and the crop not rounded to whole pixels.
    """

    crop: tuple[float, float] | None = None  # the share of the image's area a crop keeps: from, to
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # a crop's width over height, in fractions of the image: from, to
    flip: float = 0.0  # probability
    brightness: float = 0.0  # b: a factor between max(0, 1 - b) and 1 + b; contrast and saturation alike
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # h: a turn of the colour circle between -h and h, at most 0.5
    gray: float = 0.0  # probability

    width: ClassVar[int] = len(UNCHANGED)  # columns of a plan

    def __post_init__(self) -> None:
        for name in ("flip", "gray"):
            _check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a probability between 0 and 1")
        for name in ("brightness", "contrast", "saturation"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _check(0 <= self.hue <= 0.5, "hue", self.hue, "a value between 0 and 0.5")
        if self.crop is not None:
            _check(0 < self.crop[0] <= self.crop[1] <= 1, "crop", self.crop, "two areas, 0 < from <= to <= 1")
        _check(0 < self.ratio[0] <= self.ratio[1], "ratio", self.ratio, "two ratios, 0 < from <= to")

    @classmethod
    def photo(cls) -> Augment:
        """The paper's for PACS and Office-Home."""
        return cls(crop=(0.8, 1.0), flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4, gray=0.1)

    @classmethod
    def digits(cls) -> Augment:
        """The paper's for Digits-DG: colours only, since a digit cropped or mirrored is another sign."""
        return cls(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4, gray=0.1)

    @classmethod
    def none(cls) -> Augment:
        return cls()

    def plan(self, random: np.random.Generator, n: int) -> NDArray[np.float32]:
        """Parameters for `n` images, (n, width): what `apply` will do to each of them."""
        plan = np.tile(UNCHANGED, (n, 1))
        if self.crop is not None:
            plan[:, LEFT : HEIGHT + 1] = _boxes(random, n, self.crop, self.ratio)
        if self.flip:
            plan[:, FLIP] = random.random(n) < self.flip
        factors = {BRIGHTNESS: self.brightness, CONTRAST: self.contrast, SATURATION: self.saturation}
        for column, strength in factors.items():
            if strength:
                plan[:, column] = random.uniform(max(0.0, 1 - strength), 1 + strength, n)
        if self.hue:
            plan[:, HUE] = random.uniform(-self.hue, self.hue, n)
        if self.gray:
            plan[:, GRAY] = random.random(n) < self.gray
        return plan

    @torch.no_grad()
    def apply(self, images: Tensor, plan: Tensor, size: tuple[int, int], mean: Tensor, std: Tensor) -> Tensor:
        """uint8 (n, H, W, 3) and a plan (n, width) to normalised float32 (n, 3, *size), channels last.

        The crop samples bilinearly without antialiasing, so images of more than twice `size` are reduced to that first.
        Operations that are off are left out, whatever their columns say.
        """
        column = plan[:, :, None, None, None].unbind(1)  # each (n, 1, 1, 1), to go with (n, 3, h, w)
        x = _float(images)
        if self.crop is not None:
            x = _resize(x, (min(x.shape[2], 2 * size[0]), min(x.shape[3], 2 * size[1])))
            x = functional.grid_sample(x, _grid(plan, size, self.flip > 0), padding_mode="border", align_corners=False)
        else:
            x = _resize(x, size)
            if self.flip:
                x = torch.where(column[FLIP] > 0.5, x.flip(-1), x)
        # The division by 255 goes with the brightness factor: one pass over the images less.
        x = (x * (column[BRIGHTNESS] / 255)).clamp_(max=1) if self.brightness else x / 255
        if self.contrast:
            x = _blend(x, _luma(x.mean((2, 3), keepdim=True)), column[CONTRAST])
        if self.saturation:
            x = _blend(x, _luma(x), column[SATURATION])
        if self.hue:
            x = _turn_hue(x, column[HUE])
        if self.gray:
            x = torch.where(column[GRAY] > 0.5, _luma(x), x)
        return _normalise(x, mean, std)


AUGMENTATIONS = {"photo": Augment.photo, "digits": Augment.digits, "none": Augment.none}


def augmentation(name: str) -> Augment:
    """An augmentation by name: photo, digits or none."""
    if name not in AUGMENTATIONS:
        raise unknown_name("augmentation", name, AUGMENTATIONS)
    return AUGMENTATIONS[name]()


@torch.no_grad()
def prepare(images: Tensor, size: tuple[int, int], mean: Tensor, std: Tensor) -> Tensor:
    """The test transform: uint8 (n, H, W, 3) to normalised float32 (n, 3, *size), channels last.

    The whole image is resized (bilinear, antialiased; the aspect ratio is not kept), as the paper's code does.
    """
    return _normalise(_resize(_float(images), size) / 255, mean, std)


def _check(good: bool, name: str, value: object, expected: str) -> None:
    if not good:
        raise OpenDGError(f"The augmentation setting {name} is {value}: expected {expected}.")


def _boxes(
    random: np.random.Generator, n: int, area: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.float64]:
    """Crop boxes (left, top, width, height) as fractions of the image, as RandomResizedCrop draws them.

    Area uniform, logarithm of the ratio uniform; of ten draws the first that fits into the image, else the largest
    centred box whose ratio is allowed; the place uniform. On a square image this is torchvision's distribution.
    """
    areas = random.uniform(*area, (n, CROP_TRIES))
    ratios = np.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1]), (n, CROP_TRIES)))
    fits = (areas * ratios <= 1) & (areas <= ratios)
    first = np.arange(n), fits.argmax(axis=1)
    fitted = fits[first]
    width = np.where(fitted, np.sqrt(areas[first] * ratios[first]), min(1.0, ratio[1]))
    height = np.where(fitted, np.sqrt(areas[first] / ratios[first]), min(1.0, 1 / ratio[0]))
    place = np.where(fitted, random.random((2, n)), 0.5)
    return np.stack([place[0] * (1 - width), place[1] * (1 - height), width, height], axis=1)


def _float(images: Tensor) -> Tensor:
    """uint8 (n, H, W, 3) as float32 (n, 3, H, W), values 0 to 255, a plane a channel: colours mix whole planes."""
    return images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def _resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    if x.shape[2:] == size:
        return x
    return functional.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)


def _grid(plan: Tensor, size: tuple[int, int], flips: bool) -> Tensor:
    """Where to sample for the crop and, if there are any, flips, (n, h, w, 2) in grid_sample's coordinates (-1 to 1).

    Written out, because affine_grid multiplies matrices, and TF32 would shift pixels.
    """
    height, width = size
    left, top, wide, high, flip = plan[:, : FLIP + 1, None].unbind(1)
    across = (torch.arange(width, device=plan.device) + 0.5) / width
    down = (torch.arange(height, device=plan.device) + 0.5) / height
    if flips:
        across = torch.where(flip > 0.5, across.flip(0), across)
    x = 2 * (left + wide * across) - 1
    y = 2 * (top + high * down) - 1
    return torch.stack((x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), dim=-1)


def _luma(x: Tensor) -> Tensor:
    """The grayscale image, (n, 1, h, w), with torchvision's weights."""
    red, green, blue = x.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor x + (1 - factor) other, kept within 0 and 1."""
    return torch.addcmul(other * (1 - factor), x, factor).clamp_(0, 1)


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """RGB to HSV, the hue moved by `turn` (1 is the full circle), and back, without branches.

    A channel of a pixel depends on the way around the circle from the hue to the channel's complement (cyan, magenta,
    yellow): up to 1/6 it is the pixel's lowest value, from 1/3 on the highest, and linear between.
    """
    red, green, blue = x.chunk(3, dim=1)
    high = torch.maximum(red, green).maximum(blue)
    low = torch.minimum(red, green).minimum(blue)
    chroma = high - low
    near_green = torch.add(blue - red, chroma, alpha=2)
    near_blue = torch.add(red - green, chroma, alpha=4)
    hue = torch.where(high == red, green - blue, torch.where(high == green, near_green, near_blue))
    chroma *= 6
    hue = hue.div_(chroma.clamp_min(1e-12)).add_(turn)  # a gray pixel has no hue: 0 / 1e-12
    complement = torch.arange(3, -2, -2, device=x.device).view(1, 3, 1, 1) / 6  # 1/2, 1/6, -1/6: cyan, magenta, yellow
    way = hue + complement
    way = way.sub_(way.round()).abs_().clamp_(1 / 6, 1 / 3)
    return torch.addcmul(torch.sub(low, chroma, alpha=1 / 6), chroma, way)


def _normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    scale = (1 / std).view(1, 3, 1, 1)
    return torch.addcmul(-mean.view(1, 3, 1, 1) * scale, x, scale).contiguous(memory_format=torch.channels_last)
