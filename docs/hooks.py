"""Hooks of MkDocs: files of the repository that pages link to become part of the site, and so do notebooks, which are run.

Links in all Markdown files are written for the repository, where they work as they are: a page in `docs/` links to `../results/LOG.md`. In the site
`docs/` is the root and every other file keeps its path, so that only the way from one to the other changes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
NOTEBOOKS = ("first-steps", "look-inside", "own-routing")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what the navigation names, from the rest of the repository."""
    for notebook in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{notebook}.md", content=_notebook_page(notebook)))
    waiting = [file.src_uri for file in files.documentation_pages()] + _named_in(config.nav)
    seen = set(waiting)
    while waiting:
        uri = waiting.pop()
        path = _path_of(uri)
        if not path.is_file():
            continue
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
        if path.suffix == ".md":
            for target in _targets(path):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links go from place to place in the site as they do in the repository."""
    here = page.file.src_uri

    def rewritten(found: re.Match[str]) -> str:
        mark, text, link = found.groups()
        if _is_elsewhere(link):
            return found[0]
        target, _, anchor = link.partition("#")
        uri = _uri_of(_path_of(here).parent / target)
        if uri is None:
            raise PluginError(f"{here} links to {link}, which is not in the repository")
        way = os.path.relpath(uri, PurePosixPath(here).parent)
        return f"{mark}[{text}]({way}{'#' + anchor if anchor else ''})"

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[at:])])


def _is_elsewhere(link: str) -> bool:
    """Whether a link leads out of the site, to a place on the same page, or holds what it shows itself."""
    return link.startswith(("#", "http:", "https:", "mailto:", "data:"))


def _path_of(uri: str) -> Path:
    """Where a page or file of the site lies in the repository: in `docs/`, or else at its own path."""
    inside = ROOT / DOCS / uri
    return inside if inside.exists() else ROOT / uri


def _uri_of(path: Path) -> str | None:
    """Where a file of the repository lies in the site; None if there is no such file."""
    path = Path(os.path.normpath(path))
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT / DOCS if path.is_relative_to(ROOT / DOCS) else ROOT)
    return (relative.with_suffix(".md") if relative.suffix == ".ipynb" else relative).as_posix()


def _targets(path: Path) -> list[str]:
    """What a page links to."""
    links = [link for _, _, link in LINK.findall(FENCE.sub("", path.read_text("utf-8")))]
    uris = (_uri_of(path.parent / link.partition("#")[0]) for link in links if not _is_elsewhere(link))
    return [uri for uri in uris if uri is not None]


def _named_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav or []
    return [name for value in values for name in _named_in(value)]


def _notebook_page(name: str) -> str:
    execute = _load(ROOT / "notebooks" / "execute.py")
    return execute.as_markdown(execute.execute(ROOT / "notebooks" / f"{name}.ipynb"))


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module
