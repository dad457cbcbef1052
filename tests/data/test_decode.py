from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageFile, ImageFilter
from PIL.PngImagePlugin import PngImageFile, PngInfo

from opendg.data.decode import BrokenImage, decode, image_size
from tests.data.trees import encoded, noise

RED, GREEN, BLUE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (0, 0, 0)

KINDS = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "BMP": {},
    "TIFF": {},
    "TIFF, lzw": {"compression": "tiff_lzw"},
}


def quarters() -> NDArray[np.uint8]:
    """24 x 40, a colour in each quarter: no turn or flip leaves it as it is."""
    image = np.zeros((24, 40, 3), np.uint8)
    image[:12, :20], image[:12, 20:], image[12:, :20] = RED, GREEN, BLUE
    return image


def close(a: NDArray[np.uint8], b: NDArray[np.uint8], within: int) -> bool:
    return a.shape == b.shape and int(np.abs(a.astype(int) - b.astype(int)).max()) <= within


@pytest.mark.parametrize("kind", KINDS)
def test_formats(kind: str) -> None:
    data = encoded(Image.fromarray(quarters()), kind.split(",")[0], **KINDS[kind])
    assert close(decode(data, None, "x"), quarters(), 12 if kind == "JPEG" else 0)
    assert image_size(data) == (24, 40)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK"])
def test_modes_become_rgb(mode: str) -> None:
    image = Image.fromarray(quarters()).convert(mode)
    decoded = decode(encoded(image, "PNG" if mode in ("1", "L", "P", "RGBA", "LA") else "TIFF"), None, "x")
    assert decoded.dtype == np.uint8
    assert close(decoded, np.asarray(image.convert("RGB")), 2)


def test_lab() -> None:
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    image = ImageCms.profileToProfile(Image.fromarray(quarters()), srgb, lab, outputMode="LAB")
    assert image is not None
    assert close(decode(encoded(image, "TIFF"), None, "x"), quarters(), 24)  # LAB of 8 bits is coarse


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_scale(kind: str) -> None:
    grey = 257 * np.arange(256, dtype=np.uint16)[None]
    assert decode(encoded(Image.fromarray(grey), kind), None, "x")[0, :, 0].tolist() == list(range(256))


def float_grey(*values: float) -> list[int]:
    image = Image.fromarray(np.array([values], np.float32))
    return [int(value) for value in decode(encoded(image, "TIFF"), None, "x")[0, :, 2]]


@pytest.mark.parametrize(
    ("top", "expected"), [(1.0, 255), (200.0, 200), (255.0, 255), (300.0, 255), (514.0, 2), (65278.0, 254)]
)
def test_float_grey(top: float, expected: int) -> None:
    assert float_grey(0.0, top, np.nan, -3.0) == [0, expected, 0, 0]


def test_float_grey_of_sixteen_bits_keeps_its_scale() -> None:
    assert float_grey(*(257.0 * number for number in range(256))) == list(range(256))


@pytest.mark.parametrize(("top", "half"), [(1.0, 128), (254.0, 127), (260.0, 130), (65535.0, 128)])
def test_infinity_does_not_set_the_scale(top: float, half: int) -> None:
    assert float_grey(np.inf, top / 2, -np.inf, np.nan, top)[:4] == [255, half, 0, 0]
    assert float_grey(np.inf, -np.inf, np.nan) == [255, 0, 0]


def test_transparent_is_laid_on_white() -> None:
    image = Image.new("RGBA", (4, 3), (200, 0, 0, 0))
    image.putpixel((1, 1), (200, 0, 0, 255))
    image.putpixel((2, 1), (200, 0, 0, 128))
    decoded = decode(encoded(image), None, "x")
    assert decoded[0, 0].tolist() == [255, 255, 255]
    assert decoded[1, 1].tolist() == [200, 0, 0]
    assert close(decoded[1:2, 2:3], np.array([[[227, 127, 127]]], np.uint8), 1)


