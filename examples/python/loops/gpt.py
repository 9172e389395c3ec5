"""In the shape of nanoGPT's training loop, on the bytes of a file:

torchrun --nproc-per-node 2 FILE TEXT [STEPS]
"""
# ruff: noqa: I001  # so that both forms differ in what matters only

import math
import pathlib
import sys
import time

import networks
import starling
import torch

eval_interval, eval_iters, log_interval = 50, 8, 10
gradient_accumulation_steps, batch_size, block_size = 2, 8, 64
learning_rate, min_lr, weight_decay, beta1, beta2, grad_clip = 3e-3, 3e-4, 0.1, 0.9, 0.99, 1.0
warmup_iters, max_iters = 10, int(sys.argv[2]) if len(sys.argv) > 2 else 500

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
master_process = rank == 0
torch.manual_seed(1337 + rank)  # each worker its own batches

text = torch.frombuffer(bytearray(pathlib.Path(sys.argv[1]).read_bytes()), dtype=torch.uint8).long()
split = {"train": text[: 9 * len(text) // 10], "val": text[9 * len(text) // 10 :]}


def get_batch(which):
    data = split[which]
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


model = networks.GPT(block_size)
raw_model = model  # without a wrapper, to be saved
decay, nodecay = ([p for p in model.parameters() if (p.dim() >= 2) == two] for two in (True, False))
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}],
    lr=learning_rate, betas=(beta1, beta2))  # fmt: skip
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = starling.Decentralized(optimizer)


@torch.no_grad()
@optimizer.consensus()  # the average model
def estimate_loss():
    model.eval()
    out = {which: sum(model(*get_batch(which))[1].item() for _ in range(eval_iters)) / eval_iters for which in split}
    if master_process:
        torch.save({"model": raw_model.state_dict(), "iter_num": iter_num, "val_loss": out["val"]}, "ckpt.pt")
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    coeff = 0.5 * (1 + math.cos(math.pi * (it - warmup_iters) / max(1, max_iters - warmup_iters)))
    return min_lr + coeff * (learning_rate - min_lr)


X, Y = get_batch("train")
t0 = time.time()
for iter_num in range(max_iters + 1):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 or iter_num == max_iters:
        losses = estimate_loss()
        if master_process:
            print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
    if iter_num == max_iters:
        break
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        _, loss = model(X, Y)
        X, Y = get_batch("train")
        scaler.scale(loss / gradient_accumulation_steps).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        dt, t0 = time.time() - t0, time.time()
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {1000 * dt:.2f}ms")
torch.distributed.destroy_process_group()
