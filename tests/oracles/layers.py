"""The capsule layers, loop by loop, on nested indexing of float64 tensors in the natural order of the paper:
poses[n][i][j] is a rows x cols matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def pre_vote(poses: Tensor, transform: Tensor, stride: int) -> Tensor:
    """Eq. (3) for one sample: poses (N, H, W, P, P), transform (N, K, K, P, P)."""
    channels, height, width, size, _ = poses.shape
    kernel_h, kernel_w = transform.shape[1:3]
    out_h, out_w = (height - kernel_h) // stride + 1, (width - kernel_w) // stride + 1
    result = torch.zeros(channels, out_h, out_w, size, size, dtype=poses.dtype)
    for n in range(channels):
        for i in range(out_h):
            for j in range(out_w):
                for w in range(kernel_h):
                    for h in range(kernel_w):
                        result[n, i, j] += transform[n, w, h] @ poses[n, i * stride + w, j * stride + h]
    return result


def mix(pre_voted: Tensor, coefficients: Tensor) -> Tensor:
    """Eq. (2) for one sample: pre_voted (N, H, W, P, P), coefficients (M, N)."""
    result = torch.zeros(coefficients.shape[0], *pre_voted.shape[1:], dtype=pre_voted.dtype)
    for m in range(coefficients.shape[0]):
        for n in range(coefficients.shape[1]):
            result[m] += coefficients[m, n] * pre_voted[n]
    return result


def shortcut_votes(pre_voted: Tensor, transform: Tensor) -> Tensor:
    """Eq. (4) for one sample: pre_voted (N, H, W, P, P), transform (N, M, P, P) → (N·H·W, M, P, P)."""
    channels, height, width, size, _ = pre_voted.shape
    outputs = transform.shape[1]
    votes = torch.zeros(channels * height * width, outputs, size, size, dtype=pre_voted.dtype)
    for n in range(channels):
        for i in range(height):
            for j in range(width):
                for m in range(outputs):
                    votes[(n * height + i) * width + j, m] = transform[n, m] @ pre_voted[n, i, j]
    return votes


def patch_votes(poses: Tensor, transform: Tensor, stride: int, i: int, j: int) -> Tensor:
    """Votes at one output position: poses (N, H, W, P, P), transform (K, K, N, M, P, P) → (K·K·N, M, P, P)."""
    kernel_h, kernel_w, channels, outputs, size, _ = transform.shape
    votes = torch.zeros(kernel_h * kernel_w * channels, outputs, size, size, dtype=poses.dtype)
    for w in range(kernel_h):
        for h in range(kernel_w):
            for n in range(channels):
                for m in range(outputs):
                    pose = poses[n, i * stride + w, j * stride + h]
                    votes[(w * kernel_w + h) * channels + n, m] = transform[w, h, n, m] @ pose
    return votes
