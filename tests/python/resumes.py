"""Trains a few steps in a framework and saves the framework's own checkpoint, or resumes from it.
Run by examples_test.py:

torchrun --nproc-per-node 2 tests/python/resumes.py trainer|accelerate|lightning begin|resume
"""

import pathlib
import sys

import torch

import starling

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "examples/python"))
import counting  # noqa: E402

HALF = 16  # steps: an epoch of 512 sequences, 16 each
SAVED = "checkpoint"


def tell(when, optimizer):
    """This worker's position: steps of the first parameter, and the learning rate."""
    state, group = optimizer.state_dict()["state"], optimizer.param_groups[0]
    line = f"{when} rank {starling.init().rank}: step {int(state[0]['step'])}, lr {group['lr']:.6f}\n"
    sys.stdout.write(line)  # in one write: two workers share the pipe
    sys.stdout.flush()


def loader():
    return torch.utils.data.DataLoader(counting.Sequences(), batch_size=16, shuffle=True)


def trainer(resume):
    import transformers

    class Callback(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            starling.no_all_reduce(trainer.model_wrapped)
            tell("begins", optimizer)

        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = not resume and state.global_step == HALF

    args = transformers.TrainingArguments(
        output_dir=SAVED, max_steps=2 * HALF, save_strategy="steps", save_steps=HALF, per_device_train_batch_size=16,
        average_tokens_across_devices=False, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    config = transformers.GPT2Config(
        vocab_size=counting.NUMBERS, n_positions=counting.LENGTH, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = starling.AdamW(model.parameters(), lr=1e-2, model=model)
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=counting.Sequences(), optimizers=(optimizer, None), callbacks=[Callback()]
    )
    trainer.train(resume_from_checkpoint=resume)
    tell("ends", optimizer)


def accelerate(resume):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = counting.Model().to(accelerator.device)
    optimizer = starling.AdamW(model.parameters(), lr=1e-2, model=model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4 * HALF)
    model, step, batches, schedule = accelerator.prepare(model, optimizer, loader(), schedule)
    starling.no_all_reduce(model)
    if resume:
        accelerator.load_state(SAVED)
    tell("begins", optimizer)
    for batch in batches:
        accelerator.backward(model(**batch).loss)
        step.step()
        schedule.step()
        step.zero_grad()
    if not resume:
        accelerator.save_state(SAVED)
    tell("ends", optimizer)
    accelerator.end_training()


def lightning(resume):
    import lightning

    class Counter(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = counting.Model()

        def configure_optimizers(self):
            optimizer = starling.AdamW(self.parameters(), lr=1e-2, buffers=self.buffers())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        def on_train_start(self):
            starling.no_all_reduce(self.trainer.strategy.model)
            tell("begins", self.trainer.optimizers[0])

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def on_train_end(self):
            tell("ends", self.trainer.optimizers[0])

    trainer = lightning.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=2 if resume else 1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Counter(), loader(), ckpt_path=SAVED if resume else None)
    if not resume:
        trainer.save_checkpoint(SAVED)


if __name__ == "__main__":
    {"trainer": trainer, "accelerate": accelerate, "lightning": lightning}[sys.argv[1]](sys.argv[2] == "resume")
