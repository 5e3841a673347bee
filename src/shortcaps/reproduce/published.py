"""What the paper prints, as it prints it (`paper.tex`, Tables 1 and 2). Nothing here was measured by us."""

from __future__ import annotations

NETWORKS = ("baseline", "expanded")
FAMILIES = ("shortcut", "sequential")
ROUTINGS = ("em", "fuzzy", "dynamic", "attention")
"""In the order of the paper's columns."""
DATASETS = ("mnist", "affnist", "smallnorb")
EPOCHS = 200

_TABLE_1 = {
    ("baseline", "mnist", "shortcut"): (99.4, 99.33, 99.04, 98.99),
    ("baseline", "mnist", "sequential"): (99.37, 99.48, 99.43, 99.38),
    ("baseline", "affnist", "shortcut"): (79.27, 82.59, 82.75, 84.03),
    ("baseline", "affnist", "sequential"): (66.92, 66.85, 65.39, 65.75),
    ("baseline", "smallnorb", "shortcut"): (92.16, 91.27, 90.26, 89.36),
    ("baseline", "smallnorb", "sequential"): (90.85, 90.71, 86.99, 88.81),
    ("expanded", "mnist", "shortcut"): (99.35, 99.52, 99.28, 99.3),
    ("expanded", "mnist", "sequential"): (99.20, 99.53, 99.44, 99.58),
    ("expanded", "affnist", "shortcut"): (84.52, 89.02, 88.9, 87.17),
    ("expanded", "affnist", "sequential"): (73.65, 76.95, 70.55, 74.06),
    ("expanded", "smallnorb", "shortcut"): (92.69, 93.91, 90.31, 91.87),
    ("expanded", "smallnorb", "sequential"): (93.28, 94.77, 93.43, 94.11),
}

ACCURACY: dict[tuple[str, str, str, str], float] = {
    (network, family, routing, dataset): accuracy
    for (network, dataset, family), row in _TABLE_1.items()
    for routing, accuracy in zip(ROUTINGS, row, strict=True)
}
"""Table 1, in percent, by (network, family, routing, data set)."""

PARAMETERS = {
    ("baseline", "shortcut"): "23k",
    ("baseline", "sequential"): "88k",
    ("expanded", "shortcut"): "68k",
    ("expanded", "sequential"): "377k",
}

_TABLE_2 = {
    ("baseline", "shortcut"): ((1.236, 1.001, 0.684, 0.672), (1171, 1169, 1167, 1167)),
    ("baseline", "sequential"): ((1.501, 1.296, 1.224, 0.696), (1249, 1229, 1225, 1205)),
    ("expanded", "shortcut"): ((1.386, 1.252, 1.236, 1.235), (1193, 1185, 1175, 1175)),
    ("expanded", "sequential"): ((6.636, 5.1, 4.248, 4.008), (1589, 1465, 1441, 1375)),
}

TIME_MS: dict[tuple[str, str, str], float] = {
    (*network, routing): time
    for network, (times, _) in _TABLE_2.items()
    for routing, time in zip(ROUTINGS, times, strict=True)
}
MEMORY_MB: dict[tuple[str, str, str], float] = {
    (*network, routing): memory
    for network, (_, memories) in _TABLE_2.items()
    for routing, memory in zip(ROUTINGS, memories, strict=True)
}
"""Table 2, by (network, family, routing)."""

FLOPS_PER_ITERATION = {"attention": 4, "fuzzy": 7, "em": 10}
"""In units of Q, the size of the voting tensor; the paper gives none for dynamic routing."""
