"""Sharded models: parameters that are DTensors, from fully_shard() or parallelize_module().

Each worker mixes and updates its own shards with those at the same place of the other replicas:

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        # Not the whole mesh: that would all-reduce along "replicate" too.
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = starling.AdamW(model.parameters(), lr=1e-3, process_group=mesh["replicate"])

The C++ library sees a plain tensor in the place of each such parameter. Before it reads them, each
gets the memory of the parameter's local tensor and gradient at that time, because fully_shard()
moves them, for example at the first forward pass.
"""

import math
import sys
from collections.abc import Iterable, Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from starling import _C


def is_sharded(tensor: torch.Tensor) -> bool:
    # If the module is not imported, there is no DTensor. Its import takes a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or of a DTensor this worker's part, in its own memory."""
    with torch.no_grad():
        return tensor.to_local() if is_sharded(tensor) else tensor


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor itself, or the tensors in which a subclass such as a quantized weight keeps its
    values."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from plain(getattr(tensor, name))


def like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor for this worker's part of the parameter, as a DTensor if the parameter is one."""
    if not is_sharded(parameter):
        return tensor
    made = sys.modules["torch.distributed.tensor"].DTensor.from_local
    sizes = {"shape": parameter.shape, "stride": parameter.stride()}  # shards may be uneven
    return made(tensor, parameter.device_mesh, parameter.placements, run_check=False, **sizes)


def reshard_modules() -> None:
    """A forward pass without a backward one leaves the root module's parameters gathered, and the
    next pass uses those. It would not see values that were written to the shards in the
    meantime."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()


class Shards:
    """The DTensors among an optimizer's parameters: `pairs`, each with the plain tensor that
    replaces it."""

    def __init__(self, options: dict, process_group: "torch.distributed.ProcessGroup | None", averages_gradients: bool):
        # Each sharded parameter with its replacement.
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._length = 0  # number of values that this worker has of all parameters
        self._options = options
        self._averages_gradients = averages_gradients  # the scheme
        self._process_group = process_group

    def stand_ins(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The C++ library's tensors for these parameters of a new group; call take() once it has
        them."""
        given = []
        for parameter in parameters:
            if torch.nn.parameter.is_lazy(parameter):
                raise _C.UsageError(
                    "a parameter has no shape yet, since its lazy module has seen no input: make a forward pass before the "
                    "optimizer"
                )
            if is_sharded(parameter):
                self._check(parameter)
                parameter = local(parameter).detach().requires_grad_()
            if is_traceable_wrapper_subclass(parameter):
                raise _C.UsageError(
                    f"a parameter is a {type(parameter).__name__}, which keeps its values in other tensors: only plain ones can "
                    "be trained; leave it out, or freeze it and give model="
                )
            given.append(parameter)
        return given

    def take(self, parameters: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> None:
        for parameter, stand_in in zip(parameters, given, strict=True):
            if parameter is not stand_in:
                self.pairs.append((parameter, stand_in))
            self._length += stand_in.numel()

    def _check(self, parameter: torch.Tensor) -> None:
        if self._averages_gradients:
            raise _C.UsageError(
                f'scheme "{self._options["scheme"]}" does not take sharded parameters: fully_shard() with a mesh of two '
                "dimensions averages gradients itself"
            )
        if self._options.get("hierarchy", "none") != "none":
            raise _C.UsageError(
                f'hierarchy "{self._options["hierarchy"]}" does not take sharded parameters: shard them among the workers '
                "of a node instead"
            )
        for name in ("clip", "skip_not_finite"):
            if self._options.get(name):
                raise _C.UsageError(
                    f"{name} does not take sharded parameters, since it would look at this worker's shards only: call "
                    "torch.nn.utils.clip_grad_norm_ before step()"
                )
        ranks = set(parameter.device_mesh.mesh.flatten().tolist())
        if self._process_group is None:
            raise _C.UsageError(
                f"parameters are sharded over ranks {sorted(ranks)}: say with whom they are mixed, as in "
                'process_group=mesh["replicate"]'
            )
        replicas = set(torch.distributed.get_process_group_ranks(self._process_group))
        if len(ranks & replicas) > 1:
            raise _C.UsageError(
                f"parameters are distributed over ranks {sorted(ranks)}, and process_group mixes among ranks "
                f'{sorted(replicas)}: give fully_shard() mesh["shard"] and the optimizer process_group=mesh["replicate"]'
            )

    def first(self) -> bool:
        """Whether this worker has the first shards of its replica; one worker of a replica does."""
        return not any(any(parameter.device_mesh.get_coordinate()) for parameter, _ in self.pairs)

    def of_whole_model(self, distance: float) -> float:
        """The root mean square over all workers of a replica, weighted by each worker's number of
        values, of a value over this worker's. Collective among them. A parameter that several of
        them hold whole counts as often."""
        if not self.pairs:
            return distance
        tensor = sys.modules["torch.distributed.tensor"]
        mesh = max((parameter.device_mesh for parameter, _ in self.pairs), key=lambda mesh: mesh.size())
        mine = torch.tensor([distance**2, 1.0], dtype=torch.float64, device=mesh.device_type) * self._length
        partial = [tensor.Partial()] * mesh.ndim
        squares, length = tensor.DTensor.from_local(mine, mesh, partial, run_check=False).full_tensor().tolist()
        return math.sqrt(squares / length)

    def suffix(self) -> str:
        """For names in a state_dict of values that differ between the shards of a model and are no
        DTensors: there torch.distributed.checkpoint keeps one worker's value of each name."""
        return f".rank-{torch.distributed.get_rank()}" if self.pairs else ""

    def follow(self) -> None:
        """Points to the present memory of the parameters and their gradients."""
        for parameter, stand_in in self.pairs:
            now = local(parameter)
            if now.shape != stand_in.shape or now.stride() != stand_in.stride():
                raise _C.UsageError(
                    f"a parameter's shard was {list(stand_in.shape)} when the optimizer was made and is "
                    f"{list(now.shape)} now: it must stay as it is"
                )
            stand_in.data = now
            # The user may have changed the parameter, which this tensor's counter does not show.
            torch.autograd.graph.increment_version([stand_in])
            stand_in.grad = None if parameter.grad is None else local(parameter.grad)

    def changed(self) -> None:
        """The C++ library has changed the parameters' values."""
        if not self.pairs:
            return
        with torch.no_grad():
            torch.autograd.graph.increment_version([local(parameter) for parameter, _ in self.pairs])
        for _, stand_in in self.pairs:
            stand_in.grad = None

    def replaced(self) -> None:
        """Like changed(), between two steps: forward passes must gather them again."""
        if self.pairs:
            self.changed()
            reshard_modules()
