#!/usr/bin/env python3
"""Writes the pages of the site into dist/pages, with the configuration beside them: `make site` builds dist/site from these.

What it changes of docs/: README.md is the first page, the OpenAPI document is the end of api.md, examples in several languages are tabs, and
links to files that are not pages lead to the repository. A link to a file that does not exist is an error, also in the other documents."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from openapidocs.mk.v3 import OpenAPIV3DocumentationHandler

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DIST = ROOT / "dist"
OPENAPI = ROOT / "api" / "openapi.yaml"
MERMAID = ROOT / "site" / ".venv" / "mermaid.min.js"
REPOSITORY = "https://github.com/locksidecar/locksidecar"
LINK = re.compile(r"""(\]\(|\bsrc="|\bsrcset=")([^)\s#"]+)(#[^)\s"]*)?""")
ELSEWHERE = ("http://", "https://", "mailto:")
# A page names the terminal of a block: ```console 2.
TERMINAL = re.compile(r"^```console (\w)$", re.M)
# Blocks of code that follow one another, with nothing in between: the same in several languages.
SEVERAL = re.compile(r"(?:^```\w+[^\n]*\n(?:(?!```).*\n)*?```\n\n){2,}", re.M)
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\n", re.M | re.S)
LANGUAGES = {"console": "curl", "python": "Python", "ts": "Node", "js": "Node", "java": "Java", "go": "Go", "sh": "Shell"}


def main():
    pages = {"index.md": ROOT / "README.md"} | {file.name: file for file in DOCS.glob("*.md")}
    for folder in ("pages", "site"):
        shutil.rmtree(DIST / folder, ignore_errors=True)
    shutil.copytree(DOCS / "pictures", DIST / "pages" / "pictures")
    shutil.copy(MERMAID, DIST / "pages")
    shutil.copy(ROOT / "site" / "mkdocs.yml", DIST)
    check_others(pages)
    for name, file in pages.items():
        (DIST / "pages" / name).write_text(page(file, pages))


def check_others(pages):
    """Follow the links of the other documents, which are no pages."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    here = re.compile(REPOSITORY + r"/(?:blob|tree)/main/([^)\s#\">]+)(#[\w-]+)?")
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        text = re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.M | re.S)
        links = [(ROOT / path, anchor) for path, anchor in here.findall(text)]
        if file not in pages.values():
            links += [((file.parent / to).resolve() if to else file, anchor) for _, to, anchor in LINK.findall(text) if not to.startswith(ELSEWHERE)]
        for path, anchor in links:
            if not path.exists():
                sys.exit(f"{name}: there is no {path}")
            if anchor and path.suffix == ".md" and anchor[1:] not in anchors(path.read_text()):
                sys.exit(f"{name}: {path.relative_to(ROOT)} has no {anchor}")


def anchors(text):
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def page(file, pages):
    """Return a page as the site has it."""

    def lead(link):
        before, target, anchor = link.groups(default="")
        if target.startswith(ELSEWHERE):
            return link[0]
        path = (file.parent / target).resolve()
        if not path.exists() or ROOT not in path.parents:
            sys.exit(f"{file.relative_to(ROOT)}: the link {target} leads to no file of the repository")
        if path == OPENAPI:
            return f"{before}api.md{anchor or '#all-calls'}"
        if DOCS in path.parents and (path.name in pages or path.parent.name == "pictures"):
            return f"{before}{path.relative_to(DOCS)}{anchor}"
        if path.suffix == ".svg":
            shutil.copy(path, DIST / "pages" / "pictures")
            return f"{before}pictures/{path.name}{anchor}"
        kind = "tree" if path.is_dir() else "blob"
        return f"{before}{REPOSITORY}/{kind}/main/{path.relative_to(ROOT)}{anchor}"

    text = TERMINAL.sub(r'```console title="Terminal \1"', SEVERAL.sub(tabs, LINK.sub(lead, file.read_text())))
    # In a table, GitHub wants a pipe in code to be escaped, and the site shows the backslash.
    text = re.sub(r"^\|.*$", lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0]), text, flags=re.M)
    if "\n```mermaid\n" in text:  # without it, the theme fetches one from elsewhere
        text += f'\n<script src="{MERMAID.name}"></script>\n'
    return text + "\n" + reference() if file.name == "api.md" else text


def tabs(blocks):
    """Make tabs of the blocks, unless two are in the same language."""
    languages = [language for language, _ in BLOCK.findall(blocks[0])]
    if len(set(languages)) < len(languages) or not set(languages) <= set(LANGUAGES):
        return blocks[0]
    indented = lambda block: "".join(f"    {line}" for line in block[0].splitlines(True))
    return BLOCK.sub(lambda block: f'=== "{LANGUAGES[block[1]]}"\n\n{indented(block)}', blocks[0])


def reference():
    """Return the OpenAPI document as Markdown."""
    document = yaml.safe_load(OPENAPI.read_text())
    text = OpenAPIV3DocumentationHandler(document, style="MKDOCS", source=str(OPENAPI)).write()
    return re.sub(r"^# .*$", "## All calls", text, count=1, flags=re.M)


if __name__ == "__main__":
    main()
