"""What augmenting a batch costs, as a share of a training step of the baseline network (goal: below 5 %).

    python benchmarks/augmentation.py

Rounds are interleaved and medians compared, so that a noisy machine does not decide.
"""

import statistics
import time

import torch

import shortcaps
from shortcaps.data.augment import BrightnessAndContrast, PlaceAnywhere, RandomCrop, Shift, View

BATCH, ROUNDS = 128, 30
CASES = {
    "MNIST, shift within 2 px": (28, 28, View((Shift(2),))),
    "affNIST, shift within 5 px": (40, 40, View((Shift(5),))),
    "affNIST, placed anywhere": (40, 40, View((PlaceAnywhere(),))),
    "smallNORB, crop, brightness and contrast": (48, 32, View((RandomCrop(32), BrightnessAndContrast()))),
}

for name, (stored, seen, view) in CASES.items():
    model = shortcaps.create_model("baseline", routing="fuzzy", image_size=seen)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    images = torch.randint(0, 256, (20_000, 1, stored, stored), dtype=torch.uint8)
    labels, generator = torch.randint(10, (BATCH,)), torch.Generator().manual_seed(0)
    augmenting, stepping = [], []
    for _ in range(ROUNDS):
        chosen = torch.randint(len(images), (BATCH,))
        began = time.perf_counter()
        batch = view(images[chosen], generator)
        between = time.perf_counter()
        optimizer.zero_grad()
        shortcaps.log_probability_loss(model(batch), labels).backward()
        optimizer.step()
        augmenting.append(between - began)
        stepping.append(time.perf_counter() - between)
    cost, step = statistics.median(augmenting), statistics.median(stepping)
    print(f"{name}: {1e3 * cost:.2f} ms of a step of {1e3 * step:.1f} ms, {cost / step:.1%}")
