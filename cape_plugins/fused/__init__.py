"""For speed alone: the same results as the plain operations beside each call, in fewer kernels.

In eager mode every operation is a kernel, which costs a launch and reads and writes whole tensors.
Each piece here saves some of them, and says what ``benchmarks/kernels.py`` counts without it.
``CAPE_PLUGINS_FUSED=0`` in the environment turns the folder off. Compilers, tracing, torch.func and
fake tensors always get the plain operations. The folder knows no variant: a piece that falls back
on the plain operations gets them as an argument.
"""

from cape_plugins.fused.constants import constant as constant
from cape_plugins.fused.elementwise import add_where as add_where
from cape_plugins.fused.elementwise import rows as rows
from cape_plugins.fused.elementwise import sin as sin
from cape_plugins.fused.guard import usable as usable
from cape_plugins.fused.mixed_table import mixed_table as mixed_table
from cape_plugins.fused.relative import attend_in_parts as attend_in_parts
from cape_plugins.fused.relative import distance_scores as distance_scores
from cape_plugins.fused.rotation import pays as pays
from cape_plugins.fused.rotation import rotate as rotate
