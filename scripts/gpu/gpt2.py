"""GPT-2 (Radford et al. 2019) in torch alone, for measurements: the small one has 124 million
parameters."""

import torch
from torch.nn import functional as F

SMALL = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50_257, "context": 1024}
TINY = {"layers": 2, "heads": 2, "width": 32, "vocabulary": 101, "context": 16}


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.attention(self.before(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.projection(mixed)
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class GPT2(torch.nn.Module):
    """forward() returns the loss of the next tokens."""

    def __init__(self, layers, heads, width, vocabulary, context):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)  # the output's weights too
        self.places = torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.after = torch.nn.LayerNorm(width)
        for embedding in (self.tokens, self.places):
            torch.nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens[:, :-1]) + self.places.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.after(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
