"""Starling: decentralized training. Every worker mixes its parameters with a few neighbours, hidden
behind its own computation. There is no global all-reduce.

    import starling

    # Replaces torch.optim.AdamW and DistributedDataParallel.
    optimizer = starling.AdamW(model.parameters(), lr=1e-3, model=model)
    ...
    with optimizer.consensus():   # the average model
        evaluate(model)

Start it with torchrun, srun or mpirun. Without a launcher it is a world of one worker.
"""

import torch

from starling import _built_with, _torch_version

if _complaint := _torch_version.complaint(_built_with.torch, torch.__version__):
    raise ImportError(_complaint)

from starling._C import Error, Scope, UsageError  # noqa: E402
from starling._options import Options, document  # noqa: E402
from starling.around import Decentralized  # noqa: E402
from starling.ddp import no_all_reduce  # noqa: E402
from starling.optim import Optimizer  # noqa: E402
from starling.rules import SGD, AccumAdam, AccumAdamW, Adam, AdamW, Muon  # noqa: E402
from starling.world import World, average, init  # noqa: E402

document(SGD, Adam, AdamW, AccumAdam, AccumAdamW, Muon, Decentralized)
__version__ = _built_with.version
__all__ = [
    "SGD",
    "AccumAdam",
    "AccumAdamW",
    "Adam",
    "AdamW",
    "Decentralized",
    "Error",
    "Muon",
    "Optimizer",
    "Options",
    "Scope",
    "UsageError",
    "World",
    "average",
    "init",
    "no_all_reduce",
]
