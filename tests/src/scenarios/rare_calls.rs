//! What few programs do, through the shim as it was built and in front of a driver that only answers.

use crate::failure::{Result, ensure};
use crate::namespaces::Inside;
use crate::stage::Stage;
use crate::stand::Stand;
use std::path::Path;

/// The stand looks whether each is charged, given back and answered.
pub fn run(_inside: &Inside) -> Result<()> {
    let stand = Stand::new(&Stage::of_this_program()?, Path::new("/run/gpool-stand"))?;
    let said = stand.ask("displays")?;
    ensure(said["contexts"] == 4, || format!("the stand made {said}"))?;
    let said = stand.ask("rare")?;
    ensure(said["passed"] == 5, || format!("the stand did {said}"))?;
    let said = Stand::of_newest(&Stage::of_this_program()?, Path::new("/run/gpool-stand"))?.ask("green")?;
    ensure(said["contexts"] == 2, || format!("the stand made {said}"))
}
