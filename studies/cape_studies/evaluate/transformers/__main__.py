"""``python -m cape_studies.evaluate.transformers`` is ``cape-transformers-eval``."""

from cape_studies.evaluate.transformers import main

if __name__ == "__main__":
    main()
