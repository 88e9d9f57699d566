"""``python -m cape_studies.evaluation.timm`` is ``cape-timm-eval``."""

from cape_studies.evaluation.timm import main

if __name__ == "__main__":
    main()
