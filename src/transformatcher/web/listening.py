"""A host and a port → a socket to listen on, or one sentence."""

import socket
import sys

from transformatcher.errors import InputError


def bind(host: str, port: int) -> socket.socket:
    """Bound, not yet listening; port 0 takes a free one."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends small answers at once (TCP_NODELAY) only over sockets that say TCP: else each takes 40 ms more.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host}, --port {port}: no place to listen on ({error})") from error
    try:
        if sys.platform != "win32":  # where it would let two servers share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except OSError as error:
        listening.close()
        raise InputError(f"port {port} of {host} cannot be used ({error.strerror}); choose another, --port") from error
    return listening
