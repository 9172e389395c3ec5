"""Mixing around an optimizer that Starling did not write."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Unpack

import torch

from starling import _C
from starling._options import Options
from starling.optim import Optimizer, hooked, or_else
from starling.sharded import like


def _indices(state_dict: dict) -> Iterator:
    """The parameters in it: numbers, or in one of torch.distributed.checkpoint names."""
    return itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])


class Decentralized(Optimizer):
    """Mixing around an optimizer that Starling did not write: `inner.step()` is the local rule.
    Learning rates, parameter groups, gradient clipping and state are inner's: both have the same
    param_groups and state. Add groups here, not to inner. Parameters must be float32."""

    _step_supports_amp_scaling = True
    _of_scheme = "scheme."

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

    @hooked
    def step(self, closure: Callable[[], float] | None = None):
        """Mixes with the neighbours and calls the inner optimizer's step(), unless a GradScaler has
        found an overflow."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._share()
        scale = self._gradient_scale()
        self._overflowed[0] = scale is None
        if scale not in (None, 1.0):
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, scale)
        self._mix(1.0)
        return loss

    def state_dict(self) -> dict:
        """The inner optimizer's state, whatever it keeps, with the place in the schedule as the
        parameter groups' entry "round". The scheme's own data has names that begin with "scheme.".
        With a scheme that averages in pairs, gossip then stands still until the next step()."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        saved = self.inner.state_dict()
        tensors, metadata, of_scheme = self._current().state()
        added = self._added(tensors, metadata, of_scheme)
        for group in saved["param_groups"]:
            group.update(added)
        vectors = [key for key, fresh in of_scheme.items() if not isinstance(fresh, list)]
        for index, (name, parameter) in zip(_indices(saved), self._numbered(), strict=True) if vectors else ():
            own = {self._of_scheme + key: like(parameter, tensors[f"{key}.{name}"]) for key in vectors}
            saved["state"][index] = {**saved["state"].get(index, {}), **own}
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, saved)
            saved = saved if changed is None else changed
        return saved

    def load_state_dict(self, state_dict: dict) -> None:
        """Collective: every worker loads its own, or all the same. Blocks in flight are sent again.
        A resumed run is therefore equal to the bit to one that did not stop. If one worker's inner
        optimizer cannot load, all raise, and each keeps its old state."""
        had = self.inner.state_dict()
        try:
            with or_else(lambda: self._binding.set_state({}, {})):
                for before in self._optimizer_load_state_dict_pre_hooks.values():
                    changed = before(self, state_dict)
                    state_dict = state_dict if changed is None else changed
                self.inner.load_state_dict(self._of_inner(state_dict))
                self._share()  # it may have a load_state_dict() of its own, which calls no hooks
                checksum, tensors, metadata, of_scheme = self._given(*self._take_added())
                for index, (name, parameter) in zip(_indices(state_dict), self._numbered(), strict=True):
                    self._give_vectors(tensors, of_scheme, name, parameter, state_dict["state"].get(index, {}))
                self._check_order(checksum)

            def load(here, again):
                tensors["rng"] = torch.get_rng_state()
                return self._current().set_state(tensors, metadata, here, again)

            self._load(checksum, load)
        except BaseException:
            self.inner.load_state_dict(had)
            self._share()
            raise
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _of_inner(self, state_dict: dict) -> dict:
        """The state_dict without the scheme's vectors."""
        states = {}
        for index, state in state_dict["state"].items():
            kept = {key: value for key, value in state.items() if not str(key).startswith(self._of_scheme)}
            if kept or not state:
                states[index] = kept
        return {**state_dict, "state": states}
