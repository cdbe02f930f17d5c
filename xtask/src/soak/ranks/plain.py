# Makes the kernel send frames of one packet with their checksums through an interface, for one that carries frames:
# plain.py INTERFACE. It does what `ethtool -K INTERFACE rx off tx off sg off tso off gso off gro off` does.
import array, fcntl, socket, struct, sys

SIOCETHTOOL = 0x8946
# ETHTOOL_SRXCSUM, STXCSUM, SSG, STSO, SGSO, SGRO.
SWITCHES = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)

control = socket.socket()
for switch in SWITCHES:
    value = array.array("B", struct.pack("II", switch, 0))
    request = struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0])
    try:
        fcntl.ioctl(control, SIOCETHTOOL, request.ljust(40, b"\0"))
    except OSError:
        # An interface without that switch does not do it.
        pass
