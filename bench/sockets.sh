#!/bin/sh
# Measures the sockets between ranks of two hosts against iperf3 with as many streams, and writes bench/results/sockets.md:
# over loopback, where a rank's reads are also next to plain streams of the same process, and over links between network
# namespaces that are shaped to 1 Gbit/s, the second with a round trip of 20 ms. It needs root, iperf3, iproute2, ethtool and a binary:
# bench/sockets.sh [BINARY]
set -eu
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/plimsoll}")
work=$(mktemp -d)
near=plimsoll-a-$$ far=plimsoll-b-$$ left=plimsoll-c-$$ right=plimsoll-d-$$ middle=plimsoll-m-$$
relay=
clean() {
    [ -z "$relay" ] || kill "$relay"
    for name in "$near" "$far" "$left" "$right" "$middle"; do
        ip netns del "$name" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean EXIT INT TERM

rounds=5
streams=4

for name in "$near" "$far" "$left" "$right" "$middle"; do
    ip netns add "$name"
    ip -n "$name" link set lo up
done

# end NAMESPACE ADDRESS: an end of a link of 1 Gbit/s, with a burst of two milliseconds.
end() {
    ip -n "$1" addr add "$2/24" dev plimsoll0
    ip -n "$1" link set plimsoll0 up
    ip netns exec "$1" tc qdisc add dev plimsoll0 root tbf rate 1gbit burst 256kb latency 50ms
}
ip link add plimsoll0 netns "$near" type veth peer name plimsoll0 netns "$far"
end "$near" 10.77.0.1
end "$far" 10.77.0.2

# The long link leads through a process that holds each frame for 10 ms in each direction. Large frames, so that it keeps up.
raw() {
    ip -n "$1" link set "$2" mtu 9000
    ip netns exec "$1" ethtool -K "$2" tx off tso off gso off gro off >/dev/null
    ip -n "$1" link set "$2" up
}
ip link add plimsoll0 netns "$left" type veth peer name one netns "$middle"
ip link add plimsoll0 netns "$right" type veth peer name other netns "$middle"
raw "$left" plimsoll0
raw "$right" plimsoll0
raw "$middle" one
raw "$middle" other
end "$left" 10.78.0.1
end "$right" 10.78.0.2
ip netns exec "$middle" python3 bench/delay.py one other 10 &
relay=$!

# iperf3 NAME SERVER_PREFIX CLIENT_PREFIX ADDRESS: bytes per second as received.
iperf() {
    $2 iperf3 -s -1 -p 5299 >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    $3 iperf3 -c "$4" -p 5299 -P "$streams" -O 1 -t 4 -J >"$work/iperf.json"
    wait "$server"
    python3 - "$1" "$work/iperf.json" >>"$work/numbers" <<'END'
import json, sys
found = json.load(open(sys.argv[2]))
print(sys.argv[1], found["end"]["sum_received"]["bits_per_second"] / 8)
END
}

# A rank of each of two hosts, which read each other's memory as in a run. The slower direction counts.
doctor() {
    host="unshare --pid --fork --mount-proc --kill-child $binary doctor --ranks 2 --hosts 2 --join $4:29611 --json --dir $work"
    PLIMSOLL_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
    export PLIMSOLL_TOKEN
    $3 $host --host-rank 1 >/dev/null 2>"$work/said" &
    other=$!
    $2 $host --host-rank 0 >"$work/doctor.json" 2>>"$work/said" || { cat "$work/said"; exit 1; }
    wait "$other"
    python3 - "$1" "$work/doctor.json" >>"$work/numbers" <<'END'
import json, sys
ranks = json.load(open(sys.argv[2]))["ranks"]
reads = [read for rank in ranks for read in rank["network"]["reads"]]
print(sys.argv[1], min(read["bytes_per_second"] for read in reads))
print(sys.argv[1] + "-trip", max(read["round_trip_seconds"] for read in reads))
END
}

cargo test -q -p plimsoll-ranks --lib --locked --no-run
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    cargo test -q -p plimsoll-ranks --lib --locked -- --ignored reads_next_to_plain_streams --nocapture |
        sed -n 's|^sockets: \([0-9]*\) bytes/s read by a rank, \([0-9]*\) by plain streams|loopback-reads \1\nloopback-plain \2|p' >>"$work/numbers"
    iperf loopback-iperf "" "" 127.0.0.1
    doctor link-reads "ip netns exec $near" "ip netns exec $far" 10.77.0.1
    iperf link-iperf "ip netns exec $near" "ip netns exec $far" 10.77.0.1
    doctor long-reads "ip netns exec $left" "ip netns exec $right" 10.78.0.1
    iperf long-iperf "ip netns exec $left" "ip netns exec $right" 10.78.0.1
done

python3 - "$work/numbers" "$rounds" "$streams" "$binary" <<'END'
import os, platform, statistics, sys
numbers, rounds, streams = {}, sys.argv[2], sys.argv[3]
for line in open(sys.argv[1]):
    name, value = line.split()
    numbers.setdefault(name, []).append(float(value))
middle = {name: statistics.median(values) for name, values in numbers.items()}
def row(what, name, of):
    least, most = min(numbers[name]), max(numbers[name])
    share = "" if of is None else f"{100 * middle[name] / middle[of]:.0f} %"
    return f"| {what} | {middle[name] / 1e6:,.0f} | {least / 1e6:,.0f} to {most / 1e6:,.0f} | {share} |\n"
cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
iperf = os.popen("iperf3 --version").readline().strip()
text = f"""# Sockets between hosts

`bench/sockets.sh`, on {os.cpu_count()} processors of {cpu}, Linux {platform.release()}, {iperf}: what one rank reads of another on another host, in a run's
way: {streams} connections, one thread that asks and one that answers. The median of {rounds} rounds; each round measures all of them in turn, so that what else the machine does
falls on all.

## Loopback

A rank reads 256 MiB again and again (`reads_next_to_plain_streams` in `crates/ranks/src/hosts/tests.rs`); plain streams have a thread at each end, in the same process. Floor: 60 % of iperf3.

| what | MB/s | from, to | of iperf3 |
|---|---|---|---|
"""
text += row("a rank reads another's memory", "loopback-reads", "loopback-iperf")
text += row(f"{streams} plain streams", "loopback-plain", "loopback-iperf")
text += row(f"iperf3 -P {streams}", "loopback-iperf", None)
text += """
## A link of 1 Gbit/s

Two network namespaces, a veth pair, `tc tbf rate 1gbit` at both ends; `plimsoll doctor --ranks 2 --hosts 2`, whose slower direction counts. Floor: 90 % of what the link gives. 1 Gbit/s is 125 MB/s of
packets, of which TCP's and IP's headers are 4 %.

| what | MB/s | from, to | of iperf3 |
|---|---|---|---|
"""
text += row("a rank reads another's memory", "link-reads", "link-iperf")
text += row(f"iperf3 -P {streams}", "link-iperf", None)
trip = middle["long-reads-trip"] * 1e3
text += f"""
## A link of 1 Gbit/s with a round trip of 20 ms

The same, through a process that holds each frame for 10 ms in each direction (`bench/delay.py`: this kernel has no netem), with packets of 9,000 bytes, so that the process keeps up. The round trip of a small read is
{trip:.1f} ms. Floor: 90 %.

| what | MB/s | from, to | of iperf3 |
|---|---|---|---|
"""
text += row("a rank reads another's memory", "long-reads", "long-iperf")
text += row(f"iperf3 -P {streams}", "long-iperf", None)
open("bench/results/sockets.md", "w").write(text)
print(text)
END
