#!/usr/bin/env python3
"""Images per second of one core that decodes, crops and resizes JPEGs of 500x375 pixels for
training at 224x224: Starling's loader beside torchvision's, DALI's CPU pipeline and bare
libjpeg-turbo. And the time of the loaders of text and translation, as a share of a step of the
small recipes.

    .venv/bin/python bench/loader.py [--program PATH] [--starling PATH] [--images N] [--turns N]
        [--steps N] [--without-dali] [--out PATH]

Needs the packages of requirements-examples.txt, requirements-pack.txt and requirements-loader.txt.
The images are drawn here: smooth shapes with grain, about 75 KB each. torchvision reads them by
ImageFolder, RandomResizedCrop, RandomHorizontalFlip and PILToTensor, in the process of its
DataLoader; DALI by image_random_crop, resize and flip, with one thread. All sides make bytes and
take turns on the same core. A second is one of computing, of all threads of a process, so other
processes do not count. FFCV has no wheel. The text is 16 million random tokens; the
translation is 68,000 pairs of random sentences. Writes out/bench/loader.json:

    vs_torchvision    images per second over torchvision's, the median of the turns
    vs_dali_cpu       the same over DALI's
    share_of_decode   the same over those of libjpeg-turbo, which decodes every image whole
    text_share_of_step, translation_share_of_step   a worker's time for its batches, as a share of
                      all its time, from its second step on
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from workers import ROOT, about, parser_of, save

SIZE, BATCH = 224, 64


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
    loader = torch.utils.data.DataLoader(images, batch_size=BATCH, shuffle=True)
    list(loader)  # a warm-up
    begin = time.process_time()
    made = sum(len(labels) for _, labels in loader)
    return made / (time.process_time() - begin)


def dali_rate(folder):
    """Images per second."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
    def pipeline():
        jpegs, labels = fn.readers.file(file_root=str(folder), random_shuffle=True)
        parts = fn.decoders.image_random_crop(jpegs, device="cpu", random_area=[0.08, 1], random_aspect_ratio=[3 / 4, 4 / 3])
        return fn.flip(fn.resize(parts, size=[SIZE, SIZE]), horizontal=fn.random.coin_flip()), labels

    images = pipeline()
    images.build()
    batches = max(1, sum(1 for _ in folder.rglob("*.jpg")) // BATCH)
    for _ in range(batches):  # a warm-up
        images.run()
    begin = time.process_time()
    for _ in range(batches):
        images.run()
    return batches * BATCH / (time.process_time() - begin)


def write_text(folder, generator):
    for split, tokens in (("train", 16_000_000), ("val", 10_000)):
        generator.integers(0, 4096, tokens, dtype="<u2").tofile(folder / f"{split}.bin")


def write_pairs(folder, generator):
    """starling/data/pairs.h"""
    for split, pairs in (("train", 68_000), ("val", 100)):
        lengths = generator.lognormal(2.7, 0.7, 2 * pairs).astype("<u8").clip(1, 200)
        places = lengths.cumsum(dtype="<u8")
        with open(folder / f"{split}.pairs", "wb") as file:
            file.write(b"PAIR" + struct.pack("<IQQ", 1, pairs, 0) + places.tobytes())
            file.write(generator.integers(2, 8000, int(places[-1]), dtype="<u2").tobytes())


def share_of_step(said, starling, task, write, steps):
    """The share of a worker's time for its batches."""
    import numpy

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder, numpy.random.default_rng(1))
        said(starling, "train", ROOT / f"recipes/small/{task}.toml", "--workers", 1, "--out", folder / "run",
             "--data.dir", folder, "--data.test_limit", 1, "--run.steps", steps + 2, "--log.eval_every", 0,
             "--checkpoint.every", 0, "--log.timeline", "true")
        events = json.loads((folder / "run/timeline-0.json").read_text())["traceEvents"]
    spans = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "data")[1:]
    return sum(taken for _, taken in spans[:-1]) / (spans[-1][0] - spans[0][0])


PEERS = {"torchvision": torchvision_rate, "dali": dali_rate}


def main():
    parser = parser_of(__doc__, "loader.json", program="bench-loader", starling=True)
    parser.add_argument("--images", type=int, default=300, help="images of the data set (default %(default)s)")
    parser.add_argument("--turns", type=int, default=7, help="turns of each side (default %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="steps of training beside a loader (default %(default)s)")
    parser.add_argument("--without-dali", action="store_true", help="leave out NVIDIA DALI, which is 450 MB to fetch")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(PEERS[options.peer](options.folder))
        return
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # all that is started here inherits it
    peers = [peer for peer in PEERS if peer != "dali" or not options.without_dali]

    def said(*command):
        # DALI complains on stderr about libraries for GPUs.
        done = subprocess.run([*map(str, command)], capture_output=True, text=True,
                              env=os.environ | {"STARLING_PYTHON": sys.executable})
        if done.returncode != 0:
            sys.exit(f"bench: {' '.join(map(str, command))} ended with exit code {done.returncode}:\n{done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as name:
        raw, packed = pathlib.Path(name) / "raw", pathlib.Path(name) / "packed"
        draw(raw, options.images + 1)
        said(options.starling, "pack", "images", raw, packed)
        rates = {side: [] for side in ("starling", "libjpeg", *peers)}
        for _ in range(options.turns):
            for side, rate in json.loads(said(options.program, packed, SIZE, 3)).items():
                rates[side].append(rate)
            for peer in peers:
                rates[peer].append(float(said(sys.executable, __file__, "--peer", peer, "--folder", raw / "train")))
        kilobytes = statistics.mean(file.stat().st_size for file in (raw / "train").rglob("*.jpg")) / 1000

    def over(other):
        return statistics.median(a / b for a, b in zip(rates["starling"], rates[other], strict=True))

    save({
        "vs_torchvision": over("torchvision"),
        **({} if options.without_dali else {"vs_dali_cpu": over("dali")}),
        "share_of_decode": over("libjpeg"),
        **{f"{task}_share_of_step": share_of_step(said, options.starling, task, write, options.steps)
           for task, write in (("text", write_text), ("translation", write_pairs))},
        **about(),
        "images_per_second": {side: statistics.median(all) for side, all in rates.items()},
        "kilobytes_per_image": kilobytes,
        "turns": rates,
    }, options.out)


if __name__ == "__main__":
    main()
