"""The tasks of bench/time_to_loss.py in Python: a GPT-2 on the files of `starling pack text`, and a
Transformer on those of `starling pack translation`. The shapes are those of starling/models, and
small. Calling a model returns its loss."""

import math
import pathlib

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from starling import data

PADDING, END = 0, 1


class Attention(torch.nn.Module):
    def __init__(self, width, heads, last):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        torch.nn.init.normal_(self.c_attn.weight, std=0.02)
        torch.nn.init.normal_(self.c_proj.weight, std=last)

    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self, width, last):
        super().__init__()
        self.c_fc, self.c_proj = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        torch.nn.init.normal_(self.c_fc.weight, std=0.02)
        torch.nn.init.normal_(self.c_proj.weight, std=last)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(torch.nn.Module):
    def __init__(self, width, heads, last):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads, last), Mlp(width, last)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(torch.nn.Module):
    """starling/models/gpt2.h"""

    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        torch.nn.init.normal_(self.wte.weight, std=0.02)
        torch.nn.init.normal_(self.wpe.weight, std=0.02)
        self.h = torch.nn.Sequential(*(Layer(width, heads, 0.02 / math.sqrt(2 * layers)) for _ in range(layers)))
        self.ln_f = torch.nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.ln_f(self.h(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]))
        return F.cross_entropy(F.linear(x, self.wte.weight).flatten(0, 1), targets.flatten())


class Translator(torch.nn.Module):
    """starling/models/transformer.h"""

    def __init__(self, vocabulary, width, heads, layers, dropout, longest=1024):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
        shape = {"d_model": width, "nhead": heads, "dim_feedforward": 4 * width, "dropout": dropout, "batch_first": True}
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**shape), layers,
                                                   enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**shape), layers)
        for part in (self.encoder, self.decoder):
            for weight in part.parameters():
                if weight.ndim == 2:
                    torch.nn.init.xavier_uniform_(weight)
        angles = torch.arange(longest)[:, None] * 10000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).flatten(1))

    def embedded(self, tokens):
        return self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim) + self.positions[: tokens.shape[1]]

    def forward(self, source, target):
        padding = source == PADDING
        before = F.pad(target[:, :-1], (1, 0), value=END)
        causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        memory = self.encoder(self.embedded(source), src_key_padding_mask=padding)
        x = self.decoder(self.embedded(before), memory, tgt_mask=causal, memory_key_padding_mask=padding)
        logits = F.linear(x, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING,
                               label_smoothing=0.1 if self.training else 0.0)


def padded(pairs):
    end = torch.tensor([END])
    return [pad_sequence([torch.cat([sentence, end]) for sentence in side], batch_first=True, padding_value=PADDING)
            for side in zip(*pairs, strict=True)]


class Text:
    """Batches are windows; so is the text for validation, in equal distances."""

    def __init__(self, folder, shape):
        self.shape, self.collate = shape, torch.utils.data.default_collate
        self.train, self.val = (data.Text(pathlib.Path(folder) / f"{name}.bin", shape["context"]) for name in ("train", "val"))

    def model(self):
        return Gpt2(**self.shape)


class Translation:
    def __init__(self, folder, shape):
        self.shape, self.collate = shape, padded
        self.train, self.val = (data.Pairs(pathlib.Path(folder) / f"{name}.pairs") for name in ("train", "val"))

    def model(self):
        return Translator(**self.shape)


def task_of(job):
    return {"text": Text, "translation": Translation}[job["task"]](job["data"], job["shape"])


def batches(task, job, rank, workers):
    """Those of a worker, without end."""
    return iter(data.Batches(task.train, job["batch"], seed=job["seed"], rank=rank, world_size=workers, collate=task.collate))


@torch.no_grad()
def validation_loss(task, model, job):
    """The mean over batches of examples in equal distances."""
    chosen = torch.linspace(0, len(task.val) - 1, min(job["test"], len(task.val))).long().tolist()
    losses = [model(*task.collate([task.val[i] for i in chosen[k : k + job["batch"]]])).item()
              for k in range(0, len(chosen), job["batch"])]
    return sum(losses) / len(losses)
