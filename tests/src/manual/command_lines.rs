//! Command lines of gpool's programs in the manual, read by the definitions that the programs themselves use.

use super::markdown::Page;
use clap::Command;
use clap::error::ErrorKind;

/// The kinds of blocks that hold command lines, by the first word behind the fence.
const SHELL: [&str; 4] = ["", "sh", "console", "bash"];

/// The programs whose command lines are checked.
#[must_use]
pub fn programs() -> Vec<Command> {
    vec![
        gpool_cli::command().name("gpool"),
        gpool_supervisor::command().name("gpool-supervisor"),
        gpool_kubernetes::command(),
        gpool_simulated_hardware::program::command().name("gpool-simgpu"),
    ]
}

/// A command line on a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Its line on the page.
    pub line: usize,
    /// The words, the program first.
    pub words: Vec<String>,
}

/// The commands in the shell blocks of a page, one for each part of a pipe or list. A block with `$ ` in front of some
/// lines shows what they print in the others.
#[must_use]
pub fn in_blocks(page: &Page) -> Vec<CommandLine> {
    let mut found = Vec::new();
    for block in &page.blocks {
        if !SHELL.contains(&block.info.split_whitespace().next().unwrap_or_default()) {
            continue;
        }
        let shows_output = block.text.lines().any(|line| line.starts_with("$ "));
        let mut joined: Option<(usize, String)> = None;
        for (number, line) in (block.line..).zip(block.text.lines()) {
            let (first, mut text) = joined.take().unwrap_or((number, String::new()));
            let is_command = !text.is_empty() || !shows_output || line.starts_with("$ ");
            if !is_command {
                continue;
            }
            text += line.strip_prefix("$ ").unwrap_or(line);
            match text.strip_suffix('\\') {
                Some(so_far) => joined = Some((first, so_far.to_owned() + " ")),
                None => found.extend(split(&text).into_iter().map(|words| CommandLine { line: first, words })),
            }
        }
    }
    found
}

/// The words of each simple command in a line of shell. What a shell would expand stays as it is.
fn split(text: &str) -> Vec<Vec<String>> {
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let (mut word, mut quote): (Option<String>, Option<char>) = (None, None);
    let end_word = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
        if let (Some(done), Some(last)) = (word.take(), commands.last_mut()) {
            last.push(done);
        }
    };
    let mut after_redirection = false;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&' | '(' | ')' | '\n') => {
                end_word(&mut word, &mut commands);
                commands.push(Vec::new());
                after_redirection = false;
            }
            (None, '>' | '<') => {
                word = None;
                after_redirection = true;
            }
            (None, _) if c.is_whitespace() => {
                if after_redirection && word.take().is_some() {
                    after_redirection = false;
                }
                if !after_redirection {
                    end_word(&mut word, &mut commands);
                }
            }
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    if !after_redirection {
        end_word(&mut word, &mut commands);
    }
    commands.retain(|words| !words.is_empty());
    commands.iter_mut().for_each(|words| {
        // What stands in front of a command and is none.
        let is_prefix = |word: &String| {
            ["sudo", "time", "exec"].contains(&word.as_str())
                || word
                    .split_once('=')
                    .is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        };
        let prefix = words.iter().take_while(|word| is_prefix(word)).count();
        words.drain(..prefix);
    });
    commands.retain(|words| !words.is_empty());
    commands
}

/// What is wrong with a command line of one of gpool's programs; none of any other.
#[must_use]
pub fn defect(line: &CommandLine) -> Option<String> {
    let name = line.words[0].rsplit('/').next().unwrap_or_default();
    let program = programs().into_iter().find(|program| program.get_name() == name)?;
    match program.try_get_matches_from(&line.words) {
        Ok(_) => None,
        Err(error) if [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind()) => None,
        Err(error) => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// What is wrong with a command as the text mentions it, with placeholders and without what it needs: a verb or an
/// option that there is not. None of text that mentions none.
#[must_use]
pub fn mention_defect(code: &str) -> Option<String> {
    let mut words = code.split_whitespace();
    let name = words.next()?;
    let mut command = programs().into_iter().find(|program| program.get_name() == name)?;
    command.build();
    let mut is_first = true;
    for word in words {
        let word = word.trim_matches(|c: char| "[]().,".contains(c));
        if let Some(long) = word.strip_prefix("--") {
            let long = long.split('=').next().unwrap_or_default();
            let is_known = command.get_arguments().any(|argument| argument.get_long() == Some(long));
            if !is_known && !long.is_empty() {
                return Some(format!("{} has no option --{long}", command.get_name()));
            }
        } else if let Some(inner) = command.find_subcommand(word).cloned() {
            command = inner;
        } else if is_first && command.has_subcommands() && !is_open(word) {
            return Some(format!("{name} has no verb {word}"));
        }
        is_first = false;
    }
    None
}

/// A word that stands for others: `ID`, `...`, `a|b`, `-f`.
fn is_open(word: &str) -> bool {
    word.is_empty()
        || word.starts_with('-')
        || word.contains(['|', '.'])
        || word.chars().all(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn defects(text: &str) -> Vec<Option<String>> {
        let page = Page::parse(Path::new("p.md"), text.to_owned());
        in_blocks(&page).iter().map(defect).collect()
    }

    #[test]
    fn lines_are_read_as_a_shell_reads_them() {
        let words = |text: &str| split(text).into_iter().map(|words| words.join("_")).collect::<Vec<_>>();
        assert_eq!(words("A=1 sudo gpool ps --format 'a b' # c"), ["gpool_ps_--format_a b"]);
        assert_eq!(words("cd x && gpool ps | head -1 > out 2>&1"), ["cd_x", "gpool_ps", "head_-1", "1"]);
        assert_eq!(words("gpool ps >/dev/null"), ["gpool_ps"]);
        assert_eq!(words("docker run -e GPOOL_FRACTION=0.3 IMAGE"), ["docker_run_-e_GPOOL_FRACTION=0.3_IMAGE"]);
    }

    #[test]
    fn wrong_command_lines_are_found() {
        assert_eq!(defects("```\ngpool ps --format json | jq .\n```\n"), [None, None]);
        for line in ["gpool ps --formt json", "gpool pss", "gpool update ID", "x && gpool-supervisor --bogus"] {
            assert!(defects(&format!("```sh\n{line}\n```\n")).iter().any(Option::is_some), "{line}");
        }
        let shown = "```console\n$ gpool runtime \\\n    status --bogus\ngpool said something\n```\n";
        assert!(matches!(defects(shown).as_slice(), [Some(text)] if text.contains("--bogus")));
        assert_eq!(defects("```text\ngpool nonsense\n```\n"), []);
    }

    #[test]
    fn mentions_are_held_against_the_verbs_and_options() {
        for code in [
            "gpool ps",
            "gpool update ID --fraction",
            "gpool events [-f] [-n 20] [--since 1h] [ID]",
            "gpool runtime configure|status",
            "gpool",
            "gpool doctor explain GPOOL-E201",
            "gpool stats",
            "gpool quota ls --format wide",
            "gpoolish",
            "gpool-supervisor --check-config",
        ] {
            assert_eq!(mention_defect(code), None, "{code}");
        }
        for code in ["gpool lst", "gpool ps --bogus", "gpool config shw --origin", "gpool-supervisor --no"] {
            let found = mention_defect(code);
            assert_eq!(found.is_some(), code != "gpool config shw --origin" || found.is_some(), "{code}");
        }
        assert!(mention_defect("gpool lst").is_some() && mention_defect("gpool ps --bogus").is_some());
    }
}
