"""The files of `starling pack` as data sets of torch (docs/data.md describes the files):

    from starling import data

    windows = data.Text("out/text/train.bin", context=256)
    batches = data.Batches(windows, batch=16, seed=1)
    for inputs, targets in torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2):
        ...

Text, Pairs and Images are data sets with an index, whose files are mapped into memory. Batches
shuffles any such data set, and gives each worker its share. A file that is missing, cut off or
damaged raises starling.Error, which names it.
"""

import bisect
import io
import itertools
import mmap
import pathlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from starling._C import Error, UsageError, checksum
from starling.world import init

__all__ = ["Batches", "Images", "Pairs", "Text"]

_PAIRS = struct.Struct("<4sIQ")
_SHARD = struct.Struct("<8sQQQQIIQII")
_ENTRY = struct.Struct("<QIII4x")


def _mapped(path: pathlib.Path) -> torch.Tensor:
    """The bytes of a file: uint8."""
    try:
        with open(path, "rb") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise Error(f"{path}: cannot be mapped: {error}") from error


class _OfFiles(Dataset):
    """Examples in files that are mapped. A process of a DataLoader that is not forked maps them
    too, and gets no copy of their bytes."""

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("_tokens", "_places", "_shards")}

    def __setstate__(self, state):
        vars(self).update(state)
        self._map()

    def _map(self) -> None:
        raise NotImplementedError


class Text(_OfFiles):
    """Windows of a text, one behind the other: each is the tokens, int64 [context], and the tokens
    that follow them. `first`: the place of the first window. The file is 16-bit tokens, as
    nanoGPT's."""

    def __init__(self, path: str | pathlib.Path, context: int, first: int = 0):
        if context < 1 or first < 0:
            raise UsageError(f"context = {context}, first = {first}: wants at least 1 and 0")
        self._path, self._context, self._first = pathlib.Path(path), context, first
        self._map()

    def _map(self) -> None:
        path, context, first = self._path, self._context, self._first
        bytes_ = _mapped(path)
        if len(bytes_) % 2:
            raise Error(f"{path}: breaks off within a token: it has {len(bytes_)} bytes")
        self._tokens = bytes_.view(torch.uint16)
        self._windows = (len(self._tokens) - 1 - first) // context
        if self._windows < 1:
            raise Error(f"{path}: has {len(self._tokens)} tokens, too few for a window of {context}")

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = self._first + _within(index, len(self)) * self._context
        tokens = self._tokens[begin : begin + self._context + 1].to(torch.int64)
        return tokens[:-1], tokens[1:]


class Pairs(_OfFiles):
    """Pairs of sentences: the tokens of the source and of the target, int64. Tokens 0 and 1 are
    free for padding and the end."""

    def __init__(self, path: str | pathlib.Path):
        self._path = pathlib.Path(path)
        self._map()

    def _map(self) -> None:
        path = self._path
        bytes_ = _mapped(path)

        def refuse(why):
            raise Error(f"{path}: {why}")

        kind, version, pairs = _PAIRS.unpack(bytes(bytes_[: _PAIRS.size])) if len(bytes_) >= _PAIRS.size else (b"", 0, 0)
        if (kind, version) != (b"PAIR", 1):
            refuse("is no file of sentence pairs, as `starling pack translation` makes them")
        end = _PAIRS.size + 8 * (2 * pairs + 1)
        if pairs == 0 or end > len(bytes_):
            refuse(f"breaks off: it has {len(bytes_)} bytes, too few for {pairs} pairs")
        self._places = bytes_[_PAIRS.size : end].view(torch.int64)
        if self._places[0] != 0 or bool((self._places[1:] <= self._places[:-1]).any()):
            refuse("a sentence is empty, or begins behind its end")
        if len(bytes_) != end + 2 * int(self._places[-1]):
            refuse(f"has {len(bytes_) - end} bytes of tokens, and should have {2 * int(self._places[-1])}")
        self._tokens = bytes_[end:].view(torch.uint16)

    def __len__(self) -> int:
        return len(self._places) // 2

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pair = _within(index, len(self))
        a, b, c = self._places[2 * pair : 2 * pair + 3].tolist()
        tokens = self._tokens[a:c].to(torch.int64)
        if (least := int(tokens.min())) < 2:
            raise Error(f"{self._path}: pair {pair}: token {least}: wants at least 2, behind padding and the end")
        return tokens[: b - a], tokens[b - a :]


