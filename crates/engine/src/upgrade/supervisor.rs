//! What systemd has to know: it ends a service with its main process, and that becomes another one.
//!
//! The old engine tells it while it is the main process (`NotifyAccess=main` in the unit).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where systemd listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The process that systemd started as the service.
const STARTED: &str = "SYSTEMD_EXEC_PID";

/// Refuses if this process is a service, and its supervisor would take the next one for a remnant.
pub(super) fn check() -> Result<(), String> {
    let own = env::var(STARTED).is_ok_and(|pid| pid == std::process::id().to_string());
    if own && env::var_os(SOCKET).is_none() {
        return Err("systemd would end the new engine with this one: the unit needs \
                    `NotifyAccess=main`; add it and restart the engine, this once"
            .to_owned());
    }
    Ok(())
}

/// Tells that the service is another process now. Without a supervisor there is nobody to tell.
pub(super) fn tell(pid: u32) -> io::Result<()> {
    match env::var_os(SOCKET) {
        Some(socket) => tell_at(&socket, pid),
        None => Ok(()),
    }
}

fn tell_at(socket: &OsStr, pid: u32) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let message = format!("MAINPID={pid}\n");
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_process_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("ashlar-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (supervisor, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().to_owned()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            tell_at(&address, 77).unwrap();
            let mut message = [0; 64];
            let length = supervisor.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"MAINPID=77\n");
        }
        assert!(tell_at(directory.path().join("none").as_os_str(), 77).is_err());
    }
}
