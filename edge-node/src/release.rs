//! Releases side by side on one machine, so that an upgrade that does not work is taken back without a person.
//!
//! ```text
//! ROOT/releases/HASH/bin/edge-node   one folder a release, named by the hash of its agent
//! ROOT/current, ROOT/previous        links to two of them; the service starts `current`
//! ROOT/trial                         hash and number of starts of a release that has not proved itself
//! ROOT/rolled-back                   hash of the last one that did not
//! ```
//!
//! Before each start, `ROOT/boot` (a shell script, since the new program may not even start) counts a trial, and after three starts
//! that did not become healthy it swaps the links. An agent that is healthy says so in its own state folder, which is all that its
//! user may write: links and releases belong to root.

use sha2::{Digest, Sha256};
use shared_net::host::{StateFolder, write_private};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Said by a healthy agent in its state folder: the hash of what runs.
const HEALTHY_FILE: &str = "healthy";
const TRIAL_FILE: &str = "trial";
const ROLLED_BACK_FILE: &str = "rolled-back";
/// Releases that are kept: the present one, the one before, and one more for a person who wants to look.
const RELEASES_MAX: usize = 3;

/// Why a release was not installed. What ran before still does.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// A file or folder.
    #[error("{doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The archive cannot be unpacked.
    #[error("unpacking {0}: want an archive of `make package`, its folder, or a program file")]
    Unpack(PathBuf),
    /// There is no agent in it.
    #[error("{0} holds no bin/edge-node")]
    Empty(PathBuf),
    /// A file is not what the list of hashes says.
    #[error("{0} is damaged: its SHA-256 is not the one in SHA256SUMS")]
    Damaged(PathBuf),
    /// The agent in it does not run here.
    #[error("{program} does not run on this machine ({why}): is it for this processor and system?")]
    DoesNotRun {
        /// Which.
        program: PathBuf,
        /// What happened.
        why: String,
    },
}

fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    move |source| ReleaseError::File { doing, path: path.to_owned(), source }
}

/// SHA-256 in hex of the program that runs, also when its file has been replaced meanwhile.
#[must_use]
pub fn running_sha256() -> Option<String> {
    let own = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe().ok()? };
    sha256(&own).ok()
}

fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut bytes) = (File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hex::encode(hash.finalize())),
            count => hash.update(bytes.get(..count).unwrap_or_default()),
        }
    }
}

/// What an upgrade did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgraded {
    /// The next start runs this one; it is on trial where another was there before.
    Installed(String),
    /// It is the present one already.
    Already(String),
}

/// Installs a release from an archive, its folder, or a program file, and makes the next start run it.
///
/// # Errors
/// [`ReleaseError`]; the present release stays.
pub fn upgrade(from: &Path, root: &Path) -> Result<Upgraded, ReleaseError> {
    let releases = root.join("releases");
    fs::create_dir_all(&releases).map_err(file("making", &releases))?;
    let staged = releases.join(format!(".incoming.{}", std::process::id()));
    drop(fs::remove_dir_all(&staged));
    let installed = stage(from, &staged).and_then(|hash| settle(&staged, root, hash));
    drop(fs::remove_dir_all(&staged));
    installed
}

/// Brings the release's files to `staged` and checks them. Returns the hash of its agent.
fn stage(from: &Path, staged: &Path) -> Result<String, ReleaseError> {
    fs::create_dir_all(staged.join("bin")).map_err(file("making", staged))?;
    let program = staged.join("bin/edge-node");
    let about = fs::metadata(from).map_err(file("reading", from))?;
    if about.is_dir() {
        copy(&["-R", "--", &from.join(".").to_string_lossy(), &staged.to_string_lossy()], "cp", from)?;
    } else if is_gzip(from).map_err(file("reading", from))? {
        let (from_text, staged_text) = (from.to_string_lossy(), staged.to_string_lossy());
        copy(&["-xzf", &from_text, "-C", &staged_text, "--strip-components=1", "--no-same-owner"], "tar", from)?;
    } else {
        fs::copy(from, &program).map_err(file("copying", from))?;
        let mut rights = about.permissions();
        #[cfg(unix)]
        std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o755);
        fs::set_permissions(&program, rights).map_err(file("making executable", &program))?;
    }
    if !program.is_file() {
        return Err(ReleaseError::Empty(from.to_owned()));
    }
    check_sums(staged)?;
    check_runs(&program)?;
    sha256(&program).map_err(file("reading", &program))
}

