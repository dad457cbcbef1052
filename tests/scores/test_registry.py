"""What every score promises, over the whole registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opendg.errors import OpenDGError
from opendg.evaluation import metrics
from opendg.scores import SCORES, Score, list_scores, make_score, select_scores, usable_scores
from opendg.scores.base import OUTPUTS
from tests.scores.clusters import from_logits, make_head, make_predictions

SOURCE = make_predictions(2000, seed=1)
KNOWN = make_predictions(90, seed=2)
UNKNOWN = make_predictions(60, seed=3, unknown=True)

each_score = pytest.mark.parametrize("name", SCORES)


def fitted(name: str) -> Score:
    return make_score(name).fit(SOURCE, make_head())


@each_score
def test_says_what_it_is(name: str) -> None:
    score = SCORES[name]
    assert score.name == name
    assert score.title
    assert "https://" in score.paper
    assert score.idea
    assert "\n" not in score.idea
    assert set(score.needs) <= set(OUTPUTS)


@each_score
def test_finite_doubles_of_one_entry_an_image(name: str) -> None:
    scores = fitted(name)(KNOWN)
    assert scores.dtype == np.float64
    assert scores.shape == (len(KNOWN),)
    assert np.isfinite(scores).all()


@each_score
def test_no_images_no_scores(name: str) -> None:
    none = KNOWN.take(np.zeros(len(KNOWN), bool))
    assert fitted(name)(none).shape == (0,)


@each_score
def test_known_clusters_score_above_unknown_ones(name: str) -> None:
    score = fitted(name)
    # OpenMax turns known images beyond its tails, 20 of 500 source images a class, into the least known of all.
    assert metrics.auroc(score(KNOWN), score(UNKNOWN)) > (0.95 if name == "openmax" else 0.99)


@each_score
def test_images_do_not_influence_each_other(name: str) -> None:
    score = fitted(name)
    whole = score(KNOWN)
    order = np.random.default_rng(0).permutation(len(KNOWN))
    np.testing.assert_allclose(score(KNOWN.take(order)), whole[order], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(score(KNOWN.take(KNOWN.predicted == 1)), whole[KNOWN.predicted == 1], rtol=1e-12)
    np.testing.assert_allclose(score(KNOWN.take(np.array([5]))), whole[[5]], rtol=1e-12)


@each_score
def test_deterministic_and_inputs_left_alone(name: str) -> None:
    before = KNOWN.logits.copy(), KNOWN.features.copy()
    first, second = fitted(name)(KNOWN), fitted(name)(KNOWN)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(KNOWN.logits, before[0])
    np.testing.assert_array_equal(KNOWN.features, before[1])


@each_score
def test_order_of_the_source_images_does_not_matter(name: str) -> None:
    mixed = SOURCE.take(np.random.default_rng(0).permutation(len(SOURCE)))
    again = make_score(name).fit(mixed, make_head())
    np.testing.assert_allclose(again(KNOWN), fitted(name)(KNOWN), rtol=1e-7)


@each_score
def test_state_travels_as_plain_arrays(name: str, tmp_path: Path) -> None:
    score = fitted(name)
    assert set(score.state()) == set(score.fitted)
    np.savez(tmp_path / "state.npz", **score.state())
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        again = make_score(name).load({key: file[key] for key in file.files})
    np.testing.assert_array_equal(again(KNOWN), score(KNOWN))


@each_score
def test_value_never_turns_the_order_round(name: str) -> None:
    score = fitted(name)
    ranked = np.sort(np.concatenate([score(KNOWN), score(UNKNOWN), np.linspace(-60, 60, 500)]))
    values = score.value(ranked)
    assert values.dtype == np.float64
    assert (np.diff(values) >= 0).all()


@each_score
def test_labels_of_the_images_are_not_looked_at(name: str) -> None:
    score = fitted(name)
    blind = from_logits(KNOWN.logits, KNOWN.ova)
    object.__setattr__(blind, "features", KNOWN.features)
    object.__setattr__(blind, "label", np.full(len(KNOWN), -1))
    np.testing.assert_array_equal(score(blind), score(KNOWN))


@each_score
def test_few_source_images_are_enough(name: str) -> None:
    """Two or three images a class, fewer than features: as in a first try on a handful of images."""
    score = make_score(name).fit(make_predictions(10, seed=4), make_head())
    found = metrics.auroc(score(KNOWN), score(UNKNOWN))
    assert found > 0.9 or name == "openmax"  # whose tails are all of the images: nearly every new one lies outside


@pytest.mark.parametrize("name", [name for name in SCORES if SCORES[name].fitted])
class TestFitted:
    def test_refuses_to_score_before_it_is_fitted(self, name: str) -> None:
        with pytest.raises(OpenDGError, match="not fitted yet"):
            make_score(name)(KNOWN)

    def test_refuses_unknown_images_in_the_source(self, name: str) -> None:
        some = replace(KNOWN, label=np.where(np.arange(90) < 60, -1, KNOWN.label))
        with pytest.raises(OpenDGError, match="60 of the 90"):
            make_score(name).fit(some, make_head())

    def test_refuses_an_empty_source(self, name: str) -> None:
        with pytest.raises(OpenDGError, match="0 of the 0"):
            make_score(name).fit(SOURCE.take(np.zeros(len(SOURCE), bool)), make_head())

    def test_refuses_a_foreign_state(self, name: str) -> None:
        with pytest.raises(OpenDGError, match="not the state of"):
            make_score(name).load({"something": np.zeros(3)})
        with pytest.raises(OpenDGError, match="not the state of"):
            make_score(name).load(fitted(name).state() | {"something": np.zeros(3)})


def test_outputs_that_a_classifier_does_not_have() -> None:
    plain = from_logits(KNOWN.logits)
    with pytest.raises(OpenDGError, match=r"'bcls' needs a one-vs-all head"):
        make_score("bcls")(plain)
    with pytest.raises(OpenDGError, match=r"'vim' needs the weights of a linear closed-set head"):
        make_score("vim").fit(KNOWN)
    assert set(SCORES) - set(usable_scores(plain)) == {"bcls", "vim"}
    assert usable_scores(KNOWN, make_head()) == list(SCORES)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_diverged_outputs_are_named(value: float) -> None:
    logits = KNOWN.logits.copy()
    logits[3] = value
    with pytest.raises(OpenDGError, match="not a finite number for 1 of 90 images"):
        make_score("energy")(from_logits(logits))


def test_names_wildcards_and_near_matches() -> None:
    assert list_scores()[:4] == ["cls", "bcls", "energy", "max-logit"]
    assert list_scores("m*") == ["max-logit", "mahalanobis"]
    assert select_scores("energy, m*,energy") == ["energy", "max-logit", "mahalanobis"]
    assert select_scores(["knn"]) == ["knn"]
    assert select_scores("*cls,vim", usable=["cls", "energy"]) == ["cls", "vim"], "a name is taken at its word"
    with pytest.raises(OpenDGError, match="None of the scores knn can be read"):
        select_scores("k*", usable=["cls"])
    with pytest.raises(OpenDGError, match="did you mean 'mahalanobis'"):
        make_score("mahalanobi")
    with pytest.raises(OpenDGError, match="did you mean 'energy'"):
        select_scores("cls,enrgy")
    with pytest.raises(OpenDGError, match="There is no option 'j' of the score 'knn'"):
        make_score("knn", j=3)
