"""The four routings for one problem: votes[i][m] is a flat list of numbers. No tensor operation is used."""

from __future__ import annotations

import math

Vote = list[float]
Votes = list[list[Vote]]
Result = tuple[list[Vote], list[float], list[list[float]], list[list[float]]]  # poses, activations, r, memberships


def dot(a: Vote, b: Vote) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def squared_distance(a: Vote, b: Vote) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def weighted_sum(weights: list[float], votes: list[Vote]) -> Vote:
    total = [0.0] * len(votes[0])
    for weight, vote in zip(weights, votes, strict=True):
        for h, number in enumerate(vote):
            total[h] += weight * number
    return total


def squash(s: Vote) -> Vote:
    length = math.sqrt(dot(s, s))
    return [number * length / (1 + length**2) for number in s]


def softmax(scores: list[float]) -> list[float]:
    largest = max(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    return [e / sum(exponentials) for e in exponentials]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def column(votes: Votes, m: int) -> list[Vote]:
    return [of_input[m] for of_input in votes]


def by_agreement(
    votes: Votes, start: list[Vote] | None, activations: list[float] | None, iterations: int, accumulate: bool
) -> Result:
    inputs, outputs = len(votes), len(votes[0])
    a = activations or [1.0] * inputs
    g = start
    scores = [[0.0] * outputs for _ in range(inputs)]
    for _ in range(iterations):
        if g is not None:
            for i in range(inputs):
                for m in range(outputs):
                    agreement = dot(votes[i][m], g[m])  # Eq. (6)
                    scores[i][m] = scores[i][m] + agreement if accumulate else agreement
        r = [softmax(scores[i]) for i in range(inputs)]  # Eq. (7)
        g = [
            squash(weighted_sum([a[i] * r[i][m] for i in range(inputs)], column(votes, m)))  # Eq. (5)
            for m in range(outputs)
        ]
    assert g is not None
    weights = [[a[i] * r[i][m] for m in range(outputs)] for i in range(inputs)]
    return g, [math.sqrt(dot(pose, pose)) for pose in g], weights, r  # Eq. (11)


def attention(votes: Votes, start: list[Vote] | None, activations: list[float] | None, iterations: int) -> Result:
    return by_agreement(votes, start, activations, iterations, accumulate=False)


def dynamic(votes: Votes, start: list[Vote] | None, activations: list[float] | None, iterations: int) -> Result:
    return by_agreement(votes, start, activations, iterations, accumulate=True)


def fuzzy(
    votes: Votes,
    start: list[Vote] | None,
    activations: list[float] | None,
    iterations: int,
    *,
    fuzziness: float,
    sharpness: float,
    beta: list[float],
    floor: float,
) -> Result:
    inputs, outputs = len(votes), len(votes[0])
    a = activations or [1.0] * inputs
    g = start
    for _ in range(iterations):
        f = [[1 / outputs] * outputs for _ in range(inputs)]
        if g is not None:
            for i in range(inputs):
                d = [math.sqrt(squared_distance(votes[i][m], g[m]) + floor) for m in range(outputs)]  # Eq. (8)
                for m in range(outputs):
                    f[i][m] = 1 / sum((d[m] / d[k]) ** (2 / (fuzziness - 1)) for k in range(outputs))  # Eq. (9)
        r = [[0.0] * outputs for _ in range(inputs)]
        for m in range(outputs):
            total = sum(a[i] * f[i][m] ** fuzziness for i in range(inputs))
            for i in range(inputs):
                r[i][m] = a[i] * f[i][m] ** fuzziness / total  # Eq. (10)
        g = [weighted_sum([r[i][m] for i in range(inputs)], column(votes, m)) for m in range(outputs)]  # Eq. (5)
    assert g is not None
    probabilities = []
    for m in range(outputs):
        variance = sum(r[i][m] * squared_distance(votes[i][m], g[m]) for i in range(inputs)) + floor  # Eq. (12)
        probabilities.append(sigmoid(sharpness * (beta[m] - math.log(math.sqrt(variance)))))  # Eq. (13)
    return g, probabilities, r, f


def em(
    votes: Votes,
    start: list[Vote] | None,
    activations: list[float] | None,
    iterations: int,
    *,
    sharpness: float,
    beta_use: list[float],
    beta_activate: list[float],
    floor: float,
    temperature: float = 1.0,
) -> Result:
    inputs, outputs, size = len(votes), len(votes[0]), len(votes[0][0])
    a = activations or [1.0] * inputs
    equal_share = inputs / outputs
    R = [[1 / outputs] * outputs for _ in range(inputs)]

    def variance_about(mean: Vote, m: int) -> Vote:
        total = sum(R[i][m] * a[i] for i in range(inputs))
        return [
            sum(R[i][m] * a[i] * (votes[i][m][h] - mean[h]) ** 2 for i in range(inputs)) / total + floor
            for h in range(size)
        ]

    def probability(variance: Vote, m: int) -> float:
        assigned = sum(R[i][m] * a[i] for i in range(inputs)) / equal_share
        cost = sum((beta_use[m] + math.log(math.sqrt(variance[h]))) * assigned for h in range(size))
        return sigmoid(sharpness * (beta_activate[m] - cost / size))

    mean = start
    variance: list[Vote] = []
    probabilities: list[float] = []
    if mean is not None:
        variance = [variance_about(mean[m], m) for m in range(outputs)]
        probabilities = [probability(variance[m], m) for m in range(outputs)]
    for _ in range(iterations):
        if mean is not None:  # E step
            for i in range(inputs):
                log_weights = []
                for m in range(outputs):
                    log_density = -0.5 * sum(
                        (votes[i][m][h] - mean[m][h]) ** 2 / variance[m][h] + math.log(2 * math.pi * variance[m][h])
                        for h in range(size)
                    )
                    log_weights.append(math.log(probabilities[m]) + log_density / temperature)
                R[i] = softmax(log_weights)
        mean = []  # M step
        for m in range(outputs):
            total = sum(R[i][m] * a[i] for i in range(inputs))
            mean.append(weighted_sum([R[i][m] * a[i] / total for i in range(inputs)], column(votes, m)))
        variance = [variance_about(mean[m], m) for m in range(outputs)]
        probabilities = [probability(variance[m], m) for m in range(outputs)]
    assert mean is not None
    r = [[0.0] * outputs for _ in range(inputs)]
    for m in range(outputs):
        total = sum(R[i][m] * a[i] for i in range(inputs))
        for i in range(inputs):
            r[i][m] = R[i][m] * a[i] / total
    return mean, probabilities, r, R
