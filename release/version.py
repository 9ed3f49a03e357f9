#!/usr/bin/env python3
"""The version of everything that a release publishes.

release/version.py            prints it; fails if the files differ
release/version.py v0.2.0     writes it into all files
"""

import re
import sys
from pathlib import Path

# Each file, and a pattern with a group for its version: as a tag has it with "v", as npm has it without, as Python writes it.
PLACES = [
    ("clients/node/package.json", r'^  "version": "(.*)"', "npm"),
    ("clients/node/package-lock.json", r'^  "version": "(.*)"', "npm"),
    ("clients/node/package-lock.json", r'^      "name": "locksidecar",\n      "version": "(.*)"', "npm"),
    ("clients/node/src/tracing.ts", r'^const version = "(.*)"', "npm"),
    ("clients/node/server/package.json", r'^  "version": "(.*)"', "npm"),
    ("clients/node/server/package.json", r'^    "@locksidecar/.*": "(.*)"', "npm"),
    ("clients/python/pyproject.toml", r'^version = "(.*)"', "python"),
    ("clients/python/pyproject.toml", r'"locksidecar-server==(.*)"', "python"),
    ("clients/python/server/pyproject.toml", r'^version = "(.*)"', "python"),
    ("clients/python/src/locksidecar/_version.py", r'^__version__ = "(.*)"', "python"),
    ("clients/java/pom.xml", r"<artifactId>locksidecar-parent</artifactId>\n  <version>(.*)</version>", "npm"),
    ("clients/java/*/pom.xml", r"<artifactId>locksidecar-parent</artifactId>\n    <version>(.*)</version>", "npm"),
    ("examples/kotlin/pom.xml", r"<artifactId>locksidecar-parent</artifactId>\n    <version>(.*)</version>", "npm"),
    ("clients/java/client/src/main/java/io/github/locksidecar/internal/Version.java", r'CLIENT = "(.*)"', "npm"),
    ("clients/ruby/lib/locksidecar/version.rb", r'VERSION = "(.*)"', "python"),
    ("clients/php/src/Version.php", r"NUMBER = '(.*)'", "npm"),
    ("clients/php/composer.json", r'^    "version": "(.*)"', "npm"),
    ("go.mod", r"locksidecar/clients/go (v\S+)", "tag"),
    ("clients/go/*/go.mod", r"locksidecar/clients/go (v\S+)", "tag"),
    ("clients/rust/Cargo.toml", r'^version = "(.*)"', "npm"),
    ("clients/rust/Cargo.lock", r'^name = "locksidecar"\nversion = "(.*)"', "npm"),
    ("deploy/chart/Chart.yaml", r"^version: (\S+)", "npm"),
    ("deploy/chart/Chart.yaml", r"^appVersion: (\S+)", "tag"),
    ("deploy/chart/README.md", r"--version (\d\S+)", "npm"),
    ("internal/inject/settings.go", r'"ghcr\.io/locksidecar/locksidecar:(.*)"', "tag"),
    ("internal/inject/testdata/pods/*.yaml", r"ghcr\.io/locksidecar/locksidecar:(v\S+)", "tag"),
    ("internal/inject/testdata/pods/*.injected.yaml", r"injected-version: (v\S+)", "tag"),
    ("deploy/injector/policy.yaml", r"expression: '\"(v\d\S+)\"'", "tag"),
    ("internal/cli/inject_test.go", r'ghcr\.io/locksidecar/locksidecar:([^"]+)', "tag"),
    ("deploy/chart/README.md", r"registry\.example\.com/locksidecar:(v[0-9][^\s`]*)", "tag"),
    ("deploy/README.md", r"registry\.example\.com/locksidecar:(v[0-9][^\s`]*)", "tag"),
    ("docs/kubernetes.md", r"registry\.example\.com/locksidecar:(v[0-9][^\s`#]*)", "tag"),
    ("deploy/README.md", r"ghcr\.io/locksidecar/locksidecar:(v[^`]+)", "tag"),
    ("docs/kubernetes.md", r"ghcr\.io/locksidecar/locksidecar:(v[^`#]+)", "tag"),
    ("compose.yaml", r"ghcr\.io/locksidecar/locksidecar:(\S+)", "tag"),
    ("test/node/image_test.go", r'ghcr\.io/locksidecar/locksidecar:([^"]+)', "tag"),
    ("README.md", r"releases/download/(v[^/]+)/", "tag"),
    ("README.md", r"locksidecar_(\d\S*?)_linux_amd64", "npm"),
    ("README.md", r"io\.github\.locksidecar:locksidecar:(\d[^\s,`]*)", "npm"),
    ("clients/java/README.md", r"io\.github\.locksidecar:locksidecar:(\d[^\s,`]*)", "npm"),
    ("docs/get-started.md", r"releases/download/(v[^/]+)/", "tag"),
    ("docs/get-started.md", r"locksidecar_(\d\S*?)_linux_amd64", "npm"),
    ("deploy/**/*.yaml", r"ghcr\.io/locksidecar/locksidecar:([^\s\"']+)", "tag"),
    ("deploy/**/*.yaml", r"locksidecar//deploy/component\?ref=([^\s\"']+)", "tag"),
]
TAG = re.compile(r"v(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.(\d+))?")


def forms(tag: str) -> dict[str, str]:
    match = TAG.fullmatch(tag)
    if not match:
        sys.exit(f"{tag} is no version: v1.2.3, or v1.2.3-rc.1 (alpha, beta, rc)")
    number, stage, count = match.groups()
    short = {"alpha": "a", "beta": "b", "rc": "rc"}
    return {"tag": tag, "npm": tag[1:], "python": number + (short[stage] + count if stage else "")}


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    node = Path("clients/node/package.json").read_text()
    version = forms(wanted or "v" + re.search(PLACES[0][1], node, re.M)[1])
    wrong = []
    for pattern, line, form in PLACES:
        found = 0
        for path in sorted(Path().glob(pattern)):
            text = path.read_text()
            if wanted:
                new = re.sub(line, lambda m: m[0].replace(m[1], version[form]), text, flags=re.M)
                if new != text:
                    path.write_text(new)
                    text = new
            for match in re.finditer(line, text, re.M):
                found += 1
                if match[1] != version[form]:
                    wrong.append(f"{path} has version {match[1]}, clients/node/package.json {version['npm']}")
        if not found:
            wrong.append(f"no file {pattern} has {line}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(version["tag"])


if __name__ == "__main__":
    main()
