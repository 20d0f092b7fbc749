# Oracle: a file has at most 400 lines (quire.h 1,000), a function at most 60; exceptions with a
# limit of their own are listed in tests/long_files.txt ("PATH LINES" or "PATH:FUNCTION LINES").
#   lengths.py ROOT             the tree is clean
#   lengths.py ROOT --self-test the counter counts what it should
import os
import re
import sys

import tree

FILE_LIMIT = 400
FUNCTION_LIMIT = 60
LIMITS = {"include/quire/quire.h": 1000}
CODE = (".c", ".cpp", ".cc", ".h", ".hpp", ".cu", ".cuh")
TEXT = CODE + (".cmake", ".txt", ".py", ".sh", ".in")
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'", re.DOTALL)
NOT_A_FUNCTION = re.compile(
    r'^(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:inline\s+)?(namespace|struct|class|union|enum|extern)\b'
    r'(?!.*\)\s*(?:const)?\s*(?:noexcept)?\s*(?:->.*)?$)')


def blank(text):
    """Comments, strings and preprocessor lines become spaces; newlines stay."""
    keep = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    text = TOKEN.sub(keep, text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", keep, text, flags=re.MULTILINE)


def functions(text):
    """(name, lines from the opening to the closing brace, first line) of every function."""
    text = blank(text)
    found, stack, head, inside = [], [], 0, 0
    for i, c in enumerate(text):
        if c == "{":
            before = " ".join(text[head:i].split())
            is_function = (inside == 0 and "(" in before and not NOT_A_FUNCTION.match(before)
                           and not re.search(r"=\s*$", before))
            stack.append((is_function, i, before))
            inside += is_function
            head = i + 1
        elif c == "}" and stack:
            is_function, start, before = stack.pop()
            inside -= is_function
            if is_function:
                name = re.search(r"([~\w:]+)\s*\(", before)
                first = text.count("\n", 0, start) + 1
                found.append((name.group(1) if name else "?", text.count("\n", start, i) + 1, first))
            head = i + 1
        elif c == ";":
            head = i + 1
    return found


def exceptions(root):
    path = os.path.join(root, "tests/long_files.txt")
    if not os.path.exists(path):
        return {}
    lines = [l.split("#")[0].split() for l in tree.read(root, "tests/long_files.txt").splitlines()]
    return {l[0]: int(l[1]) for l in lines if l}


def problems_of(root):
    problems, granted = [], exceptions(root)
    for path in tree.files(root):
        if not path.endswith(TEXT) or path.startswith("tests/golden/"):
            continue
        text = tree.read(root, path)
        lines, limit = text.count("\n"), granted.get(path, LIMITS.get(path, FILE_LIMIT))
        if lines > limit:
            problems.append(f"{path}: {lines} lines, limit {limit}")
        if path in granted and lines < granted[path]:
            problems.append(f"{path}: {lines} lines, its exception may shrink from {limit}")
        for name, length, first in functions(text) if path.endswith(CODE) else []:
            limit = granted.get(f"{path}:{name}", FUNCTION_LIMIT)
            if length > limit:
                problems.append(f"{path}:{first}: {name} has {length} lines, limit {limit}")
    return problems


SAMPLE = """
namespace a { namespace { // }
struct S { int x = f(1); void g() const {
    if (x) { y(); }
  }
};
enum class E { kOne };
const Row kTable[] = {
    {"a(", [](int) { return 1; }},
};
template <class T>
struct V {};
template <class T>
void h(T t,
       int u) {
  const char* s = "{";
  for (char c = '{'; u < 1'000; ++u) {
  }
}
#define MACRO(x) { \\
  }
TEST_CASE("a { sentence", "[x]") {
  one();
}
extern "C" int k(void) {
  return 0;
}
}}
"""


def self_test():
    got = [(name, length) for name, length, _ in functions(SAMPLE)]
    want = [("g", 3), ("?", 1), ("h", 5), ("TEST_CASE", 3), ("k", 3)]
    long = "void f() {\n" + "  x();\n" * FUNCTION_LIMIT + "}\n"
    problems = [] if got == want else [f"counted {got}, not {want}"]
    if functions(long) != [("f", FUNCTION_LIMIT + 2, 1)]:
        problems.append(f"a long function: {functions(long)}")
    tree.finish("self test", problems)


if "--self-test" in sys.argv:
    self_test()
tree.finish("lengths", problems_of(sys.argv[1]))
