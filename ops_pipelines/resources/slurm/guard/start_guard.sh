#!/bin/sh
# The start guard, as slurmctld's PrologSlurmctld. Writes each start down, and lets no restart go ahead unless the judge
# (start_guard.py) finds every node of the attempts before clear. A first start never waits for an interpreter.
#
# slurmctld requeues a batch job whose PrologSlurmctld fails, and starts it again seconds later; held before, it stays
# where it is. An interactive job is killed instead: it is never a restart, so it is never refused.

directory=${0%/*}
# STATE FALLBACK PYTHON LIMIT_SECONDS NEXT, and PATH and SLURM_CONF for us. Read by a shell beside this one first: `.`
# ends the shell itself where the file is missing, unreadable or torn, and then every first start would fail.
if ! (. "$directory/start_guard.env" && [ -n "$STATE" ] && [ -n "$FALLBACK" ] && [ -n "$LIMIT_SECONDS" ]) 2>/dev/null; then
    if [ "${1:-}" = status ]; then
        echo '{"is_well": false, "problems": ["start_guard.env cannot be read: run ops-pipelines guard install again"]}'
        exit 3
    fi
    [ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] || exit 1 # Without a verdict no restart; Slurm comes back with it.
    exit 0
fi
. "$directory/start_guard.env"
export PATH

if [ "${1:-}" = status ]; then # what check-config asks
    exec timeout -k 1 20 "$PYTHON" -I -S "$directory/start_guard.py" --config "$directory/start_guard.json" status
fi

go_ahead() {
    # The site's own prolog is none of ours: it gets the environment that it always had.
    [ -n "$NEXT" ] && exec "$NEXT"
    exit 0
}

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) go_ahead ;; esac
record=starts/$((job % 1000))/$job

# -- what is known, and what is written down ---------------------------------------------------------------------------

is_restart=no
[ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] || is_restart=yes
for place in "$STATE" "$FALLBACK"; do
    [ -s "$place/$record" ] && is_restart=yes
done

# Cleared by the next who looks, and not started since: its record ends with a clearing later than every start. The
# judge's own has the time of the start that it released, and a torn one an earlier time.
is_cleared=no
if [ "$is_restart" = yes ] && [ ! -s "$FALLBACK/$record" ]; then
    awk '$1 == "start" && $2 + 0 > last { last = $2 + 0 }
        { cleared = ($1 == "cleared") ? $2 + 0 : 0 }
        END { exit !(cleared > last) }' "$STATE/$record" 2>/dev/null && is_cleared=yes
fi

started_at=$(date +%s.%N)
write() {
    # Whole lines, and on the disk: a record that a crash of this host takes away lets a second copy start.
    for place in "$STATE" "$FALLBACK"; do
        [ -d "$place/${record%/*}" ] || mkdir -p "$place/${record%/*}" 2>/dev/null || continue
        printf '%s\n' "$1" 2>/dev/null >>"$place/$record" || continue
        sync "$place/$record" "$place/${record%/*}" 2>/dev/null && return 0
    done
    return 1
}
is_written=yes
write "start $started_at ${SLURM_JOB_RESTART_COUNT:-0} ${SLURM_JOB_NODELIST:-unknown}" || is_written=no
[ "$is_restart" = yes ] || go_ahead
[ "$is_cleared" = no ] || [ "$is_written" = no ] || go_ahead

# -- a restart: only on a verdict --------------------------------------------------------------------------------------

# One that cannot be written down does not start: the next restart would know nothing of it.
if [ "$is_written" = yes ]; then
    timeout -k 1 "$LIMIT_SECONDS" "$PYTHON" -I -S "$directory/start_guard.py" --config "$directory/start_guard.json" \
        judge "$job" "$started_at"
    case $? in
    0) go_ahead ;;
    10) exit 1 ;; # refused, held, and written down by the judge
    esac
fi

# No verdict: no interpreter, no disk, no answer in time, or the judge broke. It does not start; who looks again lets it
# go.
write "refused $started_at no verdict"
mkdir -p "$STATE/held" 2>/dev/null && printf 'no verdict\n' 2>/dev/null >"$STATE/held/$job" \
    || { mkdir -p "$FALLBACK/held" && printf 'no verdict\n' >"$FALLBACK/held/$job"; } 2>/dev/null \
    || exit 1 # Nobody would know to let it go again. Not held, it is back in some seconds, and no disk is full for ever.
name=$job # The last task of an array has the array's own id, by which scontrol holds all of its tasks.
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
SLURM_CONF=$SLURM_CONF timeout -k 1 5 scontrol hold "$name" 2>/dev/null
exit 1 # Where even the hold did not arrive, slurmctld comes back with the job in some seconds.
