"""What must hold of the demo's default table, on the real model and the default text.

Oracle: a numpy simulation of the same caches (its figures for uniform formats are below), and the
relations between settings that the design promises.
usage: figures.py SMOL    QUIRE_SMOL_MODEL names the model, QUIRE_SMOL_TEXT the text (else made by bible-kjv)
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

model = os.environ.get("QUIRE_SMOL_MODEL", "")
if not os.path.isfile(model):
    print("skipped: QUIRE_SMOL_MODEL does not name the model file")
    sys.exit(77)

# Mean KL of uniform affine formats, 64-token window, simulated in one pass over the same tokens.
SIMULATED = {"K8V4": 0.00443, "K4V8": 0.02319, "K4V4": 0.02497, "K4V2": 0.18993}

with tempfile.TemporaryDirectory() as folder:
    text = os.environ.get("QUIRE_SMOL_TEXT", "")
    if not text:
        if shutil.which("bible") is None:
            print("skipped: the Debian package bible-kjv is not installed")
            sys.exit(77)
        verses = subprocess.run(["bible", "-f", "gen1:1-ex40:38"], capture_output=True, check=True).stdout
        text = os.path.join(folder, "text.txt")
        open(text, "wb").write(verses[2000:60000])
    out = os.path.join(folder, "run.json")
    subprocess.run([sys.argv[1], "--model", model, "--text", text, "--json", out,
                    "--report", os.path.join(folder, "report.html")], check=True)
    rows = {s["name"]: s for s in json.load(open(out))["settings"]}

problems = []


def check(condition, what):
    print("holds: " if condition else "FAILED:", what)
    if not condition:
        problems.append(what)


def kl(name):
    return rows[name]["kld_mean"]


def share(name):
    return rows[name]["share"]


check(len(rows) == 24, f"24 settings: {len(rows)}")
for name, simulated in SIMULATED.items():
    ratio = kl(name) / simulated
    check(0.6 <= ratio <= 1.4, f"{name}: {ratio:.2f} times the simulated KL, from 0.6 to 1.4")
check(kl("K8V8") < 0.0005, f"K8V8: KL {kl('K8V8'):.5f} below 0.0005")
check(kl("K4V2") > kl("K4V4") > kl("K8V4") > kl("K8V8"), "KL falls from K4V2 over K4V4 and K8V4 to K8V8")
check(share("K8V4") == share("K4V8"), "K8V4 and K4V8 take the same bytes")
check(kl("K4V8") >= 3 * kl("K8V4"), f"K8V4 is at least three times better than K4V8: {kl('K4V8') / kl('K8V4'):.2f}")
good = [n for n in rows if n.startswith("diffkv_upstream") and 3 * kl(n) <= kl("K4V2") and share(n) <= 1.03 * share("K4V2")]
check(good, f"a diffkv_upstream setting with a third of K4V2's KL at no more than 3 % more bytes: {good}")
check(2 * kl("quire_budget:0.21") <= kl("diffkv_upstream:3,0.1@0.21"),
      f"quire_budget:0.21 has at most half of diffkv_upstream:3,0.1@0.21's KL: "
      f"{kl('quire_budget:0.21') / kl('diffkv_upstream:3,0.1@0.21'):.2f}")
check(kl("quire_uniform:K4V3") <= kl("diffkv_upstream:1,0.02") and
      share("quire_uniform:K4V3") < share("diffkv_upstream:1,0.02"),
      "quire_uniform:K4V3 is no worse than diffkv_upstream:1,0.02 at fewer bytes")
for name in rows:
    target = name.split("@")[1] if "@" in name else (name.split(":")[1] if name.startswith("quire_budget") else None)
    if target is not None:
        met = share(name) / float(target)
        check(0.98 <= met <= 1.0, f"{name}: {100 * met:.2f} % of its byte target, within 2 % from below")
check(rows["fp16"]["kld_p99"] < 1e-6 and rows["fp16"]["same_top"] == 1, "fp16 equals itself")
check(4.87 < rows["fp16"]["ppl"] < 4.91, f"16-bit perplexity {rows['fp16']['ppl']:.4f}, simulated 4.8909")

sys.exit(1 if problems else 0)
