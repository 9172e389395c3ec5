"""The workers of one run."""

from starling._C import World

_world: World | None = None


def init(timeout: float = 60.0) -> World:
    """The world that the launcher describes in the environment: torchrun, srun, mpirun or a PMI launcher; without one, a
    world of one worker. Joins the launcher's store, or rank 0's. An optimizer calls this by itself; call it earlier to
    know ``rank``, ``size``, ``local_rank`` and ``local_size``. Later calls return the same world.

    Blocks for ``timeout`` seconds at most; as long do the workers wait for each other at an optimizer's construction.
    Raises UsageError for variables that are missing or wrong, Error where the store cannot be hosted or reached.
    Workers on several hosts need the same secret in STARLING_TOKEN_FILE (or STARLING_TOKEN) on all of them.
    """
    global _world
    if _world is None:
        _world = World.from_environment(timeout)
    return _world
