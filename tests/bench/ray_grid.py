"""A grid on a real Ray cluster of two nodes, in which a worker and then a whole node are killed in the middle of a run.

Started by test_ray.py in a process of its own: python ray_grid.py PLAN RUNS. Prints the states and how often a worker
was killed, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from opendg.bench.ledger import Ledger
from opendg.bench.plan import load_plan, place
from opendg.bench.reproduce import run_plan, site_of
from opendg.bench.runners.ray import RayRunner
from opendg.errors import OpenDGError


def victim(ledger: Ledger, names: list[str], besides: set[int]) -> dict[str, Any] | None:
    """An attempt that is under way and has come so far that there is a checkpoint."""
    for name in names:
        last = ledger.read(name).last
        if last and "ended" not in last and last["pid"] not in besides and ledger.steps(name) >= 100:
            return last | {"name": name}
    return None


def disturb(cluster: Cluster, node: Any, ledger: Ledger, names: list[str], done: list[str]) -> None:
    """Kill one worker, then take a node away with all that runs on it."""
    killed: set[int] = set()
    while not (found := victim(ledger, names, killed)):
        time.sleep(0.05)
    killed.add(found["pid"])
    os.kill(found["pid"], signal.SIGKILL)
    done.append(found["name"])
    while not victim(ledger, names, killed):
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    done.append("node")


def main() -> None:
    plan, runs = load_plan(sys.argv[1]), Path(sys.argv[2])
    small = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}  # Ray believes in the GPUs
    cluster = Cluster(initialize_head=True, head_node_args=small | {"include_dashboard": False})
    node = cluster.add_node(**small)
    ledger = Ledger(runs)
    ledger.prepare()
    names, done = list(place(plan.cells())), list[str]()
    thread = threading.Thread(target=disturb, args=(cluster, node, ledger, names, done), daemon=True)
    refused = []
    for options in ({"cpus": 2}, {"jobs": 2, "device": "cpu"}):  # each node has one CPU
        try:
            RayRunner(cluster.address, **options)
        except OpenDGError as error:
            refused.append(str(error))
    runner = RayRunner(cluster.address, jobs=2)  # half a GPU for a run
    thread.start()
    states = run_plan(plan, site_of(runs, None, device="cpu", checkpoint_every=50), runner)
    told = runner.told
    runner.close()
    cluster.shutdown()
    print(json.dumps({"states": states, "disturbed": done, "told": told, "refused": refused}))


if __name__ == "__main__":
    main()