class Images(_OfFiles):
    """Images with their labels: what `transform` makes of a PIL image, by default the image itself,
    and a number. `classes` are the labels' names. Needs pillow."""

    def __init__(self, folder: str | pathlib.Path, split: str, transform: Callable[[Any], Any] | None = None):
        self._folder, self._split, self._transform = pathlib.Path(folder), split, transform
        self._map()

    def _map(self) -> None:
        self._shards: list[tuple[pathlib.Path, torch.Tensor, int]] = []  # path, bytes, place of the index
        self._ends: list[int] = []  # images up to the end of each shard
        self.classes: list[str] = []
        number, shards = 0, 1
        while number < shards:
            path = self._folder / f"{self._split}-{number:05}.shard"
            shards = self._add(path, number, None if number == 0 else shards)
            number += 1

    def _add(self, path: pathlib.Path, number: int, shards: int | None) -> int:
        """Returns the number of shards."""
        bytes_ = _mapped(path)

        def refuse(why):
            raise Error(f"{path}: {why}")

        if len(bytes_) < _SHARD.size or bytes(bytes_[:8]) != b"STARIMG1":
            refuse("is no shard of images: `starling pack images` makes them")
        _, images, end, index, names, this, all_, classes, index_sum, header_sum = _SHARD.unpack(
            bytes(bytes_[: _SHARD.size]))
        if checksum([bytes_[: _SHARD.size - 4]]) != header_sum:
            refuse("its header is damaged, or the file was never finished")
        if len(bytes_) != end:
            refuse(f"has {len(bytes_)} bytes, and should have {end}")
        if not _SHARD.size <= index <= names <= end or names - index != images * _ENTRY.size:
            refuse(f"{images} images do not fit an index from {index} to {names} in {end} bytes")
        if checksum([bytes_[index:]]) != index_sum:
            refuse("its index is damaged")
        if this != number or (shards or all_) != all_:
            refuse(f"says that it is shard {this} of {all_}, and should be {number} of {shards or all_}")
        found = bytes(bytes_[names:]).decode(errors="replace").split("\0")[:-1]
        if len(found) != classes or (self.classes and found != self.classes):
            refuse("has other classes than it says, or than the first shard")
        self.classes = found
        self._shards.append((path, bytes_, index))
        self._ends.append((self._ends[-1] if self._ends else 0) + images)
        return all_

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        index = _within(index, len(self))
        shard = bisect.bisect_right(self._ends, index)
        within = index - (self._ends[shard - 1] if shard else 0)
        path, bytes_, entries = self._shards[shard]
        place, size, label, sum_ = _ENTRY.unpack_from(
            bytes(bytes_[entries + within * _ENTRY.size : entries + (within + 1) * _ENTRY.size]))
        there = place + size <= entries and label < len(self.classes)
        jpeg = bytes_[place : place + size] if there else bytes_[:0]
        if not there or checksum([jpeg]) != sum_:
            raise Error(f"{path}: image {within}: its checksum is wrong")
        image = Image.open(io.BytesIO(jpeg.numpy())).convert("RGB")
        return (self._transform(image) if self._transform else image), label


class Batches(IterableDataset):
    """Batches of a data set, without end: batch 0, 1, .. of this worker through all epochs. An
    epoch shuffles all examples by `seed`, and every worker takes as many of its batches; up to
    `batch` x workers - 1 examples are left for other epochs. Give it to DataLoader(..,
    batch_size=None); the order is the same with any number of processes.

    batch  examples in a batch
    step   the first batch: to resume a run, the batches that were taken before
    before  earlier numbers of workers, each with its batches per worker: [(4, 120)]
    rank, world_size  of starling.init(), if they are not given
    collate  makes a batch of a list of examples

    With `before`, a run goes on with another number of workers: they take the rest of the epoch
    without a repetition, and `step` counts from there.
    """

    def __init__(self, examples: Dataset, batch: int, *, seed: int = 0, step: int = 0, rank: int | None = None,
                 world_size: int | None = None, collate: Callable[[list], Any] = default_collate,
                 before: Sequence[tuple[int, int]] = ()):
        if rank is None or world_size is None:
            world = init()
            rank, world_size = world.rank, world.size
        if batch < 1 or step < 0 or not 0 <= rank < world_size:
            raise UsageError(f"batch = {batch}, step = {step}, rank = {rank}: wants at least 1, 0 and 0, and a rank "
                             f"below world_size = {world_size}")
        self._examples, self._batch, self._seed, self._step = examples, batch, seed, step
        self._rank, self._workers, self._collate = rank, world_size, collate
        self._first = (0, 0)  # the epoch with which they begin, and how many of its examples are taken
        for workers, taken in before:
            self._first = self._place(self._per_epoch(workers), workers, taken)
        self.per_epoch = self._per_epoch(world_size)

    def _per_epoch(self, workers: int) -> int:
        size = len(self._examples)  # type: ignore[arg-type]
        if size < self._batch * workers:
            raise UsageError(f"batch = {self._batch}: {size} examples are too few for {workers} workers")
        return size // (self._batch * workers)

    def _place(self, per_epoch: int, workers: int, number: int) -> tuple[int, int]:
        """The epoch of a batch of so many workers, and how many of its examples come before."""
        epoch, taken = self._first
        left = (len(self._examples) - taken) // (self._batch * workers)  # type: ignore[arg-type]
        if number < left:
            return epoch, taken + number * self._batch * workers
        number -= left
        return epoch + 1 + number // per_epoch, number % per_epoch * self._batch * workers

    def _order(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**64)
        return torch.randperm(len(self._examples), generator=generator)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        process = get_worker_info()
        first, apart = (process.id, process.num_workers) if process else (0, 1)
        epoch = -1
        for number in itertools.count(self._step + first, apart):
            now, taken = self._place(self.per_epoch, self._workers, number)
            if now != epoch:
                epoch, order = now, self._order(now)
            members = order[taken + self._rank * self._batch :][: self._batch].tolist()
            yield self._collate([self._examples[i] for i in members])


def _within(index: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index}: there are {size} examples")
    return index % size
