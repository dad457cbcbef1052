"""The method in CONTRIBUTING.md works as it stands there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from small import small_classifier, small_episode, small_state


def test_the_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "smooth_from_contributing.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    method = importlib.import_module("smooth_from_contributing").Smooth()
    classifier, episode = small_classifier(method), small_episode((4, 4, 4))
    (update,) = method.step(classifier, episode, small_state())
    log_p = classifier(episode.images).logits.log_softmax(1)
    own = log_p.gather(1, episode.labels[:, None]).squeeze(1)
    expected = -(0.9 * own + 0.1 * log_p.mean(1)).sum() / episode.batch
    torch.testing.assert_close(update.losses["ce"], expected)
