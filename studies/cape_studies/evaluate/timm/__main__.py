"""``python -m cape_studies.evaluate.timm`` is ``cape-timm-eval``."""

from cape_studies.evaluate.timm import main

if __name__ == "__main__":
    main()
