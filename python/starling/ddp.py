"""Models that other code has wrapped in DistributedDataParallel."""

import torch
from torch.nn.parallel import DistributedDataParallel

from starling import _C


def _send_nothing(_, bucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def no_all_reduce(model: torch.nn.Module) -> torch.nn.Module:
    """For models that a framework wraps in ``DistributedDataParallel`` with any optimizer. From now
    on the wrapper leaves each worker its own gradients and buffers, and sends nothing. An optimizer
    of Starling's mixes the parameters instead. On top of DistributedDataParallel's all-reduce there
    would be nothing to mix, so it raises UsageError.

    ``model`` is the wrapped model, or one that contains it. If nothing is wrapped, as with one
    worker, nothing changes. Call it before the first step; returns ``model``. docs/frameworks.md
    lists where frameworks keep the wrapped model.
    """
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel) or getattr(module, "_starling_no_all_reduce", False):
            continue
        # For static graphs, and if a framework switches it on again:
        try:
            module.register_comm_hook(None, _send_nothing)
        except RuntimeError as error:  # only one is allowed
            raise _C.UsageError(
                "no_all_reduce: the DistributedDataParallel has a communication hook already: leave that out, such as a "
                f"framework's compression ({str(error).splitlines()[0]})"
            ) from error
        module._starling_no_all_reduce = True
        module.require_forward_param_sync = module.broadcast_buffers = False
        # As within no_sync(), and permanently: gradients are not even copied, and unused parameters
        # are no error. A static graph's first backward pass needs it.
        module.require_backward_grad_sync = module.static_graph
    return model
