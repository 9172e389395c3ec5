"""torchvision's ResNet-18 on the shards of `starling pack images`:

torchrun --nproc-per-node 2 examples/python/tasks/images.py out/imagenet

Lines marked with + differ from a script for DistributedDataParallel.
"""

import argparse
import pathlib

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.transforms import v2 as transforms

import starling  # +
from starling import data

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=1000)
options = parser.parse_args()

to_floats = [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True)]
seen = transforms.Compose([transforms.RandomResizedCrop(options.size), transforms.RandomHorizontalFlip(), *to_floats])
whole = transforms.Compose([transforms.Resize((options.size, options.size)), *to_floats])

images = data.Images(options.folder, "train", seen)
model = torchvision.models.resnet18(num_classes=len(images.classes))
optimizer = starling.SGD(model.parameters(), lr=0.02, momentum=0.9, model=model)  # +
loader = DataLoader(data.Batches(images, options.batch, seed=1), batch_size=None, num_workers=1)
for _, (batch, labels) in zip(range(options.steps), loader, strict=False):
    loss = torch.nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

test = data.Images(options.folder, "val", whole)
model.eval()
with optimizer.consensus() as average, torch.no_grad():  # +
    losses = [torch.nn.functional.cross_entropy(model(image[None]), torch.tensor([label])) for image, label in test]
if starling.init().rank == 0:
    print(f"average of {average.workers}: loss {torch.stack(losses).mean():.3f}")
