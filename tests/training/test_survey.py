"""The survey: what methods see of the source images between iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opendg.episodes import Task
from opendg.methods.erm import ERM
from opendg.models.backbones import Input
from opendg.training.survey import SourceSurvey
from small import small_classifier
from tests.methods.meta_by_hand import real_survey


@pytest.fixture
def survey(tmp_path: Path) -> SourceSurvey:
    """For a network that sees 16 x 16 and has a mean and a deviation for each colour; the class `c1` is unknown."""
    classifier = small_classifier(ERM(), classes=3).float()
    classifier.backbone.input = Input((16, 16), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    return real_survey(tmp_path / "tree", classifier, unknown=["c1"])


@pytest.mark.parametrize(("batch", "sizes"), [(40, [40, 5]), (44, [44, 1]), (45, [45]), (256, [45])])
def test_every_training_image_is_shown_once_and_as_the_network_takes_it(
    survey: SourceSurvey, tmp_path: Path, batch: int, sizes: list[int]
) -> None:
    found = list(survey.images(batch))
    rows = survey.rows["train"]
    assert [len(images) for images in found] == sizes
    for row, image in zip(rows, torch.cat(found), strict=True):
        with Image.open(tmp_path / "tree" / survey.index.keys[row]) as file:
            pixels = np.asarray(file.resize((16, 16), Image.Resampling.BILINEAR)) / 255
        expected = (pixels - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
        np.testing.assert_allclose(image.permute(1, 2, 0), expected, atol=0.02)


def test_what_is_drawn_is_of_the_task(survey: SourceSurvey) -> None:
    images, labels = survey.draw(Task((1,), (0, 2), 8), np.random.default_rng(0))
    every, rows = torch.cat(list(survey.images())), survey.rows["train"]
    assert sorted(set(labels.tolist())) == [0, 2]
    for image, label in zip(images, labels.tolist(), strict=True):
        (same,) = [row for row, other in zip(rows, every, strict=True) if torch.equal(image, other)]
        assert (survey.index.domain[same], survey.labels[same]) == (1, label)


def test_training_and_validation_images_are_told_apart(survey: SourceSurvey) -> None:
    for seen, part in ((survey.train(), "train"), (survey.val(), "val")):
        assert list(seen.keys) == [survey.index.keys[row] for row in survey.rows[part]]
    assert len(survey.rows["train"]) > len(survey.rows["val"]) > 0
