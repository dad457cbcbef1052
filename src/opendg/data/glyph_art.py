"""How the pictures of `glyphs` are drawn: digits from handwriting and fonts, grounds, and the looks of four domains.

No handwritten scan and no font serves two domains, so a domain shows shapes that the others have not.
Each picture comes from a generator of its own and from nothing else.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE = 32  # of a finished image
CANVAS = 64  # drawn at double size, then reduced
STROKE = 56  # height of a source glyph
PER_CLASS = 110  # pictures of a class in a domain
PEN_SCANS = 110  # of the scans of a digit the first go to `pen` and the next to `fabric`: mostly other writers
FABRIC_SCANS = 60

Floats = NDArray[np.float64]
Random = np.random.Generator

SERIF = (
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
    "cmr10", "cmb10", "cmti10",
)  # fmt: skip
SANS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "cmss10")
MONO = ("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "cmtt10")


# ---- sources: glyphs as gray images, light on black, cut to their strokes ----


@cache
def handwritten() -> tuple[tuple[Image.Image, ...], ...]:
    """The scans of scikit-learn's `load_digits` (8 x 8), enlarged, by digit: at least 174 of each."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    scans = (digits.images * (255 / 16)).astype(np.uint8)
    return tuple(tuple(_enlarged(scan) for scan in scans[digits.target == digit]) for digit in range(10))


def _enlarged(scan: NDArray[np.uint8]) -> Image.Image:
    side = STROKE * 10 // 8  # a frame of one pixel lets the strokes fade out
    return _cut(Image.fromarray(np.pad(scan, 1)).resize((side, side), Image.Resampling.BICUBIC))


@cache
def typeset(font: str, digit: int) -> Image.Image:
    """A digit in one of the fonts that come with matplotlib."""
    drawn = Image.new("L", (2 * STROKE, 2 * STROKE))
    ImageDraw.Draw(drawn).text((STROKE, STROKE), str(digit), fill=255, font=_font(font), anchor="mm")
    cut = _cut(drawn)
    return cut.resize((max(1, round(cut.width * STROKE / cut.height)), STROKE), Image.Resampling.BICUBIC)


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(path), int(1.3 * STROKE), layout_engine=ImageFont.Layout.BASIC)


def _cut(glyph: Image.Image) -> Image.Image:
    return glyph.crop(glyph.point([0] * 64 + [255] * 192).getbbox())


# ---- strokes: how a glyph lies on the canvas, 0 (ground) to 1 (ink) ----


