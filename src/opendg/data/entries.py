"""The datasets that OpenDG knows by name: their domains, classes, how many images to expect, where to get them.

The images themselves are found and listed by `catalog.open_dataset`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from opendg.data.class_names import DOMAINNET, OFFICE_HOME
from opendg.data.index import TRAIN, VAL
from opendg.errors import unknown_name

Counts = Mapping[str, int]
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Dataset:
    """A catalogue entry. Names are spelled as the folders are in the usual copies."""

    name: str
    title: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]  # sorted by name, upper case first, as Python sorts
    known: int  # the first so many classes are known by default, the rest unknown
    counts: Counts  # images per domain; empty when they are not known
    licence: str
    citation: str
    url: str  # where to get it
    cells: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # images per domain and class, where known
    editions: tuple[Counts, ...] = ()  # counts of other copies in use
    input: str = "photo"  # kind of augmentation: "photo" or "digits"
    backbone: str = "resnet18.tv_in1k"
    hub: str | None = None  # a public copy on the Hugging Face Hub
    lists: Mapping[str, int] = field(default_factory=dict)  # file names of the official lists -> TRAIN or VAL

    @property
    def unknown(self) -> tuple[str, ...]:
        """The classes that are unknown by default."""
        return self.classes[self.known :]


def _totals(cells: Mapping[str, tuple[int, ...]]) -> Counts:
    return {domain: sum(row) for domain, row in cells.items()}


def _pacs() -> Dataset:
    cells = {
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    }
    return Dataset(
        name="pacs",
        title="PACS",
        domains=tuple(cells),
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        known=6,
        counts=_totals(cells),
        cells=cells,
        licence="none stated; assembled from Caltech-256, Sketchy, TU-Berlin and Google Images, for research use",
        citation="Li, Yang, Song, Hospedales: Deeper, Broader and Artier Domain Generalization. ICCV 2017.",
        url="https://domaingeneralization.github.io",
        hub="flwrlabs/pacs",
        lists={"*_train_kfold.txt": TRAIN, "*_crossval_kfold.txt": VAL},
    )


def _office_home() -> Dataset:
    counts = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real_World": 4357}
    return Dataset(
        name="office-home",
        title="Office-Home",
        domains=tuple(counts),
        classes=OFFICE_HOME,
        known=40,
        counts=counts,
        licence="fair use notice of the authors, non-commercial research",
        citation="Venkateswara, Eusebio, Chakraborty, Panchanathan: Deep Hashing Network for Unsupervised Domain "
        "Adaptation. CVPR 2017.",
        url="https://www.hemanthdv.org/officeHomeDataset.html",
        hub="flwrlabs/office-home",
    )


def _digits_dg() -> Dataset:
    cells = dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), (600,) * 10)
    return Dataset(
        name="digits-dg",
        title="Digits-DG",
        domains=tuple(cells),
        classes=DIGITS,
        known=6,
        counts=_totals(cells),
        cells=cells,
        licence="those of MNIST, MNIST-M, SVHN and Synthetic Digits, from which it is drawn",
        citation="Zhou, Yang, Hospedales, Xiang: Deep Domain-Adversarial Image Generation for Domain Generalisation. "
        "AAAI 2020.",
        url="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
        input="digits",
        backbone="convnet",
    )


def _vlcs() -> Dataset:
    cells = {
        "Caltech101": (237, 123, 118, 67, 870),
        "LabelMe": (80, 1209, 88, 42, 1237),
        "SUN09": (20, 932, 1036, 30, 1264),
        "VOC2007": (330, 699, 428, 420, 1499),
    }
    return Dataset(
        name="vlcs",
        title="VLCS",
        domains=tuple(cells),
        classes=("bird", "car", "chair", "dog", "person"),
        known=4,
        counts=_totals(cells),
        cells=cells,
        licence="those of PASCAL VOC 2007, LabelMe, Caltech-101 and SUN09, from which it is drawn",
        citation="Fang, Xu, Rockmore: Unbiased Metric Learning. ICCV 2013.",
        url="https://github.com/facebookresearch/DomainBed",
    )


def _terra_incognita() -> Dataset:
    domains = ("location_100", "location_38", "location_43", "location_46")
    first, second = (4879, 9767, 4020, 6122), (4741, 9736, 3970, 5883)  # 24,788 images, and 24,330 since 2021
    return Dataset(
        name="terra-incognita",
        title="TerraIncognita",
        domains=domains,
        classes=("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),
        known=6,
        counts=dict(zip(domains, second, strict=True)),
        editions=(dict(zip(domains, first, strict=True)),),
        licence="Community Data License Agreement (permissive), of Caltech Camera Traps",
        citation="Beery, Van Horn, Perona: Recognition in Terra Incognita. ECCV 2018. (Four locations, ten classes: "
        "DomainBed's choice.)",
        url="https://github.com/facebookresearch/DomainBed",
    )


def _domainnet() -> Dataset:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    whole = (48_833, 53_201, 75_759, 172_500, 175_327, 70_386)
    cleaned = (48_129, 51_605, 72_266, 172_500, 172_947, 69_128)  # without its duplicates: 586,575
    return Dataset(
        name="domainnet",
        title="DomainNet",
        domains=domains,
        classes=DOMAINNET,
        known=230,
        counts=dict(zip(domains, cleaned, strict=True)),
        editions=(dict(zip(domains, whole, strict=True)),),
        licence="fair use notice of the authors, non-commercial research",
        citation="Peng, Bai, Xia, Huang, Saenko, Wang: Moment Matching for Multi-Source Domain Adaptation. ICCV 2019.",
        url="https://ai.bu.edu/M3SDA/",
        hub="wltjr1007/DomainNet",
    )


def _glyphs() -> Dataset:
    return Dataset(
        name="glyphs",
        title="Glyphs",
        domains=("fabric", "pen", "print", "street"),
        classes=DIGITS,
        known=6,
        counts={},  # as many as glyphs.py draws
        licence="BSD-3-Clause (scikit-learn's digits) and the free fonts that come with matplotlib",
        citation="Built into OpenDG; handwritten digits of Alpaydin and Kaynak, UCI 1998.",
        url="built in",
        input="digits",
        backbone="convnet",
    )


DATASETS: dict[str, Dataset] = {
    entry.name: entry
    for entry in (
        _pacs(),
        _office_home(),
        _digits_dg(),
        _vlcs(),
        _terra_incognita(),
        _domainnet(),
        _glyphs(),
    )
}


def names() -> list[str]:
    return list(DATASETS)


def find(name: str) -> Dataset | None:
    """The entry of that name, if there is one; case, blanks, - and _ do not matter."""
    return next((entry for entry in DATASETS.values() if plain(entry.name) == plain(name)), None)


def get(name: str) -> Dataset:
    """The same, or an error."""
    entry = find(name)
    if entry is None:
        raise unknown_name("dataset", name, names())
    return entry


@cache
def plain(name: str) -> str:
    """The letters and digits of a name: "Real World", "Real_World" and "RealWorld" are one domain."""
    return re.sub(r"[\s_-]+", "", unicodedata.normalize("NFC", name).casefold())


def recognise(domains: Iterable[str], classes: Iterable[str]) -> str | None:
    """The catalogue name of a tree with these domains (two of the dataset's at least) and just these classes."""
    found, taught = {plain(name) for name in domains}, {plain(name) for name in classes}
    for entry in DATASETS.values():
        theirs = {plain(name) for name in entry.domains}
        if len(found) >= 2 and found <= theirs and taught == {plain(name) for name in entry.classes}:
            return entry.name
    return None
