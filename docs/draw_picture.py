"""Draws docs/cape.png, the picture of the README: what CAPE does to the patches of an image.

python docs/draw_picture.py
"""

from pathlib import Path

from cape_plugins import Augmentation
from cape_plugins.plot import augmentation

SIDE = 8


def main() -> None:
    """Draw and save."""
    settings = Augmentation(0.5, (1 / SIDE, 1 / SIDE), 1.4, mean_normalize=False)
    augmentation.draw(Path(__file__).with_name("cape.png"), settings, (SIDE, SIDE))


if __name__ == "__main__":
    main()
