"""Training from top to bottom: data, network, loop, checkpoints, finished run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric

from opendg.data.index import Index
from opendg.data.store import Store
from opendg.errors import OpenDGError, counted, require_one, typed
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions
from opendg.protocol import Split, manifest
from opendg.runs.directory import Run
from opendg.runs.scores import fit_scores
from opendg.runs.writer import Writer
from opendg.training.build import make_classifier, make_loop
from opendg.training.devices import count_devices, make_fabric
from opendg.training.job import Job, make_job, plan, refuse_misspelt
from opendg.training.lists import names_in
from opendg.training.loop import Loop, check_finite
from opendg.training.origin import origin
from opendg.training.select import Selection
from opendg.training.survey import SourceSurvey
from opendg.training.track import Tracker, check_tracker

Report = Callable[[int, int, dict[str, float]], None]  # step, iterations, losses
LOG_EVERY = 50
COMPILING_PAYS = 12_000  # iterations of a process: compiling takes half a minute and saves 2.5 ms of 7 in each


def train(
    method: str, data: str, target: str | list[str], *, out: str | Path | None = None, report: Report | None = None,
    **asked: Any,
) -> Run:  # fmt: skip
    """Train a method and give its Run. `asked` is what the command `opendg train` takes, under the same names."""
    run, iterations = start(method, data, target, out=out, report=report, **asked)
    for _ in iterations:
        pass
    return run


def start(
    method: str, data: str, target: str | list[str], *, out: str | Path | None = None, device: str = "auto",
    devices: int = 1, checkpoint_every: int = 500, capture: bool = True,
    compile: bool | None = None, runs: int = 1, track: str = "auto", report: Report | None = None, **asked: Any,
) -> tuple[Run, Iterator[int]]:  # fmt: skip
    """A new run and its iterations: each `next` does one and gives its number; the last one finishes the run.

    `runs` is how many like it the process trains: unless `compile` says it, the step is compiled when that pays.
    """
    refuse_misspelt(asked, start, make_job)
    check_tracker(track)
    require_one("--checkpoint-every", checkpoint_every)
    targets = names_in(target) if isinstance(target, str) else target
    job, index, split = plan(method, data, targets, **asked)
    compile = runs * job.recipe.iterations >= COMPILING_PAYS if compile is None else compile
    fabric = make_fabric(device, devices)
    classifier = make_classifier(job)
    path = Path(out) if out else default_path(index.dataset, targets, method, job.seed)
    refuse_inside(path, index.root)
    shown = {
        "backbone": classifier.backbone.name, "input": classifier.backbone.input.to_json(),
        "classes": list(job.protocol.known),
    }  # fmt: skip
    facts = {"checkpoint_every": checkpoint_every, "capture": capture, "compile": compile, "track": track}
    facts |= {"starting_weights": classifier.backbone.start, "devices": fabric.world_size}
    make = Run.create if fabric.is_global_zero else Run.shadow
    run = make(path, job.to_json() | facts | origin(fabric.device), manifest(job.protocol, index, split) | shown)
    return run, _alone(run, _or_nothing(run, iterate(run, job, index, split, classifier, fabric, report)))


def refuse_inside(path: Path, data: Path) -> None:
    """A run among the domains of a folder would be taken for one of them."""
    if path.resolve().is_relative_to(data.resolve()):
        raise OpenDGError(f"The run {str(path)!r} would lie in the folder of the data: give another place with --out.")


def default_path(dataset: str, targets: Sequence[str], method: str, seed: int) -> Path:
    return Path("runs") / f"{dataset}-{'+'.join(targets)}-{method}-{seed}"


def _alone(run: Run, iterations: Iterator[int]) -> Iterator[int]:
    """No other process trains it meanwhile. Ctrl-C carries a note of how the run goes on."""
    try:
        with run.hold():
            yield from iterations
    except KeyboardInterrupt as stop:
        there = f"go on with `opendg train --resume {typed(run.path)}`"
        stop.add_note(there if run.path.exists() else "there was no checkpoint yet, and nothing is left of the run")
        raise


def _or_nothing(run: Run, iterations: Iterator[int]) -> Iterator[int]:
    """A run that fails before there is anything to resume from leaves nothing behind."""
    try:
        yield from iterations
    except BaseException:
        run.discard()
        raise


def resume(
    path: str | Path, *, root: str | Path | None = None, device: str = "auto", devices: int = 1,
    report: Report | None = None,
) -> Run:  # fmt: skip
    """Go on with an interrupted run, from its newest whole checkpoint or else from the start.

    `root` is where the data lie now, if they have moved.
    """
    run, iterations = take_up(path, root=root, device=device, devices=devices, report=report)
    for _ in iterations:
        pass
    return run


def take_up(
    path: str | Path, *, root: str | Path | None = None, device: str = "auto", devices: int = 1,
    report: Report | None = None,
) -> tuple[Run, Iterator[int]]:  # fmt: skip
    """An interrupted run and the iterations that it lacks, as `start` gives them for a new one."""
    run = Run.open(Path(path))
    _refuse_finished(run)
    refuse_other_devices(run, devices)
    fabric = make_fabric(device, devices)
    if not fabric.is_global_zero:
        run = Run.shadow(run.path, run.config, run.manifest)
    return run, _alone(run, _go_on(run, root, fabric, report))


def _go_on(run: Run, root: str | Path | None, fabric: Fabric, report: Report | None) -> Iterator[int]:
    _refuse_finished(run)  # once more: another process may have finished it meanwhile
    job = Job.from_json(run.config)
    index, split = job.open_data(root)
    classifier = make_classifier(job)
    refuse_changed(run, job, manifest(job.protocol, index, split), classifier.backbone.start)
    yield from iterate(run, job, index, split, classifier, fabric, report)


def _refuse_finished(run: Run) -> None:
    if run.finished:
        raise OpenDGError(
            f"The run {str(run.path)!r} is finished: evaluate it with `opendg evaluate {typed(run.path)}`."
        )


def refuse_other_devices(run: Run, devices: int) -> None:
    """BatchNorm sees a device's share of the images: with another number of them it would not be the same run."""
    begun, now = run.config.get("devices", 1), count_devices(devices)
    if now != begun:
        raise OpenDGError(
            f"The run {str(run.path)!r} was started on {counted(begun, 'device')} and would go on with {now}: resume "
            f"it with --devices {begun}."
        )


