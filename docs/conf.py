"""The documentation site: ``make docs`` writes it to out/docs."""

import urllib.parse
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[1]

project = "cape-plugins"
copyright = "the cape-plugins authors"
version = release = installed("cape-plugins")

extensions = [
    "myst_nb",  # MyST and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that are read as files too begin their parts at ###
# Outputs are not committed. timm's notebook takes seconds and is run here, so that its pictures are
# shown; the other two train for minutes, and say in their text what came out.
nb_execution_mode = "force"
nb_execution_excludepatterns = [
    "notebooks/fairseq.ipynb",
    "notebooks/espnet.ipynb",
    "notebooks/my_images.ipynb",
]
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # tqdm wants a widget
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_rtype = False
napoleon_use_ivar = True
html_theme = "furo"
html_title = "cape-plugins"


class FilesOfTheRepository(SphinxPostTransform):
    """A link to a file that is no page, such as a recipe, becomes its text, if the file exists."""

    default_priority = 5  # before MyST looks for a page

    def run(self, **_: Any) -> None:
        """Replace the links of one page."""
        folders = [ROOT, ROOT / "docs", *(ROOT / "integrations").iterdir()]
        for node in list(self.document.findall(pending_xref)):
            target = urllib.parse.unquote(node["reftarget"]).partition("#")[0]
            is_page = target.removesuffix(".md") in self.env.found_docs
            is_page = is_page and node.get("refdomain") == "doc"
            there = any((folder / target).exists() for folder in folders)
            if node["reftype"] == "myst" and target and there and not is_page:
                node.replace_self(node.children)


def setup(app: Any) -> None:
    """Add the above."""
    app.add_post_transform(FilesOfTheRepository)
