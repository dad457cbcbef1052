"""A worker of the local runner: orders on standard input, outcomes on standard output, all else to standard error."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import asdict


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    from opendg.bench.work import Order, perform

    while True:
        outcome = perform(Order.from_json(json.loads(orders.get())))
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()


def _read(orders: queue.SimpleQueue[str]) -> None:
    """Pass orders on. When the runner is gone, so is the reason to go on."""
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
