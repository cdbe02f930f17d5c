"""Carries frames between two interfaces and holds each for a time: a long path, where the kernel has no netem.

Used by sockets.sh and bad_network.sh as root, in a namespace of its own: delay.py ONE OTHER MILLISECONDS [LOST]. LOST is the part of
frames that is lost. Frames must be no larger than the interfaces' MTU
and have their checksums: `ethtool -K DEV tx off tso off gso off gro off` at all ends.
"""

import random
import select
import socket
import sys
import time
from collections import deque

FRAME_BYTES_MAX = 16384
# Of one direction; more are dropped, as a router does.
FRAMES_MAX = 20000
# Taken at once before the other direction has its turn.
TURN = 64
NAP_SECONDS = 0.0002


# setsockopt's names of buffers that may be larger than an ordinary process's.
SO_SNDBUFFORCE, SO_RCVBUFFORCE, BUFFER_BYTES = 32, 33, 64 << 20
ETH_P_ALL = 3


def opened(name):
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        found.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    found.bind((name, 0))
    found.setblocking(False)
    return found


def main():
    ends = [opened(sys.argv[1]), opened(sys.argv[2])]
    hold = float(sys.argv[3]) / 1e3
    lost = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    waiting = [deque(), deque()]
    while True:
        moved = False
        for at, end in enumerate(ends):
            try:
                for _ in range(TURN):
                    frame, source = end.recvfrom(FRAME_BYTES_MAX)
                    # What this process sent itself comes back as an outgoing frame.
                    if source[2] == socket.PACKET_OUTGOING:
                        continue
                    moved = True
                    if len(waiting[at]) < FRAMES_MAX and random.random() >= lost:
                        waiting[at].append((time.monotonic() + hold, frame))
            except BlockingIOError:
                pass
            queue, other = waiting[at], ends[1 - at]
            now = time.monotonic()
            while queue and queue[0][0] <= now:
                try:
                    other.send(queue[0][1])
                except BlockingIOError:
                    break
                except OSError as err:
                    print(f"delay: {len(queue[0][1])} bytes: {err}", file=sys.stderr)
                queue.popleft()
                moved = True
        if not moved:
            select.select(ends, [], [], NAP_SECONDS if any(waiting) else 0.05)


main()
