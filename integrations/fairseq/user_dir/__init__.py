"""For fairseq's --user-dir: registers cape_transformer, where autoload is off or impossible."""

import cape_plugins.fairseq  # noqa: F401 - importing registers; harmless if autoload did already
