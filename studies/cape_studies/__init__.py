"""Evaluations and studies of the positional embeddings of cape-plugins."""

__version__ = "0.1.0"
