"""Starling's optimizer in a loop with Hugging Face's accelerate:

torchrun --nproc-per-node 2 examples/python/with_accelerate.py
"""

import accelerate
import counting
import torch

import starling

accelerator = accelerate.Accelerator(cpu=True)
# Before the optimizer: parameters stay where they are.
model = counting.Model().to(accelerator.device)
optimizer = starling.AdamW(model.parameters(), lr=1e-2, model=model)
loader = torch.utils.data.DataLoader(counting.Sequences(), batch_size=16, shuffle=True)
model, step, loader = accelerator.prepare(model, optimizer, loader)
starling.no_all_reduce(model)  # prepare() has wrapped it in DistributedDataParallel

for _ in range(3):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        step.zero_grad()

# Collective: the average model, in this block.
with optimizer.consensus() as average, torch.no_grad():
    model.eval()
    losses = accelerator.gather(torch.stack([model(**batch).loss for batch in loader]))
    accelerator.save_model(model, "out/accelerate")  # rank 0 saves
accelerator.print(f"average of {average.workers}: loss {losses.mean():.4f}, distance {average.distance:.2g}")
accelerator.end_training()
