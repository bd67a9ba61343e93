//! The leases and containers that a command line names.

use super::{QueueVerb, Verb};

impl Verb {
    /// All ids on it, to be replaced where one is the name of a container. `gpool audit show`, which needs no supervisor, sees to
    /// its own.
    pub fn ids(&mut self) -> Vec<&mut String> {
        match self {
            Verb::Inspect { ids }
            | Verb::Pause { ids }
            | Verb::Suspend { ids, .. }
            | Verb::Resume { ids, .. }
            | Verb::Evict { ids }
            | Verb::Queue {
                verb:
                    QueueVerb::Cancel { ids }
                    | QueueVerb::Hold { ids }
                    | QueueVerb::Release { ids }
                    | QueueVerb::First { ids },
            } => ids.iter_mut().collect(),
            Verb::Stats(options) => options.ids.iter_mut().collect(),
            Verb::Latency(options) => options.ids.iter_mut().collect(),
            Verb::Wait(options) => options.ids.iter_mut().collect(),
            Verb::Update(change) => vec![&mut change.id],
            Verb::Exec(options) => vec![&mut options.id],
            Verb::Explain { id, .. } => id.iter_mut().collect(),
            Verb::Events(options) => options.id.iter_mut().collect(),
            Verb::History(options) => options.id.iter_mut().collect(),
            Verb::Usage(options) => options.of.container.iter_mut().collect(),
            Verb::Charges(options) => options.of.container.iter_mut().collect(),
            Verb::Sizes(options) => options.of.container.iter_mut().collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use std::ffi::OsString;

    #[test]
    fn every_verb_that_takes_ids_names_them() {
        for line in [
            "inspect a b",
            "pause a b",
            "suspend a b",
            "resume a b",
            "evict a b",
            "queue cancel a b",
            "queue hold a b",
            "queue release a b",
            "queue first a b",
            "stats a b",
            "latency a b",
            "wait a b",
            "update a --memory 1GiB",
            "explain a",
            "exec a -- true",
            "events a",
            "history a",
            "usage --container a",
            "charges --container a",
            "sizes --container a",
        ] {
            let words = ["gpool"].into_iter().chain(line.split(' ')).map(OsString::from);
            let mut verb = parse(words).unwrap_or_else(|_| panic!("{line}")).verb;
            let want: Vec<&str> = line.split(' ').filter(|word| ["a", "b"].contains(word)).collect();
            assert_eq!(verb.ids(), want, "{line}");
        }
    }

    #[test]
    fn no_verb_that_takes_ids_is_forgotten() {
        fn count(command: &clap::Command) -> usize {
            let takes = command.get_arguments().any(|one| ["id", "ids", "container"].contains(&one.get_id().as_str()));
            usize::from(takes) + command.get_subcommands().map(count).sum::<usize>()
        }
        assert_eq!(count(&super::super::command()), 21, "those of the other test, and audit show");
    }
}
