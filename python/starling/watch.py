"""The figures of a run for Weights & Biases, MLflow, TensorBoard and the like:

    from starling import watch

    figures = watch.Figures(optimizer)
    for step in range(steps):
        ...
        if step % 50 == 0:
            wandb.log({"loss": loss.item(), **figures()}, step=step)  # or mlflow.log_metrics

A Trainer of Hugging Face gets them by watch.add_to_trainer(trainer, optimizer). This module imports
none of these.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from starling.optim import Optimizer

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["Figures", "add_to_trainer"]

_OF_PAIRS = ("rate", "distance", "gradients_of_all")  # numbers that asynchronous schemes alone have


class Figures:
    """The figures of `optimizer`, for this worker's run. A call returns numbers by name, as loggers
    take them:

    - "starling/waiting_share": the share of the time since the last call (at first since this
      object was made) in which this worker waited for others in step(), or with all-reduce in
      backward(). Use an object for each logger.
    - "starling/NAME" for each number NAME in `Optimizer.statistics()`, such as "bytes_sent",
      "aborted" (exchanges of a block that were lost) and "rounds": totals since the optimizer was
      made. "starling/lost" is the number of workers that are gone.
    - With asynchronous schemes "starling/rate", "starling/distance" (RMS distance from the
      neighbours), "starling/gradients_of_all" and "starling/questions/NAME".
    - With these also "starling/edge/RANK/NAME" for each neighbour: "averaged", "gap",
      "longest_gap", "distance".
    - "starling/consensus_distance", if a call asks for it.

    A number that is not known yet, or is not finite, is left out: a neighbour has no "distance"
    before the first averaging with it.

    A call sends nothing and waits for no other worker, so one worker alone may call it. With
    `consensus_distance=True` it is collective: all workers call it at the same step, and an exact
    average is made. Between an asynchronous scheme's workers that would wait for the slowest:
    "starling/distance" costs nothing."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer
        self._waited, self._last = optimizer.statistics()["seconds_waiting"], time.monotonic()

    def __call__(self, consensus_distance: bool = False) -> dict[str, float]:
        now, seconds = self._optimizer.statistics(), time.monotonic()
        edges, questions, lost = now.pop("edges"), now.pop("questions"), now.pop("lost")
        del now["mixed"]  # a number for each neighbour
        share = (now["seconds_waiting"] - self._waited) / max(seconds - self._last, 1e-9)
        self._waited, self._last = now["seconds_waiting"], seconds
        found = {**now, "waiting_share": share, "lost": len(lost)}
        if not edges:
            found = {name: value for name, value in found.items() if name not in _OF_PAIRS}
        for name, value in questions.items() if edges else ():
            found[f"questions/{name}"] = value
        for edge in edges:
            rank = edge.pop("rank")
            if not edge["averaged"]:
                del edge["gap"]
            found |= {f"edge/{rank}/{name}": value for name, value in edge.items()}
        # A distance is 0 until it was measured once.
        found = {name: value for name, value in found.items() if value or not name.endswith("distance")}
        if consensus_distance:
            found["consensus_distance"] = self._optimizer.consensus_distance()
        return {f"starling/{name}": float(value) for name, value in found.items() if math.isfinite(value)}


def add_to_trainer(trainer: Trainer, optimizer: Optimizer, consensus_distance: bool = False) -> None:
    """Adds the Figures of `optimizer` to each log that `trainer` makes while it trains, beside its
    "loss". So its printed lines, its `state.log_history` and all that `report_to` names have them.
    Those are of rank 0 alone, as all of the Trainer's. Call it before `trainer.train()`.

    It waits for no worker. With `consensus_distance=True` each such log is collective, as in a call
    of Figures; the Trainer logs at the same steps on all workers.

    It replaces `trainer.log`. A TrainerCallback could not do this: those that report come before
    each that a user adds."""
    figures, log = Figures(optimizer), trainer.log

    def with_figures(logs: dict[str, float], *arguments, **named) -> None:
        if "loss" in logs:  # not those of an evaluation, nor the summary at the end
            logs |= figures(consensus_distance)
        log(logs, *arguments, **named)

    trainer.log = with_figures
