//! What the demo has to clean up: processes, namespaces, mounts and folders. It is done at the end of a run, whatever
//! the end is, and by the panic hook, since a panic may not run destructors.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::NodeNr;

/// Shared by whoever may have to clean up.
#[derive(Clone, Debug, Default)]
pub struct Leftovers(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    children: BTreeMap<NodeNr, Child>,
    namespaces: Vec<String>,
    mounts: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    /// Stays if the run fails.
    logs: Option<PathBuf>,
}

impl Leftovers {
    /// Nothing yet. A panic anywhere in this process cleans up from now on.
    pub fn new() -> Leftovers {
        let leftovers = Leftovers::default();
        let (mine, before) = (leftovers.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            mine.clean(true);
        }));
        leftovers
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A folder that is removed with everything in it.
    pub fn folder(&self, path: &Path) {
        self.lock().folders.push(path.to_owned());
    }

    /// A file system that is unmounted.
    pub fn mount(&self, path: &Path) {
        self.lock().mounts.push(path.to_owned());
    }

    /// A network namespace that is deleted, with what is in it of interfaces.
    pub fn namespace(&self, name: &str) {
        self.lock().namespaces.push(name.to_owned());
    }

    /// Those that were made; they are no longer deleted by this.
    pub fn take_namespaces(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().namespaces)
    }

    /// A folder that a failed run leaves behind.
    pub fn logs(&self, path: &Path) {
        self.lock().logs = Some(path.to_owned());
    }

    /// The process of a node.
    pub fn child(&self, node: NodeNr, child: Child) {
        let before = self.lock().children.insert(node, child);
        assert!(before.is_none(), "a node has one process at a time");
    }

    /// Process ids by node.
    pub fn pids(&self) -> BTreeMap<NodeNr, u32> {
        self.lock().children.iter().map(|(node, child)| (*node, child.id())).collect()
    }

    /// The first node whose process has ended by itself, and how.
    pub fn casualty(&self) -> Option<(NodeNr, ExitStatus)> {
        let mut inner = self.lock();
        let mut ended = inner.children.iter_mut();
        ended.find_map(|(node, child)| Some((*node, child.try_wait().ok()??)))
    }

    /// Kills the process of a node with SIGKILL and returns once it is gone, with the moment of
    /// the kill.
    ///
    /// # Errors
    /// If it had ended already.
    pub fn kill(&self, node: NodeNr) -> io::Result<Instant> {
        let child = self.lock().children.remove(&node);
        let mut child = child.ok_or(io::ErrorKind::NotFound)?;
        let moment = Instant::now();
        child.kill()?;
        child.wait()?;
        Ok(moment)
    }

    /// Waits until the process of a node has ended by itself; `None` if it does not.
    pub fn wait(&self, node: NodeNr, patience: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            let mut inner = self.lock();
            let status = inner.children.get_mut(&node)?.try_wait().ok()?;
            if status.is_some() {
                inner.children.remove(&node);
                return status;
            }
            drop(inner);
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Lets everything live on.
    pub fn keep(&self) {
        let mut inner = self.lock();
        inner.children.clear();
        inner.namespaces.clear();
        inner.mounts.clear();
        inner.folders.clear();
    }

    /// Ends every process, unmounts, and removes every folder, but for the logs of a run that `failed`.
    /// Returns where they are.
    pub fn clean(&self, failed: bool) -> Option<PathBuf> {
        let mut inner = self.lock();
        for (_, mut child) in std::mem::take(&mut inner.children) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in std::mem::take(&mut inner.namespaces) {
            let mut ip = Command::new("ip");
            let _ = ip.args(["netns", "delete", &name]).stdin(Stdio::null()).output();
        }
        for mount in std::mem::take(&mut inner.mounts) {
            // Whoever still looks at it keeps it until then, out of sight.
            let _ = rustix::mount::unmount(&mount, UnmountFlags::DETACH);
        }
        let logs = inner.logs.take().filter(|logs| failed && logs.is_dir());
        for folder in std::mem::take(&mut inner.folders) {
            match &logs {
                Some(logs) if logs.starts_with(&folder) => remove_all_but(&folder, logs),
                _ => {
                    let _ = fs::remove_dir_all(folder);
                }
            }
        }
        logs
    }
}

/// Empties a folder except for one of its entries.
fn remove_all_but(folder: &Path, kept: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path == kept {
            continue;
        }
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    #[test]
    fn a_failed_run_leaves_its_logs_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, disks) = (parent.path().join("run"), parent.path().join("disks"));
        let logs = folder.join("logs");
        for path in [&logs, &folder.join("state/inner"), &disks] {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
        }
        let leftovers = Leftovers::default();
        leftovers.folder(&folder);
        leftovers.folder(&disks);
        leftovers.logs(&logs);
        leftovers.child(1, sleeper());
        let pid = leftovers.pids()[&1];
        assert_eq!(leftovers.clean(true), Some(logs.clone()));
        assert!(logs.join("file").exists() && !folder.join("state").exists() && !disks.exists());
        assert!(!is_alive(pid));
        assert_eq!(leftovers.clean(false), None, "nothing is done twice");
    }

    #[test]
    fn a_good_run_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        fs::create_dir_all(folder.join("logs")).unwrap();
        let leftovers = Leftovers::default();
        leftovers.folder(&folder);
        leftovers.logs(&folder.join("logs"));
        assert_eq!(leftovers.clean(false), None);
        assert!(!folder.exists());
    }

    #[test]
    fn a_process_that_ends_by_itself_is_noticed() {
        let leftovers = Leftovers::default();
        leftovers.child(2, Command::new("false").spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(10);
        let (node, status) = loop {
            if let Some(found) = leftovers.casualty() {
                break found;
            }
            assert!(Instant::now() < end);
        };
        assert_eq!((node, status.success()), (2, false));
        assert!(leftovers.wait(2, Duration::from_secs(1)).is_some());
        assert!(leftovers.kill(2).is_err());
    }

    #[test]
    fn a_killed_process_is_gone() {
        let leftovers = Leftovers::default();
        leftovers.child(3, sleeper());
        let pid = leftovers.pids()[&3];
        leftovers.kill(3).unwrap();
        assert!(!is_alive(pid) && leftovers.casualty().is_none());
    }
}
