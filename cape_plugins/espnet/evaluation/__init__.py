"""The parts of ``cape-espnet-eval``; the command is :mod:`cape_plugins.espnet.evaluate`."""
