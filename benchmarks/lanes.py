"""Several runs on one GPU: what each costs when they train side by side.

    python benchmarks/lanes.py [--method medic] [--lanes 1,2,3] [--processes 2,4] [--compile] [--mps] [--out FILE]

A lane is a run on a CUDA stream of its own in one process. `--processes` gives each run a process instead, which take
turns on the GPU unless CUDA MPS lets them in together (`--mps` starts it; where it does not start, that is said).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import tempfile
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from common import synthetic_loop, write

from opendg.training.loop import Loop

WARM_UP, REPEAT = 20, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="medic")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lanes", default="1,2,3")
    parser.add_argument("--processes", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    way = "with MPS" if asked.mps and start_mps() else "without MPS"
    for count in filter(None, asked.processes.split(",")):
        rows.append(row(asked, f"processes {way}", int(count), processes(asked, int(count))))
    for count in filter(None, asked.lanes.split(",")):
        rows.append(row(asked, "lanes", int(count), lanes(asked, int(count))))
    write("lanes", rows, "cuda")


def row(asked: argparse.Namespace, way: str, count: int, took: float) -> dict[str, Any]:
    made = {"method": asked.method, "batch": asked.batch, "compiled": asked.compile, "way": way, "runs": count,
            "ms for one iteration of all": round(took, 2), "ms a run": round(took / count, 2)}  # fmt: skip
    print(made, flush=True)
    return made


def lanes(asked: argparse.Namespace, count: int) -> float:
    """Milliseconds in which each of `count` loops on streams of one process does an iteration."""
    pairs = [(make(asked), torch.cuda.Stream()) for _ in range(count)]
    took = timed(pairs, 0)
    for loop, _ in pairs:
        loop.feed.close()
    return took


def make(asked: argparse.Namespace) -> Loop:
    loop = synthetic_loop(asked.method, asked.backbone, "cuda", batch=asked.batch, images=2000)
    loop.capture(compile=asked.compile and loop.method.compiles)
    return loop


def timed(pairs: list[tuple[Loop, torch.cuda.Stream]], barrier: Barrier | int) -> float:
    def go(begin: int, end: int) -> None:
        for step in range(begin, end):
            for loop, stream in pairs:
                with torch.cuda.stream(stream):
                    loop.feed.prepare(step)
                    loop.run()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    go(0, WARM_UP)
    if not isinstance(barrier, int):
        barrier.wait()
    begin = time.perf_counter()
    go(WARM_UP, WARM_UP + REPEAT)
    return 1000 * (time.perf_counter() - begin) / REPEAT


def processes(asked: argparse.Namespace, count: int) -> float:
    """The same with a process each; they start together and the slowest counts."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    workers = [context.Process(target=one_process, args=(asked, barrier, results)) for _ in range(count)]
    for worker in workers:
        worker.start()
    took = [float(results.get(timeout=200)) for _ in workers]
    for worker in workers:
        worker.join()
    return max(took)


def one_process(asked: argparse.Namespace, barrier: Barrier, results: Any) -> None:
    loop = make(asked)
    results.put(timed([(loop, torch.cuda.Stream())], barrier))
    loop.feed.close()


def start_mps() -> bool:
    """CUDA's multi-process service, for this process and its children."""
    folder = tempfile.mkdtemp()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"MPS does not start: {error}", flush=True)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        return False
    return True


if __name__ == "__main__":
    main()
