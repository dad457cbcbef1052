"""How far a search is."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[int, int, dict[str, float]], None]  # iterations done, of how many, losses


class Progress:
    """Iterations of all folds of all trials, as one count."""

    def __init__(self, report: Report | None, runs: int, iterations: int) -> None:
        self.report, self.total, self.iterations = report, runs * iterations, iterations
        self.before, self.steps = 0, {}  # type: int, dict[int, int]

    def next(self, runs: int) -> None:
        """So many runs are done."""
        self.before, self.steps = runs * self.iterations, {}

    def of(self, position: int) -> Report:
        def one(step: int, total: int, losses: dict[str, float]) -> None:
            self.steps[position] = step
            if self.report:
                self.report(self.before + sum(self.steps.values()), self.total, losses)

        return one
