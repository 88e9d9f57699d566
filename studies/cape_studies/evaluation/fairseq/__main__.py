"""``python -m cape_studies.evaluation.fairseq`` is ``cape-fairseq-eval``."""

from cape_studies.evaluation.fairseq import main

if __name__ == "__main__":
    main()
