"""The networks of the loops beside this file, small enough for a CPU, and the place of their
data."""

import gzip
import pathlib

import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    """Two convolutions with a batch norm, for images of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 8, 3, stride=2), torch.nn.Conv2d(8, 16, 3, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(16 * 6 * 6, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        return F.log_softmax(self.fc(F.relu(self.conv2(x)).flatten(1)), dim=1)


class Block(torch.nn.Module):
    """The block of a residual network (He et al. 2016): two convolutions beside a short cut."""

    def __init__(self, planes):
        super().__init__()
        self.conv1, self.conv2 = (torch.nn.Conv2d(planes, planes, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = torch.nn.BatchNorm2d(planes), torch.nn.BatchNorm2d(planes)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(torch.nn.Sequential):
    """For images of three colours and any size."""

    def __init__(self, classes, planes=16, blocks=2):
        super().__init__(
            torch.nn.Conv2d(3, planes, 3, stride=2, padding=1), *(Block(planes) for _ in range(blocks)),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(planes, classes))  # fmt: skip


class GPT(torch.nn.Module):
    """Decoder-only, on bytes; the output layer shares its weight with the embedding."""

    def __init__(self, block_size, width=64, heads=4, layers=2):
        super().__init__()
        self.embedding, self.position = torch.nn.Embedding(256, width), torch.nn.Embedding(block_size, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu",
                                             batch_first=True, norm_first=True) for _ in range(layers))  # fmt: skip
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 256, bias=False)
        self.head.weight = self.embedding.weight
        torch.nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position.weight[:length]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def idx(folder, name):
    """A gzipped file in MNIST's format, also of Fashion-MNIST."""
    data = gzip.decompress(pathlib.Path(folder, f"{name}.gz").read_bytes())
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).view(sizes)


def mnist(folder, which):
    """`which`: "train" or "t10k"."""
    images = (idx(folder, f"{which}-images-idx3-ubyte").unsqueeze(1) / 255 - 0.1307) / 0.3081
    return torch.utils.data.TensorDataset(images, idx(folder, f"{which}-labels-idx1-ubyte").long())
