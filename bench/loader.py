#!/usr/bin/env python3
"""Images per second of one core that decodes, crops and resizes JPEGs of 500x375 pixels for
training at 224x224: Starling's loader beside torchvision's and beside bare libjpeg-turbo.

    .venv/bin/python bench/loader.py [--program PATH] [--starling PATH] [--images N] [--turns N]
        [--out PATH]

Needs the packages of requirements-examples.txt and requirements-pack.txt. The images are drawn
here: smooth shapes with grain, about 75 KB each. torchvision reads them by ImageFolder,
RandomResizedCrop, RandomHorizontalFlip and PILToTensor, in the process of its DataLoader; all sides
make bytes. Starling and torchvision take turns. Writes out/bench/loader.json:

    vs_torchvision    images per second over torchvision's, the median of the turns
    share_of_decode   the same over those of libjpeg-turbo, which decodes every image whole
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from workers import ROOT, about, save

SIZE = 224


def draw(folder, images):
    import numpy
    from PIL import Image

    generator = numpy.random.default_rng(1)
    for i in range(images):
        name = folder / ("val" if i == 0 else "train") / "photo" / f"{i:05}.jpg"
        name.parent.mkdir(parents=True, exist_ok=True)
        shapes = Image.fromarray(generator.integers(0, 256, (10, 13, 3), dtype=numpy.uint8)).resize((500, 375), 3)
        grain = generator.normal(0, 9, (375, 500, 1))
        pixels = numpy.clip(numpy.asarray(shapes) + grain, 0, 255).astype(numpy.uint8)
        Image.fromarray(pixels).save(name, quality=90)


def torchvision_rate(folder):
    """Images per second."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    views = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(),
                                transforms.PILToTensor()])
    images = datasets.ImageFolder(folder, views)
    loader = torch.utils.data.DataLoader(images, batch_size=64, shuffle=True)
    list(loader)  # a warm-up
    begin = time.perf_counter()
    made = sum(len(labels) for _, labels in loader)
    return made / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/bin/bench-loader"))
    parser.add_argument("--starling", default=str(ROOT / "build/bin/starling"))
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/bench/loader.json")
    parser.add_argument("--torchvision", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torchvision:
        print(torchvision_rate(options.torchvision))
        return

    def said(*command):
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True,
                              env=os.environ | {"STARLING_PYTHON": sys.executable})
        return done.stdout

    with tempfile.TemporaryDirectory() as name:
        raw, packed = pathlib.Path(name) / "raw", pathlib.Path(name) / "packed"
        draw(raw, options.images + 1)
        said(options.starling, "pack", "images", raw, packed)
        rates = {"starling": [], "libjpeg": [], "torchvision": []}
        for _ in range(options.turns):
            for side, rate in json.loads(said(options.program, packed, SIZE, 3)).items():
                rates[side].append(rate)
            rates["torchvision"].append(float(said(sys.executable, __file__, "--torchvision", raw / "train")))
        kilobytes = statistics.mean(file.stat().st_size for file in (raw / "train").rglob("*.jpg")) / 1000

    def over(other):
        return statistics.median(a / b for a, b in zip(rates["starling"], rates[other], strict=True))

    save({
        "vs_torchvision": over("torchvision"),
        "share_of_decode": over("libjpeg"),
        **about(),
        "images_per_second": {side: statistics.median(all) for side, all in rates.items()},
        "kilobytes_per_image": kilobytes,
        "turns": rates,
    }, options.out)


if __name__ == "__main__":
    main()
