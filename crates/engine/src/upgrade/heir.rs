//! The engine that takes over.
//!
//! Until it is told to go it has shared descriptors and does nothing with them. If anything fails it
//! ends on the spot, without closing anything in order: a socket that is shut down here would be shut
//! down for the other engine as well.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::passing::{Kind, receive, receive_descriptors, send};
use super::{Handover, VERSION};
use crate::engine::{Engine, Entry, lock};
use crate::handlers::Programs;
use crate::nbd_tls::Held;
use crate::restore::text;
use crate::state::{StateDir, Stored};
use crate::vhost::{FrozenGuest, HeldGuest};
use crate::{Options, StartError};
use logging::{Level, log};

/// What has come of it.
type Taken<T = ()> = Result<T, String>;

/// The line to the engine that is to be followed, and what it hands over.
pub(crate) struct Legacy {
    line: UnixStream,
    handover: Handover,
    descriptors: Vec<OwnedFd>,
}

/// Tells the other engine that this one is ready, and waits for what it hands over. Ends the process
/// if that is nothing.
///
/// # Errors
/// Standard input is no line to another engine.
pub(crate) fn take_over(state_dir: &std::path::Path) -> Result<(Legacy, StateDir), StartError> {
    let no_line = |e| StartError(format!("--heir: standard input is no other engine: {e}"));
    let line: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(no_line)?;
    let line = UnixStream::from(line);
    line.peer_addr().map_err(no_line)?;
    send(&line, Kind::Ready, &[]).map_err(no_line)?;
    match receive(&line) {
        Ok(Some((Kind::State, state))) => {
            // There may be keys in it.
            let state = Zeroizing::new(state);
            let read = || -> Taken<_> {
                let handover: Handover =
                    codec::frozen::from_bytes(VERSION, &state).map_err(|e| e.to_string())?;
                let descriptors = receive_descriptors(&line, handover.descriptors());
                let mut descriptors = descriptors.map_err(|e| e.to_string())?;
                let lock = descriptors.remove(0);
                Ok((handover, descriptors, StateDir::inherit(state_dir, lock)))
            };
            match read() {
                Ok((handover, descriptors, state)) => {
                    Ok((Legacy { line, handover, descriptors }, state))
                }
                Err(why) => give_up(&line, &why),
            }
        }
        // It goes on by itself.
        _ => std::process::exit(0),
    }
}

fn give_up(line: &UnixStream, why: &str) -> ! {
    log!(Level::Error, "engine", "can not take over: {why}");
    let _ = send(line, Kind::Failed, why.as_bytes());
    std::process::exit(1)
}

impl Legacy {
    /// The run that goes on.
    pub(crate) const fn instance(&self) -> u64 {
        self.handover.instance
    }

    /// Takes over into an engine that has no resources, and goes on with everything. Returns the line,
    /// to be given to [`follow`], once that is so.
    pub(crate) fn install(self, engine: &Arc<Engine>, options: &Options) -> UnixStream {
        let Legacy { line, handover, descriptors } = self;
        let thawed = thaw(engine, handover, descriptors);
        let ((guests, tls), listener) =
            match thawed.and_then(|held| Ok((held, crate::control::prepare(&options.socket)?))) {
                Ok(all) => all,
                Err(why) => give_up(&line, &why),
            };
        if send(&line, Kind::Taken, &[]).is_err() {
            std::process::exit(0);
        }
        match receive(&line) {
            Ok(Some((Kind::Go, _))) => {}
            // It goes on by itself.
            _ => std::process::exit(0),
        }
        if let Err(e) = engine.state.begin_run(engine.instance) {
            log!(Level::Warn, "engine", "guests will not go on: {e}");
        }
        for shard in 0..engine.shards.len() {
            if engine.on(shard, |shard| shard.resume()).is_err() {
                log!(Level::Error, "engine", "thread {shard} is gone; the engine ends");
                std::process::exit(1);
            }
        }
        guests.into_iter().for_each(HeldGuest::go_on);
        tls.go_on();
        let server = engine.clone();
        let serve = listener.publish().and_then(|listener| {
            let run = move || crate::control::serve(server, listener);
            crate::spawn_named("control", run).map_err(|e| e.to_string())
        });
        if let Err(why) = serve {
            log!(Level::Error, "engine", "there is no control socket: {why}");
        }
        let _ = send(&line, Kind::Running, &[]);
        line
    }
}

fn thaw(
    engine: &Arc<Engine>,
    handover: Handover,
    descriptors: Vec<OwnedFd>,
) -> Taken<(Vec<HeldGuest>, Held)> {
    let Handover { instance: _, shards, resources, exports, listeners, maps, guests, tls, keys } =
        handover;
    if shards.len() != engine.shards.len() {
        return Err(format!(
            "this engine has {} threads, and the other one has {}; start it with --threads",
            engine.shards.len(),
            shards.len()
        ));
    }
    let mut entries = Vec::new();
    let mut programs = BTreeMap::new();
    for (stored, shard) in resources {
        let stored: Stored = serde_json::from_str(&stored).map_err(|e| e.to_string())?;
        let (name, of) = (stored.config.name.clone(), stored.config.handlers.clone());
        let of = Programs::new(engine.handlers.clone(), of).map_err(|e| e.to_string())?;
        programs.insert(name, of);
        entries.push((stored, shard));
    }
    let mut descriptors = descriptors.into_iter();
    let mut ids = BTreeMap::new();
    for (nr, shard) in shards.into_iter().enumerate() {
        let own = descriptors.by_ref().take(shard.descriptors()).collect();
        let programs = programs.clone();
        let names = engine.on(nr, move |there| there.thaw(shard, own, &programs));
        for (name, id) in names.map_err(|stop| text(&stop))?? {
            ids.insert(name, (nr, id));
        }
    }
    let mut there = lock(&engine.resources);
    for (stored, shard) in entries {
        let name = stored.config.name.clone();
        let id = match ids.remove(&name) {
            Some((on, id)) if on == shard => id,
            _ => return Err(format!("resource {name} did not come along")),
        };
        for volume in &stored.config.volumes {
            let after = volume.backing.as_ref().and_then(|backing| backing.options.resync_after);
            // As the other engine has them: without a cycle.
            let _ = lock(&engine.order).set_after(volume.minor, after);
        }
        there.insert(name, Arc::new(Entry::new(shard, id, stored)));
    }
    drop(there);
    if let Some(name) = ids.keys().next() {
        return Err(format!("resource {name} is not configured"));
    }
    engine.keys.inherit(keys);
    engine.inherit_maps(&maps)?;
    let of_guests = guests.iter().map(FrozenGuest::descriptors).sum();
    let of_guests = descriptors.by_ref().take(of_guests).collect();
    let (tls, held) = engine.inherit_tls(tls, descriptors.collect())?;
    engine.inherit_exports(&exports, &listeners, tls).map_err(|stop| text(&stop))?;
    Ok((engine.inherit_guests(guests, of_guests)?, held))
}

/// Waits until the other engine is gone, and then goes on with what only one process can do.
pub(crate) fn follow(engine: &Arc<Engine>, mut line: UnixStream) {
    let _ = line.set_read_timeout(None);
    let _ = line.read_to_end(&mut Vec::new());
    // Somebody waits for these.
    engine.go_on_with_maps();
    for shard in 0..engine.shards.len() {
        let _ = engine.on(shard, |shard| shard.connect_wanted());
    }
}
