"""The parts of ``cape-fairseq-eval``; see :mod:`cape_plugins.fairseq.evaluate`."""
