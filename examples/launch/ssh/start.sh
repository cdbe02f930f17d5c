#!/bin/sh
# Written by `plimsoll launch ssh`: 2 hosts, 8 ranks each, on cards.
# It ends with the run; ctrl-c lets all hosts save after their step. PLIMSOLL_SSH may name another program than ssh, with options.
set -u
folder="$(cd "$(dirname "$0")" && pwd)" || exit 2
restarts_max=3

# What a host does. Its words are its number and host 0's address.
remote='IFS= read -r PLIMSOLL_TOKEN || exit 2
export PLIMSOLL_TOKEN
cd /shared/project || exit 2
exec 3<&0 </dev/null
[ "$(ulimit -S -n)" = unlimited ] || [ "$(ulimit -S -n)" -ge 1024 ] || ulimit -S -n 1024 || {
    echo "error: the run opens up to 1024 files at a time, and this host allows $(ulimit -H -n)" >&2
    exit 2
}
plimsoll train runs/qwen2.5-7b-grpo.toml --ranks 16 --hosts 2 --host-rank "$1" --join "$2:29500" --resume --set run.threads=4 3<&- &
pid=$!
(cat <&3; kill -TERM $pid) >/dev/null 2>&1 &
watch=$!
wait $pid
code=$?
kill $watch 2>/dev/null
exit $code
'

list="$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$folder/hosts")"
count="$(printf '%s\n' "$list" | grep -c .)"
if [ "$count" -ne 2 ]; then
    echo "error: $folder/hosts has $count hosts, and the run was planned for 2" >&2
    exit 2
fi
case "$list" in
    *HOST-*) echo "error: fill in the names of the hosts in $folder/hosts" >&2; exit 2 ;;
esac

# One word of a shell on the other side, which may be of another kind than this one.
quoted() {
    printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

# Ends when the host has ended; its exit code is the next line of the file `codes`.
host() { # number name address
    ${PLIMSOLL_SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=15} "$2" \
        "exec sh -c $(quoted "$remote") host $1 $(quoted "$3")" <"$work/in.$1" 2>&1
    echo $? >>"$work/codes"
}

# Starts all hosts and waits for them. Sets `code`.
start() {
    work="$(mktemp -d)" || exit 2
    : >"$work/codes"
    mkfifo "$work/hold"
    # Everything that reads `hold` ends when this is closed, also if this script is killed.
    exec 9<>"$work/hold"
    PLIMSOLL_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
    first="$(printf '%s\n' "$list" | head -n 1)"
    number=0
    printf '%s\n' "$list" >"$work/list"
    while read -r name address; do
        [ "$number" -gt 0 ] || first="${address:-${name#*@}}"
        mkfifo "$work/in.$number"
        # By `exec`, because a shell keeps a copy of what it closes for one command.
        (exec 9>&-; printf '%s\n' "$PLIMSOLL_TOKEN"; exec cat) <"$work/hold" >"$work/in.$number" &
        (
            exec 9>&-
            host "$number" "$name" "$first" | while IFS= read -r line; do
                printf '%s: %s\n' "$name" "$line"
            done
        ) &
        number=$((number + 1))
    done <"$work/list"
    ended=0 since=0
    while [ "$ended" -lt "$number" ]; do
        ended="$(grep -c . "$work/codes")"
        if grep -qv '^0$' "$work/codes" && [ $((since += 1)) -gt 20 ]; then
            exec 9>&-
        fi
        sleep 1
    done
    exec 9>&-
    # The first host that failed for a reason of its own, else the first that failed.
    code="$(grep -vx -e 0 -e 5 -e 130 -e 143 "$work/codes" | head -n 1)"
    code="${code:-$(grep -vx 0 "$work/codes" | head -n 1)}"
    code="${code:-0}"
    rm -rf "$work"
}

stopped=
trap 'stopped=1; exec 9>&-' INT TERM HUP
done=0
while :; do
    start
    # 2 and 3: the run file, or memory; another start would end in the same way. 130 and 143: it was asked to end.
    case $code in
        0|2|3|130|143) exit "$code" ;;
    esac
    [ -z "$stopped" ] || exit "$code"
    if [ "$done" -ge "$restarts_max" ]; then
        echo "the run ended with exit code $code after $done of $restarts_max restarts" >&2
        exit "$code"
    fi
    done=$((done + 1))
    echo "the run ended with exit code $code: restart $done of $restarts_max" >&2
done
