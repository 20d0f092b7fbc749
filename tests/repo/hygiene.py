# Oracle: what a stranger expects of a checkout: no paths of one machine, no leftovers, no large or
# unreadable file, a short top level, and no mention of a document that is not there.
#   hygiene.py ROOT             the tree is clean
#   hygiene.py ROOT --self-test each kind of problem is found
import os
import re
import sys

import tree

TOP_LEVEL = {"CMakeLists.txt", "include", "src", "cuda", "examples", "tests", "bench", "docs", "cmake",
             "LICENSE", "README.md"}
LARGEST = 1 << 20
# Absolute paths of a machine; a temporary folder is asked for, never spelled. Written in two parts,
# so that this file does not match itself.
PATHS = re.compile(r"(?<![\w.}>-])/(?:wo" r"rk|ro" r"ot|tm" r"p|ho" r"me|Use" r"rs|mn" r"t)/")
LEFTOVERS = re.compile(r"^(?:<{7}|>{7}) |\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b", re.MULTILINE)
DOCUMENT = re.compile(r"\bdocs/[a-z_0-9]+\.md\b")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def problems_of_text(path, text, known):
    problems = []
    for pattern, what in ((PATHS, "a path of one machine"), (LEFTOVERS, "a leftover")):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: {what}: {match.group(0).strip()}")
    mentioned = set(DOCUMENT.findall(text))
    if path.endswith(".md"):
        folder = os.path.dirname(path)
        mentioned |= {os.path.normpath(os.path.join(folder, link)) for link in LINK.findall(text)}
    folders = {os.path.dirname(p) for p in known}
    for name in sorted(mentioned):
        if name not in known and name.rstrip("/") not in folders:
            problems.append(f"{path}: mentions {name}, which is not there")
    if "\r\n" in text:
        problems.append(f"{path}: line ends of another system")
    if text and not text.endswith("\n"):
        problems.append(f"{path}: no newline at the end")
    return problems


def problems_of(root):
    problems, known = [], set(tree.files(root))
    for path in sorted(known):
        top = path.split("/")[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            problems.append(f"{path}: {top} does not belong to the top level")
        size = os.path.getsize(os.path.join(root, path))
        if size > LARGEST:
            problems.append(f"{path}: {size} bytes, more than 1 MiB")
            continue
        with open(os.path.join(root, path), "rb") as f:
            data = f.read()
        if b"\0" in data:
            problems.append(f"{path}: a binary file")
            continue
        problems += problems_of_text(path, data.decode("utf-8", "replace"), known)
    return problems


def self_test():
    slash = "/"
    wrong = [f"x = '{slash}work/a'\n", f"see {slash}tmp/y\n", f"{slash}root/z\n", "// TO" "DO: more\n",
             "<<<<<<< HEAD\n", "docs" "/none.md\n", "[a](none.md)\n", "a\r\n", "no end"]
    right = ["build/tmp/x\n", "a/work/b\n", "[a](known.md#part) [b](https://x.y/z)\n", "docs" "/known.md\n",
             "the work/ folder, tmp/ too\n", ""]
    known = {"known.md", "docs" "/known.md"}
    problems = [f"not found: {t!r}" for t in wrong if not problems_of_text("a.md", t, known)]
    problems += [f"wrongly found: {t!r}" for t in right if problems_of_text("a.md", t, known)]
    tree.finish("self test", problems)


if "--self-test" in sys.argv:
    self_test()
tree.finish("hygiene", problems_of(sys.argv[1]))
