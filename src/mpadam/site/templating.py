"""The templates of the pages: index.html, cell.html, and what they include (style.css, tables.js)."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """Everything that comes from a file is escaped; a name that does not exist is an error."""
    return Environment(
        loader=PackageLoader("mpadam.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
