"""``python -m cape_plugins.evaluation.espnet`` is ``cape-espnet-eval``."""

from cape_plugins.evaluation.espnet import main

if __name__ == "__main__":
    main()
