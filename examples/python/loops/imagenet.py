"""In the shape of PyTorch's ImageNet example. DIR holds train.pt and val.pt, each {"images": uint8
[N, 3, H, W], "labels": [N]}:

torchrun --nproc-per-node 2 FILE DIR
"""
# ruff: noqa: I001  # so that both forms differ in what matters only

import argparse
import pathlib
import time

import networks
import starling
import torch


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.sum = self.count = 0.0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count])
        torch.distributed.all_reduce(total)
        self.sum, self.count = total.tolist()

    def __str__(self):
        return f"{{name}} {{val{self.fmt}}} ({{avg{self.fmt}}})".format(name=self.name, val=self.val, avg=self.avg)


def load(folder, name):
    data = torch.load(pathlib.Path(folder, name))
    return torch.utils.data.TensorDataset(data["images"] / 255 - 0.5, data["labels"])


def accuracy(output, target, k):
    return 100 * (output.topk(k).indices == target[:, None]).any(1).float().mean().item()


def train(args, loader, model, criterion, optimizer, epoch):
    batch_time, losses = AverageMeter("Time", ":.3f"), AverageMeter("Loss", ":.4f")
    top1, top5 = AverageMeter("Acc@1", ":.2f"), AverageMeter("Acc@5", ":.2f")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target, 1), images.size(0))
        top5.update(accuracy(output, target, 5), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0 and torch.distributed.get_rank() == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}]", batch_time, losses, top1, top5, sep="\t")


@torch.no_grad()
def validate(loader, model, criterion):
    losses, top1, top5 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@5")
    model.eval()
    for images, target in loader:
        output = model(images)
        losses.update(criterion(output, target).item(), images.size(0))
        top1.update(accuracy(output, target, 1), images.size(0))
        top5.update(accuracy(output, target, 5), images.size(0))
    for meter in (losses, top1, top5):
        meter.all_reduce()  # each worker has a part of the images
    if torch.distributed.get_rank() == 0:
        print(f" *   Loss {losses.avg:.4f} Acc@1 {top1.avg:.1f} Acc@5 {top5.avg:.1f}", flush=True)
    return top1.avg


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="ImageNet on several workers")
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=1e-4)
    parser.add_argument("-p", "--print-freq", type=int, default=10)
    parser.add_argument("--resume", metavar="PATH", help="a checkpoint")
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo")

    train_dataset, val_dataset = load(args.data, "train.pt"), load(args.data, "val.pt")
    train_sampler = torch.utils.data.DistributedSampler(train_dataset)
    val_sampler = torch.utils.data.DistributedSampler(val_dataset, shuffle=False)
    train_loader = torch.utils.data.DataLoader(train_dataset, args.batch_size, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(val_dataset, args.batch_size, sampler=val_sampler)

    torch.manual_seed(0)
    model = networks.ResNet(classes=10)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    optimizer = starling.Decentralized(optimizer, model=model)
    validate = optimizer.consensus()(validate)  # of the average model
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    start_epoch, best_acc1 = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume)
        start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])

    for epoch in range(start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        train(args, train_loader, model, criterion, optimizer, epoch)
        acc1 = validate(val_loader, model, criterion)
        scheduler.step()
        best_acc1 = max(acc1, best_acc1)
        if torch.distributed.get_rank() == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1,
                        "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()},
                       "checkpoint.pth.tar")  # fmt: skip
    torch.distributed.destroy_process_group()
