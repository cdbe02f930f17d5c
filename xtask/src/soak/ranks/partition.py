# Cuts the connections between the supervisor of one rank and all others, without rights over the network: it takes
# duplicates of their sockets (pidfd_getfd) and shuts them, or lets them drop all that comes in, on both sides.
# partition.py (close|silence) PID OTHER_PID...
import ctypes, errno, os, socket, struct, sys

PIDFD_OPEN, PIDFD_GETFD, SO_ATTACH_FILTER = 434, 438, 26
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    got = libc.syscall(number, *arguments)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def sockets(pid):
    """(local port, remote port, duplicate) of its connections."""
    established = {}
    with open(f"/proc/{pid}/net/tcp") as table:
        for line in table.readlines()[1:]:
            words = line.split()
            if words[3] == "01":
                established[words[9]] = [int(words[i].split(":")[1], 16) for i in (1, 2)]
    handle = call(PIDFD_OPEN, pid, 0)
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            to = os.readlink(f"/proc/{pid}/fd/{name}")
            inode = to[len("socket:[") : -1] if to.startswith("socket:[") else ""
            if inode in established:
                yield *established[inode], socket.socket(fileno=call(PIDFD_GETFD, handle, int(name), 0))
        except OSError as error:
            # Closed since the folder was listed.
            if error.errno not in (errno.ENOENT, errno.EBADF):
                raise


def silence(one):
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


how, pid, others = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]
own = list(sockets(pid))
pairs = {(remote, local) for local, remote, _ in own}
cut = [one for _, _, one in own] + [one for other in others for local, remote, one in sockets(other) if (local, remote) in pairs]
for one in cut:
    silence(one) if how == "silence" else one.shutdown(socket.SHUT_RDWR)
print(len(cut))
