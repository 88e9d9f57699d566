"""transformers: a study's own script trains, as by Trainer; ``cape-transformers-eval`` tests."""

from cape_studies.hosts import Host


class Transformers(Host):
    """It has models, and no command that trains them."""

    NAME = MODULE = "transformers"
    PACKAGES = ("transformers", "accelerate", "tokenizers")
    CHECKPOINT = "model"
    CONDITION = ("length",)
    WHOLE = ("position",)
    CHANCE = "the frequencies of tokens"


HOST = Transformers()
