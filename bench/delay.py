"""Carries frames between two interfaces and holds each for a time: a long path, where the kernel has no netem.

Used by sockets.sh, bad_network.sh and `cargo xtask soak --hosts` as root, in a namespace of its own:
delay.py ONE OTHER MILLISECONDS [LOST [LATE [PORT]]]. LOST is the part of frames that is lost, LATE the part that is held
up to 50 ms longer, so that others overtake it. From SIGUSR1 on, TCP passes for PORT alone. Frames must be no larger than
the interfaces' MTU and have their checksums: `ethtool -K DEV tx off tso off gso off gro off` at all ends.
"""

import heapq
import random
import select
import signal
import socket
import sys
import time

FRAME_BYTES_MAX = 16384
# Of one direction; more are dropped, as a router does.
FRAMES_MAX = 20000
# Taken at once before the other direction has its turn.
TURN = 64
NAP_SECONDS = 0.0002
LATE_SECONDS_MAX = 0.05


# setsockopt's names of buffers that may be larger than an ordinary process's.
SO_SNDBUFFORCE, SO_RCVBUFFORCE, BUFFER_BYTES = 32, 33, 64 << 20
ETH_P_ALL = 3
# Where a frame of IPv4 without options has its protocol and TCP's two ports.
PROTOCOL_AT, PORTS_AT, TCP = 23, 34, 6


def opened(name):
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        found.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    found.bind((name, 0))
    found.setblocking(False)
    return found


def is_of_other_port(frame, port):
    if len(frame) < PORTS_AT + 4 or frame[PROTOCOL_AT] != TCP:
        return False
    ends = frame[PORTS_AT : PORTS_AT + 4]
    return port not in (int.from_bytes(ends[:2], "big"), int.from_bytes(ends[2:], "big"))


def main():
    ends = [opened(sys.argv[1]), opened(sys.argv[2])]
    hold = float(sys.argv[3]) / 1e3
    lost = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    late = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    port = int(sys.argv[6]) if len(sys.argv) > 6 else 0
    alone = []
    signal.signal(signal.SIGUSR1, lambda *_: alone.append(port))
    # By the time at which each leaves, then in the order in which they came.
    waiting, count = [[], []], 0
    while True:
        moved = False
        for at, end in enumerate(ends):
            queue, other = waiting[at], ends[1 - at]
            try:
                for _ in range(TURN):
                    frame, source = end.recvfrom(FRAME_BYTES_MAX)
                    # What this process sent itself comes back as an outgoing frame.
                    if source[2] == socket.PACKET_OUTGOING:
                        continue
                    moved = True
                    if alone and is_of_other_port(frame, alone[0]):
                        continue
                    if len(queue) < FRAMES_MAX and random.random() >= lost:
                        count += 1
                        more = random.random() * LATE_SECONDS_MAX if late and random.random() < late else 0
                        heapq.heappush(queue, (time.monotonic() + hold + more, count, frame))
            except BlockingIOError:
                pass
            now = time.monotonic()
            while queue and queue[0][0] <= now:
                try:
                    other.send(queue[0][2])
                except BlockingIOError:
                    break
                except OSError as err:
                    print(f"delay: {len(queue[0][2])} bytes: {err}", file=sys.stderr)
                heapq.heappop(queue)
                moved = True
        if not moved:
            select.select(ends, [], [], NAP_SECONDS if any(waiting) else 0.05)


main()
