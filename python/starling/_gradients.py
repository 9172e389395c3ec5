"""Notices in the first steps that the gradients are not this worker's own."""

import math

import torch

from starling._C import Error, UsageError, World
from starling.sharded import local


class FirstGradients:
    """This worker's first gradient beside that of the next rank: two sums over it, which reach the other through the store.
    Nobody waits for anybody: a neighbour's are there once its parameters after that step have been mixed, in the second
    step, and another's soon after."""

    _LOOKS = 10  # steps

    def __init__(self, world: World):
        self._world = world
        self._name = f"first-gradient-{world._optimizers}-"  # as many have been made by all workers
        self._other = (world.rank + 1) % world.size
        self._own: tuple[float, float] | None = None
        self._looked = 0

    def take(self, groups: list[dict]) -> None:
        """Before a step. What is zero or not finite is no gradient yet."""
        if self._own is not None:
            return
        total, norm = sums = _sums(groups)
        if norm == 0 or not math.isfinite(total + norm):
            return
        self._own = sums
        try:
            self._world._tell(f"{self._name}{self._world.rank}", f"{total.hex()} {norm.hex()}")
        except Error:  # the store is gone with who hosted it; training does not need it
            self._looked = self._LOOKS

    def decided(self) -> bool:
        """After the step. Raises UsageError where both are the same; False where that is not known yet."""
        if self._own is None:
            return False
        if self._looked == self._LOOKS:
            return True
        self._looked += 1
        if self._looked == 1:  # some would know, others not yet: where all are neighbours they raise in the same step
            return False
        told = self._world._told(f"{self._name}{self._other}")
        if told is None:
            return False
        # Equal up to the order of summation, which depends on the number of threads.
        theirs = map(float.fromhex, told.split())
        if all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(self._own, theirs, strict=True)):
            raise UsageError(
                f"worker {self._world.rank} had the same gradient in its first step as worker {self._other}: if "
                "DistributedDataParallel or the like averages gradients already, switch that off with "
                "starling.no_all_reduce(model); if both were given the same data, give each its own, as "
                "DistributedSampler does; if it is meant to be so: check_gradients=False"
            )
        return True


def _sums(groups: list[dict]) -> tuple[float, float]:
    """Of all gradients: a sum of values, in which each parameter counts another number of times, and the norm."""
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
