//! Contexts for OpenGL and VDPAU, through the shim as it was built and in front of a driver that only hands them out.

use crate::failure::{Result, ensure};
use crate::namespaces::Inside;
use crate::stage::Stage;
use crate::stand::Stand;
use std::path::Path;

/// The stand looks whether each is charged and given back.
pub fn run(_inside: &Inside) -> Result<()> {
    let stand = Stand::new(&Stage::of_this_program()?, Path::new("/run/gpool-stand"))?;
    let said = stand.ask("displays")?;
    ensure(said["contexts"] == 4, || format!("the stand made {said}"))
}
