# The site's settings for Sphinx. scripts/docs copies the documents and runs it: see there.
#
# Sphinx with MyST, not MkDocs: both are released often, and autodoc and Breathe read the Python and
# the C++ interface. MkDocs itself had its last release in August 2024.
import os

project = "Starling"
author = "the Starling authors"
copyright = "the Starling authors. Apache-2.0"  # noqa: A001
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "breathe"]
exclude_patterns = ["docs/README.md"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4  # links to headings as GitHub names them

default_role = "literal"  # Docstrings have `names` between single marks, as the documents do.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True

breathe_projects = {"starling": os.environ.get("DOXYGEN_XML", "")}
breathe_default_project = "starling"
breathe_default_members = ("members",)
breathe_show_include = False
cpp_maximum_signature_line_length = 80
python_maximum_signature_line_length = 80

suppress_warnings = [
    "duplicate_declaration.cpp",  # every header opens the namespace
    "source_code_parser.cpp",  # a default value that is a lambda
]

html_theme = "furo"
html_title = "Starling"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
