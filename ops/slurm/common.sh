# Sourced by the sbatch scripts: how a job stops, and when it goes back to the queue.
#
# Slurm tells the script (not the steps) of a time limit or a preemption: --signal=B:USR2@N, or SIGTERM. The steps are told
# from here, and `fenwick` saves and exits 75. The job is requeued if it exits 75, if it has not been restarted too often,
# and if nobody has cancelled it: scancel ends a job with the same signals.
FENWICK_MAX_RESTARTS=${FENWICK_MAX_RESTARTS:-100}
FENWICK=${FENWICK:-fenwick}
fenwick_stopping=
fenwick_teller=

# Open MPI under Slurm: PMIx starts the world. TCP between ranks; shared memory needs no say.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1} OMPI_MCA_btl=${OMPI_MCA_btl:-self,tcp}

fenwick_log() { echo "$(date +%H:%M:%S) job $SLURM_JOB_ID (restart ${SLURM_RESTART_COUNT:-0}): $*" >&2; }

# The steps, not this script: each rank saves. They are told until they end: one that is only being started does not hear it.
fenwick_tell_steps() {
    [ -n "$fenwick_stopping" ] && return  # Slurm may say it twice
    fenwick_stopping=yes
    fenwick_log "told to stop: the ranks save"
    (
        trap "" USR2  # --signal without B: and scancel --full reach this, too
        while kill -0 $$ 2>/dev/null; do
            scancel --signal=USR2 "$SLURM_JOB_ID"
            sleep 3
        done
    ) &
    fenwick_teller=$!
}
trap fenwick_tell_steps USR2 TERM

# Waits for a process although signals come in between; returns its exit code.
fenwick_wait() {
    local code
    while :; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || return "$code"
    done
}

# Runs a program as the ranks of a step; returns its exit code. srun can fail to start a step and still return 0 (right after
# a requeue, while the node clears up): rank 0, which is on this host, leaves a mark, and without one it is tried again.
# Until the program listens it must not die of being told to stop: it inherits deaf ears for these signals.
# Returns 75 where nothing was begun since the job was told to stop.
# usage: fenwick_step OPTION OF srun... -- PROGRAM ARGUMENT...
fenwick_step() {
    local options=() mark code
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    for _ in $(seq 60); do
        [ -n "$fenwick_stopping" ] && return 75
        mark=$(mktemp -u)
        srun --mpi=pmix --kill-on-bad-exit=1 "${options[@]}" bash -c \
            'trap "" USR2 TERM; mark=$0; [ "$SLURM_PROCID" = 0 ] && : > "$mark"; exec "$@"' "$mark" "$@" &
        fenwick_wait $!
        code=$?
        if [ -e "$mark" ]; then
            rm -f "$mark"
            return "$code"
        fi
        [ -n "$fenwick_stopping" ] && return 75
        fenwick_log "the step did not start (srun: $code); tried again"
        sleep 5
    done
    return 69
}

# Ends the job with this code, by way of the queue where that is right.
fenwick_end() {
    local code=$1 state
    [ -n "$fenwick_teller" ] && kill "$fenwick_teller" 2>/dev/null
    if [ "$code" -eq 75 ]; then
        state=$(scontrol show job "$SLURM_JOB_ID" | grep -o 'JobState=[A-Z_]*')
        if [ "$state" != JobState=RUNNING ]; then
            fenwick_log "saved; not requeued, since it is $state"
        elif [ "${SLURM_RESTART_COUNT:-0}" -ge "$FENWICK_MAX_RESTARTS" ]; then
            fenwick_log "saved; not requeued after $SLURM_RESTART_COUNT restarts (FENWICK_MAX_RESTARTS)"
        else
            fenwick_log "saved; requeued"
            scontrol requeue "$SLURM_JOB_ID"
        fi
    fi
    exit "$code"
}
