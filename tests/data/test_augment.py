"""Augmentation: each operation against torchvision, plans against torchvision's draws, one plan one result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as reference

from opendg.data import augment
from opendg.data.augment import UNCHANGED, Augment, augmentation, prepare
from opendg.errors import OpenDGError

MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])
ZERO, ONE = torch.zeros(3), torch.ones(3)


def pictures(n: int, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Smooth colours with noise, some pixels gray, black, white: what the hue and the clamps must get through."""
    random = np.random.default_rng(seed)
    low = torch.from_numpy(random.uniform(0, 255, (n, 3, 4, 4)))
    images = torch.nn.functional.interpolate(low, (height, width), mode="bicubic").permute(0, 2, 3, 1).numpy()
    images = images + random.normal(0, 12, images.shape)
    images[:, 0, ::3], images[:, 1, ::3], images[:, 2, ::2] = 0, 255, 128
    return torch.from_numpy(images.clip(0, 255).astype(np.uint8))


def unit(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2) / 255


def rows(n: int, **columns: Any) -> Tensor:
    """A plan that changes only what is named."""
    plan = np.tile(UNCHANGED, (n, 1))
    for name, values in columns.items():
        plan[:, getattr(augment, name)] = values
    return torch.from_numpy(plan)


def test_names_find_the_papers_settings() -> None:
    assert augmentation("photo") == Augment((0.8, 1.0), (3 / 4, 4 / 3), 0.5, 0.4, 0.4, 0.4, 0.4, 0.1)
    assert augmentation("digits") == Augment(None, (3 / 4, 4 / 3), 0.0, 0.4, 0.4, 0.4, 0.4, 0.1)
    assert augmentation("none") == Augment()
    with pytest.raises(OpenDGError, match="'photo'"):
        augmentation("foto")


