"""Options that several commands take: what each is called and what its help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Text = str | None

# The data, and which of their domains and classes are what
Data = Annotated[Text, typer.Option(help="A dataset's name (see `opendg datasets`) or a folder domain/class/image.")]
Root = Annotated[Path | None, typer.Option(help="Where named datasets lie; else $OPENDG_DATA.")]
Sources = Annotated[Text, typer.Option(help="Source domains; default: all others.")]
Known = Annotated[Text, typer.Option(help="How many classes are known (the first by name), or their names.")]
Unknown = Annotated[Text, typer.Option(help="Names of the unknown classes.")]
SplitSeed = Annotated[int, typer.Option(help="Of the 90/10 split where the data bring none.")]
OnBadImage = Annotated[str, typer.Option(help="error or skip.")]

# The network and how it is trained
Backbone = Annotated[Text, typer.Option(help="Any timm model, convnet, or resnet50.caffe.")]
Weights = Annotated[Text, typer.Option(help="Where the backbone starts: imagenet, none, or a safetensors file.")]
Batch = Annotated[int | None, typer.Option(help="B, the images of a task; an iteration sees 6 B.")]
Optimizer = Annotated[Text, typer.Option(help="sgd, adam or adamw.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay.")]
Augment = Annotated[Text, typer.Option(help="photo, digits or none; default: the dataset's.")]
Precision = Annotated[Text, typer.Option(help="Of the backbone: auto, bf16 or fp32.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
CheckpointEvery = Annotated[int, typer.Option(help="Iterations between checkpoints.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
