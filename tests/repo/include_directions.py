# Oracle: core <- codec <- pages <- attention, and policy on core alone; headers never look into
# src, tests or examples, nor at the C ABI but in quire.hpp.
#   include_directions.py ROOT           the tree is clean
#   include_directions.py ROOT --planted each planted violation is found
import re
import sys

import tree

ALLOWED = {
    "core": {"core"},
    "codec": {"core", "codec"},
    "pages": {"core", "codec", "pages"},
    "attention": {"core", "codec", "pages", "attention"},
    "policy": {"core", "policy"},
}
ROOT_HEADERS = {"quire/quire.h": {"quire/version.h"}, "quire/quire.hpp": {"quire/quire.h"},
                "quire/version.h": set()}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def check_public(path, target):
    """path and target are relative to include/."""
    if path in ROOT_HEADERS:
        ok = target in ROOT_HEADERS[path] or "/" not in target
        return None if ok else "may not include it"
    stage = path.split("/")[1]
    if stage not in ALLOWED:
        return f"the folder {stage} has no place in the order"
    if not target.startswith("quire/"):
        return "is outside include/quire" if "/" in target else None
    part = target.split("/")[1] if target.count("/") > 1 else ""
    return None if part in ALLOWED[stage] else f"{stage} may include {sorted(ALLOWED[stage])}"


def check_backend(path, target):
    """src/cpu/<stage> may use headers and another stage's backend code in the same order."""
    stage, parts = path.split("/")[2], target.split("/")
    if stage in ALLOWED and target.startswith("quire/") and target.count("/") > 1:
        return None if parts[1] in ALLOWED[stage] else f"{stage} may include {sorted(ALLOWED[stage])}"
    if stage not in ALLOWED or parts[:2] != ["src", "cpu"] or len(parts) < 4:
        return None
    if parts[2] not in ALLOWED or parts[2] in ALLOWED[stage]:
        return None
    return f"{stage} may include {sorted(ALLOWED[stage])}"


def problems_of(sources):
    """sources: path -> text."""
    problems = []
    for path, text in sources.items():
        for target in INCLUDE.findall(text):
            why = None
            if path.startswith("include/quire/") and path.endswith((".h", ".hpp", ".cuh")):
                why = check_public(path[len("include/"):], target)
            elif path.startswith("src/cpu/") and path.count("/") > 2:
                why = check_backend(path, target)
            if why:
                problems.append(f"{path} includes {target}: {why}")
    return problems


PLANTED = [
    ("include/quire/core/types.hpp", "quire/codec/format.hpp"),
    ("include/quire/codec/format.hpp", "quire/pages/ring.hpp"),
    ("include/quire/codec/format.hpp", "quire/policy/policy.hpp"),
    ("include/quire/pages/ring.hpp", "quire/attention/rule.hpp"),
    ("include/quire/pages/ring.hpp", "quire/policy/tiers.hpp"),
    ("include/quire/attention/rule.hpp", "quire/policy/policy.hpp"),
    ("include/quire/policy/policy.hpp", "quire/codec/format.hpp"),
    ("include/quire/policy/policy.hpp", "quire/quire.h"),
    ("include/quire/core/types.hpp", "src/backend.hpp"),
    ("include/quire/quire.h", "quire/core/status.hpp"),
    ("include/quire/quire.hpp", "quire/core/status.hpp"),
    ("include/quire/newstage/new.hpp", "quire/core/status.hpp"),
    ("src/cpu/pages/append.cpp", "src/cpu/attention/decode.hpp"),
    ("src/cpu/attention/tail.cpp", "quire/policy/select.hpp"),
]


def main():
    root = sys.argv[1]
    sources = {p: tree.read(root, p) for p in tree.files(root)
               if p.startswith(("include/", "src/"))}
    if "--planted" not in sys.argv:
        tree.finish("include directions", problems_of(sources))
    before = len(problems_of(sources))
    missed = []
    for path, target in PLANTED:
        planted = dict(sources)
        planted[path] = f'{planted.get(path, "")}\n#include "{target}"\n'
        if len(problems_of(planted)) != before + 1:
            missed.append(f"not found: {path} includes {target}")
    tree.finish("planted violations", missed)


main()
