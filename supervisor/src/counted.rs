//! Whether what is said to have been counted for a container was counted on this host.
//!
//! Who writes a pod writes its annotations, and containerd hands them on; so a pod could pass for one that was counted, and have a
//! share past every quota of its cluster. `gpool-device-plugin`, which is root's, is told a seal as who administers the host alone is, and puts it on what
//! it says. The kubelet keeps what the plugin said of a container, for as long as there is its pod and over boots: so long the seal has
//! to be the same.

use crate::lease::{Leases, failed};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseRequest, Seal};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// In `[paths] state_dir`.
const NAME: &str = "seal";

/// What follows.
const WITHOUT: &str =
    "a container that was counted under another seal than this supervisor's starts again in a new pod alone";

/// The seal of this host, looked for when somebody first wants it: hosts that no cluster drives have none.
#[derive(Debug)]
pub struct HostSeal {
    state_dir: PathBuf,
    seal: Mutex<Option<Seal>>,
}

impl HostSeal {
    /// That in `state_dir`, or what is made there.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), seal: Mutex::default() }
    }

    /// The seal, which stays the same.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn get(&self) -> Result<Seal, ErrorBody> {
        // Held meanwhile, or two who come first would make one each.
        let mut kept = self.seal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seal) = &*kept {
            return Ok(seal.clone());
        }
        let seal = open(&self.state_dir).map_err(|cause| failed("the seal cannot be made", cause))?;
        *kept = Some(seal.clone());
        Ok(seal)
    }
}

/// The seal of this host, which is made where there is none, or something else in its place. One that cannot be kept holds until the
/// supervisor ends, and that is told; a file that cannot be read now is left for the next supervisor.
///
/// # Errors
/// The kernel gives no random bytes.
fn open(state_dir: &Path) -> io::Result<Seal> {
    let file = state_dir.join(NAME);
    match read(&file) {
        Ok(Some(seal)) => return Ok(seal),
        Ok(None) => {}
        Err(cause) if cause.kind() == ErrorKind::InvalidData => log!("{}: {cause}; it is made anew", file.display()),
        Err(cause) => {
            log!("{} cannot be read ({cause}): {WITHOUT}", file.display());
            return random().map(Seal::of);
        }
    }
    let seal = Seal::of(random()?);
    if let Err(cause) = write(&file, &seal) {
        log!("{} cannot be written ({cause}): {WITHOUT}", file.display());
    }
    Ok(seal)
}

fn read(file: &Path) -> io::Result<Option<Seal>> {
    match fs::read_to_string(file) {
        Ok(text) => {
            let seal =
                Seal::parse(text.trim_end()).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is no seal"))?;
            // One from a backup may have become others' to read.
            if fs::metadata(file)?.permissions().mode() & 0o077 != 0 {
                let repaired = fs::set_permissions(file, Permissions::from_mode(0o600));
                repaired.unwrap_or_else(|cause| log!("{} can be read by others ({cause})", file.display()));
            }
            Ok(Some(seal))
        }
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

/// For root's eyes, whole or not at all.
fn write(file: &Path, seal: &Seal) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let new = file.with_extension("new");
    // One that was left half-way may have been made by a hand with other rights.
    fs::remove_file(&new).or_else(|cause| if cause.kind() == ErrorKind::NotFound { Ok(()) } else { Err(cause) })?;
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(opened, "{}", seal.text())?;
    opened.sync_all()?;
    fs::rename(&new, file)?;
    File::open(directory)?.sync_all()
}

impl Leases {
    /// Takes the seal out of what is asked for, which is kept and shown without it.
    ///
    /// # Errors
    /// It says that a cluster has counted it, and this host's device plugin has not said so.
    pub fn unseal(&self, asked: &mut LeaseRequest) -> Result<(), ErrorBody> {
        unseal(&self.seal, asked)
    }
}

fn unseal(own: &HostSeal, asked: &mut LeaseRequest) -> Result<(), ErrorBody> {
    let seal = asked.request.seal.take();
    match &asked.request.resource {
        Some(resource) if seal != Some(own.get()?) => Err(ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            format!(
                "an annotation says that {resource} was counted for the container, and it is not of this host's gpool-device-plugin"
            ),
            "ask in the container's resource limits, gpool.io/percent: 30, and write no annotation gpool.io/resource; if that is so, \
             the pod is older than this host's seal: delete it, so that the next one is counted anew",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_seal_for_root_alone() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().join("not/made");
        let seal = open(&state_dir).unwrap();
        let file = state_dir.join(NAME);
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        assert_eq!(open(&state_dir).unwrap(), seal);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!((open(&state_dir).unwrap(), mode()), (seal.clone(), 0o600));
        fs::write(state_dir.join("seal.new"), "left half-way").unwrap();
        fs::write(&file, "x").unwrap();
        let another = open(&state_dir).unwrap();
        assert_ne!(another, seal, "what cannot be read is made anew");
        assert_eq!(open(&state_dir).unwrap(), another);
        // Where it cannot be kept there is one all the same, and what cannot be read is left.
        let folder = state_dir.join("another");
        fs::create_dir_all(folder.join(NAME)).unwrap();
        assert_ne!(open(&folder).unwrap(), open(&folder).unwrap());
        assert!(folder.join(NAME).is_dir());
        assert_ne!(open(&file.join("no directory")).unwrap(), open(&file.join("no directory")).unwrap());
    }

    #[test]
    fn what_was_not_counted_here_is_refused_and_the_seal_goes_no_further() {
        let asked = |more: &str| -> LeaseRequest {
            let text = format!(r#"{{"container_id":"c","request":{{"fraction_permille":300{more}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        let own = HostSeal::new(directory.path());
        assert_eq!(unseal(&own, &mut asked("")), Ok(()));
        assert!(!directory.path().join(NAME).exists(), "nobody has wanted one");
        fs::write(directory.path().join(NAME), Seal::of(1).text()).unwrap();
        let mut counted = asked(r#","resource":"percent=30","seal":"00000000000000000000000000000001""#);
        assert_eq!(unseal(&own, &mut counted), Ok(()));
        assert_eq!(counted, asked(r#","resource":"percent=30""#));
        assert_eq!(unseal(&own, &mut asked("")), Ok(()));
        for forged in
            [r#","resource":"percent=30""#, r#","resource":"mig=1g.10gb","seal":"00000000000000000000000000000002""#]
        {
            let error = unseal(&own, &mut asked(forged)).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestNotAllowed);
            assert!(error.to_string().contains("resource limits") && !error.to_string().contains("0002"), "{error}");
        }
    }
}
