"""The variants as networks: `--plugin shortcaps.reproduce.variant_networks`.

A plug-in, because they are of use for ablations and nowhere else: without it, `shortcaps.list_models()` does not name them.
"""

from __future__ import annotations

from functools import partial

from shortcaps.models.compact import COMPACT, build_compact
from shortcaps.models.registry import register_model
from shortcaps.reproduce.variants import variants_of

for _base in COMPACT:
    for _variant in variants_of(_base):
        register_model(_variant.network, description=f"{_base}, {_variant.words}", kind="capsules", recipe="compact")(
            partial(build_compact, _variant.preset)
        )
