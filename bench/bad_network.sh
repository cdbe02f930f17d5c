#!/bin/sh
# Tries a run of two hosts over networks that people have: one that loses 5 % of its packets, one that halts for a second, one that halts for
# 30 s and comes back, hosts whose clocks differ by a day, a host that is started again alone. Each host is a network and a process namespace
# of this machine; between them is a process that carries frames (bench/delay.py). Needs root, iproute2, ethtool, faketime for the clocks, and
# a binary; everything is written into FOLDER.
#
#   sh bench/bad_network.sh FOLDER [BINARY]
set -u
[ $# -ge 1 ] || { echo "usage: sh bench/bad_network.sh FOLDER [BINARY]" >&2; exit 2; }
mkdir -p "$1/bin"
folder="$(cd "$1" && pwd)"
plimsoll="${2:-target/debug/plimsoll}"
cp "$plimsoll" "$folder/bin/plimsoll"
plimsoll="$folder/bin/plimsoll"
. bench/launchers/common.sh
left=plimsoll-l-$$ right=plimsoll-r-$$ middle=plimsoll-m-$$
relay=
clean() {
    [ -z "$relay" ] || kill -KILL "$relay" 2>/dev/null
    for name in "$left" "$right" "$middle"; do ip netns del "$name" 2>/dev/null; done
}
trap clean EXIT INT TERM
PLIMSOLL_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
export PLIMSOLL_TOKEN

link() { # namespace interface
    ip netns exec "$1" ethtool -K "$2" tx off tso off gso off gro off >/dev/null
    ip -n "$1" link set "$2" up
}
for name in "$left" "$right" "$middle"; do ip netns add "$name" && ip -n "$name" link set lo up; done
ip link add plimsoll0 netns "$left" type veth peer name one netns "$middle"
ip link add plimsoll0 netns "$right" type veth peer name other netns "$middle"
ip -n "$left" addr add 10.79.0.1/24 dev plimsoll0
ip -n "$right" addr add 10.79.0.2/24 dev plimsoll0
link "$left" plimsoll0 && link "$right" plimsoll0 && link "$middle" one && link "$middle" other

carry() { # milliseconds loss
    [ -z "$relay" ] || { kill -KILL "$relay"; wait "$relay" 2>/dev/null; }
    ip netns exec "$middle" python3 bench/delay.py one other "$1" "$2" &
    relay=$!
}

# Starts a host of the run in `first.toml`; its output goes to NAME-HOST.log. $3 and the rest: words before the command.
host() { # name number words...
    name="$1" number="$2" where="$left"
    shift 2
    [ "$number" = 0 ] || where="$right"
    (cd "$folder/project" && exec ip netns exec "$where" unshare --pid --fork --mount-proc --kill-child "$@" "$plimsoll" train first.toml \
        --ranks 4 --hosts 2 --host-rank "$number" --join 10.79.0.1 --join-seconds 20 $resume >"$folder/$name-$number.log" 2>&1) &
    eval "host$number=$!"
}
both() { host "$1" 0; host "$1" 1; }
ended() { wait "$host0"; code0=$?; wait "$host1"; code1=$?; }
saved() { until [ -e "$folder/project/$1/checkpoints/latest" ]; do sleep 0.1; done; }
seconds() { echo "$(date +%s.%N) - $begun" | bc | cut -c 1-4; }
resume=

project alone && (cd "$folder/project" && "$plimsoll" train first.toml >/dev/null 2>&1)
wanted="$(weights alone)"

carry 0 0
project plain && begun="$(date +%s.%N)" && both plain && ended
fact "2 hosts leave the weights of one process, in $(seconds) s" [ "$(weights plain)" = "$wanted" ]

carry 0 0.05
project loss && begun="$(date +%s.%N)" && both loss && ended
fact "a network that loses 5 % of its packets changes nothing but the time: $(seconds) s" [ "$(weights loss)" = "$wanted" ]

carry 0 0
project halt && both halt && saved halt && kill -STOP "$relay" && sleep 1 && kill -CONT "$relay" && ended
fact "one that halts for a second does not end the run" [ "$(weights halt)" = "$wanted" ]

project long && both long && saved long && kill -STOP "$relay" && begun="$(date +%s.%N)"
wait "$host0"; code0=$?; first="$(seconds)"
wait "$host1"; code1=$?
fact "one that halts for 30 s ends it on both sides after $first and $(seconds) s (exit codes $code0 and $code1)" [ "$code0" -ne 0 -a "$code1" -ne 0 ]
fact "by name: $(grep -h -o 'error\[rank[^.;]*' "$folder/long-0.log" | head -1)" grep -q 'error\[rank' "$folder/long-0.log"
sleep "$(echo "30 - $(seconds)" | bc)" && kill -CONT "$relay"
resume=--resume && both long && ended && resume=
fact "once it is back the run goes on from a checkpoint" [ "$(weights long)" = "$wanted" ]

# One host is ended from outside and started again alone, as by a launcher that restarts what has failed.
project again && both again && saved again
kill -KILL "$host1" && sleep 1 && resume=--resume && host again 1 && ended && resume=
fact "a host that comes back alone is refused: $(grep -h -o 'error\[[^.;]*' "$folder/again-1.log" | head -1 | cut -c 1-160)" [ "$code0" -ne 0 -a "$code1" -ne 0 ]
resume=--resume && both again && ended && resume=
fact "both together go on" [ "$(weights again)" = "$wanted" ]

if command -v faketime >/dev/null; then
    project clocks && host clocks 0 && host clocks 1 faketime -f +1d && ended
    fact "clocks that differ by a day change no bit" [ "$(weights clocks)" = "$wanted" ]
    fact "and are named: $(grep -h -o 'warning.*clock[^.;]*' "$folder"/clocks-?.log | head -1 | cut -c 1-160)" grep -qi clock "$folder/clocks-0.log"
else
    echo "skipped  clocks: faketime is not installed"
fi
exit "$((failures > 0))"
