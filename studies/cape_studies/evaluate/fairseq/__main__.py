"""``python -m cape_studies.evaluate.fairseq`` is ``cape-fairseq-eval``."""

from cape_studies.evaluate.fairseq import main

if __name__ == "__main__":
    main()
