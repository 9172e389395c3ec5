"""The optimizers with Starling's own rules."""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import torch

from starling import _C
from starling._options import RuleOptions, without_torchs
from starling.optim import Optimizer, hooked, or_else
from starling.sharded import is_sharded, like, local

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Number = float | torch.Tensor
# torch's options of a parameter group that change the update, and that no rule has.
_NOT_HERE = ("amsgrad", "maximize", "dampening")


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

    def __init__(self, params, defaults: dict, options: RuleOptions):
        rest = without_torchs(options, self._rule, defaults)
        super().__init__(params, defaults)
        self.state = _State()
        self._start(rest, self._rule)

    def add_param_group(self, param_group: dict) -> None:
        """Like torch's. All workers must call it before the same step; rank 0's values then reach
        every worker."""
        for key in _NOT_HERE if isinstance(param_group, dict) else ():  # else torch says so
            if param_group.get(key):
                raise _C.UsageError(f"a parameter group has {key} = {param_group[key]}, which Starling's rules do not have")
        super().add_param_group(param_group)
        if self._binding is not None:
            self._take_last_group()

    @hooked
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

    def state_dict(self) -> dict:
        """Like torch's, for this worker: every worker saves its own, and loads it again. The
        parameter groups' entry "round" is the place in the schedule. For a sharded model its
        tensors are DTensors, sharded like the parameters. With a hierarchy a parameter's tensors
        have the values that this worker keeps, and the entry "share" describes these. With a scheme
        that averages in pairs, gossip then stands still until the next step(). If no worker steps
        before all have saved, for example behind torch.distributed.barrier(), their states are of
        one moment.

        Workers differ, so each needs a name of its own if all save into one place, for example with
        torch.distributed.checkpoint::

            state = {"model": ..., "optimizer": ...}      # of get_state_dict(model, optimizer)
            dcp.save({f"worker-{rank}": state}, checkpoint_id=folder)

        with the rank among the replicas if the model is sharded."""
        tensors, metadata, of_scheme = self._current().state()
        state = _State()
        for index, (name, parameter) in enumerate(self._numbered()):
            state[parameter] = {"step": tensors["steps"][index].float()}
            kept = self._torchs(name, tensors) | {"master": "master"} | {key: key for key in of_scheme}
            for key, torchs in kept.items():
                tensor = tensors.get(f"{key}.{name}")
                if tensor is not None:
                    state[parameter][torchs] = like(parameter, tensor)
        extra = self._added(tensors, metadata, of_scheme)
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
        A resumed run is therefore equal to the bit to one that did not stop. Load the model after
        the optimizer was made, before this or before the next step. Also takes the state of torch's
        optimizer of the same name, or of another of Starling's: options that it lacks stay what
        they are."""
        given = {}

        def take(_, after_hooks):
            saved = after_hooks["param_groups"]
            mine = [{key: group[key] for key in self.defaults if key in group} for group in self.param_groups]
            if len(saved) == len(mine):  # else torch says so
                after_hooks = after_hooks | {"param_groups": [a | b for a, b in zip(mine, saved, strict=True)]}
            given.update(after_hooks)
            return after_hooks | {"state": {}}  # torch would round it to the parameters' type

        hook = self.register_load_state_dict_pre_hook(take)
        groups = self.param_groups
        after, self._optimizer_load_state_dict_post_hooks = self._optimizer_load_state_dict_post_hooks, OrderedDict()
        try:
            with or_else(lambda: self._binding.set_state({}, {})):
                super().load_state_dict(state_dict)
                checksum, tensors, metadata = self._loaded(given)
                self._check_order(checksum)

            def load(here, again):
                tensors["rng"] = torch.get_rng_state()
                return self._binding.set_state(tensors, metadata, here, again)

            self._load(checksum, load)
        except BaseException:
            self.param_groups = groups
            raise
        finally:
            hook.remove()
            self._optimizer_load_state_dict_post_hooks = after
            self.state = _State()
        for call in after.values():
            call(self)

    def _torchs(self, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
        """torch's names of a parameter's states, by the C++ library's."""
        return self._states

    def _adopted(self, saved: dict, group: dict) -> dict:
        """A parameter's saved state, which may be that of another rule, as one of this rule."""
        return saved

    def _loaded(self, given: dict) -> tuple[int | None, dict[str, torch.Tensor], dict[str, str]]:
        """The saved checksum of the model, and the binding's state for a state of torch's."""
        numbers, rest = self._take_added()
        for group in self.param_groups:
            for key in _NOT_HERE:
                if group.get(key):
                    raise _C.UsageError(f"state_dict: it was made with {key} = {group[key]}, which Starling's rules do not have")
        self._binding.set_rules(self.param_groups)  # SGD may have momentum now
        _, own, _ = self._current().state(values=False)
        alike = own.get("share") == rest.get("share")
        checksum, tensors, metadata, of_scheme = self._given(numbers, rest)
        if not alike:
            return checksum, tensors, metadata  # the binding reports differences to all workers
        ids = itertools.chain.from_iterable(group["params"] for group in given["param_groups"])
        # By their numbers, or by their names in a state_dict of torch.distributed.checkpoint.
        for number, (index, (name, parameter)) in enumerate(zip(ids, self._numbered(), strict=True)):
            saved = self._adopted(given["state"].get(index, {}), self.param_groups[int(name.partition(".")[0])])
            where = f"state_dict: parameter {name.replace('.', ', number ')}"
            tensors["steps"][number] = int(saved.get("step", 0))
            for key, torchs in self._torchs(name, tensors).items():
                if f"{key}.{name}" not in tensors:
                    continue
                if saved and torchs not in saved:
                    raise _C.UsageError(f"{where}: there is no \"{torchs}\", only {sorted(saved)}")
                value = saved.get(torchs)  # torch's SGD has None before its first step
                if value is None:
                    value = torch.zeros_like(tensors[f"{key}.{name}"], device="cpu")
                tensors[f"{key}.{name}"] = local(value).float()
            self._give_vectors(tensors, {"master": "parameter"} | of_scheme, name, parameter, saved)
        return checksum, tensors, metadata


