"""Each score against its formula, computed the slow and obvious way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from opendg.errors import OpenDGError
from opendg.scores import make_score
from opendg.scores.openmax import SHIFT, fit_tail, tail_cdf
from opendg.scores.vim import principal
from tests.scores.clusters import CLASSES, from_logits, make_head, make_predictions, outputs

LOGITS = arrays(np.float32, (5, 3), elements=st.floats(-20, 20, width=32))
SOURCE = make_predictions(300, seed=1)
IMAGES = make_predictions(25, seed=2)


def softmax(row: np.ndarray) -> list[float]:
    powers = [math.exp(z - max(row)) for z in row]
    return [power / sum(powers) for power in powers]


@given(LOGITS)
def test_cls_is_the_largest_probability(logits: np.ndarray) -> None:
    score = make_score("cls")
    expected = [max(softmax(row)) for row in logits.astype(float)]
    np.testing.assert_allclose(score.value(score(from_logits(logits))), expected, rtol=1e-12)


def test_cls_keeps_sure_images_apart() -> None:
    """All of these have the probability 1 in float64."""
    score, images = make_score("cls"), from_logits([[40.0, 0, 0], [41.0, 0, 0], [80.0, 0, 0], [80.0, 0, -1]])
    assert (score.value(score(images)) == 1).all()
    assert (np.diff(score(images)) > 0).all()


@given(LOGITS, arrays(np.float32, (5, 2, 3), elements=st.floats(-20, 20, width=32)))
def test_bcls_is_the_one_vs_all_probability_of_the_predicted_class(logits: np.ndarray, ova: np.ndarray) -> None:
    score = make_score("bcls")
    expected = [softmax(pair[:, row.argmax()].astype(float))[1] for row, pair in zip(logits, ova, strict=True)]
    np.testing.assert_allclose(score.value(score(from_logits(logits, ova))), expected, rtol=1e-12)


def test_bcls_parts_at_one_half() -> None:
    score = make_score("bcls")
    assert score.own_threshold == 0.5
    assert score.value(np.zeros(1))[0] == 0.5


@given(LOGITS)
def test_energy_and_max_logit(logits: np.ndarray) -> None:
    images = from_logits(logits)
    expected = [math.log(sum(math.exp(z) for z in row)) for row in logits.astype(float)]
    np.testing.assert_allclose(make_score("energy")(images), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(make_score("max-logit")(images), [max(row) for row in logits])


def test_energy_of_huge_logits() -> None:
    assert make_score("energy")(from_logits([[5000.0, 4990.0]])) == pytest.approx(5000 + math.log1p(math.exp(-10)))


@given(LOGITS)
def test_entropy(logits: np.ndarray) -> None:
    expected = [sum(p * math.log(p) for p in softmax(row)) for row in logits.astype(float)]
    np.testing.assert_allclose(make_score("entropy")(from_logits(logits)), expected, rtol=1e-9, atol=1e-13)


def test_entropy_keeps_sure_images_apart() -> None:
    found = make_score("entropy")(from_logits([[0.0, 0, 0], [40.0, 0, 0], [41.0, 0, 0], [300.0, 0, 0]]))
    assert found[0] == pytest.approx(-math.log(3))
    assert (np.diff(found) > 0).all()
    assert found[1] == pytest.approx(-2 * math.exp(-40) * 41, rel=1e-9, abs=0)  # r (1 - log r_k), r = 2 exp(-40)


EVIDENCE = {"exp": math.exp, "softplus": lambda z: math.log1p(math.exp(z)), "relu": lambda z: max(z, 0.0)}


@pytest.mark.parametrize("evidence", EVIDENCE)
@given(logits=LOGITS)
def test_evidential_is_one_minus_vacuity(evidence: str, logits: np.ndarray) -> None:
    score = make_score("evidential", evidence=evidence)
    alphas = [[EVIDENCE[evidence](z) + 1 for z in row] for row in logits.astype(float)]
    expected = [1 - len(alpha) / sum(alpha) for alpha in alphas]
    np.testing.assert_allclose(score.value(score(from_logits(logits))), expected, rtol=1e-6, atol=1e-12)


def test_next_to_no_evidence_is_finite() -> None:
    """exp(-1000) is 0 in float64, its logarithm is not."""
    assert make_score("evidential", evidence="softplus")(from_logits([[-1000.0, -1000.0]])) == pytest.approx(-1000)


def test_evidence_must_be_one_of_three() -> None:
    with pytest.raises(OpenDGError, match="no evidence 'log'"):
        make_score("evidential", evidence="log")(IMAGES)


def test_knn_by_a_loop() -> None:
    unit = [f / np.linalg.norm(f) for f in SOURCE.features.astype(float)]
    expected = []
    for feature in IMAGES.features.astype(float):
        distances = sorted(np.linalg.norm(feature / np.linalg.norm(feature) - other) for other in unit)
        expected.append(-distances[6])
    np.testing.assert_allclose(make_score("knn", k=7).fit(SOURCE)(IMAGES), expected, rtol=1e-5)


def test_knn_stays_within_the_smallest_class_and_keeps_a_part_of_many_images() -> None:
    few = SOURCE.take(np.concatenate([np.flatnonzero(SOURCE.label == 0)[:3], np.flatnonzero(SOURCE.label > 0)]))
    assert make_score("knn").fit(few).state()["k"] == 3
    part = make_score("knn", most=100).fit(SOURCE)
    bank = part.state()["bank"]
    assert len(bank) == 100
    for end in (0, -1):  # at even distances from the first image to the last
        np.testing.assert_allclose(bank[end], SOURCE.features[end] / np.linalg.norm(SOURCE.features[end]), rtol=1e-5)
    assert part(IMAGES).min() > part(make_predictions(25, seed=3, unknown=True)).max()


def test_mahalanobis_by_a_loop() -> None:
    from sklearn.covariance import LedoitWolf

    features = SOURCE.features.astype(float)
    means = [features[SOURCE.label == k].mean(axis=0) for k in range(CLASSES)]
    centred = np.stack([f - means[k] for f, k in zip(features, SOURCE.label, strict=True)])
    precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(centred).covariance_)
    expected = [-min((f - mean) @ precision @ (f - mean) for mean in means) for f in IMAGES.features.astype(float)]
    np.testing.assert_allclose(make_score("mahalanobis").fit(SOURCE)(IMAGES), expected, rtol=1e-8)


def test_mahalanobis_of_collapsed_features() -> None:
    with pytest.raises(OpenDGError, match="alike"):
        make_score("mahalanobis").fit(from_logits([[1.0, 0.0], [0.0, 1.0]]))


def test_vim_by_projections() -> None:
    head, features = make_head(), SOURCE.features.astype(float)
    weight, bias = head.weight.astype(float), head.bias.astype(float)
    origin = -np.linalg.pinv(weight) @ bias
    _, _, directions = np.linalg.svd(features - origin)
    main = directions[: features.shape[1] // 2]

    def outside(image: np.ndarray) -> float:
        centred = image - origin
        return float(np.linalg.norm(centred - main.T @ (main @ centred)))

    scale = SOURCE.logits.astype(float).max(axis=1).mean() / np.mean([outside(image) for image in features])
    energy = make_score("energy")(IMAGES)
    expected = energy - scale * np.array([outside(image) for image in IMAGES.features.astype(float)])
    np.testing.assert_allclose(make_score("vim").fit(SOURCE, head)(IMAGES), expected, rtol=1e-6)


@pytest.mark.parametrize(("span", "left"), [(1, False), (11, False), (12, True), (20, True)])
def test_vim_without_a_residual(span: int, left: bool) -> None:
    """12 of the 24 dimensions are the main ones; the origin of the head adds one to those that features span."""
    basis = np.random.default_rng(0).normal(size=(span, SOURCE.features.shape[1]))
    mixed = SOURCE.features[:, :span] @ basis
    source = outputs(mixed.astype(np.float32), SOURCE.label)
    if left:
        assert np.abs(make_score("vim").fit(source, make_head())(source)).max() < 1e3
    else:
        with pytest.raises(OpenDGError, match="span no more than the 12 dimensions .* 'vim' cannot be fitted"):
            make_score("vim").fit(source, make_head())


@pytest.mark.parametrize(
    ("width", "images", "dimensions"),
    [(2048, 9000, 1000), (768, 9000, 512), (512, 9000, 256), (256, 9000, 128), (512, 80, 40)],
)
def test_dimensions_of_vim(width: int, images: int, dimensions: int) -> None:
    assert principal(images, width) == dimensions


def test_openmax_by_a_loop() -> None:
    from scipy.stats import weibull_min

    logits, tail, top = SOURCE.logits.astype(float), 15, 3
    means, tails = [], []
    for k in range(CLASSES):
        inside = logits[(SOURCE.label == k) & (SOURCE.predicted == k)]
        means.append(inside.mean(axis=0))
        largest = np.sort(np.linalg.norm(inside - means[k], axis=1))[-tail:]
        shape, _, scale = weibull_min.fit(largest - largest[0] + SHIFT, floc=0)
        tails.append((largest[0], shape, scale))
    expected = []
    for z in IMAGES.logits.astype(float):
        revised, unknown = z.copy(), 0.0
        for rank, k in enumerate(np.argsort(-z)[:top], start=1):
            start, shape, scale = tails[k]
            outlier = weibull_min.cdf(np.linalg.norm(z - means[k]) - start + SHIFT, shape, scale=scale)
            weight = 1 - (top + 1 - rank) / top * outlier
            revised[k], unknown = z[k] * weight, unknown + z[k] * (1 - weight)
        expected.append(max(softmax(np.array([unknown, *revised]))[1:]))
    score = make_score("openmax", tail=tail, top=top).fit(SOURCE)
    np.testing.assert_allclose(score.value(score(IMAGES)), expected, rtol=1e-4)  # as far as SciPy's search goes


def test_openmax_does_not_know_what_the_network_says_nothing_of() -> None:
    """No logit: every output, the unknown one too, has the probability 1 / (K + 1)."""
    score = make_score("openmax").fit(SOURCE)
    nothing, usual = from_logits(np.zeros((1, CLASSES))), score(IMAGES)
    assert score.value(score(nothing))[0] == pytest.approx(1 / (CLASSES + 1))
    assert np.median(usual) > score(nothing)[0]


def test_openmax_means_are_of_rightly_classified_images() -> None:
    wrong = from_logits([[9.0, 0], [7, 0], [0, 8], [0, 6], [-30, 30]])
    object.__setattr__(wrong, "label", np.array([0, 0, 1, 1, 0]))
    assert make_score("openmax").fit(wrong).state()["means"].tolist() == [[8, 0], [0, 7]]


def test_openmax_takes_all_images_of_a_class_that_is_never_right() -> None:
    wrong = from_logits([[9.0, 0], [7, 0], [4, 3], [6, 3]])
    object.__setattr__(wrong, "label", np.array([0, 0, 1, 1]))
    assert make_score("openmax").fit(wrong).state()["means"].tolist() == [[8, 0], [5, 3]]


def test_openmax_needs_every_class() -> None:
    with pytest.raises(OpenDGError, match="class number 2 has none"):
        make_score("openmax").fit(from_logits([[2.0, 1, 0], [1, 2, 0]]))


@pytest.mark.parametrize("distances", [[0.0], [2.0, 2.0, 2.0], [1.0, 1.0 + 1e-12]])
def test_a_tail_without_spread_is_a_step(distances: list[float]) -> None:
    weibull = fit_tail(np.array(distances), 20)[None]
    near, far = tail_cdf(np.array([[distances[0] - 0.1]]), weibull), tail_cdf(np.array([[distances[0] + 0.1]]), weibull)
    assert near < 1e-6
    assert far > 1 - 1e-6


@pytest.mark.parametrize("size", [1e-4, 0.03, 1.0, 50.0])
@pytest.mark.parametrize("n", [2, 5, 500])
def test_the_tail_is_the_likeliest_weibull(size: float, n: int) -> None:
    """Its shape solves 1 / c + mean(log x) = sum(x^c log x) / sum(x^c), its scale is mean(x^c)^(1 / c)."""
    distances = np.random.default_rng(n).gamma(4, size, n)
    start, centre, spread = fit_tail(distances, 20)
    logs = np.log1p((np.sort(distances)[-20:] - start) / SHIFT)
    powers = np.exp((logs - logs.max()) / spread)
    assert spread + logs.mean() == pytest.approx((powers * logs).sum() / powers.sum(), rel=1e-6)
    assert centre == pytest.approx(logs.max() + spread * np.log(powers.mean()), rel=1e-6)


def test_tail_cdf_rises_from_zero_to_one() -> None:
    distances = np.random.default_rng(0).gamma(4, 1.0, 500)
    found = tail_cdf(np.linspace(0, 60, 200)[:, None], fit_tail(distances, 20)[None])[:, 0]
    assert (np.diff(found) >= 0).all()
    assert found[0] < 0.05
    assert found[-1] == 1
