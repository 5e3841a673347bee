"""Is `solids` learnable but not trivial? A small plain CNN, trained for four epochs, tested on objects it has not seen.

python benchmarks/solids_cnn.py
"""

import logging

import torch
from torch import nn
from torch.nn import functional as F

from shortcaps.data import SPLITS, load_dataset
from shortcaps.inference.evaluate import evaluate

EPOCHS, BATCH = 4, 128

logging.basicConfig(level=logging.INFO, format="%(message)s")
torch.manual_seed(0)
train, validation, test = (load_dataset("solids", split) for split in SPLITS)
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.BatchNorm2d(16),
    nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.BatchNorm2d(32),
    nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, 5),
)  # fmt: skip
steps = len(train) // BATCH
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, EPOCHS * steps)
generator = torch.Generator().manual_seed(0)
for _ in range(EPOCHS):
    for chosen in torch.randperm(len(train), generator=generator).split(BATCH)[:steps]:
        optimizer.zero_grad()
        F.cross_entropy(model(train.augment(train.images[chosen], generator)), train.labels[chosen]).backward()
        optimizer.step()
        schedule.step()

print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {EPOCHS} epochs; chance is 20 %")
for data in (train, validation, test):
    found = evaluate(nn.Sequential(model, nn.Softmax(1)), data)
    low, high = found.interval
    print(f"{data.split}: {found.accuracy:.2%} right, by object {low:.2%} to {high:.2%}")
