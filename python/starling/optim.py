"""Optimizers that train without a global all-reduce. They are torch.optim.Optimizers in every
respect, and step() mixes the parameters with those of a few neighbours. They take the first
arguments of torch's optimizer of the same name, up to weight_decay and nesterov, and Options.

The constructor is collective: every worker must construct the same optimizers in the same order.
Rank 0's parameters and buffers reach every worker.
"""

import contextlib
import functools
import inspect
import itertools
import os
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar, Unpack

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from starling import _C
from starling._gradients import FirstGradients
from starling._scheme_options import SchemeOptions
from starling.sharded import Shards, is_sharded, like, local
from starling.world import World, group_of, init

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

    from starling.world import Group

_profiler_enabled = torch.autograd._profiler_enabled
Number = float | torch.Tensor
Step = TypeVar("Step", bound=Callable)


class Options(SchemeOptions, total=False):
    """Keyword arguments of all optimizers."""

    topology: str
    """"base-2" (default), "ring", "complete" and so on (`starling topology --list`), or a .toml or .json file."""
    wire: str
    """Number format of parameters between workers: "fp32" (default), "bf16", "fp16", "int8", "int4"."""
    one_in: int
    """random-k: a round sends and mixes one value in so many, with a scheme that chooses its values top-k; 1 (default): all."""
    seed: int
    """Of the random times and pairs of schemes that average beside training; 0 (default)."""
    buffers: Iterable[torch.Tensor] | None
    """model.buffers(): rank 0's at the start, averaged by consensus(). Give them after model.to() and the like, which put others
    in their place."""
    process_group: "Group | None"
    """Whose workers mix: a process group, or a device mesh of one dimension."""
    world: World | None
    """None (default): that of process_group, else starling.init()."""
    hierarchy: str
    """"none" (default), or "node": the workers of a node average their gradients, divide the optimizer's state, and gossip with
    other nodes as one."""
    workers_per_node: int
    """For the hierarchy, and for topologies that know of nodes; 0 (default): the launcher's local world size."""
    block_bytes: int
    """Largest block that is exchanged at once; 25 MB (default), and at most an eighth of the model."""
    max_wait: float | None
    """Longest, in seconds, that step() waits for a late neighbour that is alive; None (default): ten minutes. Runs in which it
    is used up are not equal to the bit."""
    clip: float
    """Largest norm of this worker's whole gradient, to which a larger one is scaled down inside step(); 0 (default): any."""
    skip_not_finite: bool
    """A step whose gradient is not finite mixes only. False by default."""
    clear_gradients: bool
    """step() leaves zeros in every .grad, in the pass that reads it: zero_grad() is not needed. False by default."""
    check_gradients: bool
    """True (default): UsageError where this worker's first gradient is another's too, since then somebody averages them already,
    or all have the same data. Costs one read of the first step's gradients."""


