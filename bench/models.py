#!/usr/bin/env python3
"""Forward and backward of the models of recipes/small, beside the same models in eager PyTorch: on
one core, by turns. Writes the seconds of a pass, and the ratios, to out/bench/models.json.

    bench/models.py --program BUILD/bin/bench-models [--turns N] [--passes N]

PyTorch's ResNet-18 is torchvision's. It runs in both memory orders, and the faster one counts.
GPT-2 and the Transformer are those of bench/small_tasks.py. `vs_eager` is the time of a pass in
PyTorch over ours: the median over turns, of the model where it is least.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

from workers import about, parser_of, save


def tokens(vocabulary, *shape):
    import torch

    return torch.randint(2, vocabulary, shape)


def resnet18(channels_last):
    import torch
    import torchvision
    from torch.nn import functional as F

    order = torch.channels_last if channels_last else torch.contiguous_format
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    model = model.to(memory_format=order)
    images, labels = torch.randn(32, 3, 32, 32).to(memory_format=order), torch.randint(10, (32,))
    return model, lambda: F.cross_entropy(model(images), labels)


def gpt2():
    from small_tasks import Gpt2

    model = Gpt2(vocabulary=4096, context=256, width=256, heads=4, layers=6)
    read, following = tokens(4096, 4, 256), tokens(4096, 4, 256)
    return model, lambda: model(read, following)


def transformer():
    from small_tasks import Translator

    model = Translator(vocabulary=8000, width=128, heads=4, layers=3, dropout=0.1)
    source, target = tokens(8000, 40, 26), tokens(8000, 40, 26)
    for side in (source, target):
        side[:20, 20:] = 0
    return model, lambda: model(source, target)


def one_pass(model, loss):
    begin = time.perf_counter()
    model.zero_grad()
    loss().backward()
    return time.perf_counter() - begin


def measure(program, name, forms, turns, passes):
    """Both sides by turns of so many passes. forms: those of PyTorch; the fastest one counts."""
    for model, loss in forms:
        one_pass(model, loss)
    ours, theirs = [], []
    for _ in range(turns):
        said = json.loads(subprocess.run([program, name, str(passes)], stdout=subprocess.PIPE, check=True).stdout)
        ours.append(statistics.median(said["seconds"]))
        theirs.append([statistics.median(one_pass(*form) for _ in range(passes)) for form in forms])
    parameters = sum(p.numel() for p in forms[0][0].parameters())
    if parameters != said["parameters"]:
        sys.exit(f"bench: {name} has {said['parameters']} parameters, in PyTorch {parameters}")
    fastest = min(range(len(forms)), key=lambda form: statistics.median(turn[form] for turn in theirs))
    return {"model": name, "parameters": parameters, "ours_s": statistics.median(ours),
            "eager_s": statistics.median(turn[fastest] for turn in theirs),
            "vs_eager": statistics.median(turn[fastest] / mine for turn, mine in zip(theirs, ours, strict=True))}


def main():
    parser = parser_of(__doc__, "models.json")
    parser.add_argument("--program", required=True, type=pathlib.Path, help="the built program")
    parser.add_argument("--turns", type=int, default=7, help="turns of each side (default %(default)s)")
    parser.add_argument("--passes", type=int, default=10, help="of each side in a turn")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    models = {"resnet18": [resnet18(False), resnet18(True)], "gpt2": [gpt2()], "transformer": [transformer()]}
    cells = [measure(options.program, name, forms, options.turns, options.passes) for name, forms in models.items()]
    save({"models": cells, "vs_eager": min(cell["vs_eager"] for cell in cells), "machine": about()}, options.out)


if __name__ == "__main__":
    main()
