"""Hugging Face's GPT-2 on the files of `starling pack text`:

torchrun --nproc-per-node 2 examples/python/tasks/text.py out/text --vocabulary 4096

Lines marked with + differ from a script for DistributedDataParallel.
"""

import argparse
import pathlib

import torch
import transformers
from torch.utils.data import DataLoader

import starling  # +
from starling import data

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--vocabulary", type=int, default=50257)
parser.add_argument("--context", type=int, default=128)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=1000)
options = parser.parse_args()

model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
        vocab_size=options.vocabulary,
        n_positions=options.context,
        n_embd=options.width,
        n_layer=4,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
)
optimizer = starling.AdamW(model.parameters(), lr=2e-3, model=model)  # +


def loss_of(tokens, targets):
    return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())


windows = data.Text(options.folder / "train.bin", options.context)
loader = DataLoader(data.Batches(windows, options.batch, seed=1), batch_size=None)
for _, (tokens, targets) in zip(range(options.steps), loader, strict=False):
    loss = loss_of(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

test = data.Text(options.folder / "val.bin", options.context)
with optimizer.consensus() as average, torch.no_grad():  # +
    losses = [loss_of(tokens[None], targets[None]) for tokens, targets in test]
if starling.init().rank == 0:
    print(f"average of {average.workers}: loss {torch.stack(losses).mean():.3f}")