def refuse_changed(run: Run, job: Job, found: dict[str, Any], start: str) -> None:
    """Refuse other images (`found` is their manifest), or other weights to start from (by their hash, `start`)."""
    if found["files"] != run.manifest.get("files"):
        raise _changed(f"images of {job.data!r}", run)
    if run.config.get("starting_weights", start) != start:
        raise _changed(f"weights {job.weights!r}", run)


def _changed(what: str, run: Run) -> OpenDGError:
    return OpenDGError(f"The {what} are not those that {str(run.path)!r} was started with: put them back.")


def iterate(
    run: Run, job: Job, index: Index, split: Split, classifier: Classifier, fabric: Fabric, report: Report | None
) -> Iterator[int]:
    """Train `job` into `run`, one iteration at a time."""
    classifier.place(fabric.device, job.recipe.precision)
    rows, shown = np.concatenate([split.train, split.val]), classifier.backbone.input.size
    store = Store.open(index, rows, on_bad_image=job.on_bad_image, shown=shown)
    split = split.within(store.rows)
    job.protocol.check(index, split)  # once more: broken images may have left a gap
    loop = make_loop(job, classifier, index, split, store, fabric)
    selection = Selection(job.recipe)
    begin = pick_up(run, loop, selection, fabric)
    if fabric.device.type == "cuda" and loop.method.captures and run.config["capture"]:
        loop.capture(compile=run.config["compile"] and loop.method.compiles)
    run.amend_manifest(image_size=store.size, skipped=store.skipped)
    survey = SourceSurvey(classifier, store, index, split, loop.feed.pool, fabric.device)
    if begin == 0 and loop.method.interval:
        loop.method.every(survey, classifier, loop.state)
    loop.method.recall(loop.state)
    kind = run.config.get("track", "none") if fabric.is_global_zero else "none"
    with closing(loop.feed), Tracker(run, kind, begin) as tracker:
        yield from steps(run, loop, selection, survey, tracker, fabric, begin, report)
        tracker.show({"finished/accuracy": finish(run, loop, selection, survey)}, job.recipe.iterations)
    fabric.barrier()


