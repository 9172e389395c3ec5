"""torch.nn.Transformer on the files of `starling pack translation`:

torchrun --nproc-per-node 2 examples/python/tasks/translation.py out/ende --vocabulary 8000

Lines marked with + differ from a script for DistributedDataParallel.
"""

import argparse
import math
import pathlib

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import starling  # +
from starling import data

PADDING, END = 0, 1

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--vocabulary", type=int, default=37000)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=1000)
options = parser.parse_args()


class Translator(torch.nn.Module):
    def __init__(self, vocabulary, width, longest=1024):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.layers = torch.nn.Transformer(width, 4, 2, 2, 4 * width, batch_first=True)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
        angles = torch.arange(longest)[:, None] * rates
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).flatten(1))

    def embedded(self, tokens):
        return self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim) + self.positions[: tokens.shape[1]]

    def loss(self, source, target):
        before = torch.nn.functional.pad(target[:, :-1], (1, 0), value=END)
        causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = source == PADDING
        x = self.layers(self.embedded(source), self.embedded(before), tgt_mask=causal, src_key_padding_mask=padding,
                        memory_key_padding_mask=padding)
        logits = x @ self.embedding.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def padded(pairs):
    end = torch.tensor([END])
    return [pad_sequence([torch.cat([sentence, end]) for sentence in side], batch_first=True, padding_value=PADDING)
            for side in zip(*pairs, strict=True)]


model = Translator(options.vocabulary, options.width)
optimizer = starling.AdamW(model.parameters(), lr=1e-3, model=model)  # +
pairs = data.Pairs(options.folder / "train.pairs")
loader = DataLoader(data.Batches(pairs, options.batch, seed=1, collate=padded), batch_size=None)
for _, (source, target) in zip(range(options.steps), loader, strict=False):
    loss = model.loss(source, target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

model.eval()
with optimizer.consensus() as average, torch.no_grad():  # +
    losses = [model.loss(*padded([pair])) for pair in data.Pairs(options.folder / "val.pairs")]
if starling.init().rank == 0:
    print(f"average of {average.workers}: loss {torch.stack(losses).mean():.3f}")
