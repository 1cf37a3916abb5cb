"""Links out of docs/ lead to the repository: the site has the pages of docs/ only."""

import posixpath
import re


def on_page_markdown(markdown, page, config, files):
    def lead(link):
        target = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page.file.src_path), link[1])
        )
        outside = not target.startswith("docs/")
        return f"]({config.repo_url}/blob/main/{target}" if outside else link[0]

    return re.sub(r"\]\((\.\./[^)#]*)", lead, markdown)
