"""``python -m cape_plugins.evaluation.fairseq`` is ``cape-fairseq-eval``."""

from cape_plugins.evaluation.fairseq import main

if __name__ == "__main__":
    main()