def placed(
    random: Random,
    glyph: Image.Image,
    height: tuple[float, float],
    turn: float,
    slant: float = 0.0,
    shift: float = 3.0,
    aside: float = 0.0,
) -> Floats:
    """A glyph at a random height (of the canvas's 64), turned by up to `turn` degrees, sheared and moved."""
    scale = random.uniform(*height) / STROKE
    angle, shear = math.radians(random.uniform(-turn, turn)), random.uniform(-slant, slant)
    wide = scale * random.uniform(0.85, 1.15)
    cos, sin = math.cos(angle), math.sin(angle)
    # Pillow asks where a pixel of the canvas comes from: turned back, the shear undone, then the scale.
    back = np.array([[(cos + shear * sin) / wide, (sin - shear * cos) / wide], [-sin / scale, cos / scale]])
    centre = CANVAS / 2 + random.uniform(-shift, shift, 2) + (aside, 0.0)
    origin = np.array(glyph.size) / 2 - back @ centre
    data = (back[0, 0], back[0, 1], origin[0], back[1, 0], back[1, 1], origin[1])
    laid = glyph.transform((CANVAS, CANVAS), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(laid, dtype=np.float64) / 255


def inked(strokes: Floats, level: float, softness: float = 0.3) -> Floats:
    """Enlarged scans are soft: a pen's edge at `level`, the lower the thicker."""
    return np.clip((strokes - level) / softness + 0.5, 0.0, 1.0)


# ---- colours and grounds ----


def colours(random: Random, contrast: tuple[float, float]) -> tuple[Floats, Floats]:
    """Ground and ink, any hues, whose brightness differs by an amount within `contrast`."""
    while True:
        ground, ink = random.uniform(0.05, 0.95, (2, 3))
        if contrast[0] <= abs((ground - ink) @ (0.299, 0.587, 0.114)) <= contrast[1]:
            return ground, ink


def wave(random: Random, period: float) -> Floats:
    """A sine wave across the canvas in a random direction."""
    angle, start = random.uniform(0, 2 * math.pi, 2)
    y, x = np.mgrid[:CANVAS, :CANVAS]
    return np.asarray(np.sin((x * math.cos(angle) + y * math.sin(angle)) * (2 * math.pi / period) + start))


def clouds(random: Random, cells: int) -> Floats:
    """Smooth noise, 0 to 1."""
    coarse = Image.fromarray(random.integers(0, 256, (cells, cells), dtype=np.uint8))
    return np.asarray(coarse.resize((CANVAS, CANVAS), Image.Resampling.BICUBIC), dtype=np.float64) / 255


def pattern(random: Random) -> Floats:
    """Stripes, checks, dots or clouds, 0 to 1."""
    kind = random.choice(["stripes", "checks", "dots", "clouds"])
    if kind == "clouds":
        return clouds(random, int(random.integers(4, 14)))
    period = random.uniform(7, 18)
    first, second = wave(random, period), wave(random, period)
    relief = {"stripes": first, "checks": 2 * first * second, "dots": first + second - 0.6}[kind]
    return np.clip(2 * relief + 0.5, 0.0, 1.0)


def blend(first: Floats, second: Floats, share: Floats) -> Floats:
    """From colour `first` (share 0) to `second` (share 1), per pixel."""
    return first + share[..., None] * (second - first)


def finished(random: Random, drawing: Floats, blur: float = 0.0, grain: float = 0.0) -> Image.Image:
    """Blurred (in pixels of the canvas), reduced to 32 x 32, and the camera's grain on top."""
    image = Image.fromarray((drawing * 255).round().astype(np.uint8))
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    pixels = np.asarray(image.reduce(CANVAS // SIDE)) + random.normal(0, 255 * grain, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).round().astype(np.uint8))


# ---- the four domains ----


def pen(random: Random, digit: int, number: int) -> Image.Image:
    """Handwriting, dark on paper."""
    strokes = inked(placed(random, handwritten()[digit][number], (40, 54), turn=8), random.uniform(0.35, 0.55))
    paper = random.uniform(0.86, 1.0) * np.array([1.0, random.uniform(0.96, 1.0), random.uniform(0.86, 1.0)])
    ink = random.uniform(0.0, 0.4) * np.array([random.uniform(0.3, 1.0), random.uniform(0.3, 1.0), 1.0])
    shade = paper * (1 - 0.08 * clouds(random, 3)[..., None])
    return finished(random, blend(shade, ink, strokes), grain=0.01)


def print_(random: Random, digit: int, number: int) -> Image.Image:
    """Serif type on a plain ground, dark on light or light on dark."""
    strokes = placed(random, typeset(SERIF[number % len(SERIF)], digit), (34, 56), turn=12, shift=4)
    light, dark = random.uniform(0.75, 1.0, 3), random.uniform(0.0, 0.3, 3)
    ground, ink = (light, dark) if random.random() < 0.7 else (dark, light)
    return finished(random, blend(ground, ink, strokes), blur=random.uniform(0.0, 0.8))


def fabric(random: Random, digit: int, number: int) -> Image.Image:
    """Handwriting and monospaced type on coloured patterns."""
    if number < FABRIC_SCANS:
        scan = handwritten()[digit][PEN_SCANS + number]
        strokes = inked(placed(random, scan, (40, 56), turn=10), random.uniform(0.3, 0.5))
    else:
        strokes = placed(random, typeset(MONO[number % len(MONO)], digit), (36, 56), turn=10)
    ground, ink = colours(random, (0.35, 0.9))
    other = np.clip(ground + random.uniform(-0.3, 0.3, 3), 0, 1)
    return finished(random, blend(blend(ground, other, pattern(random)), ink, strokes), grain=0.01)


def street(random: Random, digit: int, number: int) -> Image.Image:
    """Sans-serif house numbers: neighbours cut off at the sides, blur, little contrast."""
    font = SANS[number % len(SANS)]
    size = random.uniform(34, 50)
    strokes = placed(random, typeset(font, digit), (size, size), turn=8, slant=0.15)
    for side in (-1, 1):
        if random.random() < 0.8:
            neighbour = typeset(font, int(random.integers(10)))
            aside = side * random.uniform(0.68, 0.88) * size
            strokes = np.maximum(strokes, placed(random, neighbour, (size, size), turn=5, aside=aside))
    ground, ink = colours(random, (0.12, 0.4))
    other = np.clip(ground + random.uniform(-0.2, 0.2, 3), 0, 1)
    wall = blend(ground, other, clouds(random, 3))
    return finished(random, blend(wall, ink, strokes), blur=random.uniform(0.5, 2.2), grain=0.02)


DOMAINS = {"fabric": fabric, "pen": pen, "print": print_, "street": street}


def picture(domain: str, digit: int, number: int) -> Image.Image:
    """One picture of the dataset, always the same one: RGB, 32 x 32."""
    random = np.random.default_rng([list(DOMAINS).index(domain), digit, number])
    return DOMAINS[domain](random, digit, number)
