"""Put a capsule head on a backbone of your own, train it in a loop of your own, and look at the capsules.

The pictures are drawn here: bars across, bars down and discs, anywhere on noise. Takes some seconds.
"""

import torch
from torch import Tensor, nn

import shortcaps


class Backbone(nn.Module):
    """Any module that says how many channels its feature map has. A `features_only` network of timm would do as it is."""

    out_channels = 24

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def draw(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures (count, 1, size, size) in 0–1, and which of the three each shows."""
    labels = torch.randint(3, (count,), generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = torch.randint(6, size - 6, (2, count, 1, 1), generator=generator)
    shapes = torch.stack(
        [
            ((y - cy).abs() < 2) & ((x - cx).abs() < 6),
            ((x - cx).abs() < 2) & ((y - cy).abs() < 6),
            (y - cy) ** 2 + (x - cx) ** 2 < 16,
        ],
        1,
    )
    images = shapes[torch.arange(count), labels].float() * 0.8 + 0.2 * torch.rand(
        count, size, size, generator=generator
    )
    return images.unsqueeze(1), labels


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
backbone = Backbone()
head = shortcaps.CapsuleHead(24, classes=3, routing=shortcaps.Fuzzy(sharpness=4.0), capsules=4)
optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-2)

for step in range(120):
    images, labels = draw(64, 20, generator)
    activations = head(backbone(images))  # (64, 3), each in 0–1 by itself
    loss = shortcaps.log_probability_loss(activations, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        print(f"step {step + 1}: loss {loss.item():.3f}")

backbone.eval()
head.eval()
with torch.no_grad():
    for size in (20, 32):  # no weight depends on the size of the image
        images, labels = draw(300, size, generator)
        right = (head(backbone(images)).argmax(1) == labels).float().mean().item()
        print(f"{size}x{size} pixels: {right:.0%} right")
    capsules = head.capsules(backbone(images[:1]))
assert capsules.coefficients is not None
print("pose of the winning class capsule:", capsules.pose[0, capsules.activation[0].argmax()], sep="\n")
print("coefficients (batch, passes, classes, capsules, height, width):", tuple(capsules.coefficients[0].shape))
assert right > 0.9
