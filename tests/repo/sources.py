# Oracle: every source under tests and examples is in the CMakeLists.txt that is nearest above it, and
# every public header in include/CMakeLists.txt. (src checks itself at configure time.)
#   sources.py ROOT             the tree is complete
#   sources.py ROOT --self-test a forgotten file is found
import os
import re
import sys

import tree

SOURCES = (".c", ".cc", ".cpp", ".cu")


def nearest_list(path, lists):
    folder = os.path.dirname(path)
    while folder:
        if f"{folder}/CMakeLists.txt" in lists:
            return f"{folder}/CMakeLists.txt"
        folder = os.path.dirname(folder)
    return None


def problems_of(paths, text_of):
    """text_of(path) of a CMakeLists.txt."""
    lists = {p for p in paths if os.path.basename(p) == "CMakeLists.txt"}
    problems = []
    for path in paths:
        in_tests = path.startswith(("tests/", "examples/")) and path.endswith(SOURCES)
        is_header = path.startswith("include/") and path.endswith((".h", ".hpp", ".cuh"))
        if not in_tests and not is_header:
            continue
        owner = nearest_list(path, lists)
        name = os.path.relpath(path, os.path.dirname(owner)) if owner else path
        # A name may stand there without its ending, in a loop over programs.
        stem = os.path.splitext(name)[0]
        text = re.sub(r"#.*", "", text_of(owner)) if owner else ""
        if not re.search(rf"(?<![\w./-]){re.escape(stem)}(?:{re.escape(name[len(stem):])})?(?![\w./-])",
                         text):
            problems.append(f"{path} is in no source list ({owner or 'no CMakeLists.txt above it'})")
    return problems


def self_test():
    lists = {"tests/a/CMakeLists.txt": "add(x_test.cpp)  # y_test.cpp\n", "tests/CMakeLists.txt": ""}
    paths = list(lists) + ["tests/a/x_test.cpp", "tests/a/y_test.cpp", "tests/a/test.cpp",
                           "tests/b/z.c", "tests/a/x_test.hpp"]
    found = [p.split()[0] for p in problems_of(paths, lists.get)]
    want = ["tests/a/y_test.cpp", "tests/a/test.cpp", "tests/b/z.c"]
    tree.finish("self test", [] if found == want else [f"found {found}, not {want}"])


if "--self-test" in sys.argv:
    self_test()
root = sys.argv[1]
tree.finish("source lists", problems_of(tree.files(root), lambda p: tree.read(root, p)))
