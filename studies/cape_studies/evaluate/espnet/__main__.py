"""``python -m cape_studies.evaluate.espnet`` is ``cape-espnet-eval``."""

from cape_studies.evaluate.espnet import main

if __name__ == "__main__":
    main()
