"""GPT-2 beside Hugging Face's, from the same weights: the same losses, step by step.
Needs the packages of requirements-examples.txt and the program (environment: STARLING)."""

import math
import pathlib
import tempfile
import unittest

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from twins import check_weights, order_of, random_bits, train

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 2, 2, 32, 16, 64
WINDOWS, BATCH, STEPS = 24, 8, 10


def train_gpt2(folder, out, **keys):
    return train(out, **{
        "data.name": "text", "data.dir": folder, "model.layers": LAYERS, "model.heads": HEADS, "model.width": WIDTH,
        "model.context": CONTEXT, "model.vocabulary": VOCABULARY, "train.batch": BATCH, "run.steps": STEPS,
        "optimizer.rule": "adamw"} | keys)


class Gpt2(unittest.TestCase):
    def test_ten_steps_are_hugging_faces(self):
        generator = numpy.random.default_rng(1)
        texts = {name: generator.integers(0, VOCABULARY, size).astype("<u2")
                 for name, size in [("train", CONTEXT * (WINDOWS + 1)), ("val", CONTEXT * 5 + 3)]}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for text, tokens in texts.items():
                tokens.tofile(folder / f"{text}.bin")
            start, _, before = train_gpt2(folder, folder / "before", **{"run.steps": 1, "optimizer.lr": 1e-30})
            end, losses, after = train_gpt2(folder, folder / "after",
                                            **{"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.1})
        train_text, val_text = (torch.from_numpy(texts[text].astype(numpy.int64)) for text in ("train", "val"))

        twin = GPT2LMHeadModel(GPT2Config(
            vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
            bos_token_id=0, eos_token_id=0))
        result = twin.load_state_dict(start, strict=False)
        self.assertEqual((result.missing_keys, result.unexpected_keys), (["lm_head.weight"], []))  # it is tied

        def loss_of(text, starts):
            rows = torch.stack([text[start:start + CONTEXT + 1] for start in starts])
            logits = twin(rows[:, :-1]).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

        def test_loss():
            with torch.no_grad():
                return loss_of(val_text, range(0, 5 * CONTEXT, CONTEXT)).item()

        self.assertTrue(math.isclose(before["test_loss"], test_loss(), rel_tol=1e-5))
        optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0.1)
        for step in range(STEPS):
            epoch, batch = divmod(step, WINDOWS // BATCH)
            first = random_bits(1, epoch) % CONTEXT
            starts = [first + CONTEXT * window for window in order_of(WINDOWS, epoch, 1)[batch * BATCH:(batch + 1) * BATCH]]
            loss = loss_of(train_text, starts)
            self.assertTrue(math.isclose(losses[step], loss.item(), rel_tol=1e-5), (step, losses[step], loss.item()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.assertTrue(math.isclose(after["test_loss"], test_loss(), rel_tol=1e-5))
        expected = twin.state_dict()
        del expected["lm_head.weight"]
        check_weights(self, start, end, expected)
