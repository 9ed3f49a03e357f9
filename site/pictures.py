#!/usr/bin/env python3
"""Lets a browser read all pictures of the documents with Mermaid: one that it cannot read would be an empty place on the site and the forge."""

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MERMAID = ROOT / "site" / ".venv" / "mermaid.min.js"
PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
READ = """
<script src="{script}"></script>
<pre id="said"></pre>
<script>
(async () => {{
  const said = [];
  for (const [name, text] of {pictures}) {{
    try {{ await mermaid.render("picture", text); said.push(name + ": drawn"); }} catch (error) {{ said.push(name + ": " + error.message); }}
  }}
  document.getElementById("said").textContent = said.join("\\n");
}})();
</script>
"""


def main():
    subprocess.run([ROOT / "test" / "deps.sh", "site", "browser"], check=True)
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    pictures = [(f"{file.relative_to(ROOT)}, picture {n}", text) for file in files for n, text in enumerate(PICTURE.findall(file.read_text()), 1)]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(READ.format(script=MERMAID.as_uri(), pictures=json.dumps(pictures).replace("</", "<\\/")))
        # As root, Chromium has no sandbox. It waits until nothing is left to do.
        seen = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom", page.as_uri()],
            check=True, capture_output=True, text=True, timeout=120,
        ).stdout
    said = html.unescape(re.search(r'<pre id="said">(.*?)</pre>', seen, re.S)[1])
    print(said)
    if not pictures or said.count(": drawn") != len(pictures):
        sys.exit(f"{len(pictures)} pictures, and not all were drawn")


if __name__ == "__main__":
    main()
