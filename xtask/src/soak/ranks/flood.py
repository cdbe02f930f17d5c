# Opens connections that say nothing to all ports that listen in this network namespace, in turn:
# flood.py ADDRESS FROM RATE. RATE: connections a second.
import socket, sys, time

LISTENS = "0A"
# Held at once: as many as a process may have open by default, and some left.
HELD_MAX = 800


def ports():
    # What listens comes first in these tables, before the hundreds of connections that are held here.
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(table) as lines:
            next(lines)
            for line in lines:
                row = line.split(None, 4)
                if row[3] != LISTENS:
                    break
                found.add(int(row[1].split(":")[1], 16))
    return sorted(found)


address, source, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
held, number, there, looked = [], 0, [], 0.0
while True:
    now = time.monotonic()
    if now - looked > 0.2:
        there, looked = ports(), now
    if there:
        one = socket.socket()
        one.setblocking(False)
        try:
            one.bind((source, 0))
            one.connect((address, there[number % len(there)]))
        except OSError:
            # Under way, or refused: a port may have closed meanwhile.
            pass
        held.append(one)
        number += 1
        if len(held) > HELD_MAX:
            held.pop(0).close()
    time.sleep(1 / rate)