def _hooked(step: Step) -> Step:
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
def _or_else(refuse: Callable[[], None]) -> Iterator[None]:
    """The part of a collective call that only this worker does. If it fails, `refuse` makes the
    others fail, which would wait."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            refuse()
        raise


class Optimizer(torch.optim.Optimizer):
    """The common features of all of Starling's optimizers, besides those of torch's. SGD, Adam,
    AdamW, AccumAdam, AccumAdamW and Decentralized make it.

    step() waits for a neighbour whose block of the last step has not come yet, mixes, applies the
    rule and sends, block by block. state_dict() is this worker's: each worker saves its own, or all
    load the same. With a rule of Starling's the state is in the C++ library: `state` is empty, and
    state_dict() has it. add_param_group(), before the same step, and load_state_dict() are
    collective. In a process that was forked from this one every call raises UsageError.
    """

    _binding: _C.OptimizerBinding | None = None
    _first_gradients: FirstGradients | None = None  # until they are known to differ
    _not_synced = 0  # no_sync() within no_sync()

    def _start(self, options: Options, *rule) -> None:
        """`rule`: the C++ library's task: the first arguments of its OptimizerBinding."""
        rest = dict(options)
        buffers = list(rest.pop("buffers", None) or ())
        for buffer in buffers:
            if not isinstance(buffer, torch.Tensor):
                raise TypeError(f"buffers: a {type(buffer).__name__} is no tensor: give model.buffers()")
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
        binding = _C.OptimizerBinding(*rule, given, rest, world, buffers)
        self._binding = binding
        for group, tensors in zip(self.param_groups, given, strict=True):
            self._shards.take(group["params"], tensors)
        # A scheme that averages gradients, and a node, need equal ones.
        own = not self._traits["averages_gradients"] and not self._in_nodes
        if own and world.size > 1 and check_gradients:
            self._first_gradients = FirstGradients(world)
        # If the interpreter ends without deleting the optimizer, the neighbours are also told not
        # to wait.
        self._finalizer = weakref.finalize(self, binding.close)
        self._shards.replaced()  # by rank 0's

    def _take_last_group(self) -> None:
        """A group that add_param_group() has added is removed again if it is refused."""
        group = self.param_groups[-1]
        try:
            given = self._shards.stand_ins(group["params"])
            self._binding.add_group(given, group)
        except BaseException:
            self.param_groups.pop()
            raise
        self._shards.take(group["params"], given)

    def _current(self) -> _C.OptimizerBinding:
        """For every call that reads or writes parameters."""
        self._shards.follow()
        return self._binding

    def _mix(self, scale: float | None) -> None:
        """A step of the C++ library. Every step pays for each line here, because the cache has lost
        it since the last one."""
        check = self._first_gradients
        if check is not None:
            check.take(self.param_groups)
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

    def close(self) -> None:
        """Ends the exchange: the neighbours no longer wait for this worker. Deleting the optimizer
        or leaving the interpreter does so too. Every later call raises UsageError."""
        self._finalizer()

    @contextlib.contextmanager
    def consensus(self, keep: bool = False) -> Iterator[_C.Scope]:
        """Inside it the parameters are their exact average over all workers, and so are the
        floating-point buffers; integer buffers take the maximum. Afterwards each worker gets its
        own values back, unless `keep`. Collective: all workers enter it at the same step. Yields
        the number of `workers` that took part, the `first` of their ranks, and their `distance`.

        Each shard of a sharded model is averaged over its replicas, so the model as a whole is the
        average; `workers` are replicas. It is also a decorator of evaluations: `evaluate =
        optimizer.consensus()(evaluate)`."""
        scope = _C.Scope(self._current())
        try:
            self._shards.replaced()
            yield scope
        finally:
            self._shards.follow()
            scope.end(keep)
            self._shards.replaced()

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
        optimizer has it: pass buffers=model.buffers()."""
        with self.consensus() as scope:
            writes = self._world.rank == scope.first and self._shards.first()
            tensors = {}
            for name, tensor in model.state_dict().items():
                if not isinstance(tensor, torch.Tensor):
                    continue
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
        bytes_sent, seconds_waiting, workers lost and so on, as in starling::Statistics in
        starling/optim/optimizer.h. Asynchronous schemes add:

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


class _State(defaultdict):
    """The state of an optimizer whose state is in the C++ library: empty here, but true. If it were
    false, torch.distributed.checkpoint would call step() to make it."""

    def __init__(self):
        super().__init__(dict)

    def __bool__(self) -> bool:
        return True


class _Ruled(Optimizer):
    """With one of Starling's rules: the C++ library keeps its state and updates all parameters in
    one pass."""

    _step_supports_amp_scaling = True
    _rule: str  # its name in the C++ library
    _states: dict[str, str]  # its possible states: torch's names by the C++ library's

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._states = _C.rules()[cls._rule]["states"]

    def __init__(self, params, defaults: dict, options: Options):
        super().__init__(params, defaults)
        self.state = _State()
        for group in self.param_groups:
            for key in defaults:
                for value in group[key] if isinstance(group[key], (tuple, list)) else [group[key]]:
                    if not hasattr(value, "__float__"):  # a tensor has it, a text has not
                        raise TypeError(f"{key} = {group[key]!r} is not allowed: a number")
        self._start(options, self._rule, self.param_groups)

    def add_param_group(self, param_group: dict) -> None:
        """Like torch's. All workers must call it before the same step; rank 0's values then reach
        every worker."""
        super().add_param_group(param_group)
        if self._binding is not None:
            self._take_last_group()

    @_hooked
    def step(self, closure: Callable[[], float] | None = None):
        """Mixes with the neighbours and applies the rule, block by block. Waits for a neighbour
        whose block of the last step has not come yet. Ctrl-C ends the wait, and is raised once the
        step has ended. Scheme all-reduce waits in backward(): an exception raised there ends the
        averaging for good, at all workers (on a GPU nothing is raised before the wait is over).
        Parameters without a gradient are mixed but not updated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._mix(self._gradient_scale())
        return loss

    # state: that of torch's optimizer of the same name, as copies, made on request. The original is
    # in the C++ library.

    def _numbered(self) -> Iterator[tuple[str, torch.Tensor]]:
        for g, group in enumerate(self.param_groups):
            for p, parameter in enumerate(group["params"]):
                yield f"{g}.{p}", parameter

    def state_dict(self) -> dict:
        """Like torch's, for this worker: every worker saves its own, and loads it again. The
        parameter groups' entry "round" is the place in the schedule. For a sharded model its
        tensors are DTensors, sharded like the parameters. With a hierarchy a parameter's tensors
        have the values that this worker keeps, and the entry "share" describes these. With a scheme
        that averages in pairs, gossip then stands still until the next step(). If no worker steps
        before all have saved, for example behind torch.distributed.barrier(), their states are of
        one moment.

        Workers differ, so each needs a name of its own if all save into one place, for example with
        torch.distributed.checkpoint:

            state = {"model": ..., "optimizer": ...}      # of get_state_dict(model, optimizer)
            dcp.save({f"worker-{rank}": state}, checkpoint_id=folder)

        with the rank among the replicas if the model is sharded."""
        tensors, metadata, of_scheme = self._current().state()
        state = _State()
        numbers = [key for key, fresh in of_scheme.items() if isinstance(fresh, list)]
        for index, (name, parameter) in enumerate(self._numbered()):
            state[parameter] = {"step": tensors["steps"][index].float()}
            kept = self._states | {"master": "master"} | {key: key for key in of_scheme}
            for key, torchs in kept.items():
                tensor = tensors.get(f"{key}.{name}")
                if tensor is not None:
                    state[parameter][torchs] = like(parameter, tensor)
        extra = {"round": int(metadata["position"])}
        extra |= {key + self._shards.suffix(): value for key, value in metadata.items() if key.startswith("grids.")}
        if "share" in metadata:
            extra["share"] = metadata["share"]
        extra |= {key + self._shards.suffix(): tensors[key].tolist() for key in numbers}
        for group in self.param_groups:
            group.update(extra)
        self.state = state
        try:
            return super().state_dict()
        finally:
            self.state = _State()
            for group in self.param_groups:
                for key in extra:
                    del group[key]

    def load_state_dict(self, state_dict: dict) -> None:
        """Collective: every worker loads its own, or all the same. Blocks in flight are sent again.
        A resumed run is therefore equal to the bit to one that did not stop, if the model's
        parameters were loaded before. Also takes the state of torch's optimizer of the same
        name."""
        given = {}

        def take(_, after_hooks):
            given.update(after_hooks)
            return after_hooks | {"state": {}}  # torch would round it to the parameters' type

        hook = self.register_load_state_dict_pre_hook(take)
        groups = self.param_groups
        after, self._optimizer_load_state_dict_post_hooks = self._optimizer_load_state_dict_post_hooks, OrderedDict()
        try:
            with _or_else(lambda: self._binding.set_state({}, {})):
                super().load_state_dict(state_dict)
                loaded = self._loaded(given)
            self._binding.set_state(*loaded)
        except BaseException:
            self.param_groups = groups
            raise
        finally:
            hook.remove()
            self._optimizer_load_state_dict_post_hooks = after
            self.state = _State()
        for call in after.values():
            call(self)

    def _loaded(self, given: dict) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The binding's state for a state of torch's."""
        extra = {}
        _, _, of_scheme = self._current().state(values=False)
        numbers = {key for key, fresh in of_scheme.items() if isinstance(fresh, list)} | _OTHERS_NUMBERS
        for group in self.param_groups:
            for key in [key for key in group if key.split(".")[0] in ("round", "share", "grids", *numbers)]:
                extra[key] = group.pop(key)
        for group in self.param_groups:
            for key in ("amsgrad", "maximize", "dampening"):
                if group.get(key):
                    raise _C.UsageError(f"state_dict: it was made with {key} = {group[key]}, which Starling's rules do not have")
        self._binding.set_rules(self.param_groups)  # SGD may have momentum now
        tensors, metadata, of_scheme = self._current().state(values=False)
        held = functools.cache(lambda: self._binding.state()[0])
        metadata["position"] = str(extra.pop("round", 0))
        # A state of another scheme has other numbers, or lacks them.
        saved_numbers = {key: extra.pop(key) for key in list(extra) if key.split(".")[0] in numbers}
        for key, fresh in of_scheme.items():
            if isinstance(fresh, list):
                tensors[key] = torch.tensor(saved_numbers.get(key + self._shards.suffix(), fresh), dtype=torch.float64)
        alike = metadata.pop("share", None) == extra.get("share")
        metadata |= {key.removesuffix(self._shards.suffix()): value for key, value in extra.items()}
        if not alike:
            return tensors, metadata  # the binding reports differences to all workers
        ids = itertools.chain.from_iterable(group["params"] for group in given["param_groups"])
        # By their numbers, or by their names in a state_dict of torch.distributed.checkpoint.
        for number, (index, (name, parameter)) in enumerate(zip(ids, self._numbered(), strict=True)):
            saved = given["state"].get(index, {})
            where = f"state_dict: parameter {name.replace('.', ', number ')}"
            tensors["steps"][number] = int(saved.get("step", 0))
            for key, torchs in self._states.items():
                if f"{key}.{name}" not in tensors:
                    continue
                if saved and torchs not in saved:
                    raise _C.UsageError(f"{where}: there is no \"{torchs}\", only {sorted(saved)}")
                value = saved.get(torchs)  # torch's SGD has None before its first step
                if value is None:
                    value = torch.zeros_like(tensors[f"{key}.{name}"], device="cpu")
                tensors[f"{key}.{name}"] = local(value).float()
            for key, fresh in ({"master": "parameter"} | of_scheme).items():
                full = f"{key}.{name}"
                if isinstance(fresh, list) or full not in tensors:
                    continue
                if key in saved:
                    tensors[full] = local(saved[key]).float()
                elif fresh == "kept":
                    tensors[full] = held()[full]
                else:
                    begins = parameter.detach() if fresh == "parameter" else torch.zeros_like(parameter)
                    tensors[full] = local(begins).float()
        return tensors, metadata


# Entries of a parameter group that another scheme may have saved, for which this one has no use.
_OTHERS_NUMBERS = {"clock", "weights"}


class SGD(_Ruled):
    """torch.optim.SGD without dampening: d = g + weight_decay x; m <- momentum m + d; u = d +
    momentum m with nesterov, else m. Decentralized: D-PSGD (Lian et al. 2017)."""

    _rule = "SGD"

    def __init__(
        self,
        params: "ParamsT",
        lr: Number = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **options: Unpack[Options],
    ):
        if dampening != 0:
            raise _C.UsageError(f"dampening = {dampening} is not allowed: 0")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults, options)


class Adam(_Ruled):
    """torch.optim.Adam's update, mixed: decentralized Adam of "From Promise to Practice" (arXiv
    2410.11998)."""

    _rule = "Adam"

    def __init__(
        self,
        params: "ParamsT",
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        **options: Unpack[Options],
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, options)


class AdamW(Adam):
    """torch.optim.AdamW's update, mixed."""

    _rule = "AdamW"

    def __init__(
        self,
        params: "ParamsT",
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Unpack[Options],
    ):
        super().__init__(params, lr, betas, eps, weight_decay, **options)


