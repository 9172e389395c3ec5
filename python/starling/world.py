"""The workers of one run, and their operations without an optimizer."""

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
_default: "ProcessGroup | None" = None  # torch's default group, if the world is of that
_chosen = False  # by a call with a group


def group_of(process_group: "Group") -> "ProcessGroup":
    """The process group, or that of a mesh of one dimension."""
    if isinstance(process_group, torch.distributed.ProcessGroup):
        return process_group
    if process_group is torch.distributed.GroupMember.NON_GROUP_MEMBER:
        raise _C.UsageError("process_group: this worker is not a member of it: only its members may use it")
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
    """The world of this process's optimizers. An optimizer calls this by itself. Call it earlier to
    know ``rank``, ``size``, ``local_rank`` and ``local_size``. Later calls without a group return
    the same world. They return that of the default group if this is a new one, or if it has other
    workers than the launcher has described.

    The world is that of ``process_group`` (or of a device mesh of one dimension). Without it, after
    ``torch.distributed.init_process_group``, it is that of the default group. Otherwise it is the
    one that the launcher describes in the environment: torchrun, srun, mpirun or a PMI launcher;
    without a launcher, a world of one worker. Only the store of a group is used, to meet at: the
    edges are Starling's own. Every worker of the group must call this.

    Blocks for at most ``timeout`` seconds. The workers wait for each other for the same time at an
    optimizer's construction. Raises UsageError for missing or wrong variables, Error if the store
    cannot be hosted or reached. From the environment, workers on several hosts need the same secret
    in STARLING_TOKEN_FILE (or STARLING_TOKEN). The workers of a group may have one, and make a
    random one otherwise.
    """
    global _world, _default, _chosen
    if process_group is not None:
        _world = World.from_process_group(group_of(process_group), timeout)
        _default, _chosen = None, True
        return _world
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    group = torch.distributed.group.WORLD if there else None
    if _world is None and group is None:
        _world = World.from_environment(timeout)
    elif group is not None and not _chosen and _default is not group:
        # The launcher's world stays if the group has the same workers: it is at work already.
        same = _world is not None and _default is None and (_world.rank, _world.size) == (group.rank(), group.size())
        if not same:
            _world, _default = World.from_process_group(group, timeout), group
    return _world


def average(what: "torch.nn.Module | Iterable[torch.Tensor]", process_group: "Group | None" = None) -> int:
    """Replaces tensors by their average over all workers: integers by the maximum, float64 and
    complex128 by the mean in double, others by the mean in float32. For a module these are its
    parameters and buffers. Returns the number of workers that took part.

    It is for a single use, for example after training with a closed optimizer, or to begin from the
    mean of several runs: it makes new connections between the workers. An optimizer has
    ``consensus(keep=True)``, over its own connections.

    Collective over ``process_group`` (None: ``init()``): every worker calls it with tensors of the
    same types and sizes, otherwise all raise UsageError. Blocks until all have called it; if a
    worker dies in the meantime, the others average without it. For DTensors this worker's parts are
    averaged with those of the group, which must be the replicas.
    """
    reshard_modules()
    tensors = [*what.parameters(), *what.buffers()] if isinstance(what, torch.nn.Module) else list(what)
    world = init() if process_group is None else World.from_process_group(group_of(process_group), 60.0)
    return _C.average([local(tensor) for tensor in tensors], world)
