"""solids: rendered stand-ins with smallNORB's structure, for viewpoint experiments that need no download.

Five categories of objects, built from ellipsoids, boxes and cylinders whose proportions vary from object to object; 9 elevations, 18
azimuths, 6 lightings, two cameras, 96x96 grey.
"""

from shortcaps.data.solids import sets  # noqa: F401