@pytest.mark.parametrize(
    "bad",
    [
        {"flip": 1.5},
        {"gray": -0.1},
        {"hue": 0.6},
        {"brightness": -0.1},
        {"contrast": -1.0},
        {"saturation": -0.1},
        {"crop": (0.0, 1.0)},
        {"crop": (0.9, 0.8)},
        {"ratio": (2.0, 0.5)},
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(OpenDGError, match=next(iter(bad))):
        Augment(**bad)


# ---- each operation against torchvision ----


@pytest.mark.parametrize(
    ("setting", "column", "operation", "values"),
    [
        ("brightness", "BRIGHTNESS", reference.adjust_brightness, (0.0, 0.6, 1.0, 1.4, 2.5)),
        ("contrast", "CONTRAST", reference.adjust_contrast, (0.0, 0.6, 1.0, 1.4, 2.5)),
        ("saturation", "SATURATION", reference.adjust_saturation, (0.0, 0.6, 1.0, 1.4, 2.5)),
        ("hue", "HUE", reference.adjust_hue, (-0.5, -0.21, 0.0, 1 / 6, 0.4)),
    ],
)
def test_colour_operations_are_torchvisions(setting: str, column: str, operation: Any, values: tuple[float]) -> None:
    images = pictures(len(values))
    only_this = Augment(**{setting: 0.4})
    got = only_this.apply(images, rows(len(values), **{column: values}), (32, 32), ZERO, ONE)
    want = torch.stack([operation(x, value) for x, value in zip(unit(images), values, strict=True)])
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)


def test_grayscale_is_torchvisions_and_only_where_planned() -> None:
    images = pictures(2)
    got = Augment(gray=0.5).apply(images, rows(2, GRAY=[1, 0]), (32, 32), ZERO, ONE)
    torch.testing.assert_close(got[0], reference.rgb_to_grayscale(unit(images)[0], 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(got[1], unit(images)[1], atol=0, rtol=0)


@pytest.mark.parametrize("size", [(24, 24), (40, 20)])
def test_crop_is_torchvisions_resized_crop(size: tuple[int, int]) -> None:
    images = pictures(3, 30, 40)
    boxes = [(3, 5, 20, 30), (0, 0, 30, 40), (10, 12, 20, 21)]  # top, left, height, width in pixels
    top, left, height, width = np.array(boxes).T / np.array([[30], [40], [30], [40]])
    plan = rows(3, TOP=top, LEFT=left, HEIGHT=height, WIDTH=width)
    got = Augment(crop=(0.5, 1.0)).apply(images, plan, size, ZERO, ONE)
    for x, box, mine in zip(unit(images), boxes, got, strict=True):
        # A box that is not the whole image may look one pixel beyond its edge: compare inside.
        want = reference.resized_crop(x, *box, size=list(size), antialias=False)
        torch.testing.assert_close(mine[:, 2:-2, 2:-2], want[:, 2:-2, 2:-2], atol=2e-5, rtol=0)


def test_all_together_in_the_fixed_order() -> None:
    images = pictures(4, 24, 24)
    plan = rows(4, FLIP=[0, 1, 0, 1], BRIGHTNESS=[0.7, 1.3, 1, 1.1], CONTRAST=[1.3, 0.7, 0.8, 1.4])
    plan[:, augment.SATURATION] = torch.tensor([0.6, 1.4, 1.2, 0.9])
    plan[:, augment.HUE] = torch.tensor([-0.3, 0.1, 0.4, 0.25])
    plan[:, augment.GRAY] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    got = Augment.photo().apply(images, plan, (24, 24), MEAN, STD)
    for x, row, mine in zip(unit(images), plan.tolist(), got, strict=True):
        x = reference.horizontal_flip(x) if row[augment.FLIP] else x
        x = reference.adjust_brightness(x, row[augment.BRIGHTNESS])
        x = reference.adjust_contrast(x, row[augment.CONTRAST])
        x = reference.adjust_saturation(x, row[augment.SATURATION])
        x = reference.adjust_hue(x, row[augment.HUE])
        x = reference.rgb_to_grayscale(x, 3) if row[augment.GRAY] else x
        want = reference.normalize(x, MEAN.tolist(), STD.tolist())
        torch.testing.assert_close(mine, want, atol=2e-4, rtol=0)


# ---- shapes, identity, flip ----


def test_unchanged_rows_give_the_test_image() -> None:
    images = pictures(3, 20, 28)
    want = prepare(images, (20, 28), MEAN, STD)
    torch.testing.assert_close(Augment.none().apply(images, rows(3), (20, 28), MEAN, STD), want, atol=0, rtol=0)
    got = Augment.photo().apply(images, rows(3), (20, 28), MEAN, STD)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("shape", "size"), [((320, 320), (32, 32)), ((320, 40), (32, 32)), ((30, 400), (32, 32)), ((320, 8), (4, 64))]
)
def test_large_images_are_reduced_as_for_the_test(shape: tuple[int, int], size: tuple[int, int]) -> None:
    """Fine grain is gray from afar, in training as in the test: without antialiasing it would stay grain."""
    grain = torch.randint(0, 256, (2, *shape, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    trained = Augment(crop=(0.8, 1.0)).apply(grain, rows(2), size, ZERO, ONE)
    tested = prepare(grain, size, ZERO, ONE)
    assert trained.std() < 2 * tested.std()


def test_nothing_dark_comes_in_over_the_edge() -> None:
    white = torch.full((1, 4, 4, 3), 255, dtype=torch.uint8)
    assert torch.equal(Augment(crop=(0.8, 1.0)).apply(white, rows(1), (32, 32), ZERO, ONE), torch.ones(1, 3, 32, 32))


@pytest.mark.parametrize("setting", [Augment.photo(), Augment.digits(), Augment.none()])
@pytest.mark.parametrize("size", [(32, 32), (20, 24)])
def test_gives_float32_channels_last_of_the_size(setting: Augment, size: tuple[int, int]) -> None:
    plan = torch.from_numpy(setting.plan(np.random.default_rng(0), 5))
    got = setting.apply(pictures(5), plan, size, MEAN, STD)
    assert got.dtype == torch.float32
    assert got.shape == (5, 3, *size)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.isfinite().all()


def test_flip_is_exact() -> None:
    images = pictures(4)
    got = Augment(flip=0.5).apply(images, rows(4, FLIP=[1, 0, 1, 0]), (32, 32), MEAN, STD)
    as_they_are = prepare(images, (32, 32), MEAN, STD)
    assert torch.equal(got[1::2], as_they_are[1::2])
    assert torch.equal(got[::2], as_they_are[::2].flip(-1))


@pytest.mark.parametrize("setting", [Augment(), Augment(crop=(0.8, 1.0))])
def test_what_is_off_is_left_out_whatever_is_planned(setting: Augment) -> None:
    images, plan = pictures(1), rows(1, FLIP=1, BRIGHTNESS=2, CONTRAST=2, SATURATION=2, HUE=0.3, GRAY=1)
    assert torch.equal(
        setting.apply(images, plan, (32, 32), MEAN, STD), setting.apply(images, rows(1), (32, 32), MEAN, STD)
    )


@pytest.mark.parametrize("size", [(32, 32), (16, 20), (64, 48)])
def test_prepare_is_torchvisions_resize(size: tuple[int, int]) -> None:
    images = pictures(3)
    want = reference.normalize(reference.resize(unit(images), list(size), antialias=True), MEAN.tolist(), STD.tolist())
    torch.testing.assert_close(prepare(images, size, MEAN, STD), want, atol=1e-5, rtol=1e-5)


# ---- plans ----


def test_a_plan_comes_from_its_generator_alone() -> None:
    photo = Augment.photo()
    np.random.seed(1)  # the global state must not matter
    first = photo.plan(np.random.default_rng(7), 50)
    np.random.seed(2)
    assert np.array_equal(first, photo.plan(np.random.default_rng(7), 50))
    assert not np.array_equal(first, photo.plan(np.random.default_rng(8), 50))
    assert first.shape == (50, Augment.width)
    assert first.dtype == np.float32


def test_plans_draw_the_named_ranges() -> None:
    plan = Augment.photo().plan(np.random.default_rng(0), 50_000)
    for column in (augment.BRIGHTNESS, augment.CONTRAST, augment.SATURATION):
        assert plan[:, column].min() == pytest.approx(0.6, abs=1e-3)
        assert plan[:, column].max() == pytest.approx(1.4, abs=1e-3)
        assert plan[:, column].mean() == pytest.approx(1.0, abs=5e-3)
    assert plan[:, augment.HUE].min() == pytest.approx(-0.4, abs=1e-3)
    assert plan[:, augment.HUE].max() == pytest.approx(0.4, abs=1e-3)
    assert plan[:, augment.FLIP].mean() == pytest.approx(0.5, abs=0.01)
    assert plan[:, augment.GRAY].mean() == pytest.approx(0.1, abs=0.01)


def test_a_factor_is_never_below_zero() -> None:
    assert Augment(brightness=2.0).plan(np.random.default_rng(0), 1000)[:, augment.BRIGHTNESS].min() >= 0


def test_what_is_off_is_planned_unchanged() -> None:
    assert np.array_equal(Augment.none().plan(np.random.default_rng(0), 9), np.tile(UNCHANGED, (9, 1)))
    assert np.array_equal(Augment.digits().plan(np.random.default_rng(0), 9)[:, :5], np.tile(UNCHANGED[:5], (9, 1)))


@pytest.mark.parametrize("scale", [(0.8, 1.0), (0.08, 1.0), (1.0, 1.0)])
def test_crops_are_distributed_as_torchvisions(scale: tuple[float, float]) -> None:
    side, draws = 10_000, 4_000  # a side so long that torchvision's whole pixels do not show
    torch.manual_seed(0)
    canvas = torch.empty(1, 1, 1).expand(3, side, side)
    theirs = np.array([RandomResizedCrop.get_params(canvas, list(scale), [3 / 4, 4 / 3]) for _ in range(draws)])
    theirs = theirs[:, [1, 0, 3, 2]] / side  # top, left, height, width -> our columns
    ours = Augment(crop=scale).plan(np.random.default_rng(0), draws)[:, :4]
    for mine, want in zip(ours.T, theirs.T, strict=True):
        levels = np.linspace(0, 1, 41)
        assert np.abs(np.quantile(mine, levels) - np.quantile(want, levels))[1:-1].max() < 0.04
        assert mine.mean() == pytest.approx(want.mean(), abs=0.01)
        assert mine.std() == pytest.approx(want.std(), abs=0.01)


@given(
    low=st.floats(0.05, 1.0),
    high=st.floats(0.05, 1.0),
    narrow=st.floats(0.2, 5.0),
    wide=st.floats(0.2, 5.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_crops_keep_their_bounds(low: float, high: float, narrow: float, wide: float, seed: int) -> None:
    low, high = sorted((low, high))
    narrow, wide = sorted((narrow, wide))
    plan = Augment(crop=(low, high), ratio=(narrow, wide)).plan(np.random.default_rng(seed), 64).astype(float)
    left, top, width, height = plan[:, :4].T
    slack = 1e-5
    assert min(left.min(), top.min()) >= 0
    assert max((left + width).max(), (top + height).max()) <= 1 + slack
    ratio = width / height
    assert ((ratio >= narrow * (1 - slack)) & (ratio <= wide * (1 + slack))).all()
    area = width * height
    fallback = np.isclose(left, (1 - width) / 2, atol=slack) & np.isclose(top, (1 - height) / 2, atol=slack)
    assert (fallback | ((area >= low * (1 - slack)) & (area <= high * (1 + slack)))).all()


# ---- a pure function of images and plan ----


@pytest.mark.parametrize("setting", [Augment.photo(), Augment.digits()])
@pytest.mark.parametrize("side", [31, 32, 64])
def test_an_image_does_not_depend_on_its_batch(setting: Augment, side: int) -> None:
    images = pictures(12, side, side)
    plan = torch.from_numpy(setting.plan(np.random.default_rng(3), 12))
    together = setting.apply(images, plan, (32, 32), MEAN, STD)
    order = torch.from_numpy(np.random.default_rng(4).permutation(12))
    shuffled = setting.apply(images[order], plan[order], (32, 32), MEAN, STD)
    alone = torch.cat([setting.apply(images[i : i + 1], plan[i : i + 1], (32, 32), MEAN, STD) for i in range(12)])
    assert torch.equal(shuffled, together[order])
    assert torch.equal(alone, together)


def test_inputs_are_left_alone() -> None:
    images, plan = pictures(3), torch.from_numpy(Augment.photo().plan(np.random.default_rng(0), 3))
    images_before, plan_before = images.clone(), plan.clone()
    Augment.photo().apply(images, plan, (32, 32), MEAN, STD)
    assert torch.equal(images, images_before)
    assert torch.equal(plan, plan_before)


def test_one_graph_without_breaks() -> None:
    photo = Augment.photo()
    images, plan = pictures(3), torch.from_numpy(photo.plan(np.random.default_rng(0), 3))
    compiled = torch.compile(lambda x, p: photo.apply(x, p, (24, 24), MEAN, STD), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, plan), photo.apply(images, plan, (24, 24), MEAN, STD))


@pytest.mark.gpu
@pytest.mark.parametrize("setting", [Augment.photo(), Augment.digits()])
@pytest.mark.parametrize("side", [32, 64, 96])
def test_cuda_eager_and_captured_agree_with_the_cpu(setting: Augment, side: int) -> None:
    plans = [torch.from_numpy(setting.plan(np.random.default_rng(seed), 6)) for seed in (0, 1)]
    batches = [pictures(6, side, side, seed) for seed in (0, 1)]
    wanted = [setting.apply(x, p, (32, 32), MEAN, STD) for x, p in zip(batches, plans, strict=True)]
    mean, std = MEAN.cuda(), STD.cuda()
    images, plan = batches[0].cuda(), plans[0].cuda()
    eager = setting.apply(images, plan, (32, 32), mean, std)
    torch.testing.assert_close(eager.cpu(), wanted[0], atol=5e-4, rtol=0)
    assert eager.is_contiguous(memory_format=torch.channels_last)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a draw, a wait for the host or a copy from it would raise here
        captured = setting.apply(images, plan, (32, 32), mean, std)
    images.copy_(batches[1])
    plan.copy_(plans[1])
    graph.replay()
    torch.testing.assert_close(captured.cpu(), wanted[1], atol=5e-4, rtol=0)
    assert torch.equal(captured, setting.apply(images, plan, (32, 32), mean, std))
