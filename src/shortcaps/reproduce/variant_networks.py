"""The variants as networks: `--plugin shortcaps.reproduce.variant_networks`.

A plug-in, because they are of use for ablations and nowhere else: without it, `shortcaps.list_models()` does not name them.
"""

from __future__ import annotations

from functools import partial

from shortcaps.models.compact import build_compact
from shortcaps.models.registry import register_model
from shortcaps.reproduce.variants import BASE, VARIANTS, variant_name, variant_preset

for _variant, (_words, _) in VARIANTS.items():
    register_model(variant_name(_variant), description=f"{BASE}, {_words}", kind="capsules", recipe="compact")(
        partial(build_compact, variant_preset(_variant))
    )
