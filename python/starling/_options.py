"""Keyword arguments of the optimizers."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from starling._C import UsageError, nearest_name
from starling._scheme_options import SchemeOptions
from starling.world import World

if TYPE_CHECKING:
    from starling.world import Group


class Options(SchemeOptions, total=False):
    """Keyword arguments of all optimizers."""

    topology: str
    """"base-2" (default), "ring", "complete" and so on (`starling topology --list`), or a .toml or
    .json file."""
    wire: str
    """Number format of parameters between workers: "fp32" (default), "bf16", "fp16", "int8",
    "int4"."""
    one_in: int
    """random-k: a round sends and mixes one value in so many, with a scheme that chooses its values
    top-k; 1 (default): all."""
    every: int
    """H: only every so many steps is one of the scheme's; the steps between are local. For schemes
    that take local steps; 1 (default)."""
    mean_every: int
    """After every so many steps, all workers go on from the exact mean of their parameters and
    buffers (Gossip-PGA); 0 (default): never. Not for schemes that average beside training, nor for
    all-reduce."""
    outer: str
    """The optimizer of what workers merge to, after each mean of mean_every or, without these,
    after each exchange: "none" (default), "sgd", or "nesterov", as in DiLoCo
    (docs/choosing.md)."""
    outer_lr: float
    """Its learning rate, or that of a scheme's own outer step; 0.7 (default)."""
    outer_momentum: float
    """Its momentum, or that of a scheme's own outer step; 0.9 (default)."""
    outer_warmup: int
    """For so many steps at the start, a multiple of mean_every, all workers take their mean in each
    exchange, and outer steps only gather momentum, as in Pier (docs/choosing.md); 0 (default)."""
    outer_lr_at: str
    """Changes of outer_lr over the steps of the run: points STEP:VALUE, such as
    "10000:0 20000:1.1", with straight lines between them. Two points of one step are a jump; ""
    (default): none."""
    outer_momentum_at: str
    """The same of outer_momentum; "" (default): none."""
    seed: int
    """Of the random times and pairs of schemes that average beside training; 0 (default)."""
    model: torch.nn.Module | None
    """The model of these parameters. Its frozen parameters are rank 0's at the start, and its
    buffers too, which consensus() averages; it looks them up anew each time."""
    buffers: Iterable[torch.Tensor] | None
    """In place of the model: its buffers alone, such as model.buffers(). Give them after model.to()
    and the like, which put others in their place."""
    process_group: "Group | None"
    """Whose workers mix: a process group, or a device mesh of one dimension."""
    world: World | None
    """None (default): that of process_group, else starling.init()."""
    hierarchy: str
    """"none" (default), or "node": the workers of a node average their gradients, divide the
    optimizer's state, and gossip with other nodes as one."""
    workers_per_node: int
    """For the hierarchy, and for topologies that know of nodes; 0 (default): the launcher's local
    world size."""
    block_bytes: int
    """Largest block, in bytes, that is exchanged at once; 26214400 (default), and at most an eighth
    of the model."""
    max_wait: float | None
    """Longest, in seconds, that step() waits for a late neighbour that is alive; None (default):
    ten minutes. Runs in which it is used up are not equal to the bit."""
    jump_guard: float
    """Refuses a neighbour's block that is so many times as far from this worker's as usual, at least
    2: silent corruption, or a worker that diverges; 0 (default): none. Not for wires int8 and int4."""
    clip: float
    """Largest norm of this worker's whole gradient, to which a larger one is scaled down inside
    step(); 0 (default): any."""
    skip_not_finite: bool
    """A step whose gradient is not finite mixes only. False by default."""
    clear_gradients: bool
    """step() leaves zeros in every .grad, in the pass that reads it: zero_grad() is not needed.
    False by default."""
    check_gradients: bool
    """True (default): UsageError where this worker's first gradient is another's too, since then
    somebody averages them already, or all have the same data. Costs one read of the first step's
    gradients."""


class RuleOptions(Options, total=False):
    """Those of torch's optimizer of the same name besides. Each may have its default."""

    amsgrad: bool
    maximize: bool
    differentiable: bool
    decoupled_weight_decay: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool


def without_torchs(options: RuleOptions, name: str, own: Iterable[str]) -> Options:
    """The options without torch's, which must have their defaults. `name`: of the optimizer. `own`:
    the names of its rule's, for one that was mistyped. The C++ library refuses all others."""
    for key in sorted(options.keys() - RuleOptions.__annotations__.keys()):
        near = "lr" if key == "learning_rate" else nearest_name(key, [*own, *Options.__annotations__])
        if near in own:
            raise TypeError(
                f"unexpected keyword argument '{key}', did you mean {near}?: the rule's are {', '.join(own)}"
            )
    rest = dict(options)
    for key in sorted(RuleOptions.__annotations__.keys() - Options.__annotations__.keys()):
        if not (value := rest.pop(key, None)):
            continue
        if key in ("foreach", "fused", "capturable"):
            raise UsageError(f"{key} = {value}: leave it out, since the update is fused already")
        raise UsageError(
            f"{key} = {value} is not allowed: Starling's rules do not have it. Wrap torch's optimizer: "
            f"starling.Decentralized(torch.optim.{name}(.., {key}={value}))"
        )
    return rest


def _default(annotation: str, text: str):
    """The default that the docstring of an option names: "1 (default)", "False by default". Without
    one it is None."""
    said = re.search(r"(\S+) (?:\(default\)|by default)", " ".join(text.split()))
    if said is None or said[1] == "None":
        return None
    return said[1] if annotation == "str" and not said[1].startswith('"') else ast.literal_eval(said[1])


def _documented() -> Iterable[tuple[str, str, str]]:
    """Name, annotation and docstring of each option. Python keeps these docstrings only in the
    source."""
    for kind in (Options, SchemeOptions):
        body = ast.parse(inspect.getsource(sys.modules[kind.__module__])).body
        of_kind = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
        for field, text in zip(of_kind, of_kind[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                annotation = ast.unparse(field.annotation).strip("'")
                yield field.target.id, annotation, inspect.cleandoc(ast.literal_eval(text.value))


def document(*optimizers: type) -> None:
    """Shows every option in help() and inspect.signature(), with its default and its docstring."""
    lines, shared = ["Keyword arguments besides:", ""], []
    for name, annotation, text in _documented():
        lines.append(f"{name}: {annotation}\n    " + text.replace("\n", "\n    "))
        default = _default(annotation, text)
        shared.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    for optimizer in optimizers:
        signature = inspect.signature(optimizer.__init__)
        *own, rest = signature.parameters.values()
        torchs = []
        if "RuleOptions" in str(rest.annotation) and hasattr(torch.optim, optimizer.__name__):
            theirs = inspect.signature(getattr(torch.optim, optimizer.__name__)).parameters
            ours = RuleOptions.__annotations__.keys() - Options.__annotations__.keys()
            torchs = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for key, each in theirs.items() if key in ours]
        optimizer.__init__.__signature__ = signature.replace(parameters=[*own, *shared, *torchs])
        optimizer.__init__.__doc__ = "\n".join(lines)
