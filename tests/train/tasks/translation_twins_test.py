"""The Transformer beside torch's layers, from the same weights: the same losses, step by step.
Needs the packages of requirements-examples.txt and the program (environment: STARLING)."""

import math
import pathlib
import struct
import subprocess
import tempfile
import unittest

import numpy
import torch
from twins import STARLING, check_weights, train

LAYERS, HEADS, WIDTH, INNER, VOCABULARY, STEPS = 2, 2, 32, 48, 64, 10
PADDING, END = 0, 1


def write_pairs(path, pairs):
    """starling/data/pairs.h"""
    sentences = [sentence for pair in pairs for sentence in pair]
    places = numpy.cumsum([0, *map(len, sentences)], dtype="<u8").tobytes()
    path.write_bytes(b"PAIR" + struct.pack("<IQ", 1, len(pairs)) + places +
                     numpy.array(sum(sentences, []), dtype="<u2").tobytes())


def padded(sentences):
    rows = [torch.tensor([*sentence, END]) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


class TransformerTwin(torch.nn.Module):
    """torch's layers, without a norm behind the last one."""

    def __init__(self):
        super().__init__()
        shape = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": INNER, "dropout": 0, "batch_first": True}
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**shape), LAYERS,
                                                   enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**shape), LAYERS)

    def embedded(self, tokens):
        places = torch.arange(tokens.shape[1], dtype=torch.float64)[:, None]
        angles = places / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
        positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1).float()
        return self.embedding(tokens) * math.sqrt(WIDTH) + positions

    def forward(self, source, target):
        padding = source == PADDING
        memory = self.encoder(self.embedded(source), src_key_padding_mask=padding)
        causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = self.decoder(self.embedded(target), memory, tgt_mask=causal, memory_key_padding_mask=padding)
        return x @ self.embedding.weight.T

    def loss(self, source, target, smoothing=0.0):
        before = torch.nn.functional.pad(target[:, :-1], (1, 0), value=END)
        return torch.nn.functional.cross_entropy(self(source, before).flatten(0, 1), target.flatten(),
                                                 ignore_index=PADDING, label_smoothing=smoothing)

    def translated(self, source, longer=50):
        """The likeliest token in each step."""
        target = [END]
        while len(target) <= len(source) + longer:
            logits = self(torch.tensor([[*source, END]]), torch.tensor([target]))[0, -1]
            target.append(logits[END:].argmax().item() + END)
            if target[-1] == END:
                break
        return [token for token in target if token != END]


class Transformer(unittest.TestCase):
    def test_ten_steps_are_torchs_layers(self):
        generator = numpy.random.default_rng(1)
        # An epoch is one batch, because the longer sentence of each pair has 13 to 15 tokens. A
        # target is the source, backwards.
        sources = {split: [generator.integers(2, VOCABULARY, length).tolist() for length in lengths]
                   for split, lengths in (("train", (14, 13, 14, 14)), ("val", (3, 9, 5)))}
        pairs = {split: [(source, source[::-1][i:]) for i, source in enumerate(sources[split])] for split in sources}
        keys = {
            "data.name": "translation", "model.layers": LAYERS, "model.heads": HEADS, "model.width": WIDTH,
            "model.inner": INNER, "model.dropout": 0, "model.vocabulary": VOCABULARY, "train.batch": 4 * 15,
            "optimizer.rule": "adam", "optimizer.betas": [0.9, 0.98]}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for split in pairs:
                write_pairs(folder / f"{split}.pairs", pairs[split])
            start, _, before = train(folder / "before", **keys, **{"data.dir": folder, "run.steps": 1, "optimizer.lr": 1e-30})
            end, losses, after = train(folder / "after", **keys, **{"data.dir": folder, "run.steps": STEPS, "optimizer.lr": 1e-3})
            lines = "".join(" ".join(map(str, source)) + "\n" for source, _ in pairs["val"])
            said = subprocess.run([STARLING, "translate", folder / "after/checkpoints", "--tokens", "--beams=1"],
                                  input=lines, check=True, capture_output=True, text=True, timeout=300).stdout

        twin = TransformerTwin()
        twin.load_state_dict(start)

        def test_loss():
            with torch.no_grad():
                return twin.eval().loss(*map(padded, zip(*pairs["val"], strict=True))).item()

        self.assertTrue(math.isclose(before["test_loss"], test_loss(), rel_tol=1e-5))
        optimizer = torch.optim.Adam(twin.train().parameters(), lr=1e-3, betas=(0.9, 0.98))
        for step in range(STEPS):
            loss = twin.loss(*map(padded, zip(*pairs["train"], strict=True)), smoothing=0.1)
            self.assertTrue(math.isclose(losses[step], loss.item(), rel_tol=1e-5), (step, losses[step], loss.item()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.assertTrue(math.isclose(after["test_loss"], test_loss(), rel_tol=1e-5))
        expected = twin.state_dict()
        for key in end:
            if key.endswith("in_proj_bias"):  # that of the keys changes nothing, so Adam follows rounding errors
                end[key][WIDTH:2 * WIDTH] = expected[key][WIDTH:2 * WIDTH]
        check_weights(self, start, end, expected)
        with torch.no_grad():
            expected = [twin.translated(source) for source, _ in pairs["val"]]
        self.assertEqual([[int(token) for token in line.split()] for line in said.splitlines()], expected)
