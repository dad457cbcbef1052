"""All methods by name: a plain dict."""

from __future__ import annotations

import ast
import dataclasses
from fnmatch import fnmatch
from typing import Any, get_args, get_origin, get_type_hints

from opendg.errors import OpenDGError, unknown_name
from opendg.methods.arith import Arith
from opendg.methods.arpl import ARPL
from opendg.methods.base import Method
from opendg.methods.cirl import CIRL
from opendg.methods.coral import CORAL
from opendg.methods.crossmatch import CrossMatch
from opendg.methods.daml import DAML
from opendg.methods.dann import DANN
from opendg.methods.dson import DSON
from opendg.methods.ebil_hads import EBiLHaDS
from opendg.methods.erm import ERM
from opendg.methods.irm import IRM
from opendg.methods.medic import MEDIC, MLDG, Classwise
from opendg.methods.medicpp import MEDICpp
from opendg.methods.metareg import MetaReg
from opendg.methods.miro import MIRO
from opendg.methods.mixstyle import MixStyle
from opendg.methods.mmd import MMD
from opendg.methods.mmld import MMLD
from opendg.methods.mvdg import MVDG
from opendg.methods.openmax import OpenMax
from opendg.methods.rsc import RSC
from opendg.methods.sagnet import SagNet
from opendg.methods.selfreg import SelfReg
from opendg.methods.swad import SWAD

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        MEDIC,
        ERM,
        MLDG,
        Classwise,
        MEDICpp,
        Arith,
        EBiLHaDS,
        MVDG,
        ARPL,
        CORAL,
        DANN,
        IRM,
        MetaReg,
        MMD,
        OpenMax,
        SelfReg,
        SWAD,
        DAML,
        CIRL,
        CrossMatch,
        DSON,
        MIRO,
        MixStyle,
        MMLD,
        RSC,
        SagNet,
    )
}

WORDS: dict[Any, str] = {  # what a value must be, by its annotation
    int: "a whole number", float: "a number", str: "a text", bool: "true or false",
    tuple[float, ...]: "a list of numbers, such as [0.1, 1.0],",
    tuple[str, ...]: "a list of texts, such as ['a', 'b'],",
}  # fmt: skip


def list_methods(pattern: str = "*") -> list[str]:
    """Names of the methods, those that match a wildcard."""
    return sorted(name for name in METHODS if fnmatch(name, pattern))


def make_method(name: str, settings: dict[str, Any] | None = None) -> Method:
    """A method with its Config filled from `settings` (values may be text, as the command line has them)."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    kind = METHODS[name]
    hints = get_type_hints(kind.Config)
    values = {}
    for key, value in (settings or {}).items():
        if key not in hints:
            raise unknown_name("setting", key, hints, where=f" of {name}")
        values[key] = _convert(key, value, hints[key])
    try:
        return kind(kind.Config(**values))
    except ValueError as error:
        raise OpenDGError(f"The settings of {name} do not fit: {error}.") from error


def _convert(key: str, value: Any, wanted: Any) -> Any:
    if isinstance(value, str) and wanted is not str:
        try:
            value = (
                {"true": True, "false": False, "none": None}[value.lower()]
                if value.isalpha()
                else ast.literal_eval(value)
            )
        except (ValueError, SyntaxError, KeyError) as error:
            raise _misfit(key, value, wanted) from error
    try:
        return _tuple_of(value, get_args(wanted)[0]) if get_origin(wanted) is tuple else _one(value, wanted)
    except TypeError as error:
        raise _misfit(key, value, wanted) from error


def _tuple_of(value: Any, kind: Any) -> tuple[Any, ...]:
    """A list, or a single value, as a tuple of this kind; `--set stages=1,2` brings whole numbers for texts."""
    parts = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(part) if kind is str and type(part) is int else _one(part, kind) for part in parts)


def _one(value: Any, kind: Any) -> Any:
    """A value of this kind, a float also of a whole number; a TypeError where it is of another."""
    if kind is float and type(value) is int:
        return float(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _misfit(key: str, value: Any, wanted: Any) -> OpenDGError:
    return OpenDGError(f"--set {key}={value} does not fit: {in_words(wanted)} was expected.")


def in_words(kind: Any) -> str:
    """What a value must be, for people: that of a setting, or of a part of the recipe."""
    return WORDS.get(kind, str(kind))


def settings(method: Method) -> dict[str, Any]:
    """The filled Config as plain values."""
    return dataclasses.asdict(method.config)
