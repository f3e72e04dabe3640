"""A hook of mkdocs: files outside docs/ that pages link to are copied into the site."""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<=\]\()(\.\.?/[^)#\s]+)")
_COPIES = "repository"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file that a page links to and that is not in docs/."""
    root = Path(config.docs_dir).parent
    for page in files.documentation_pages():
        for link in _LINK.findall(page.content_string):
            named = _outside(link, page, config)
            if named is not None and files.get_file_from_path(f"{_COPIES}/{named}") is None:
                copied = File.generated(
                    config, f"{_COPIES}/{named}", abs_src_path=str(root / named)
                )
                files.append(copied)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links to such files lead to the copies."""

    def to_copy(found: re.Match[str]) -> str:
        named = _outside(found[0], page.file, config)
        copy = f"{_COPIES}/{named}"
        return found[0] if named is None else os.path.relpath(copy, Path(page.file.src_uri).parent)

    return _LINK.sub(to_copy, markdown)


def _outside(link: str, page: File, config: MkDocsConfig) -> Path | None:
    """Return the path from the root that a link leads to, if that is a file outside docs/."""
    docs = Path(config.docs_dir)
    path = Path(os.path.normpath(docs / Path(page.src_uri).parent / link))
    if path.is_relative_to(docs) or not path.is_file():
        return None
    return path.relative_to(docs.parent)
