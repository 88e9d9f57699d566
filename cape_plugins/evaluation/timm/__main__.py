"""``python -m cape_plugins.evaluation.timm`` is ``cape-timm-eval``."""

from cape_plugins.evaluation.timm import main

if __name__ == "__main__":
    main()
