"""The extension that python/bindings.cpp registers."""

from collections.abc import Callable
from typing import overload

import torch
import torch.distributed

class Error(RuntimeError): ...
class UsageError(Error, ValueError): ...

class World:
    rank: int
    size: int
    local_rank: int  # among the workers of this node
    local_size: int  # workers on this node
    _rejoin: bool  # workers that come back take the state of others
    @property
    def _optimizers(self) -> int: ...  # made so far by this worker
    def _set_stored(self, key: str, value: str) -> None: ...  # through the store
    # At once; None: no worker has set the key so far, or the store is gone.
    def _stored(self, key: str) -> str | None: ...
    @staticmethod
    def from_environment(meet: float) -> World: ...
    @staticmethod
    def from_process_group(group: torch.distributed.ProcessGroup, meet: float) -> World: ...

class OptimizerBinding:
    """starling::Optimizer: with a rule of Starling's, or around an optimizer whose step() is called
    back."""

    @overload
    def __init__(
        self,
        rule: str,
        param_groups: list[dict],
        groups: list[list[torch.Tensor]],  # in the place of their parameters
        options: dict,
        world: World,
        buffers: list[torch.Tensor],
        frozen: list[torch.Tensor],
    ) -> None: ...
    @overload
    def __init__(
        self,
        step: Callable[[], object],
        param_groups: list[dict],
        groups: list[list[torch.Tensor]],
        options: dict,
        world: World,
        buffers: list[torch.Tensor],
        frozen: list[torch.Tensor],
    ) -> None: ...
    def close(self, failed: bool) -> None: ...  # failed: an error ends this worker
    def set_sync(self, sync: bool) -> None: ...
    def add_group(self, parameters: list[torch.Tensor], param_groups: list[dict]) -> None: ...  # their last
    def set_rules(self, param_groups: list[dict]) -> None: ...
    def step(self, param_groups: list[dict], scale: float | None) -> None: ...
    def set_buffers(self, buffers: list[torch.Tensor]) -> None: ...
    # Tensors, metadata, and the scheme's part of the tensors: by name the value if a saved state
    # lacks it, "zero" or "parameter", and for numbers these. Without values, parameters'
    # tensors are on the device "meta".
    def state(
        self, values: bool = True
    ) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, str | list[float]]]: ...
    # These return whether `here` is true on any worker. `again`: nothing happens unless it is.
    def set_state(
        self, tensors: dict[str, torch.Tensor], metadata: dict[str, str], here: bool = False, again: bool = False
    ) -> bool: ...
    def begin_again(self) -> None: ...
    @property
    def steps(self) -> int: ...
    @property
    def joined(self) -> bool: ...
    def statistics(self) -> dict: ...

class Scope:
    """starling::Consensus, until end()."""

    workers: int
    first: int  # the lowest rank of these
    distance: float
    # Throws on all workers if `keep` differs between them.
    def __init__(self, binding: OptimizerBinding, keep: bool) -> None: ...
    def end(self, keep: bool) -> None: ...

def checksum(tensors: list[torch.Tensor]) -> int: ...
def default_scheme() -> str: ...

def scheme_traits(name: str) -> dict[str, bool]: ...
# By their names: {"options": {name: default}, "states": {name in Starling's files: torch's name}}.
def rules() -> dict[str, dict[str, dict]]: ...
# By edit distance (core/text.h); "": none is near.
def nearest_name(name: str, names: list[str]) -> str: ...
def average(tensors: list[torch.Tensor], world: World) -> int: ...
def save_tensors(file: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None: ...
