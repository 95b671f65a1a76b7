#!/usr/bin/env python3
"""translate.py ROOT OUT FILE...: makes C++ of .cu and .cuh files (paths under ROOT) in OUT: launches become calls, dynamic shared
memory becomes a pointer. FILE.cu -> OUT/FILE.cu.cc."""
import re, sys, pathlib

def match(text, at, open_, close):
    depth = 0
    for i in range(at, len(text)):
        if text[i] == open_: depth += 1
        elif text[i] == close:
            depth -= 1
            if depth == 0: return i
    raise SystemExit("no match")

def translate(text):
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) |alignas\(\d+\) )?([\w ]+?) (\w+)\[\];",
                  r"auto* \2 = reinterpret_cast<\1*>(cuda_on_host::dynamic_shared());", text)
    out, at = "", 0
    while True:
        i = text.find("<<<", at)
        if i < 0: return out + text[at:]
        start = max(text.rfind(c, 0, i) for c in ";{}") + 1
        # a comment line before the statement
        while True:
            m = re.match(r"\s*//[^\n]*\n", text[start:])
            if not m: break
            start += m.end()
        m = re.match(r"\s*(?:if \([^;]*?\) )?", text[start:])
        start += re.match(r"\s*", text[start:]).end()
        end = text.find(">>>", i)
        config = text[i + 3:end]
        close = match(text, end + 3, "(", ")")
        kernel = text[start:i]
        args = text[end + 4:close]
        out += text[at:start] + f"cuda_on_host::launch(cuda_on_host::Config({config}), \"{kernel.strip().split(chr(10))[0][:40]}\", [&] {{ {kernel}({args}); }})"
        at = close + 1

root, outdir = map(pathlib.Path, sys.argv[1:3])
for name in sys.argv[3:]:
    source = root / name
    to = outdir / (name + ".cc" if name.endswith(".cu") else name)
    to.parent.mkdir(parents=True, exist_ok=True)
    text = translate(source.read_text())
    if not to.exists() or to.read_text() != text: to.write_text(text)