class SGD(_Ruled):
    """torch.optim.SGD without dampening: d = g + weight_decay x; m <- momentum m + d; u = d +
    momentum m with nesterov, else m. Decentralized: D-PSGD (Lian et al. 2017)."""

    _rule = "SGD"

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **options: Unpack[RuleOptions],
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
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        **options: Unpack[RuleOptions],
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, options)

    def _adopted(self, saved: dict, group: dict) -> dict:
        if "accumulated_grad" not in saved:
            return saved
        return saved | {"step": -(-saved["step"] // group["window"])}  # its moments have moved so often


class AdamW(Adam):
    """torch.optim.AdamW's update, mixed."""

    _rule = "AdamW"

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Unpack[RuleOptions],
    ):
        super().__init__(params, lr, betas, eps, weight_decay, **options)


class AccumAdam(_Ruled):
    """Accumulated Adam (arXiv 2410.11998): the kept moments move once per `window` steps, by the
    mean gradient of the window. Each step uses them and its own gradient. `window` = 1 is Adam."""

    _rule = "AccumAdam"

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        window: int = 8,
        **options: Unpack[RuleOptions],
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "window": window}
        super().__init__(params, defaults, options)

    def _adopted(self, saved: dict, group: dict) -> dict:
        if "exp_avg" not in saved or "accumulated_grad" in saved:
            return saved
        # Adam's moments have moved in every step, these move once in a window.
        return saved | {"step": saved["step"] * group["window"], "accumulated_grad": None}


class AccumAdamW(AccumAdam):
    """Accumulated Adam with AdamW's weight decay."""

    _rule = "AccumAdamW"

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        window: int = 8,
        **options: Unpack[RuleOptions],
    ):
        super().__init__(params, lr, betas, eps, weight_decay, window, **options)


_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(_Ruled):
    """torch.optim.Muon's update, mixed, of all parameters with two and more dimensions: the first
    are a matrix's rows, the others its columns. All other parameters, and groups with use_muon =
    False, take AdamW's update with the learning rate adamw_scale * lr and the same weight_decay.

    Embeddings want AdamW. With `model`, and without groups, the weights of its torch.nn.Embedding
    and EmbeddingBag become a second group with use_muon = False."""

    _rule = "Muon"

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = "original",
        use_muon: bool = True,
        adamw_scale: float = 1.0,
        betas: tuple[Number, Number] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        **options: Unpack[RuleOptions],
    ):
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "use_muon": use_muon,
            "adamw_scale": adamw_scale,
            "betas": betas,
            "adamw_eps": adamw_eps,
        }
        super().__init__(_embeddings_apart(params, options.get("model")), defaults, options)

    def add_param_group(self, param_group: dict) -> None:
        """Like torch's. All workers must call it before the same step; rank 0's values then reach
        every worker."""
        given = param_group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        parameters = [each[1] if isinstance(each, tuple) else each for each in given]
        group = self.defaults | param_group
        _check_coefficients("Muon", group)
        if group["use_muon"] and any(is_sharded(p) and p.dim() >= 2 for p in parameters):
            raise _C.UsageError(
                "Muon does not take sharded parameters, since a shard is not the whole matrix: give them in a group with "
                "use_muon=False"
            )
        super().add_param_group(param_group | {"params": given})

    def _torchs(self, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
        # A matrix has no second moment. Other parameters have AdamW's states.
        return self._states | {"m": "exp_avg"} if f"v.{name}" in tensors else self._states

    def _loaded(self, given: dict) -> tuple[int | None, dict[str, torch.Tensor], dict[str, str]]:
        for group in self.param_groups:
            _check_coefficients("state_dict", group)
        return super()._loaded(given)


def _check_coefficients(where: str, group: dict) -> None:
    given = group["ns_coefficients"]
    if not isinstance(given, (tuple, list)) or tuple(given) != _COEFFICIENTS:
        raise _C.UsageError(f"{where}: ns_coefficients = {given} is not allowed: {_COEFFICIENTS}")


def _embeddings_apart(params: ParamsT, model: torch.nn.Module | None) -> ParamsT:
    """The parameters, or two groups if some are weights of the model's embeddings."""
    if not isinstance(model, torch.nn.Module) or isinstance(params, torch.Tensor):
        return params
    given = list(params)
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    weights = {id(module.weight) for module in model.modules() if isinstance(module, kinds)}
    if any(isinstance(each, dict) for each in given):
        return given
    rest, embeddings = [], []
    for each in given:
        parameter = each[1] if isinstance(each, tuple) else each
        (embeddings if id(parameter) in weights else rest).append(each)
    if not embeddings:
        return given
    return [{"params": rest}] * bool(rest) + [{"params": embeddings, "use_muon": False}]
