"""Starling's optimizer in Lightning:

torchrun --nproc-per-node 2 examples/python/with_lightning.py
"""

import counting
import lightning
import torch

import starling


class Counter(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = counting.Model()

    def configure_optimizers(self):
        return starling.AdamW(self.parameters(), lr=1e-2, buffers=self.buffers())

    def on_train_start(self):
        # It is in DistributedDataParallel by now.
        starling.no_all_reduce(self.trainer.strategy.model)

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def validation_step(self, batch, _):
        self.log("loss", self.model(**batch).loss, sync_dist=True)

    # The validation uses the average model.
    def on_validation_start(self):
        self.consensus = self.trainer.optimizers[0].consensus()
        self.average = self.consensus.__enter__()

    def on_validation_end(self):
        self.consensus.__exit__(None, None, None)


trainer = lightning.Trainer(
    strategy="ddp",
    accelerator="cpu",
    devices=starling.init().local_size,
    max_epochs=3,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Counter()
trainer.fit(
    module,
    torch.utils.data.DataLoader(counting.Sequences(), batch_size=16, shuffle=True),
    torch.utils.data.DataLoader(counting.Sequences(), batch_size=64),
)
if trainer.is_global_zero:
    loss, average = trainer.callback_metrics["loss"], module.average
    print(f"average of {average.workers}: loss {loss:.4f}, distance {average.distance:.2g}")
