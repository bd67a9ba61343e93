//! What is done to an engine's file: found out first, judged by the engine, then done in one step.

use super::checker::{self, Verdict};
use super::{Defect, Engine, Entry, Facts, file, is_of_nvidia};
use std::path::{Path, PathBuf};

/// A change that was found to be right and has not been made.
#[derive(Debug)]
pub struct Change {
    engine: Engine,
    /// The file, without symbolic links.
    pub path: PathBuf,
    /// What is there.
    pub before: Option<String>,
    /// What shall be there.
    pub after: Option<String>,
    /// What the engine says of it.
    pub verdict: Verdict,
    backup: Backup,
}

/// What happens to the text from before gpool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backup {
    Keep,
    Write,
    Remove,
}

/// Finds out how `path` has to change for `wanted`. A text that nobody has touched since the last time is made anew
/// from the one before gpool, so that changing one's mind leaves no traces.
///
/// # Errors
/// If the file cannot be read or changed, the engine refuses what would come of it, or NVIDIA's runtime would be the default no
/// more and is not `behind` gpool either. Nothing has been done then.
pub fn configure(engine: Engine, path: &Path, wanted: &Entry, behind: &Path) -> Result<Change, Defect> {
    let (path, before) = look(path)?;
    let start = match &before {
        Some(text) => past(engine, &path, text)?,
        None => Past::Before,
    };
    let base = match &start {
        Past::Untouched(original) => original.as_deref(),
        Past::Before | Past::Touched { .. } => before.as_deref(),
    };
    let facts = checker::facts(engine, &path, base)?;
    if wanted.is_default && !is_of_nvidia(behind) {
        require_no_default_of_nvidia(engine, base, &facts)?;
    }
    let after = engine.with_entry(base, wanted, &facts)?;
    let is_first = before.is_some() && start == Past::Before && !engine.owns_file();
    let backup = if is_first { Backup::Write } else { Backup::Keep };
    judged(engine, path, before, Some(after), backup, Some(wanted), &facts)
}

/// Refuses to take the place of NVIDIA's runtime, from which containers without a request have their GPUs.
fn require_no_default_of_nvidia(engine: Engine, base: Option<&str>, facts: &Facts) -> Result<(), Defect> {
    let Some(name) = engine.default_of_nvidia(base, facts) else { return Ok(()) };
    Err(Defect(format!(
        "has NVIDIA's runtime {name} as default: gpool in its place would take its GPUs from every container that asks for \
         nothing of gpool; put NVIDIA's behind gpool with [runtime] low_level = [\"/usr/bin/nvidia-container-runtime\"] in \
         /etc/gpool/config.toml, or leave --set-as-default out"
    )))
}

/// Finds out how `path` has to change so that nothing of gpool is left: back to the text from before, byte for byte,
/// if nothing else has been changed since; else by taking gpool's own entry out.
///
/// # Errors
/// As [`configure`].
pub fn unconfigure(engine: Engine, path: &Path) -> Result<Change, Defect> {
    let (path, before) = look(path)?;
    let (after, backup) = match &before {
        None => (None, Backup::Remove),
        Some(text) => match past(engine, &path, text)? {
            Past::Before => (before.clone(), Backup::Keep),
            Past::Untouched(original) => (original, Backup::Remove),
            Past::Touched { original } => {
                super::require_own(engine.owns_file().then_some(text.as_str()))?;
                (engine.without_entry(text, original.as_deref())?, Backup::Remove)
            }
        },
    };
    judged(engine, path, before, after, backup, None, &Facts::default())
}

/// What became of a text since gpool changed it.
#[derive(Debug, PartialEq, Eq)]
enum Past {
    /// gpool has not changed it yet.
    Before,
    /// Nobody has: it is what gpool made of this original.
    Untouched(Option<String>),
    /// Somebody has.
    Touched {
        /// What it was before gpool, if that is still known.
        original: Option<String>,
    },
}

fn past(engine: Engine, path: &Path, text: &str) -> Result<Past, Defect> {
    let Some(entry) = engine.entry(text)? else { return Ok(Past::Before) };
    let original = file::read(&file::backup_path(path)).map_err(unreadable)?;
    let facts = checker::facts(engine, path, original.as_deref()).unwrap_or_default();
    let made = engine.with_entry(original.as_deref(), &entry, &facts);
    let is_untouched = made.is_ok_and(|made| made == text);
    Ok(if is_untouched { Past::Untouched(original) } else { Past::Touched { original } })
}

impl Change {
    /// Whether anything would be different.
    pub fn is_needed(&self) -> bool {
        self.before != self.after
    }

    /// The change as a unified difference.
    pub fn difference(&self) -> String {
        let (before, after) = (self.before.as_deref().unwrap_or_default(), self.after.as_deref().unwrap_or_default());
        let name = |text: &Option<String>| match text {
            Some(_) => self.path.display().to_string(),
            None => "/dev/null".into(),
        };
        let lines = similar::TextDiff::from_lines(before, after);
        lines.unified_diff().header(&name(&self.before), &name(&self.after)).to_string()
    }

    /// Does it.
    ///
    /// # Errors
    /// If a file cannot be written. The configuration is then as it was.
    pub fn make(&self) -> Result<(), Defect> {
        self.write().map_err(|error| Defect(format!("cannot be written ({error}); run this as root")))
    }

    fn write(&self) -> std::io::Result<()> {
        let backup = file::backup_path(&self.path);
        if self.is_needed() {
            if let (Backup::Write, Some(text)) = (self.backup, &self.before) {
                let made = file::candidate(&self.path, text)?;
                file::replace(&backup, made)?;
            }
            match &self.after {
                Some(text) => file::replace(&self.path, file::candidate(&self.path, text)?)?,
                None => file::remove(&self.path)?,
            }
        }
        if self.backup == Backup::Remove {
            file::remove(&backup)?;
        }
        Ok(())
    }

    /// What makes a running engine see the change.
    pub fn reload(&self) -> Option<&'static str> {
        self.engine.reload()
    }
}

fn look(path: &Path) -> Result<(PathBuf, Option<String>), Defect> {
    let path = file::resolved(path).map_err(unreadable)?;
    let text = file::read(&path).map_err(unreadable)?;
    Ok((path, text))
}

fn judged(
    engine: Engine,
    path: PathBuf,
    before: Option<String>,
    after: Option<String>,
    backup: Backup,
    wanted: Option<&Entry>,
    facts: &Facts,
) -> Result<Change, Defect> {
    let verdict = match &after {
        Some(text) if after != before => {
            let made = file::trial(&path, text)
                .map_err(|error| Defect(format!("no file can be made beside it ({error}); run this as root")))?;
            checker::check(engine, made.path(), wanted, facts)?
        }
        _ => Verdict::Accepted,
    };
    Ok(Change { engine, path, before, after, verdict, backup })
}

fn unreadable(error: std::io::Error) -> Defect {
    Defect(format!("cannot be read ({error}); run this as root"))
}
