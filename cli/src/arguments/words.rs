//! Options whose value is a word of a few, which completions offer.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command, Error};
use gpool_protocol::{Class, Priority, UsageBy};
use std::ffi::OsStr;

/// The classes.
pub fn classes() -> PossibleValuesParser {
    PossibleValuesParser::new(Class::ALL.map(Class::text))
}

/// The priorities.
pub fn priorities() -> PossibleValuesParser {
    PossibleValuesParser::new(Priority::ALL.map(Priority::text))
}

/// By what usage is kept apart.
pub fn usage_by() -> PossibleValuesParser {
    PossibleValuesParser::new(UsageBy::ALL.map(UsageBy::word))
}

/// Who may have GPUs of his own.
pub fn owners() -> PossibleValuesParser {
    PossibleValuesParser::new(UsageBy::OWNERS.map(UsageBy::word))
}

/// Whose requests are laid beside what would have been enough.
pub fn sized() -> PossibleValuesParser {
    PossibleValuesParser::new(UsageBy::SIZED.map(UsageBy::word))
}

/// Offers the words and takes whatever comes: `gpool run` hands it on, to be judged as a container's request is.
#[derive(Debug, Clone)]
pub struct Hinted(pub PossibleValuesParser);

impl TypedValueParser for Hinted {
    type Value = String;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        clap::builder::StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}
