"""What the site changes of docs/: README.md is its first page, the OpenAPI document is the end of api.md, examples in several
languages are tabs, and links to files that are not pages lead to the repository. A link to a file that does not exist ends the build."""

import re
from pathlib import Path

import yaml
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from openapidocs.mk.v3 import OpenAPIV3DocumentationHandler

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OPENAPI = ROOT / "api" / "openapi.yaml"
LINK = re.compile(r"""(\]\(|\bsrc="|\bsrcset=")([^)\s#"]+)(#[^)\s"]*)?""")
ELSEWHERE = ("http://", "https://", "mailto:")


def on_files(files, config):
    """Add the page that docs/ does not have."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    return files


def reference():
    """Return the OpenAPI document as a page."""
    document = yaml.safe_load(OPENAPI.read_text())
    return OpenAPIV3DocumentationHandler(document, style="MKDOCS", source=str(OPENAPI)).write()


# The guide names the terminal of a block: ```console 2.
TERMINAL = re.compile(r"^```console (\d)$", re.M)
# Blocks of code that follow one another, with nothing in between: the same in several languages.
SEVERAL = re.compile(r"(?:^```\w+[^\n]*\n(?:(?!```).*\n)*?```\n\n){2,}", re.M)
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\n", re.M | re.S)
LANGUAGES = {"console": "curl", "python": "Python", "ts": "Node", "js": "Node", "java": "Java", "go": "Go", "sh": "Shell"}


def tabs(blocks):
    """Make tabs of the blocks, unless two are in the same language."""
    languages = [language for language, _ in BLOCK.findall(blocks[0])]
    if len(set(languages)) < len(languages) or not set(languages) <= set(LANGUAGES):
        return blocks[0]
    indented = lambda block: "".join(f"    {line}" for line in block[0].splitlines(True))
    return BLOCK.sub(lambda block: f'=== "{LANGUAGES[block[1]]}"\n\n{indented(block)}', blocks[0])


def on_page_markdown(markdown, page, config, files):
    """Lead each link of a page to a page, or to the repository."""
    folder = ROOT if page.file.src_uri == "index.md" else DOCS

    def lead(link):
        before, target, anchor = link.groups(default="")
        if target.startswith(ELSEWHERE):
            return link[0]
        path = (folder / target).resolve()
        if not path.exists() or ROOT not in path.parents:
            raise PluginError(f"{page.file.src_uri}: the link {target} leads to no file of the repository")
        if path == OPENAPI:
            return f"{before}api.md{anchor}"
        if DOCS in path.parents and files.get_file_from_path(str(path.relative_to(DOCS))):
            return f"{before}{path.relative_to(DOCS)}{anchor}"
        kind = "tree" if path.is_dir() else "blob"
        return f"{before}{config.repo_url}/{kind}/main/{path.relative_to(ROOT)}{anchor}"

    markdown = SEVERAL.sub(tabs, LINK.sub(lead, markdown))
    markdown = TERMINAL.sub(r'```console title="Terminal \1"', markdown)
    if page.file.src_uri == "api.md":
        markdown += "\n" + reference()
    return markdown