def steps(
    run: Run, loop: Loop, selection: Selection, survey: SourceSurvey, tracker: Tracker, fabric: Fabric, begin: int,
    report: Report | None,
) -> Iterator[int]:  # fmt: skip
    """The iterations from `begin` on: what is logged, measured and kept between them."""
    iterations = loop.recipe.iterations
    with Writer(run) as writer:
        for step in range(begin, iterations):
            loop.feed.prepare(step)
            loop.run()
            done = step + 1
            if done % LOG_EVERY == 0 or done == iterations:
                losses = summed(fabric, loop.losses(done - step // LOG_EVERY * LOG_EVERY))
                check_finite(losses, done)  # of all processes together: none must wait for one that has given up
                tracker.log({"step": done, "losses": losses, "lr": loop.rate(step)})
                if report:
                    report(done, iterations, losses)
            if loop.method.interval and done % loop.method.interval == 0:
                loop.method.every(survey, loop.classifier, loop.state)
                loop.method.recall(loop.state)
            if selection.due(done):
                accuracy = float(survey.val().correct.mean())
                tracker.log({"step": done, "val": {"accuracy": accuracy}})
                selection.offer(accuracy, loop.finished_weights())
            if done % run.config["checkpoint_every"] == 0 and done < iterations:
                tensors, facts = selection.save()
                writer.checkpoint(done, loop.save() | whole_sums(fabric, loop) | tensors, facts)
            yield done


def summed(fabric: Fabric, losses: dict[str, float]) -> dict[str, float]:
    """The losses of all processes together: each has seen its share of the images."""
    names = sorted(losses)  # processes that have loaded a checkpoint may hold them in different orders
    values = torch.tensor([losses[name] for name in names], dtype=torch.float64, device=fabric.device)
    total = cast(torch.Tensor, fabric.all_reduce(values, reduce_op="sum"))
    sums = dict(zip(names, total.tolist(), strict=True))
    return {name: sums[name] for name in losses}


def whole_sums(fabric: Fabric, loop: Loop) -> dict[str, torch.Tensor]:
    """What the losses have added up to since they were last logged, in all processes, for a checkpoint."""
    sums = summed(fabric, {name: float(total) for name, total in loop.sums.items()})
    return {f"losses.{name}": torch.tensor(value) for name, value in sums.items()}


def pick_up(run: Run, loop: Loop, selection: Selection, fabric: Fabric) -> int:
    """The step to start from: that of the newest whole checkpoint, whose tensors are loaded, or 0."""
    checkpoint = run.latest_checkpoint()
    if checkpoint is None:
        return 0
    loop.resume(checkpoint)
    if not fabric.is_global_zero:  # the sums are of all processes, and count once
        for total in loop.sums.values():
            total.zero_()
    selection.load(checkpoint.tensors, checkpoint.facts)
    return checkpoint.step


def finish(run: Run, loop: Loop, selection: Selection, survey: SourceSurvey) -> float:
    """Write the finished weights; the selected ones come last, and their accuracy on source validation is given."""
    if selection.kept:
        loop.classifier.load_state_dict(selection.kept)
    loop.method.finish(survey, loop.classifier, loop.state)
    selected = {name: tensor.detach().clone() for name, tensor in loop.finished_weights().items()}
    if loop.averaged:
        keep(run, loop, "averaged", loop.finished_weights(averaged=True), survey)
    val = keep(run, loop, "selected", selected, survey)
    run.finish()
    return float(val.correct.mean())


def keep(run: Run, loop: Loop, which: str, weights: dict[str, torch.Tensor], survey: SourceSurvey) -> Predictions:
    """Write weights with what they say of the source validation images, and with the method's score if it is fitted."""
    loop.classifier.load_state_dict(weights)
    fit_scores(run, which, [loop.method.score], survey.train, loop.classifier)
    val = survey.val()
    run.save_weights(which, weights, val)
    return val
