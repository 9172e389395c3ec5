"""Detects in the first steps that the gradients are not this worker's own."""

import math

import torch

from starling._C import Error, UsageError, World
from starling.sharded import local


class FirstGradients:
    """Compares this worker's first gradient with that of the next rank: two sums over it, which
    reach the other through the store. No worker waits for another. A neighbour's sums are there
    once its parameters after that step have been mixed, in the second step; those of other workers
    follow soon after."""

    _LOOKS = 10  # steps

    def __init__(self, world: World):
        self._world = world
        self._name = f"first-gradient-{world._optimizers}-"  # all workers have made the same number
        self._other = (world.rank + 1) % world.size
        self._own: tuple[float, float] | None = None
        self._looked = 0

    def take(self, groups: list[dict]) -> None:
        """Called before a step. A zero or a value that is not finite is no gradient yet."""
        if self._own is not None:
            return
        total, norm = sums = _sums(groups)
        if norm == 0 or not math.isfinite(total + norm):
            return
        self._own = sums
        try:
            self._world._set_stored(f"{self._name}{self._world.rank}", f"{total.hex()} {norm.hex()}")
        except Error:  # the store is gone with its host; training does not need it
            self._looked = self._LOOKS

    def decided(self) -> bool:
        """Called after the step. Raises UsageError if both are the same. Returns False if that is
        not known yet."""
        if self._own is None:
            return False
        if self._looked == self._LOOKS:
            return True
        self._looked += 1
        # Some would know, others not yet: if all are neighbours they raise in the same step.
        if self._looked == 1:
            return False
        theirs = _read(self._world._stored(f"{self._name}{self._other}"))
        if theirs is None:
            return False
        # Equal up to the order of summation, which depends on the number of threads.
        if all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(self._own, theirs, strict=True)):
            raise UsageError(
                f"worker {self._world.rank} had the same gradient in its first step as worker {self._other}: if "
                "DistributedDataParallel or the like averages gradients already, switch that off with "
                "starling.no_all_reduce(model); if both were given the same data, give each its own, as "
                "DistributedSampler does; if it is meant to be so: check_gradients=False"
            )
        return True


def _read(text: str | None) -> tuple[float, float] | None:
    """A worker's sums; None if they are not there. Others than workers may write to the store."""
    try:
        total, norm = map(float.fromhex, (text or "").split())
    except (ValueError, OverflowError):
        return None
    return total, norm


def _sums(groups: list[dict]) -> tuple[float, float]:
    """For all gradients: a sum of values, in which each parameter has another weight, and the
    norm."""
    total = squares = 0.0
    parameters = (parameter for group in groups for parameter in group["params"])
    for place, parameter in enumerate(parameters, 1):
        gradient = parameter.grad
        if gradient is None or gradient.layout != torch.strided:
            continue
        gradient = local(gradient)
        total += place * gradient.sum(dtype=torch.float64).item()
        squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).item() ** 2
    return total, math.sqrt(squares)
