"""The workers of one run, and what they do without an optimizer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from starling import _C
from starling._C import World
from starling.sharded import local, reshard_modules

if TYPE_CHECKING:
    from torch.distributed import DeviceMesh, ProcessGroup

    Group = ProcessGroup | DeviceMesh  # a mesh of one dimension, such as mesh["replicate"]

_world: World | None = None
_default: "ProcessGroup | None" = None  # torch's default group, where the world is of that


def group_of(process_group: "Group") -> "ProcessGroup":
    """The process group, or that of a mesh of one dimension."""
    if isinstance(process_group, torch.distributed.ProcessGroup):
        return process_group
    if not hasattr(process_group, "get_group"):
        raise TypeError(f"process_group: {process_group!r} is neither a ProcessGroup nor a DeviceMesh")
    if process_group.ndim != 1:
        names = process_group.mesh_dim_names
        raise _C.UsageError(
            f"process_group: a mesh of one dimension is needed, and this one has {process_group.ndim}"
            + (f": choose one of {', '.join(names)}" if names else "")
        )
    return process_group.get_group()


def init(process_group: "Group | None" = None, timeout: float = 60.0) -> World:
    """The world of this process's optimizers. An optimizer calls this by itself; call it earlier to know ``rank``,
    ``size``, ``local_rank`` and ``local_size``. Later calls without a group return the same world, or that of a new default group
    where the world was of the old one.

    It is that of ``process_group`` (or of a device mesh of one dimension); else, after
    ``torch.distributed.init_process_group``, that of the default group; else the one that the launcher describes in the
    environment: torchrun, srun, mpirun or a PMI launcher; without one, a world of one worker. Of a group only the store is
    used, to meet at: the edges are Starling's own. Every worker of the group must call this.

    Blocks for ``timeout`` seconds at most; as long do the workers wait for each other at an optimizer's construction.
    Raises UsageError for variables that are missing or wrong, Error where the store cannot be hosted or reached.
    From the environment, workers on several hosts need the same secret in STARLING_TOKEN_FILE (or STARLING_TOKEN); the
    workers of a group may have one, and make a random one otherwise.
    """
    global _world, _default
    if process_group is not None:
        _world, _default = World.from_process_group(group_of(process_group), timeout), None
        return _world
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    if there and (_world is None or _default not in (None, torch.distributed.group.WORLD)):
        _default = torch.distributed.group.WORLD
        _world = World.from_process_group(_default, timeout)
    elif _world is None:
        _world = World.from_environment(timeout)
    return _world


def average(what: "torch.nn.Module | Iterable[torch.Tensor]", process_group: "Group | None" = None) -> int:
    """Replaces tensors by their average over all workers, exact up to rounding to float32; of integers each worker gets the
    largest. Of a module these are its parameters and buffers. Returns how many workers took part.

    For once, as after training with an optimizer that is closed, or to begin from the mean of several runs: it connects the
    workers anew. An optimizer has ``consensus(keep=True)``, over the connections that are there.

    Collective over ``process_group`` (None: ``init()``): every worker calls it with tensors of the same types and sizes,
    else all raise UsageError. Blocks until all have; where one dies meanwhile the others average without it. Of DTensors
    this worker's parts are averaged, with those of the group, which must be the replicas.
    """
    reshard_modules()
    tensors = [*what.parameters(), *what.buffers()] if isinstance(what, torch.nn.Module) else list(what)
    world = init() if process_group is None else World.from_process_group(group_of(process_group), 60.0)
    return _C.average([local(tensor) for tensor in tensors], world)
