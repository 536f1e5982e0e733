"""Finds the fonts: those to train on in Python packages, and one that is kept for the evaluation.

A font that is not installed is left out with a warning, so that drawing also works with Pillow alone.
"""

import importlib.util
import warnings
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

HELD_OUT = "Aileron"  # built into Pillow
# package, file below the package's folder
TRAINING_FILES = {
    "DejaVu Sans": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSans.ttf"),
    "DejaVu Sans Bold": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"),
    "DejaVu Serif": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSerif.ttf"),
    "DejaVu Mono": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSansMono.ttf"),
    "STIX": ("matplotlib", "mpl-data/fonts/ttf/STIXGeneral.ttf"),
    "STIX Bold": ("matplotlib", "mpl-data/fonts/ttf/STIXGeneralBol.ttf"),
    "Computer Modern Sans": ("matplotlib", "mpl-data/fonts/ttf/cmss10.ttf"),
    "Computer Modern Typewriter": ("matplotlib", "mpl-data/fonts/ttf/cmtt10.ttf"),
    "Roboto": ("font_roboto", "files/Roboto-Regular.ttf"),
    "Roboto Bold": ("font_roboto", "files/Roboto-Bold.ttf"),
    "Lato": ("font_lato", "files/Lato-Regular.ttf"),
    "Lato Bold": ("font_lato", "files/Lato-Bold.ttf"),
    "Source Sans Pro": ("font_source_sans_pro", "files/SourceSansPro-Semibold.ttf"),
    "Source Serif Pro": ("font_source_serif_pro", "files/SourceSerifPro-Regular.ttf"),
    "Caladea Bold": ("font_caladea", "files/Caladea-Bold.ttf"),
    "Manrope": ("font_manrope", "files/Manrope-SemiBold.ttf"),
    "Fredoka One": ("font_fredoka_one", "files/FredokaOne-Regular.ttf"),
}


def package_file(package: str, name: str) -> Path | None:
    """A data file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / name
        if path.exists():
            return path
    return None


@lru_cache
def training_fonts() -> tuple[str, ...]:
    found = tuple(name for name, where in TRAINING_FILES.items() if package_file(*where))
    if len(found) < len(TRAINING_FILES):
        warnings.warn(f"only {len(found)} of {len(TRAINING_FILES)} fonts are installed (extra `train`)", stacklevel=2)
    return found or (HELD_OUT,)


@lru_cache(maxsize=4096)
def load_font(name: str, size: int) -> ImageFont.FreeTypeFont:
    path = package_file(*TRAINING_FILES[name]) if name != HELD_OUT else None
    font = ImageFont.truetype(str(path), size) if path else ImageFont.load_default(float(size))
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("Pillow was built without FreeType, so no text can be drawn")
    return font