class AccumAdam(_Ruled):
    """Accumulated Adam (arXiv 2410.11998): the kept moments move once per `window` steps, by the
    mean gradient of the window. Each step uses them and its own gradient. `window` = 1 is Adam."""

    _rule = "AccumAdam"

    def __init__(
        self,
        params: "ParamsT",
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        window: int = 8,
        **options: Unpack[Options],
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "window": window}
        super().__init__(params, defaults, options)


class AccumAdamW(AccumAdam):
    """Accumulated Adam with AdamW's weight decay."""

    _rule = "AccumAdamW"

    def __init__(
        self,
        params: "ParamsT",
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        window: int = 8,
        **options: Unpack[Options],
    ):
        super().__init__(params, lr, betas, eps, weight_decay, window, **options)


class Decentralized(Optimizer):
    """Mixing around an optimizer that Starling did not write: `inner.step()` is the local rule.
    Learning rates, parameter groups, gradient clipping and state are inner's: both have the same
    param_groups and state. Add groups here, not to inner. Parameters must be float32."""

    _step_supports_amp_scaling = True

    def __init__(self, inner: torch.optim.Optimizer, **options: Unpack[Options]):
        self.inner = inner
        closure = inspect.signature(inner.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise _C.UsageError(
                f"Decentralized: {type(inner).__name__}.step() must be given a closure, which it calls several times in a "
                "step: there is no one moment to mix at"
            )
        super().__init__(inner.param_groups, inner.defaults)
        self._share()
        me = weakref.ref(self)
        # Inner then has others.
        inner.register_load_state_dict_post_hook(lambda _: me() and me()._share())
        # Nothing here may hold on to self, whose deletion ends the exchange.
        overflowed = self._overflowed = [False]
        self._groups = len(inner.param_groups)
        self._start(options, lambda: None if overflowed[0] else inner.step())

    def _share(self) -> None:
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state

    def add_param_group(self, param_group: dict) -> None:
        """Like torch's, for the inner optimizer. All workers must call it before the same step."""
        if self._binding is None:
            return super().add_param_group(param_group)
        self.inner.add_param_group(param_group)
        self._share()
        self._take_last_group()
        self._groups += 1

    @_hooked
    def step(self, closure: Callable[[], float] | None = None):
        """Mixes with the neighbours and calls the inner optimizer's step(), unless a GradScaler has
        found an overflow."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = self._gradient_scale()
        self._overflowed[0] = scale is None
        if scale not in (None, 1.0):
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, scale)
        if len(self.param_groups) != self._groups:
            raise _C.UsageError("parameter groups were added to the inner optimizer: use Decentralized.add_param_group")
        self._mix(1.0)
        return loss

    def state_dict(self) -> dict:
        """The inner optimizer's state, with the place in the schedule as the parameter groups'
        entry "round". The scheme's own data beside the parameters is not in it, and begins fresh
        after load_state_dict(); nor are the grids of the wires int8 and int4. A resumed run is then
        not equal to the bit."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        saved = self.inner.state_dict()
        for group in saved["param_groups"]:
            group["round"] = self._binding.position()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, saved)
            saved = saved if changed is None else changed
        return saved

    def load_state_dict(self, state_dict: dict) -> None:
        """Collective: every worker loads its own, or all the same. Blocks in flight are sent again.
        If one worker's inner optimizer cannot load, all raise, and each keeps its old state."""
        had = self.inner.state_dict()
        try:
            with _or_else(lambda: self._binding.restart(None)):
                for before in self._optimizer_load_state_dict_pre_hooks.values():
                    changed = before(self, state_dict)
                    state_dict = state_dict if changed is None else changed
                self.inner.load_state_dict(state_dict)
                position = [group.pop("round", 0) for group in self.param_groups][0]
            self._current().restart(position)
        except BaseException:
            self.inner.load_state_dict(had)
            raise
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)
