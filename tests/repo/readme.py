# Oracle: the code block of README.md that follows the comment with a file's path equals the part of
# that file between its [readme] markers; every marked file has a block.
#   readme.py ROOT             the two are equal
#   readme.py ROOT --self-test a difference is found
import re
import sys

import tree

BLOCK = re.compile(r"<!-- (tests/docs/\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)
MARKED = re.compile(r"^// \[readme\]\n(.*?)^// \[readme\]\n", re.DOTALL | re.MULTILINE)


def problems_of(readme, snippets):
    """snippets: path -> text of every file in tests/docs that has a marker."""
    blocks = BLOCK.findall(readme)
    problems = []
    for path, code in blocks:
        if path not in snippets:
            problems.append(f"README.md names {path}, which is not there or has no marker")
            continue
        marked = MARKED.search(snippets[path])
        if not marked or marked.group(1) != code:
            problems.append(f"the block of README.md after {path} is not what the file holds")
        lines = code.count("\n")
        if lines > 22:
            problems.append(f"{path}: {lines} lines are no short example")
    for path in snippets:
        if path not in [p for p, _ in blocks]:
            problems.append(f"{path} is marked but not in README.md")
    return problems


def self_test():
    text = "<!-- tests/docs/a.c -->\n```c\nint x;\n```\n"
    snippet = "// [readme]\nint x;\n// [readme]\n"
    wrong = [(text, {}), (text, {"tests/docs/a.c": snippet.replace("x", "y")}),
             (text, {"tests/docs/a.c": snippet, "tests/docs/b.c": snippet}), ("", {"tests/docs/a.c": snippet})]
    problems = [f"not found: {case}" for case in wrong if not problems_of(*case)]
    problems += problems_of(text, {"tests/docs/a.c": snippet})
    tree.finish("self test", problems)


if "--self-test" in sys.argv:
    self_test()
root = sys.argv[1]
marked_files = {p: tree.read(root, p) for p in tree.files(root)
                if p.startswith("tests/docs/") and "[readme]" in tree.read(root, p)}
tree.finish("README.md", problems_of(tree.read(root, "README.md"), marked_files))
