"""Route votes of your own: thirty lower capsules vote for five higher ones, by each of the four routings."""

import torch

import shortcaps

torch.manual_seed(0)

# Twenty of the thirty inputs agree on what output 2 looks like; everything else is noise.
votes = torch.randn(1, 30, 5, 4, 4)
votes[:, :20, 2] = torch.randn(1, 1, 4, 4) + 0.05 * torch.randn(1, 20, 4, 4)

for name in shortcaps.ROUTINGS:
    capsules = shortcaps.route(votes, routing=name, iterations=3, keep_coefficients=True)
    assert capsules.activation is not None
    assert capsules.memberships is not None
    agreeing = capsules.memberships[0, :20, 2].mean().item()
    others = capsules.memberships[0, 20:, 2].mean().item()
    print(
        f"{name:9}  activations {' '.join(f'{a:.2f}' for a in capsules.activation[0].tolist())}   "
        f"membership in output 2: {agreeing:.2f} where votes agree, {others:.2f} elsewhere"
    )
    assert capsules.activation[0].argmax() == 2, "the output that the inputs agree on is the most active one"
