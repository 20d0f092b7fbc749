"""The demo's program as a user calls it, on the synthetic model: flags, JSON, report, refusals.

Oracle: the JSON schema and the formulas of bytes that the help and the documentation state.
usage: command_line.py SMOL
"""
import json
import os
import subprocess
import sys
import tempfile

smol = sys.argv[1]
problems = []


def check(condition, what):
    if not condition:
        problems.append(what)


def run(*args):
    return subprocess.run([smol, *args], capture_output=True, text=True)


def refused(*args, word):
    result = run(*args)
    check(result.returncode == 1, f"{args}: exit {result.returncode}, not 1")
    check(word in result.stderr, f"{args}: no '{word}' in '{result.stderr.strip()}'")
    check(result.stderr.count("\n") == 1, f"{args}: more than one line of message")


KEYS = {"name", "bytes", "fp16_bytes", "share", "kld_mean", "kld_p99", "same_top", "ppl",
        "cache_ms_per_token", "tokens_per_second", "scratch_bytes"}

with tempfile.TemporaryDirectory() as folder:
    out = os.path.join(folder, "run.json")
    html = os.path.join(folder, "report.html")
    names = ["K8V4", "K4V2", "quire_uniform:K4V3", "diffkv_upstream:1,0.02", "quire_budget:0.4", "h2o@0.5"]
    flags = [flag for name in names for flag in ("--setting", name)]
    result = run("--synthetic", "--tokens", "400", "--prompt", "250", "--json", out, "--report", html, *flags)
    check(result.returncode == 0, result.stderr)
    check("\r" not in result.stderr and "[" not in result.stderr, "a progress bar where stderr is no terminal")
    data = json.load(open(out))
    check(set(data) == {"model", "text", "tokens", "prompt", "settings"}, "keys of the run")
    check((data["tokens"], data["prompt"]) == (400, 250), "tokens and prompt")
    rows = {s["name"]: s for s in data["settings"]}
    check(list(rows) == ["fp16"] + names, f"settings: {list(rows)}")
    # fp16 bytes: 2 (Dk + Dv) x tokens x KV heads x layers, mean over lengths 251 .. 400.
    fp16 = 2 * (32 + 32) * (251 + 400) / 2 * 2 * 4
    for name, row in rows.items():
        check(set(row) == KEYS, f"keys of {name}")
        check(abs(row["fp16_bytes"] - fp16) < 1, f"fp16_bytes of {name}: {row['fp16_bytes']} for {fp16}")
        check(abs(row["share"] - row["bytes"] / row["fp16_bytes"]) < 1e-5, f"share of {name}")
        check((row["tokens_per_second"] is not None) == (name in ("fp16", "K8V4")), f"tokens/s of {name}")
        check(name in result.stdout, f"{name} is not in the table")
        check(row["scratch_bytes"] > 0, f"scratch of {name}")
    check(abs(rows["fp16"]["kld_mean"]) < 1e-6, "KL of fp16 against itself")
    check(rows["fp16"]["same_top"] == 1, "same top of fp16 with itself")
    check(rows["K4V2"]["kld_mean"] > rows["K8V4"]["kld_mean"] > 0, "K4V2 is worse than K8V4")
    check(rows["quire_budget:0.4"]["share"] <= 0.4, "byte target of quire_budget")
    check(rows["h2o@0.5"]["share"] <= 0.5, "byte target of h2o")
    page = open(html).read()
    check("<svg class='plot'" in page and "id='tiers'" in page, "plot and map in the report")

    broken = os.path.join(folder, "broken.gguf")
    text = os.path.join(folder, "text.txt")
    open(text, "w").write("Some words.")
    open(broken, "wb").write(b"GGUF\x03\0\0\0" + b"\xff" * 40)
    refused("--model", broken, "--text", text, word="broken.gguf")
    open(broken, "wb").write(b"no model at all")
    refused("--model", broken, "--text", text, word="GGUF")
    refused("--model", os.path.join(folder, "none.gguf"), "--text", text, word="none.gguf")
    refused("--synthetic", "--report", os.path.join(folder, "no", "where.html"), "--tokens", "80",
            "--setting", "K8V4", word="where.html")

refused(word="model")
refused("--frobnicate", word="--frobnicate")
refused("--tokens", word="--tokens")
refused("--tokens", "many", word="--tokens")
refused("--tokens", "-5", word="--tokens")
refused("--synthetic", "--tokens", "2", word="--tokens")
refused("--synthetic", "--tokens", "100", "--prompt", "100", word="--prompt")
refused("--synthetic", "--setting", "K9V1", word="K9V1")
shown = run("--help")
check(shown.returncode == 0 and "--synthetic" in shown.stdout, "--help")

for problem in problems:
    print("FAILED:", problem)
sys.exit(1 if problems else 0)
