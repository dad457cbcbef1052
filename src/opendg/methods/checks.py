"""What the Configs of several methods check alike. A ValueError says what a setting is and what it must be."""

from __future__ import annotations


def one_of(config: object, **choices: tuple[object, ...]) -> None:
    """Refuse a setting that is none of its choices."""
    for key, allowed in choices.items():
        if getattr(config, key) not in allowed:
            raise ValueError(f"{key} is {getattr(config, key)!r} and must be one of {', '.join(map(str, allowed))}")


def at_least(config: object, **least: float) -> None:
    """Refuse a number that is smaller."""
    for key, smallest in least.items():
        if not getattr(config, key) >= smallest:
            raise ValueError(f"{key} is {getattr(config, key)} and must be {smallest} or more")


def none_negative(config: object) -> None:
    """Refuse a number below 0: no setting of any method has a use for one."""
    at_least(config, **{key: 0 for key, value in vars(config).items() if type(value) in (int, float)})


def above(config: object, **limits: float) -> None:
    """Refuse a number that is not larger."""
    for key, limit in limits.items():
        if not getattr(config, key) > limit:
            raise ValueError(f"{key} is {getattr(config, key)} and must be above {limit}")


def below(config: object, **limits: float) -> None:
    """Refuse a number that is not smaller."""
    for key, limit in limits.items():
        if not getattr(config, key) < limit:
            raise ValueError(f"{key} is {getattr(config, key)} and must be below {limit}")
