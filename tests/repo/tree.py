# The files of the checkout, and small helpers that the checks of this folder share.
import os
import subprocess
import sys

IGNORED = ("build", ".git", "__pycache__")


def files(root):
    """Paths relative to root: what git knows or would add, or, outside git, all but build folders."""
    try:
        out = subprocess.run(
            ["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
            capture_output=True, text=True, check=True).stdout
        found = [p for p in out.splitlines() if os.path.isfile(os.path.join(root, p))]
        if found:
            return sorted(set(found))
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, names, leaves in os.walk(root):
        names[:] = [n for n in names if not n.startswith(IGNORED)]
        found += [os.path.relpath(os.path.join(folder, leaf), root) for leaf in leaves]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        return f.read()


def finish(what, problems):
    """Prints the problems; the exit status says whether there were any."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)")
    sys.exit(1 if problems else 0)
