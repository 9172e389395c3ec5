"""Optimizers that train without a global all-reduce. They are torch.optim.Optimizers in every
respect, and step() mixes the parameters with those of a few neighbours. They take the first
arguments of torch's optimizer of the same name, up to weight_decay and nesterov, and Options.

The constructor is collective: every worker must construct the same optimizers in the same order.
Rank 0's parameters and buffers reach every worker, frozen parameters too if `model` is given.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from starling import _C
from starling._gradients import FirstGradients
from starling._options import Options
from starling.sharded import Shards, is_sharded, local, plain
from starling.world import World, group_of, init

_profiler_enabled = torch.autograd._profiler_enabled
# Entries of a parameter group that another scheme may have saved, for which this one has no use.
_OTHERS_NUMBERS = {"clock", "directions", "largest_lr", "outer_steps", "sample", "since_push", "weights"}
Step = TypeVar("Step", bound=Callable)


def hooked(step: Step) -> Step:
    """torch replaces every optimizer's step() by one that calls hooks and shows in the profiler.
    Without either, it costs nothing here. If it raises, the values that a GradScaler has left here
    for this step must not stay for the next."""
    observed = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def quick(self, *args, **kwargs):
        seen = (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or _profiler_enabled()
        )
        try:
            return (observed if seen else step)(self, *args, **kwargs)
        except BaseException:
            for left in ("grad_scale", "found_inf"):
                vars(self).pop(left, None)
            raise

    quick.hooked = True  # torch leaves it as it is
    return quick


@contextlib.contextmanager
def or_else(refuse: Callable[[], None]) -> Iterator[None]:
    """The part of a collective call that only this worker does. If it fails, `refuse` makes the
    others fail, which would wait."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            refuse()
        raise


def _close(binding: _C.OptimizerBinding) -> None:
    """Tells the others whether an exception ends this worker: one that is being handled, or one
    that has ended the script."""
    ended_script = hasattr(sys, "last_value") and not hasattr(sys, "ps1")
    binding.close(ended_script or sys.exc_info()[0] is not None)


