"""The C extension of cape_plugins.fused: one binary for every Python ≥ 3.10, optional at build."""

import sys

from setuptools import Extension, setup

UNIX = ["-O3", "-std=c11", "-fno-math-errno", "-fno-trapping-math"]

setup(
    ext_modules=[
        Extension(
            "cape_plugins.fused._rows",
            ["cape_plugins/fused/_rows.c"],
            py_limited_api=True,
            optional=True,  # without a compiler torch serves, in cache-sized chunks
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=[] if sys.platform == "win32" else UNIX,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
