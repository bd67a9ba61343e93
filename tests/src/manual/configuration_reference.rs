//! The page about the configuration, made from the file that is shipped.

use gpool_configuration::{Key, catalogue};
use std::fmt::Write;

const BEGIN: &str = "\
# Configuration

`/etc/gpool/config.toml`, and the files of `/etc/gpool/conf.d` that end in `.toml`. Every key stands in the shipped file
with its default, and an empty file works; `gpool config defaults` prints that file.

- **Layers.** The files of `conf.d` are laid over `config.toml` in the order of their names. A later one wins key by key; a
  list is one value and is replaced as a whole. `gpool config show --origin` names the file and line of each value.
- **Mistakes.** An unknown key, a value of another type and a number out of range are refused with file and line, and for a
  key with the nearest one ([GPOOL-E004](../errors.md#gpool-e004)). `gpool config validate` checks all files together. The supervisor
  looks every ten seconds, and tells a mistake that it sees twice (event `configuration-refused`, `gpool_configuration_usable`); one that is started meanwhile begins with what it took over last.
- **Changes.** The last column says when a change is in force. `gpool-runtime` reads the files at each start of a container
  (*the next container*). The supervisor takes a change over with `gpool config reload` or SIGHUP (*reload*), running
  containers included: all of it or, where one file cannot be used, nothing. The rest waits for a *restart*, which running
  containers do not notice; the answer to a reload names those keys. `gpool config diff --running` shows what waits.

[configuration.schema.json](configuration.schema.json) is the same as a JSON schema, for editors.
";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut text = BEGIN.to_owned();
    let mut table = String::new();
    let classes = ["class.batch.", "class.notebook.", "class.train."];
    for key in catalogue() {
        // Every class has the same keys and defaults.
        if classes.iter().any(|class| key.name.starts_with(class)) {
            continue;
        }
        let name = key.name.replacen("class.latency.", "class.NAME.", 1);
        let (of, last) = name.rsplit_once('.').unwrap_or(("", &name));
        if of != table {
            table = of.to_owned();
            let heading = if table.is_empty() { key.name.as_str() } else { &table };
            let _ = writeln!(text, "\n## {heading}\n");
            if table == "class.NAME" {
                text.push_str(
                    "NAME is `latency`, `batch`, `notebook` or `train`; each has the same keys and defaults.\n\n",
                );
            }
            text.push_str("| key | default | | in force after |\n|---|---|---|---|\n");
        }
        let _ = writeln!(text, "| `{last}` | {} | {} | {} |", default(&key), words(&key), key.effect.text());
    }
    text
}

fn default(key: &Key) -> String {
    match &key.default {
        Some(default) => format!("`{default}`"),
        None => "none".into(),
    }
}

fn words(key: &Key) -> String {
    let about = key.about.join(" ").trim_end_matches(':').replace('|', "\\|");
    let end = if about.ends_with(['.', ')']) { "" } else { "." };
    let example = match key.example.as_slice() {
        [] => String::new(),
        lines => format!(" Example: `{}`", lines.join("; ")),
    };
    format!("{about}{end}{example}")
}
