"""Evaluators and studies of positional embeddings: the laboratory of cape-plugins."""

__version__ = "0.1.0"
