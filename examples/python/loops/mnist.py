"""In the shape of PyTorch's MNIST example. DIR holds the four gzipped files of MNIST or
Fashion-MNIST:

torchrun --nproc-per-node 2 FILE DIR
"""
# ruff: noqa: I001  # so that both forms differ in what matters only

import argparse

import networks
import starling
import torch
import torch.nn.functional as F


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0 and torch.distributed.get_rank() == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")


@torch.no_grad()
def test(args, model, loader):
    model.eval()
    test_loss = correct = 0.0
    for data, target in loader:
        output = model(data)
        test_loss += F.nll_loss(output, target, reduction="sum").item() / len(loader.dataset)
        correct += (output.argmax(1) == target).sum().item() / len(loader.dataset)
    if torch.distributed.get_rank() == 0:
        print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {100 * correct:.1f}%", flush=True)
        if args.save_model:
            torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MNIST on several workers")
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.distributed.init_process_group("gloo")

    dataset = networks.mnist(args.data, "train")
    sampler = torch.utils.data.DistributedSampler(dataset)
    train_loader = torch.utils.data.DataLoader(dataset, args.batch_size, sampler=sampler)
    test_loader = torch.utils.data.DataLoader(networks.mnist(args.data, "t10k"), 1000)

    model = networks.Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    optimizer = starling.Decentralized(optimizer, model=model)
    test = optimizer.consensus()(test)  # of the average model
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(args, model, train_loader, optimizer, epoch)
        test(args, model, test_loader)
        scheduler.step()
    torch.distributed.destroy_process_group()