class Optimizer(torch.optim.Optimizer):
    """The common features of all of Starling's optimizers, besides those of torch's. The
    classes of starling.rules and Decentralized make it.

    step() waits for a neighbour whose block of the last step has not come yet, mixes, applies the
    rule and sends, block by block. state_dict() is this worker's: each worker saves its own, or all
    load the same. With a rule of Starling's the state is in the C++ library: `state` is empty, and
    state_dict() has it. add_param_group(), before the same step, and load_state_dict() are
    collective. In a process that was forked from this one every call raises UsageError.
    """

    _binding: _C.OptimizerBinding | None = None
    _first_gradients: FirstGradients | None = None  # until they are known to differ
    _not_synced = 0  # no_sync() within no_sync()
    _overwritten: int | None = None  # the checksum of parameters that rank 0's have replaced
    _again: tuple[int, Callable[[bool, bool], bool]] | None = None  # after load_state_dict()
    _of_scheme = ""  # before the names of a scheme's data in a state_dict

    def _start(self, options: Options, rule: str | Callable[[], object]) -> None:
        """`rule`: its name in the C++ library, or the step of another optimizer."""
        rest = dict(options)
        buffers = list(rest.pop("buffers", None) or ())
        for buffer in buffers:
            if not isinstance(buffer, torch.Tensor):
                raise TypeError(f"buffers: a {type(buffer).__name__} is no tensor: give model.buffers()")
        self._model = rest.pop("model", None)
        if self._model is not None:
            if not isinstance(self._model, torch.nn.Module):
                raise TypeError(f"model: a {type(self._model).__name__} is no torch.nn.Module")
            if buffers:
                raise _C.UsageError("give model or buffers, not both")
            buffers = self._buffers()
        trained = {id(parameter) for parameter in self._parameters()}
        all_parameters = self._model.parameters() if self._model is not None else ()
        frozen = [part for each in all_parameters if id(each) not in trained for part in plain(local(each))]
        check_gradients = rest.pop("check_gradients", True)
        world, group = rest.pop("world", None), rest.pop("process_group", None)
        if group is not None:
            if world is not None:
                raise _C.UsageError("give process_group or world, not both")
            group = group_of(group)
        self._scheme = rest.get("scheme", _C.default_scheme())
        if not isinstance(self._scheme, str):
            raise TypeError(f"keyword argument 'scheme': {self._scheme!r} has the wrong type")
        self._traits = _C.scheme_traits(self._scheme)
        self._shards = Shards(rest, group, averages_gradients=self._traits["averages_gradients"])
        self._in_nodes = rest.get("hierarchy", "none") != "none"
        given = [self._shards.stand_ins(group["params"]) for group in self.param_groups]
        if world is None:
            world = init() if group is None else World.from_process_group(group, 60.0)
        self._world = world
        # A model may replace its buffers in each step, and others may take them in any.
        self._renews_buffers = self._model is not None and (bool(rest.get("mean_every", 0)) or world._rejoin)
        own = self._checksum()
        binding = _C.OptimizerBinding(rule, self.param_groups, given, rest, world, buffers, frozen)
        self._binding = binding
        for group, tensors in zip(self.param_groups, given, strict=True):
            self._shards.take(group["params"], tensors)
        # A scheme that averages gradients, and a node, need equal ones.
        own_gradients = not self._traits["averages_gradients"] and not self._in_nodes
        if own_gradients and world.size > 1 and check_gradients:
            self._first_gradients = FirstGradients(world)
        # If the interpreter ends without deleting the optimizer, the neighbours are also told not
        # to wait.
        self._finalizer = weakref.finalize(self, _close, binding)
        self._shards.replaced()  # by rank 0's
        self._overwritten = own if own != self._checksum() else None

    def _take_last_group(self) -> None:
        """A group that add_param_group() has added is removed again if it is refused."""
        group = self.param_groups[-1]
        try:
            given = self._shards.stand_ins(group["params"])
            self._binding.add_group(given, self.param_groups)
        except BaseException:
            self.param_groups.pop()
            raise
        self._shards.take(group["params"], given)

    def _parameters(self) -> Iterator[torch.Tensor]:
        return itertools.chain.from_iterable(group["params"] for group in self.param_groups)

    def _buffers(self) -> list[torch.Tensor]:
        return [local(buffer) for buffer in self._model.buffers()]

    def _checksum(self) -> int:
        return _C.checksum([local(parameter) for parameter in self._parameters()])

    def _check_order(self, saved: int | None) -> None:
        """`saved`: the checksum of this worker's model when the state was saved."""
        if saved is not None and saved == self._overwritten != self._checksum():
            raise _C.UsageError(
                "load_state_dict: this worker's model was loaded before the optimizer was made, which then gave it rank 0's "
                "parameters: make the optimizer, then load the model, then the optimizer's state"
            )

    def _load(self, saved: int | None, load: Callable[[bool, bool], bool]) -> None:
        """load(here, again) may come before the model's parameters are loaded, which it needs. It
        is then repeated at the next step, on all workers."""
        late = saved is not None and saved != self._checksum()
        self._again = (saved, load) if load(late, False) else None

    def _load_again(self) -> None:
        (saved, load), self._again = self._again, None
        load(saved == self._checksum(), True)

    # state_dict() adds to torch's the place in the schedule, the grids and the scheme's own data.
    # Numbers are entries of the parameter groups, and vectors are in the parameters' states.

    def _numbered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters by their names in the C++ library."""
        for g, group in enumerate(self.param_groups):
            for p, parameter in enumerate(group["params"]):
                yield f"{g}.{p}", parameter

    def _added(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str], of_scheme: dict) -> dict:
        """To each parameter group."""
        suffix = self._shards.suffix()
        added = {"round": int(metadata["position"]), "model_checksum" + suffix: self._checksum()}
        added |= {key + suffix: value for key, value in metadata.items() if key.startswith("grids.")}
        if "share" in metadata:
            added["share"] = metadata["share"]
        numbers = [key for key, fresh in of_scheme.items() if isinstance(fresh, list)]
        return added | {self._of_scheme + key + suffix: tensors[key].tolist() for key in numbers}

    def _take_added(self) -> tuple[dict, dict]:
        """Takes it out of the groups, which were loaded: the numbers of a scheme, and the rest."""
        _, _, of_scheme = self._current().state(values=False)
        known = {key for key, fresh in of_scheme.items() if isinstance(fresh, list)} | _OTHERS_NUMBERS
        numbers, rest = {}, {}
        for group in self.param_groups:
            for key in list(group):
                bare = key.removeprefix(self._of_scheme)
                if key.startswith(self._of_scheme) and bare.split(".")[0] in known:
                    numbers[bare] = group.pop(key)
                elif key.split(".")[0] in ("round", "share", "grids", "model_checksum"):
                    rest[key] = group.pop(key)
        return numbers, rest

    def _given(self, numbers: dict, rest: dict) -> tuple[int | None, dict[str, torch.Tensor], dict[str, str], dict]:
        """The saved checksum of the model, and the C++ library's state but for the vectors: its
        tensors, its metadata, and the scheme's part."""
        suffix = self._shards.suffix()
        tensors, metadata, of_scheme = self._current().state(values=False)
        metadata["position"] = str(rest.pop("round", 0))
        checksum = rest.pop("model_checksum" + suffix, None)
        # A state of another scheme has other numbers, or lacks them.
        for key, fresh in of_scheme.items():
            if isinstance(fresh, list):
                tensors[key] = torch.tensor(numbers.get(key + suffix, fresh), dtype=torch.float64)
        metadata.pop("share", None)
        return checksum, tensors, metadata | {key.removesuffix(suffix): value for key, value in rest.items()}, of_scheme

    def _give_vectors(self, tensors: dict, of_scheme: dict, name: str, parameter: torch.Tensor, saved: dict) -> None:
        """The scheme's vectors of this parameter from its saved state. Those that it lacks begin
        fresh."""
        for key, fresh in of_scheme.items():
            full = f"{key}.{name}"
            if isinstance(fresh, list) or full not in tensors:
                continue
            if (vector := saved.get(self._of_scheme + key)) is None:
                vector = parameter.detach() if fresh == "parameter" else torch.zeros_like(parameter)
            tensors[full] = local(vector).float()

    def _current(self) -> _C.OptimizerBinding:
        """For every call that reads or writes parameters."""
        self._shards.follow()
        return self._binding

    def _mix(self, scale: float | None) -> None:
        """A step of the C++ library. Every step pays for each line here, because the cache has lost
        it since the last one."""
        if self._again is not None:
            self._load_again()
        check = self._first_gradients
        if check is not None:
            check.take(self.param_groups)
        if self._renews_buffers:
            self._binding.set_buffers(self._buffers())
        if self._shards.pairs:
            try:
                self._current().step(self.param_groups, scale)
            finally:
                self._shards.changed()
        else:
            self._binding.step(self.param_groups, scale)
        if check is not None and check.decided():
            self._first_gradients = None

    def _gradient_scale(self) -> float | None:
        """The factor of gradients in step(), from a torch.amp.GradScaler; None: it has found an
        overflow."""
        if getattr(self, "found_inf", None) is None:
            return 1.0
        if self._shards.pairs:
            raise _C.UsageError(
                "a GradScaler does not take sharded parameters here, since one shard's overflow is unknown to the others: use "
                "bfloat16, which needs no scaling"
            )
        if self._in_nodes:
            raise _C.UsageError(
                'hierarchy = "node" does not go with a GradScaler, since one worker\'s overflow is in the node\'s mean: use '
                "bfloat16, which needs no scaling"
            )
        if self._traits["sums_gradients"]:
            raise _C.UsageError(
                f'scheme = "{self._scheme}" does not go with a GradScaler, since gradients of all workers are added up and each '
                "has a scale of its own: use bfloat16, which needs no scaling"
            )
        if float(self.found_inf) != 0:
            return None
        grad_scale = getattr(self, "grad_scale", None)  # None: unscaled already
        return 1.0 if grad_scale is None else 1 / float(grad_scale)

    def __getstate__(self):
        raise _C.UsageError(f"starling.{type(self).__name__} cannot be copied or pickled: save its state_dict()")

    @property
    def steps(self) -> int:
        """Calls of step() in this run: use it as the loop's count (`while optimizer.steps < steps`)
        and to choose batches. load_state_dict() does not change it: add the steps of the checkpoint
        from which the run began. With STARLING_REJOIN=1, a worker that is started while the others
        train takes the state of one of them when its optimizer is made, and that one's count."""
        return self._current().steps

    @property
    def joined(self) -> bool:
        """Whether the last step() made no step, but joined the run again, at the others' place in
        it (STARLING_REJOIN=1): this worker was away for too long, or its parameters were not
        finite. The others have done what follows a step, such as an average: go on with the next
        one."""
        return self._current().joined

    def close(self) -> None:
        """Ends the exchange: the neighbours no longer wait for this worker. Deleting the optimizer
        or leaving the interpreter does so too. Every later call raises UsageError."""
        self._finalizer()

    @contextlib.contextmanager
    def consensus(self, keep: bool = False) -> Iterator[_C.Scope]:
        """Inside it the parameters are their exact average over all workers, and so are
        floating-point and complex buffers; integer buffers take the maximum. Afterwards each worker
        gets its own values back, unless `keep` and no exception leaves it. Collective: all workers
        enter it at the same step, with the same `keep`. step(), load_state_dict() and begin_again()
        raise UsageError inside it. A worker whose parameters are not finite is left out, and one
        with a NaN in a buffer is left out of that buffer; each warns of it. Yields the number of
        `workers` that took part, the `first` of their ranks, and their `distance`.

        Each shard of a sharded model is averaged over its replicas, so the model as a whole is the
        average; `workers` are replicas. It is also a decorator of evaluations: `evaluate =
        optimizer.consensus()(evaluate)`."""
        if self._model is not None:
            self._binding.set_buffers(self._buffers())
        scope = _C.Scope(self._current(), keep)
        try:
            self._shards.replaced()
            yield scope
        except BaseException:
            keep = False
            raise
        finally:
            self._shards.follow()
            scope.end(keep)
            self._shards.replaced()

    def begin_again(self) -> None:
        """Call it on all workers, between two steps, after all have replaced their parameters, as
        by an earlier copy of the model. It drops what is in flight between the workers, so the next
        step starts from these parameters alone. `consensus(keep=True)` and load_state_dict() do so
        too. A worker that only changes some (clamped weights) need not call it. Collective."""
        self._current().begin_again()

    def consensus_distance(self) -> float:
        """RMS distance of the workers' parameters to their average. For a sharded model it is that
        of the replicas, over all shards; consensus()'s `distance` is that of this worker's shards
        alone. Collective."""
        with self.consensus() as scope:
            return self._shards.of_whole_model(scope.distance)

    def save_consensus(self, model: torch.nn.Module, path: str | os.PathLike) -> None:
        """Writes the average of the workers' models as one safetensors file. It holds the tensors
        of `model.state_dict()`, those of a sharded model whole, each name with a tensor of its own.
        `path` holds the old file or the new one, never half of it. Collective; the lowest present
        rank writes, and only that rank raises Error if it cannot. A value is averaged if this
        optimizer has it: pass model=model."""
        with self.consensus() as scope:
            writes = self._world.rank == scope.first and self._shards.first()
            tensors = {}
            for name, tensor in model.state_dict().items():
                if not isinstance(tensor, torch.Tensor):
                    continue
                if not is_sharded(tensor) and next(plain(tensor)) is not tensor:
                    raise _C.UsageError(
                        f"save_consensus: {name} is a {type(tensor).__name__}, which keeps its values in other tensors: save "
                        "model.state_dict() within consensus()"
                    )
                # All shards' workers take part.
                whole = tensor.full_tensor() if is_sharded(tensor) else tensor
                if writes:
                    tensors[name] = whole
            if writes:
                draft = f"{os.fspath(path)}.tmp"
                _C.save_tensors(draft, tensors, {"format": "pt"})
                os.replace(draft, path)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradient accumulation with a scheme that averages gradients, or a hierarchy. Backward
        passes inside it add to the worker's own gradients and send nothing; the first one after it
        averages the sum. Without it the result is the same, but each pass sends. No effect with
        gossip, which never sends gradients."""
        if self._not_synced == 0:
            self._binding.set_sync(False)
        self._not_synced += 1
        try:
            yield
        finally:
            self._not_synced -= 1
            if self._not_synced == 0:
                self._binding.set_sync(True)

    def statistics(self) -> dict:
        """Counts of this worker since construction: rounds, blocks committed and aborted,
        bytes_sent, seconds_waiting, workers lost, blocks mixed with each and so on, as in
        starling/optim/statistics.h. Asynchronous schemes add:

        - "rate": averagings per gradient
        - "edges": for each neighbour {"rank", "averaged", "gap", "longest_gap", "distance"}: the
          number of averagings, the mean and the maximum of this worker's gradients between two of
          them, and the distance of both in the last one
        - "distance": RMS over the edges
        - "questions": this worker's requests: "asked", of these "refused" by a busy neighbour and
          "unanswered" in time, and "dropped", averagings that were due and never requested
        - "gradients_of_all": the number of all workers' gradients, as far as this one knows from
          requests and answers. A loop that ends by it leaves no worker to wait for a slow one."""
        return self._binding.statistics()
