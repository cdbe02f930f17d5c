//! Opens the port that a command listens on, and names the errors.

use plimsoll_base::{Error, Result};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Ports tried for the hint if the chosen one is in use.
const PORTS_TRIED: u16 = 50;

/// Opens a port; 0 picks a free one.
///
/// Errors: `port-in-use`, `address-refused`.
pub fn listen(address: IpAddr, port: u16) -> Result<TcpListener> {
    let at = |port: u16| SocketAddr::new(address, port);
    TcpListener::bind(at(port)).map_err(|err| match err.kind() {
        io::ErrorKind::AddrInUse => {
            let error = Error::new("port-in-use", format!("{}: another program listens there", at(port)));
            let last = port.saturating_add(PORTS_TRIED);
            let free = (port.saturating_add(1)..=last).find(|&port| TcpListener::bind(at(port)).is_ok());
            let free = free.map(|port| format!("the next free port: --port {port}"));
            let error = free.into_iter().fold(error, Error::hint);
            error.hint("any free port: --port 0")
        }
        _ => refused(address, port, &err),
    })
}

/// Returns the error of an address that cannot be bound.
pub fn refused(address: IpAddr, port: u16, err: &io::Error) -> Error {
    Error::new("address-refused", format!("{}: {err}", SocketAddr::new(address, port)))
        .hint("an address of this machine and a port above 1023: --bind 127.0.0.1 --port 1876")
}
