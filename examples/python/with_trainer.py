"""Starling's optimizer in Hugging Face's Trainer:

torchrun --nproc-per-node 2 examples/python/with_trainer.py

A tiny GPT-2, made from a configuration.
"""

import counting
import transformers

import starling


class OwnGradients(transformers.TrainerCallback):
    """The Trainer has wrapped the model in DistributedDataParallel by then."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, *_, **__):
        starling.no_all_reduce(self.trainer.model_wrapped)


args = transformers.TrainingArguments(
    output_dir="out/trainer",
    max_steps=40,
    per_device_train_batch_size=16,
    lr_scheduler_type="cosine",
    # Otherwise all workers wait for each other in every step, to count tokens.
    average_tokens_across_devices=False,
    use_cpu=True,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
        vocab_size=counting.NUMBERS,
        n_positions=counting.LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
)
optimizer = starling.AdamW(model.parameters(), lr=1e-2, model=model)
trainer = transformers.Trainer(
    model=model,
    args=args,
    train_dataset=counting.Sequences(),
    eval_dataset=counting.Sequences(),
    optimizers=(optimizer, None),
)
trainer.add_callback(OwnGradients(trainer))
trainer.train()
# Collective: all workers evaluate the average model, and rank 0 saves it.
with optimizer.consensus() as average:
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model()
if trainer.is_world_process_zero():
    print(f"average of {average.workers}: loss {loss:.4f}, distance {average.distance:.2g}")