def test_transparent_palette_entry_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decode(encoded(image, transparency=0), None, "x").tolist() == [[[255, 255, 255], [40, 50, 60]]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "TIFF, lzw"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(quarters()), kind.split(",")[0], exif=exif, **KINDS[kind])
    a = quarters()
    upright = {
        1: a,
        2: a[:, ::-1],
        3: a[::-1, ::-1],
        4: a[::-1],
        5: a.swapaxes(0, 1),
        6: np.rot90(a, -1),
        7: a[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(a),
    }[orientation]
    assert close(decode(data, None, "x"), upright, 12)
    assert image_size(data) == upright.shape[:2]
    assert decode(data, (20, 30), "x").shape == (20, 30, 3)


def test_exif_behind_the_pixels_of_a_png() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    body, end = encoded(Image.fromarray(quarters()))[:-12], encoded(Image.fromarray(quarters()))[-12:]
    chunk = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    late = body + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + end
    assert image_size(late) == (40, 24)
    assert close(decode(late, None, "x"), np.rot90(quarters(), -1), 0)


@pytest.mark.parametrize("keyword", ["XML:com.adobe.xmp", "Raw profile type exif"])
def test_an_orientation_in_the_text_of_a_png(keyword: str) -> None:
    """As Adobe's programs and ImageMagick write it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    raw, text = exif.tobytes(), PngInfo()
    if keyword.startswith("XML"):
        text.add_itxt(keyword, '<rdf:Description tiff:Orientation="6"/>')
    else:
        text.add_text(keyword, f"\nexif\n{len(raw):8d}\n{raw.hex()}\n")
    data = encoded(Image.fromarray(quarters()), pnginfo=text)
    assert image_size(data) == (40, 24)
    assert close(decode(data, None, "x"), np.rot90(quarters(), -1), 0)


def test_the_size_of_a_png_is_read_without_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[PngImageFile] = []
    monkeypatch.setattr(PngImageFile, "load", lambda self: loaded.append(self))
    assert image_size(encoded(Image.fromarray(quarters()))) == (24, 40)
    assert not loaded


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_an_orientation_that_there_is_not_turns_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(quarters()), "JPEG", exif=exif, **KINDS["JPEG"])
    assert image_size(data) == (24, 40)
    assert close(decode(data, None, "x"), quarters(), 12)


def test_damaged_exif_is_no_reason_to_refuse() -> None:
    data = encoded(Image.fromarray(quarters()), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\xffgarbage")
    assert close(decode(data, None, "x"), quarters(), 0)


def test_resized_with_antialias() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    decoded = decode(encoded(Image.fromarray(stripes)), (8, 16), "x")
    assert decoded.shape == (8, 16, 3)
    assert close(decoded, np.full((8, 16, 3), 128, np.uint8), 10)  # without antialias: black or white


def test_a_large_jpeg_is_reduced_as_well_as_one_decoded_in_full() -> None:
    smooth = noise(1500, 2100).filter(ImageFilter.GaussianBlur(12))
    data = encoded(smooth, "JPEG", quality=95)
    full = Image.open(io.BytesIO(data)).convert("RGB").resize((96, 64), Image.Resampling.BILINEAR)
    assert close(decode(data, (64, 96), "x"), np.asarray(full), 3)


def test_a_jpeg_is_not_reduced_by_its_decoder_alone() -> None:
    """That would leave nothing to antialias: twice the size wanted is decoded, and half of it taken."""
    data = encoded(noise(512, 512), "JPEG", quality=95)
    image = Image.open(io.BytesIO(data))
    full = np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR), np.float64)
    assert abs(decode(data, (64, 64), "x") - full).mean() < 2.5  # else 4.1


def test_a_turned_jpeg_is_reduced_no_further_than_it_is_wanted() -> None:
    """What the decoder reduces lies on its side: the width that is wanted is the height there."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = noise(512, 128)
    full = np.asarray(image.transpose(Image.Transpose.ROTATE_270).resize((16, 64), Image.Resampling.BILINEAR), float)
    data = encoded(image, "JPEG", quality=95, subsampling=0, exif=exif)
    assert abs(decode(data, (64, 16), "x") - full).mean() < 1  # else 3.1


HUNGRY = """
import resource, sys
from pathlib import Path
from opendg.data import decode
data = Path(sys.argv[2]).read_bytes()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 40_000_000, used + 40_000_000))
try:
    print(decode.decode(data, None, "x") if sys.argv[1] == "decode" else decode.image_size(data))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to count its memory")
@pytest.mark.parametrize("function", ["decode", "image_size"])
def test_a_machine_short_of_memory_does_not_make_an_image_broken(function: str, tmp_path: Path) -> None:
    (tmp_path / "x.tif").write_bytes(encoded(Image.new("L", (9000, 9000)), "TIFF", compression="tiff_adobe_deflate"))
    words = [sys.executable, "-c", HUNGRY, function, str(tmp_path / "x.tif")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "MemoryError\n", done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "another library fills up"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the TIFF reader, about the very cut
def test_cut_short_is_broken(kind: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(noise(40, 50), kind.split(",")[0], **KINDS[kind])
    for share in (0.1, 0.5, 0.9, 0.99):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", elsewhere)
        with pytest.raises(BrokenImage, match=r"sketch/dog/1\.png is broken"):
            decode(whole[: int(share * len(whole))], None, "sketch/dog/1.png")


def test_a_progressive_jpeg_cut_short_is_broken() -> None:
    whole = encoded(noise(80, 80), "JPEG", progressive=True)
    for cut in range(100, len(whole), 97):
        with pytest.raises(BrokenImage):
            decode(whole[:cut], (32, 32), "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "the file is empty"), (b"<html>not found</html>", "not an image"), (b"\x89PNG\r\n\x1a\n", "not an image")],
)
def test_no_image_at_all(data: bytes, reason: str) -> None:
    for opened in (lambda: decode(data, None, "a/b/c.jpg"), lambda: image_size(data, "a/b/c.jpg")):
        with pytest.raises(BrokenImage, match=rf"a/b/c\.jpg is broken \({reason}"):
            opened()


@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_before_they_are_unpacked(side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(BrokenImage, match="more than 89 million pixels"):
        decode(bomb, (32, 32), "x")
    with pytest.raises(BrokenImage, match="more than 89 million pixels"):
        image_size(bomb)


def test_a_format_that_runs_other_programs_is_not_opened() -> None:
    with pytest.raises(BrokenImage, match="not an image of a known format"):
        decode(encoded(noise(), "EPS"), None, "x")


def test_the_error_can_come_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(BrokenImage("a", "b")))
    assert isinstance(error, BrokenImage)
    assert (error.name, error.reason) == ("a", "b")
