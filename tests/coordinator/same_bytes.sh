#!/usr/bin/env bash
# The promise of the losses' bytes, end to end: documents of 1 to 300,000 tokens, two scalar and two matrix families,
# thread ranks 1 to 16, pass sizes, and worlds of MPI processes. usage: same_bytes.sh FENWICK_PROGRAM FAMILY [LONGEST=300000]
set -euo pipefail
fenwick=$1
family=$2
longest=${3:-300000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for tokens in 1 5 300 4097 70001 "$longest"; do
    # Bytes of a linear congruential generator: the same everywhere.
    awk -v n="$tokens" 'BEGIN { x = n; for (i = 0; i < n; ++i) { x = (x * 1103515245 + 12345) % 2147483648;
        printf "%c", 32 + int(x / 65536) % 95 } }' > "$work/d$tokens.txt"
done
"$fenwick" init --family "$family" --output "$work/model" --hidden 64 --layers 2 --heads 4 --head-dim 16 --state 16 --seed 3 2> /dev/null
score() { "$@" --model "$work/model" --json "$work"/d*.txt > /dev/null 2> "$work/log" || { cat "$work/log"; exit 1; }; }
score "$fenwick" score --output "$work/want"

runs=0
compare() {
    for file in "$work"/want/nll/*.npy; do
        cmp "$file" "$work/got/nll/$(basename "$file")" || { echo "differs: $family, $1"; exit 1; }
    done
    rm -rf "$work/got"
    runs=$((runs + 1))
}
for pass in 4096 65536 unlimited; do
    score "$fenwick" score --output "$work/got" --pass-tokens "$pass"
    compare "--pass-tokens $pass"
done
for ranks in 2 3 4 5 7 8 16; do
    score "$fenwick" score --output "$work/got" --ranks "$ranks"
    compare "--ranks $ranks"
done
for ranks in 3 16; do
    score "$fenwick" score --output "$work/got" --ranks "$ranks" --pass-tokens 65536
    compare "--ranks $ranks --pass-tokens 65536"
done
for ranks in 1 2 3 5; do
    score mpirun --allow-run-as-root --oversubscribe -np "$ranks" "$fenwick" score --output "$work/got" --pass-tokens 65536
    compare "mpirun -np $ranks"
done
[ "$(ls "$work/want/nll" | wc -l)" -eq 6 ]
echo "$family: $runs runs, every loss file the same bytes"
