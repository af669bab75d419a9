"""Build the documentation site from the pages as they are.

    sphinx-build -c docs/site . OUT

The source folder is the repository, so links between pages work here as on GitHub. This file adds the table of contents
to the README, and the public names to the pages in ``api/``. Nothing is written outside the output folder.
"""

from __future__ import annotations

import ast
import re
import shutil
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx

import pytest_autotune

ROOT = Path(__file__).parents[2]

project = "pytest-autotune"
copyright = "the authors of pytest-autotune; Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/site/api/*.rst", "example_suite/README.md"]
html_theme = "furo"
html_title = project
html_copy_source = False
# Most examples are what a terminal shows, and name no language.
highlight_language = "none"
myst_heading_anchors = 6
# Sphinx does not know the anchors that are written as HTML. `check_links.py` checks the built pages.
# Examples in Python leave parts out with `…`, which Pygments cannot read.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]
autodoc_member_order = "bysource"
# The default of a parameter is shown as the code has it: its repr may not be valid Python.
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}

#: The pages of the public names, and the modules of these names.
API_PAGES = {
    "docs/site/api/pytest_autotune": "pytest_autotune",
    "docs/site/api/adapters": "pytest_autotune.adapters",
    "docs/site/api/testing": "pytest_autotune.testing",
}


def list_pages() -> list[str]:
    """Return the pages for the table of contents: in the order of the README's last section, then all others."""
    _, _, more = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## More\n")
    linked = re.findall(r"\]\(([\w/.-]+)\.md[)#]", more)
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "example_suite" / "README.md"]
    existing = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in files)
    pages = [page for page in dict.fromkeys(linked) if page in existing]
    pages += [page for page in existing if page not in pages]
    pages.remove(root_doc)
    return pages


def list_public_names(module_name: str) -> list[str]:
    """Return the names of the classes and functions that a module offers.

    The module defines them, or imports them as ``from module import NAME as NAME``. Other values, such as a set, have
    no docstrings of their own. The page of the module describes them by hand.
    """
    module = import_module(module_name)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = []
    # Some imports stand under a condition, and not at the top of the module.
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
    # Classes and functions are callable, and a set such as ACTIVE_RUNS is not.
    names = [name for name in names if callable(getattr(module, name))]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            names.append(node.name)
    return sorted(names, key=str.lower)


def describe_name(module_name: str, name: str) -> str:
    """Return the lines by which Sphinx documents a name.

    :raises ValueError: if the name has no docstring.
    """
    value = getattr(import_module(module_name), name)
    if not (value.__doc__ or "").strip():
        raise ValueError(f"{module_name}.{name} has no docstring")
    kind = "function"
    if isinstance(value, type):
        kind = "class"
    directive = f".. auto{kind}:: {module_name}.{name}\n"
    if module_name != pytest_autotune.__name__ and name in dir(pytest_autotune):
        # Sphinx warns of an object that two pages describe. So only the page of the package is in the index, and links
        # lead to that page. The package loads its names when they are used, and only dir() lists them all before.
        directive += "   :no-index:\n"
    return directive


def extend_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the parts that only the site has: to the README the table of contents, to a page in ``api/`` the names."""
    if docname == root_doc:
        toctree = "\n".join(list_pages())
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: Pages\n\n{toctree}\n```\n"
        toctree = "\n".join(API_PAGES)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: Names\n\n{toctree}\n```\n"
    if module_name := API_PAGES.get(docname):
        names = list_public_names(module_name)
        source[0] += "\n" + "\n".join(describe_name(module_name, name) for name in names)


def copy_front_page(app: Sphinx, error: Exception | None) -> None:
    """Copy the README's page to index.html, which a browser gets for the folder."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.connect("source-read", extend_page)
    app.connect("build-finished", copy_front_page)
