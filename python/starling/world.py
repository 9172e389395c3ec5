"""The workers of one run."""

import torch.distributed

from starling._C import World

_world: World | None = None


def init(process_group: "torch.distributed.ProcessGroup | None" = None, timeout: float = 60.0) -> World:
    """The world of this process's optimizers. An optimizer calls this by itself; call it earlier to know ``rank``,
    ``size``, ``local_rank`` and ``local_size``. Later calls without a group return the same world.

    It is that of ``process_group``; else, after ``torch.distributed.init_process_group``, that of the default group; else
    the one that the launcher describes in the environment: torchrun, srun, mpirun or a PMI launcher; without one, a world
    of one worker. Of a group only the store is used, to meet at: the edges are Starling's own. Every worker of the group
    must call this.

    Blocks for ``timeout`` seconds at most; as long do the workers wait for each other at an optimizer's construction.
    Raises UsageError for variables that are missing or wrong, Error where the store cannot be hosted or reached.
    From the environment, workers on several hosts need the same secret in STARLING_TOKEN_FILE (or STARLING_TOKEN); the
    workers of a group may have one, and make a random one otherwise.
    """
    global _world
    if process_group is None and _world is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        process_group = torch.distributed.group.WORLD
    if process_group is not None:
        _world = World.from_process_group(process_group, timeout)
    elif _world is None:
        _world = World.from_environment(timeout)
    return _world
