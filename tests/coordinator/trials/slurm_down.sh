#!/usr/bin/env bash
# Ends what slurm_up.sh DIR started, by its pid files, and with the daemons the steps that they still have.
set -uo pipefail
dir=$(readlink -m "$1")
export SLURM_CONF=$dir/slurm.conf
for job in $(squeue -h -o %A 2> /dev/null); do scancel --signal=KILL --full "$job" 2> /dev/null; scancel "$job"; done
sleep 2
for file in "$dir"/run/slurmd-*.pid "$dir/run/slurmctld.pid"; do
    [ -s "$file" ] && kill "$(cat "$file")" 2> /dev/null
done
sleep 1
if [ -e "$dir/run/own-munged" ]; then
    [ -s /run/munge/munged.pid ] && kill "$(cat /run/munge/munged.pid)"
fi
exit 0
