"""The one place that opens images: encoded bytes -> RGB, eight bits a channel.

What is decided here, and for every image alike:

- The EXIF orientation is applied: a photograph stands as its camera saw it.
- Transparent images are laid on white. Colour profiles are left aside, as the pretrained backbones were trained.
- Greys of 16 bits are scaled to 8 (65535 becomes 255), and those of 32 bits are read on the same scale.
  Floating-point greys are taken as 0..1 when none is above 1, as 0..255 when none is above 255, else as 0..65535;
  what is not finite has no say in that: infinity is white, minus infinity and what is no number black.
- Of several frames the first counts.
- An image that ends too early is broken, never filled up; so is one of more than `MOST_PIXELS` pixels, which a few
  bytes of a hostile file can claim.
"""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageFile

from opendg.errors import OpenDGError

DECODER = f"2, Pillow {PIL.__version__}"  # to be raised when a change here changes pixels: caches are keyed by it
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")  # by content; a wrong suffix does no harm
MOST_PIXELS = 89_478_485  # Pillow's own mark: a quarter of a gigabyte as RGB

ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
TURNED = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")  # chunks of a PNG that may have its orientation


class BrokenImage(OpenDGError):
    """An image that cannot be decoded."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The image {name} is broken ({reason}): replace it or leave it out.")
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type[BrokenImage], tuple[str, str]]:
        return BrokenImage, (self.name, self.reason)  # it may come from another process


def decode(data: bytes, size: tuple[int, int] | None, name: str) -> NDArray[np.uint8]:
    """The image as (H, W, 3), resized to `size` = (H, W) where given (bilinear, antialiased, aspect ratio not kept).

    Raises BrokenImage with `name` when it cannot be done.
    """
    try:
        image = _open(data)
        if size is not None:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the size wanted leaves the antialiasing its work.
            image.draft(None, (2 * max(size), 2 * max(size)))
        ImageFile.LOAD_TRUNCATED_IMAGES = False  # whatever another library has set it to
        image.load()
        image = _rgb(_turned(image))
        return np.array(image if size is None else _resized(image, size))
    except MemoryError:
        raise  # of this machine, not of this image
    except Exception as error:  # whatever a decoder may make of hostile bytes
        raise BrokenImage(name, _reason(data, error)) from error


def resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) that are decoded already, at the size and in the way that `decode` gives."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size or pixels.dtype != np.uint8:
        raise OpenDGError(f"An image array is {pixels.dtype} {pixels.shape} and must be uint8 (height, width, 3), RGB.")
    return np.array(_resized(Image.fromarray(pixels), size))


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    shape = (size[1], size[0])
    return image if image.size == shape else image.resize(shape, Image.Resampling.BILINEAR)


def image_size(data: bytes, name: str = "given") -> tuple[int, int]:
    """(H, W) as `decode` would give it, from the header alone."""
    try:
        image = _open(data)
        if image.format == "PNG" and not any(chunk in data for chunk in TURNED):
            return image.height, image.width  # to ask for its EXIF data would decode its pixels
        if image.format in ("PNG", "TIFF"):
            image.load()  # these may have the orientation behind the pixels, or apply it themselves
        width, height = image.size
        return (width, height) if _orientation(image) >= 5 else (height, width)
    except MemoryError:
        raise
    except Exception as error:
        raise BrokenImage(name, _reason(data, error)) from error


def _open(data: bytes) -> Image.Image:
    image = Image.open(BytesIO(data), formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        raise Image.DecompressionBombError
    return image


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, PIL.UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"it claims more than {MOST_PIXELS / 1e6:.0f} million pixels"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _orientation(image: Image.Image) -> int:
    with suppress(Exception):  # damaged EXIF data are no reason to refuse a sound image
        value = image.getexif().get(ORIENTATION, 1)
        return value if value in TURNS else 1
    return 1


def _turned(image: Image.Image) -> Image.Image:
    turn = TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if image.mode == "LAB":
        return _from_lab(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(grey: NDArray[np.generic]) -> NDArray[np.uint8]:
    values = grey.astype(np.float64)
    top = values.max(where=np.isfinite(values), initial=0)
    if np.issubdtype(grey.dtype, np.integer) or top > 2 * 255:  # a little above 255 is an overshoot, and is cut
        values /= 257
    elif top <= 1:
        values *= 255
    return np.nan_to_num(values, posinf=255, neginf=0).round().clip(0, 255).astype(np.uint8)


def _from_lab(image: Image.Image) -> Image.Image:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    assert converted is not None  # it is None only when told to work in place
    return converted
