"""What tuning holds out, and what it searches."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendg.bench.folds import make_folds
from opendg.bench.space import METHODS as SPACES
from opendg.bench.space import Choice, Range, candidates, space_of
from opendg.errors import OpenDGError
from opendg.methods.registry import METHODS
from opendg.protocol import Protocol

# Folds


def small_protocol(sources: tuple[str, ...], known: tuple[str, ...] = ("bar", "cross", "dot")) -> Protocol:
    return Protocol("signs", "shared", sources, ("wood",), known, ("ring",), (known,) * len(sources), known)


@given(st.integers(2, 6), st.integers(3, 30), st.integers(0, 5))
def test_folds_hold_out_domains_and_classes(sources: int, classes: int, seed: int) -> None:
    protocol = small_protocol(tuple(f"d{i}" for i in range(sources)), tuple(f"c{i:02}" for i in range(classes)))
    folds = make_folds(protocol, None, seed)
    assert sorted(fold.held for fold in folds) == sorted(protocol.sources)
    for fold in folds:
        assert set(fold.sources) == set(protocol.sources) - {fold.held}
        assert set(fold.known) | set(fold.unknown) == set(protocol.known)
        assert not set(fold.known) & set(fold.unknown)
        assert len(fold.unknown) == max(1, classes // 3)
        assert len(fold.known) >= 2
        assert list(fold.known) == sorted(fold.known)
    assert len({fold.unknown for fold in folds[:3]}) == min(3, sources)
    if sources == 3 and classes % 3 == 0:
        assert sorted(name for fold in folds for name in fold.unknown) == sorted(protocol.known)
    assert make_folds(protocol, 1, seed) == folds[:1]


def test_the_seed_deals_the_classes_of_folds() -> None:
    protocol = small_protocol(("ink", "neon", "chalk"))
    assert {make_folds(protocol, 1, seed)[0].unknown for seed in range(20)} == {("bar",), ("cross",), ("dot",)}


def test_searches_of_one_fold_hold_out_every_domain_and_class_between_them() -> None:
    """Else one setting for all targets would rest on how one domain does."""
    domains, known = ("art", "cartoon", "photo", "sketch"), ("a", "b", "c", "d", "e", "f")
    folds = []
    for target in domains:
        sources = tuple(name for name in domains if name != target)
        protocol = Protocol("pacs", "shared", sources, (target,), known, ("g",), (known,) * 3, known)
        folds += make_folds(protocol, 1, 0)
    assert [fold.held for fold in folds] == ["cartoon", "photo", "sketch", "art"]
    assert {name for fold in folds for name in fold.unknown} == set(known)


@pytest.mark.parametrize(
    ("protocol", "count", "sentence"),
    [
        (small_protocol(("ink",)), None, "has 1 source and 3 known classes"),
        (small_protocol(("ink", "neon"), ("bar", "dot")), None, "has 2 sources and 2 known classes"),
        (small_protocol(("ink", "neon")), 3, "--folds 3 is out of range: there are 2 source domains"),
    ],
)
def test_folds_that_cannot_be_are_refused(protocol: Protocol, count: int | None, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        make_folds(protocol, count, 0)


# The search space


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("method", ["erm", "medic"])
def test_the_factor_of_the_one_vs_all_loss_is_searched_where_that_head_is_trained(method: str, head: bool) -> None:
    defaults = {
        "recipe.lr": 1e-4, "recipe.schedule": "step", "recipe.average_over": 0.0, "settings.alpha": 0.01,
        "settings.ova": head, "settings.ova_scale": 0.5,
    }  # fmt: skip
    space = space_of(method, defaults)
    assert space.get("settings.ova_scale") == (Choice((0.5, 1.0)) if head else None)
    assert "settings.ova_scale" not in space_of(method, defaults, fixed=["settings.ova_scale"])


def test_every_setting_that_is_searched_exists_and_its_default_lies_inside() -> None:
    for method, space in SPACES.items():
        defaults = {field.name: field.default for field in fields(METHODS[method].Config)}
        for name, values in space.items():
            assert name in defaults, f"{method} has no setting {name}"
            assert values.with_(defaults[name]) == values, f"{method}: {name} {defaults[name]} is not in its range"
            searched = {type(values.at(share)) for share in (0.0, 1.0)}
            assert searched == {type(defaults[name])}, f"{method}: {name} is searched as another type"


@given(st.floats(0, 1), st.floats(1e-4, 10), st.floats(1.01, 1e4), st.booleans())
def test_ranges_stay_inside(share: float, low: float, factor: float, log: bool) -> None:
    values = Range(low, low * factor, log)
    assert values.low <= values.at(share) <= values.high
    assert values.at(0) == pytest.approx(low, rel=1e-2)
    assert values.at(1) == pytest.approx(values.high, rel=1e-2)


def test_choices_have_equal_shares() -> None:
    shares = (0.0, 0.3, 0.34, 0.66, 0.67, 1.0)
    assert [Choice(("a", "b", "c")).at(share) for share in shares] == ["a", "a", "b", "b", "c", "c"]


def test_a_space_is_widened_to_hold_a_value() -> None:
    values = Range(1.0, 2.0)
    assert [values.with_(value) for value in (0.5, 1.5, 3.0)] == [Range(0.5, 2.0), values, Range(1.0, 3.0)]


def test_candidates_are_the_defaults_then_spread_points() -> None:
    defaults = {"recipe.lr": 1e-4, "recipe.schedule": "step", "recipe.average_over": 0.0, "settings.alpha": 0.01}
    space = space_of("arith", defaults)
    listed = candidates(space, defaults, 9, seed=0)
    assert listed[0] == defaults
    assert candidates(space, defaults, 4, seed=0) == listed[:4]
    assert candidates(space, defaults, 9, seed=1) != listed
    rates = sorted(values["recipe.lr"] for values in listed[1:])
    assert rates[0] >= 1e-4 / 3
    assert rates[-1] <= 5e-4
    halves = [sum(rate < 1.29e-4 for rate in rates), sum(rate >= 1.29e-4 for rate in rates)]
    assert min(halves) >= 3  # evenly over the logarithm, though they be few
    assert {values["recipe.schedule"] for values in listed} == {"step", "cosine"}


def test_of_choices_alone_each_combination_is_tried_once() -> None:
    defaults = {"recipe.schedule": "cosine", "recipe.average_over": 0.0, "settings.select": "random"}
    fixed = {"recipe.lr": 1e-4, "settings.alpha": 0.01}
    space = space_of("medic++", defaults | fixed, fixed)
    listed = candidates(space, defaults, 20, seed=0)
    assert listed[0] == defaults
    assert len(listed) == len({tuple(values.items()) for values in listed}) == 8
    assert candidates(space, defaults, 3, seed=0) == listed[:3]


def test_what_is_given_is_not_searched() -> None:
    defaults = {"recipe.lr": 3e-4, "recipe.schedule": "constant", "recipe.average_over": 0.0, "settings.weight": 1.0}
    space = space_of("coral", defaults, fixed=["recipe.lr", "settings.weight"])
    schedules = Choice(("step", "cosine", "constant"))
    assert space == {"recipe.schedule": schedules, "recipe.average_over": Choice((0.0, 0.5))}


def test_for_each_training_several_shares_of_the_start_are_tried() -> None:
    defaults = {"recipe.lr": 3e-4, "recipe.schedule": "step", "recipe.average_over": 0.5, "recipe.average_start": 0.0}
    space = space_of("erm", defaults, fixed=["recipe.average_over", "recipe.schedule"])
    listed = candidates(space, defaults, 16, seed=0)
    assert [point["recipe.average_start"] for point in listed] == ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5] * 3)[:16]
    rates = [point["recipe.lr"] for point in listed]
    assert rates[:6] == [3e-4] * 6
    assert len(set(rates)) == 3
    assert candidates(space, defaults, 7, seed=0) == listed[:7]


def test_where_all_trials_average_their_start_is_searched() -> None:
    """Where some do not, half of the settings would be no settings."""
    defaults = {"recipe.lr": 3e-4, "recipe.schedule": "step", "recipe.average_over": 0.5, "recipe.average_start": 0.0}
    given = ["recipe.lr", "recipe.schedule", "recipe.average_over"]
    space = space_of("erm", defaults, fixed=given)
    assert space == {"recipe.average_start": Range(0, 0.5, log=False)}
    first, *others = (point["recipe.average_start"] for point in candidates(space, defaults, 5, 0))
    assert first == 0
    assert sorted(int(8 * share) for share in others) == [0, 1, 2, 3]  # one in each quarter of the range
    assert space_of("erm", defaults | {"recipe.average_over": 0.0}, fixed=given) == {}
    assert "recipe.average_start" not in space_of("erm", defaults, fixed=["recipe.lr"])
