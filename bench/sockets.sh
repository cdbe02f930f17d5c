#!/bin/sh
# Measures the sockets between ranks of two hosts against iperf3 with as many streams, and writes bench/results/sockets.md:
# over loopback, where a rank's reads are also next to plain streams of the same process, and over a link between two network
# namespaces that is shaped to 1 Gbit/s. It needs root, iperf3, iproute2 and a binary: bench/sockets.sh [BINARY]
set -eu
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/plimsoll}")
work=$(mktemp -d)
near=plimsoll-a-$$ far=plimsoll-b-$$
clean() {
    ip netns del "$near" 2>/dev/null || true
    ip netns del "$far" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT INT TERM

rounds=5
streams=4

# The link: both ends shaped, a burst of a millisecond.
ip netns add "$near"
ip netns add "$far"
ip link add plimsoll0 netns "$near" type veth peer name plimsoll0 netns "$far"
for end in "$near 10.77.0.1" "$far 10.77.0.2"; do
    # shellcheck disable=SC2086 # A name and an address.
    set -- $end
    ip -n "$1" addr add "$2/24" dev plimsoll0
    ip -n "$1" link set plimsoll0 up
    ip -n "$1" link set lo up
    ip netns exec "$1" tc qdisc add dev plimsoll0 root tbf rate 1gbit burst 256kb latency 20ms
done

# iperf3 NAME SERVER_PREFIX CLIENT_PREFIX ADDRESS: bytes per second as received.
iperf() {
    $2 iperf3 -s -1 -p 5299 >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    $3 iperf3 -c "$4" -p 5299 -P "$streams" -t 4 -J >"$work/iperf.json"
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
    export PLIMSOLL_TOKEN=sockets
    $3 $host --host-rank 1 >/dev/null 2>"$work/said" &
    other=$!
    $2 $host --host-rank 0 >"$work/doctor.json" 2>>"$work/said" || { cat "$work/said"; exit 1; }
    wait "$other"
    python3 - "$1" "$work/doctor.json" >>"$work/numbers" <<'END'
import json, sys
ranks = json.load(open(sys.argv[2]))["ranks"]
print(sys.argv[1], min(read["bytes_per_second"] for rank in ranks for read in rank["network"]["reads"]))
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
text += """
A delay of 20 ms was not measured: this kernel has no netem. By arithmetic a rank has up to 32 MiB asked for and not arrived, and 1 Gbit/s over 20 ms holds 2.5 MB.
"""
open("bench/results/sockets.md", "w").write(text)
print(text)
END
