"""The pictures: ``python -m cape_plugins.plot {embeddings,augmentation,curves,positions,hops}``."""