fn is_gzip(path: &Path) -> io::Result<bool> {
    let mut magic = [0; 2];
    Ok(File::open(path)?.read(&mut magic)? == 2 && magic == [0x1f, 0x8b])
}

/// `cp` and `tar` know links, rights and holes, and are on every machine that has a service manager.
fn copy(arguments: &[&str], tool: &str, from: &Path) -> Result<(), ReleaseError> {
    let done = Command::new(tool).args(arguments).stdin(Stdio::null()).status().map_err(file("calling cp or tar for", from))?;
    if done.success() { Ok(()) } else { Err(ReleaseError::Unpack(from.to_owned())) }
}

/// A release without a list of hashes is taken as it is: somebody built it here.
fn check_sums(staged: &Path) -> Result<(), ReleaseError> {
    let list = staged.join("SHA256SUMS");
    let text = match fs::read_to_string(&list) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ReleaseError::File { doing: "reading", path: list, source }),
    };
    for (wanted, name) in text.lines().filter_map(|line| line.split_once("  ")) {
        let path = staged.join(name.trim_start_matches("./"));
        if sha256(&path).map_err(file("reading", &path))? != wanted {
            return Err(ReleaseError::Damaged(path));
        }
    }
    Ok(())
}

/// A program for another processor, or one that lacks a library, is found before it is started as a service.
fn check_runs(program: &Path) -> Result<(), ReleaseError> {
    let failed = |why: String| ReleaseError::DoesNotRun { program: program.to_owned(), why };
    let done = Command::new(program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Gives the release its name, and the links and the trial their new values.
fn settle(staged: &Path, root: &Path, hash: String) -> Result<Upgraded, ReleaseError> {
    let (current, previous) = (root.join("current"), root.join("previous"));
    let home = PathBuf::from("releases").join(&hash);
    let before = fs::read_link(&current).ok();
    if before.as_ref() == Some(&home) {
        return Ok(Upgraded::Already(hash));
    }
    let place = root.join(&home);
    if !place.exists() {
        fs::rename(staged, &place).map_err(file("naming", &place))?;
    }
    // The trial first: a machine that stops in between starts the present release and finds it healthy.
    let trial = root.join(TRIAL_FILE);
    if let Some(before) = &before {
        put_link(&previous, before)?;
        fs::write(&trial, format!("{hash} 0\n")).map_err(file("writing", &trial))?;
    }
    put_link(&current, &home)?;
    prune(root, &[Some(home), before]);
    Ok(Upgraded::Installed(hash))
}

/// Replaces a link in one step.
fn put_link(link: &Path, target: &Path) -> Result<(), ReleaseError> {
    let fresh = link.with_extension("new");
    drop(fs::remove_file(&fresh));
    #[cfg(unix)]
    std::os::unix::fs::symlink(target, &fresh).map_err(file("making the link", &fresh))?;
    #[cfg(not(unix))]
    fs::write(&fresh, target.to_string_lossy().as_bytes()).map_err(file("making the link", &fresh))?;
    fs::rename(&fresh, link).map_err(file("making the link", link))
}

/// Removes the oldest releases beyond [`RELEASES_MAX`]. One that cannot be removed stays: the next upgrade tries again.
fn prune(root: &Path, kept: &[Option<PathBuf>]) {
    let kept: Vec<PathBuf> = kept.iter().flatten().map(|home| root.join(home)).collect();
    let others = fs::read_dir(root.join("releases")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut others: Vec<_> = others.filter(|path| !kept.contains(path)).collect();
    others.sort_by_key(|path| fs::metadata(path).and_then(|about| about.modified()).ok());
    let spare = (kept.len() + others.len()).saturating_sub(RELEASES_MAX).min(others.len());
    for path in others.iter().take(spare) {
        drop(fs::remove_dir_all(path));
    }
}

/// Notes that the running release is healthy.
///
/// # Errors
/// The state folder takes no files.
pub fn confirm(state: &StateFolder) -> io::Result<()> {
    let Some(hash) = running_sha256() else { return Ok(()) };
    write_private(&state.join(HEALTHY_FILE), hash.as_bytes())
}

/// The hash of the release that did not become healthy and was taken back, where the running program is an installed one.
#[must_use]
pub fn rolled_back() -> Option<String> {
    // ROOT/releases/HASH/bin/edge-node
    let own = std::env::current_exe().ok()?;
    let text = fs::read_to_string(own.ancestors().nth(4)?.join(ROLLED_BACK_FILE)).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}
