#!/usr/bin/env python3
"""The cost of a step from Python beside one from C++, and beside torch's fused AdamW. One worker,
no neighbours; prints JSON.

    PYTHONPATH=build/python .venv/bin/python bench/python_step.py [--program PATH] [--turns N]
        [--steps N] [--widths N..] [--out PATH]

The time is that of optimizer.step() alone, in a training loop on 60 tensors (bench/overhead.cpp's),
with one thread. C++ and Python run by turns. Each turn is a process of its own, in which Starling's
step and torch's take turns too. Times are medians over the steps of a process, then over the turns.
Each process places its memory differently, which changes a step's time by 10 % and more. Therefore
Python is compared with C++ turn by turn, and the median ratio counts. Writes
out/bench/python_step.json:

    python_over_cpp   Starling's AdamW from Python over the same from C++, the largest ratio from 1
                      million parameters on
    vs_torch_fused    time of torch.optim.AdamW(fused=True) over that of starling.AdamW, both from
                      Python, the smallest ratio
    sizes             milliseconds, by the number of parameters
"""

import json
import statistics
import subprocess
import sys
import time

from workers import about, parser_of, save

WIDTHS = (58, 183, 256, 577)  # 0.1, 1, 2 and 10 million parameters
LAYERS, BATCH = 30, 32
MILLION = 1_000_000


def layers(width):
    import torch

    torch.manual_seed(1)
    parameters = []
    for _ in range(LAYERS):
        parameters.append((torch.randn(width, width) * (2 / width) ** 0.5).requires_grad_())
        parameters.append(torch.zeros(width, requires_grad=True))
    return parameters


def measure(width, steps):
    """Milliseconds of a step, by its name."""
    import torch

    import starling

    torch.set_num_threads(1)
    batch = torch.randn(BATCH, width)
    ours, theirs = layers(width), layers(width)
    optimizers = {
        "starling": (ours, starling.AdamW(ours, lr=1e-3, weight_decay=0.01)),
        "torch_fused": (theirs, torch.optim.AdamW(theirs, lr=1e-3, weight_decay=0.01, fused=True)),
    }
    seconds = {name: [] for name in optimizers}
    for step in range(steps + 1):
        for name, (parameters, optimizer) in optimizers.items():
            optimizer.zero_grad()
            x = batch
            for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
                x = torch.relu(torch.addmm(bias, x, weight.t()))
            x.pow(2).mean().backward()
            begin = time.perf_counter()
            optimizer.step()
            seconds[name].append(time.perf_counter() - begin)
        if step == 0:  # a warm-up, and the proof that both do the same
            if not all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(ours, theirs, strict=True)):
                sys.exit("bench: Starling's step and torch's end at different numbers")
            seconds = {name: [] for name in optimizers}
    return {name: 1e3 * statistics.median(all) for name, all in seconds.items()}


def main():
    parser = parser_of(__doc__, "python_step.json", program="bench-overhead")
    parser.add_argument("--turns", type=int, default=11, help="turns of each side (default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps per turn; a quarter of it with 10 million parameters")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="widths of the layers; at least one is 183 or more")
    parser.add_argument("--worker", nargs=2, type=int, metavar=("WIDTH", "STEPS"), help="run one turn from Python")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(*options.worker)))
        return

    def said(*command):
        return json.loads(subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True).stdout)

    sizes = []
    for width in options.widths:
        parameters = LAYERS * (width * width + width)
        steps = max(1, options.steps // (4 if parameters >= 5 * MILLION else 1))
        times = {"cpp": [], "python": [], "torch_fused": []}
        for _ in range(options.turns):
            times["cpp"].append(said(options.program, "step", steps, width)["starling_alone_ms"])
            python = said(sys.executable, __file__, "--worker", width, steps)
            times["python"].append(python["starling"])
            times["torch_fused"].append(python["torch_fused"])
        ms = {f"{name}_ms": statistics.median(all) for name, all in times.items()}
        over_cpp = [mine / theirs for mine, theirs in zip(times["python"], times["cpp"], strict=True)]
        sizes.append({"parameters": parameters, **ms, "python_over_cpp": statistics.median(over_cpp),
                      "vs_torch_fused": ms["torch_fused_ms"] / ms["python_ms"], "turns_ms": times})  # fmt: skip
    save({
        "python_over_cpp": max(size["python_over_cpp"] for size in sizes if size["parameters"] >= MILLION),
        "vs_torch_fused": min(size["vs_torch_fused"] for size in sizes),
        **about(),
        "tensors": 2 * LAYERS,
        "sizes": sizes,
    }, options.out)


if __name__ == "__main__":
    main()
