//! Paths that join a connection which has one (`load-balance-paths`).
//!
//! A connection is made by one path, on which both nodes agree, so both know who accepted its control socket. All
//! other paths are tried from then on, for as long as the connection lasts, and each is used as soon as both of
//! its sockets are there. A path that was in use and ends is the end of the connection, as in DRBD: what was on
//! its way on it may be lost.

use codec::config::PathConfig;
use codec::wire::Stream;
use replication::io::LinkLoss;
use runtime::{Conn, Errno};
use vocab::options::NetOptions;

use super::dance::Dance;
use super::stream::LinkId;
use super::{Event, Link, State, Up};
use crate::shard::io::Io;
use logging::{Level, log};

impl Up {
    /// True if the peer's connection belongs to a path that may join.
    pub(super) fn joins_by(&self, conn: &Conn) -> bool {
        self.joining.iter().any(|dance| dance.has_path_of(conn))
    }

    /// The peer has opened a socket by a path that may join.
    pub(super) fn accepted(&mut self, io: &mut Io, net: &NetOptions, conn: Conn) {
        if let Some(dance) = self.joining.iter_mut().find(|dance| dance.has_path_of(&conn)) {
            dance.accepted(io, net, conn);
        }
    }

    /// Tries no path any more that is not among these.
    pub(super) fn leave(&mut self, io: &mut Io, link: LinkId, paths: &[PathConfig]) {
        self.joining.retain(|dance| {
            let stays = dance.path().is_some_and(|path| paths.contains(&path));
            if let (false, Some(path)) = (stays, dance.path()) {
                io.listeners.forget_path(link.resource, link.node, path);
            }
            stays
        });
    }

    fn tries(&self, path: PathConfig) -> bool {
        self.joining.iter().any(|dance| dance.path() == Some(path))
    }

    fn lacks(&self, path: PathConfig) -> bool {
        !self.paths.contains(&path) && !self.tries(path)
    }
}

impl Link {
    /// There are paths that are neither used nor tried, and should be.
    pub(super) fn misses_paths(&self) -> bool {
        let State::Up(up) = &self.state else { return false };
        let wanted = self.net.load_balance_paths && !self.paused && up.ended.is_none();
        wanted && self.paths.iter().any(|path| up.lacks(*path))
    }

    /// Tries them.
    pub(super) fn join_missing(&mut self, io: &mut Io) {
        if !self.misses_paths() {
            return;
        }
        let State::Up(up) = &mut self.state else { return };
        for path in &self.paths {
            if up.lacks(*path) {
                let mut dance = Dance::joining(self.id, *path);
                dance.start(io, &self.net, &self.label);
                up.joining.push(dance);
            }
        }
    }

    /// Takes in a path whose sockets are both there.
    pub(super) fn joined(&mut self, io: &mut Io) -> Option<Event> {
        let State::Up(up) = &mut self.state else { return None };
        let mut joined = false;
        for dance in &mut up.joining {
            let Some((path, data, control)) = dance.take_pair() else { continue };
            io.listeners.forget_path(self.id.resource, self.id.node, path);
            let place = |path: &PathConfig| self.paths.iter().position(|other| other == path);
            let at = up.paths.partition_point(|other| place(other) < place(&path));
            up.paths.insert(at, path);
            up.data.insert(at, data);
            up.control.insert(at, control);
            let PathConfig { local, remote } = path;
            log!(Level::Info, self.label, "the path {local} to {remote} has joined");
            joined = true;
        }
        if !joined {
            return None;
        }
        up.joining.retain(|dance| !dance.is_over());
        if self.paused {
            up.data.cancel(&mut io.ring);
            up.control.cancel(&mut io.ring);
        }
        Some(Event::Joined)
    }

    /// A path has delivered nothing of what is next for too long, while others did.
    pub(super) fn stuck(&mut self, io: &mut Io, stream: Stream) -> Event {
        let State::Up(up) = &mut self.state else { unreachable!("only a connection is stuck") };
        let at = up.channel(stream).silent();
        let silent = at.map(|at| up.paths[at]);
        let by = silent.map(|p| format!(" by the path {} to {}", p.local, p.remote));
        log!(
            Level::Warn,
            self.label,
            "connection closed, {stream} stream: a part of it has not come{} for {} ms, while later ones have by \
             other paths; it is made anew, check the network of that path if this comes again",
            by.unwrap_or_default(),
            self.net.timeout.as_millis()
        );
        self.drop_now(io);
        self.failed = silent;
        Event::Down(LinkLoss::Broken)
    }
}

/// A socket of a path has ended, and the connection with it.
pub(super) fn tell_end(label: &str, path: PathConfig, errno: Option<Errno>) {
    let PathConfig { local, remote } = path;
    match errno {
        Some(errno) => {
            log!(
                Level::Info,
                label,
                "the path {local} to {remote} is lost, and the connection with it: {errno}"
            );
        }
        None => log!(Level::Debug, label, "the peer has closed the path {local} to {remote}"),
    }
}
