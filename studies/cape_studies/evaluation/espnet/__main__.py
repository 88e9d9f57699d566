"""``python -m cape_studies.evaluation.espnet`` is ``cape-espnet-eval``."""

from cape_studies.evaluation.espnet import main

if __name__ == "__main__":
    main()
