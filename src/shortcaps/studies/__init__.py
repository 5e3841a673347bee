"""The claims of the field about capsules, each a study: what is trained, what is measured, and who is ahead by how much."""

# Each registers itself.
from shortcaps.studies import affine, corrupted, few, overlap, pose, unknown, viewpoint  # noqa: F401
from shortcaps.studies.study import STUDIES, Claim, Part, Study, list_studies, register_study

__all__ = ["STUDIES", "Claim", "Part", "Study", "list_studies", "register_study"]
