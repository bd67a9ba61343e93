//! `gpool audit verify`

use super::{directory, failed, files, lines};
use crate::arguments::{Format, VerifyOptions};
use crate::exit::Failure;
use crate::output;
use gpool_policy::chain::{Link, follows, opened};
use gpool_protocol::Event;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What was read and found to be whole.
#[derive(Debug, Default, PartialEq, Eq)]
struct Whole {
    files: u64,
    events: u64,
    /// Number and time of the first event.
    first: Option<(u64, u64)>,
    /// Number, time and link of the last.
    last: Option<(u64, u64, Link)>,
    /// Whether the last line is being written, or was when the power went.
    is_open: bool,
}

/// Checks it and says what it ends with.
pub fn run(options: &VerifyOptions) -> Result<(), Failure> {
    let directory = directory(&options.place)?;
    let whole = read(&files(&directory)?, &options.known)?;
    match options.format {
        Format::Table | Format::Wide => output::print(&render(&whole, &directory)),
        Format::Json => output::print_json_of([("audit", to_json(&whole))]),
        Format::Csv => {
            let header = ["files", "events", "first_number", "last_number", "chain"];
            output::print(&output::csv(&header, [cells(&whole)]))
        }
    }
}

/// Reads all files in order. What is known is compared as it comes by.
fn read(files: &[(u64, PathBuf)], known: &[(u64, Link)]) -> Result<Whole, Failure> {
    let mut whole = Whole::default();
    // Before the first file that is there nothing is known; the number and the link that the next line follows.
    let mut at: Option<(u64, Link)> = None;
    for (place, (first, path)) in files.iter().enumerate() {
        let (lines, has_more) = lines(path)?;
        let broken = |line: usize, what: &str| broken(path, line + 1, what);
        let Some(beginning) = lines.first() else {
            return Err(broken(0, "the file has no beginning"));
        };
        let begun = opened(beginning).and_then(|(object, _)| serde_json::from_str::<Value>(&object).ok());
        let previous = begun.as_ref().and_then(|begun| Link::parse(begun["previous"].as_str()?));
        let begins = begun.as_ref().and_then(|begun| begun["begins"].as_u64());
        let (Some(previous), Some(begins)) = (previous, begins) else {
            return Err(broken(0, "the file does not begin as the audit's do"));
        };
        match at {
            Some((number, link)) if (number + 1, link) != (begins, previous) => {
                let missing = format!(
                    "the file before it ends with number {number}, and this one follows number {}",
                    begins.saturating_sub(1)
                );
                return Err(broken(
                    0,
                    if number + 1 == begins { "it does not follow the file before it" } else { &missing },
                ));
            }
            None if begins == 1 && previous != Link::FIRST => {
                return Err(broken(0, "the first file of all follows another"));
            }
            _ => {}
        }
        if begins != *first {
            return Err(broken(0, "the file has another one's name"));
        }
        let Some((_, mut link)) = follows(previous, beginning) else {
            return Err(broken(0, "the line was changed"));
        };
        let mut number = begins.saturating_sub(1);
        for (line, text) in lines.iter().enumerate().skip(1) {
            let Some((object, its)) = follows(link, text) else {
                return Err(broken(line, "this line or what was before it was changed, taken out or put in"));
            };
            let event: Event = serde_json::from_str(&object)
                .map_err(|_| broken(line, "an event that this version cannot read; a newer gpool can"))?;
            if event.sequence != number + 1 {
                return Err(broken(line, &format!("number {} follows number {number}", event.sequence)));
            }
            (number, link) = (event.sequence, its);
            whole.events += 1;
            whole.first.get_or_insert((number, event.unix_ms));
            whole.last = Some((number, event.unix_ms, link));
            if let Some((_, other)) = known.iter().find(|(known, other)| *known == number && *other != link) {
                return Err(broken(
                    line,
                    &format!("number {number} has another chain than {other}: the audit was written anew"),
                ));
            }
        }
        let is_last = place + 1 == files.len();
        if has_more && !is_last {
            return Err(broken(lines.len(), "the line is not whole, and files follow"));
        }
        whole.is_open = has_more;
        whole.files += 1;
        at = Some((number, link));
    }
    check_there(&whole, known)?;
    Ok(whole)
}

/// What is known must still be there, but for what was taken out at the beginning because it is old.
fn check_there(whole: &Whole, known: &[(u64, Link)]) -> Result<(), Failure> {
    let last = whole.last.map_or(0, |(number, ..)| number);
    match known.iter().find(|(number, _)| *number > last) {
        Some((number, _)) => Err(failed(&format!(
            "the audit ends with number {last}, and number {number} is known: its end was taken out; look for copies of it"
        ))),
        None => Ok(()),
    }
}

fn broken(path: &Path, line: usize, what: &str) -> Failure {
    failed(&format!(
        "{}, line {line}: {what}; what is before that is as it was written, and the journal has events too",
        path.display()
    ))
}

fn moment(unix_ms: u64) -> String {
    crate::commands::usage::moment(unix_ms / 1000)
}

fn render(whole: &Whole, directory: &Path) -> String {
    let (Some((first, from)), Some((last, until, link))) = (whole.first, whole.last) else {
        return format!("{} has no event yet.\n", directory.display());
    };
    let open = if whole.is_open { " Its last line is being written." } else { "" };
    format!(
        "{} events in {} files, numbers {first} to {last}, from {} to {}: none was changed, taken out or put in.{open}\n\
         It ends with {last}:{link}\n",
        whole.events,
        whole.files,
        moment(from),
        moment(until),
    )
}

fn to_json(whole: &Whole) -> Value {
    json!({
        "files": whole.files,
        "events": whole.events,
        "first_number": whole.first.map(|(number, _)| number),
        "first_unix_ms": whole.first.map(|(_, unix_ms)| unix_ms),
        "last_number": whole.last.map(|(number, ..)| number),
        "last_unix_ms": whole.last.map(|(_, unix_ms, _)| unix_ms),
        "chain": whole.last.map(|(.., link)| link.to_string()),
    })
}

fn cells(whole: &Whole) -> Vec<String> {
    let or_none = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    vec![
        whole.files.to_string(),
        whole.events.to_string(),
        or_none(whole.first.map(|(number, _)| number)),
        or_none(whole.last.map(|(number, ..)| number)),
        whole.last.map(|(.., link)| link.to_string()).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::audit::files;
    use gpool_policy::chain::{file_name, sealed};
    use std::fs;

    /// Writes two files with three events each.
    fn written(directory: &Path) -> Vec<Link> {
        let (mut link, mut links) = (Link::FIRST, Vec::new());
        for first in [1, 4] {
            let mut text = String::new();
            let mut add = |object: String| {
                let (line, its) = sealed(link, &object);
                text += &(line + "\n");
                link = its;
                its
            };
            add(format!(
                r#"{{"audit":1,"begins":{first},"unix_ms":5,"previous":"{}"}}"#,
                links.last().unwrap_or(&Link::FIRST)
            ));
            for number in first..first + 3 {
                links.push(add(format!(
                    r#"{{"sequence":{number},"unix_ms":1700000000000,"kind":"lease-granted","message":"m"}}"#
                )));
            }
            fs::write(directory.join(file_name(first)), text).unwrap();
        }
        links
    }

    fn outcome(directory: &Path, known: &[(u64, Link)]) -> Result<Whole, String> {
        read(&files(directory).unwrap(), known).map_err(|failure| match failure {
            Failure::Refused(_, sentence) => sentence,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_whole_trail_is_told_with_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let links = written(folder.path());
        let whole = outcome(folder.path(), &[(2, links[1]), (6, links[5])]).unwrap();
        assert_eq!((whole.files, whole.events, whole.first.unwrap().0, whole.last.unwrap().0), (2, 6, 1, 6));
        let told = render(&whole, folder.path());
        assert!(told.ends_with(&format!("It ends with 6:{}\n", links[5])), "{told}");
        // The oldest file may be gone, and the last line be under way.
        fs::remove_file(folder.path().join(file_name(1))).unwrap();
        let path = folder.path().join(file_name(4));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "{\"seq").unwrap();
        let whole = outcome(folder.path(), &[(2, links[0])]).unwrap();
        assert!(whole.is_open && whole.first.unwrap().0 == 4);
        assert_eq!(outcome(&folder.path().join(".."), &[]).unwrap().last, None);
    }

    #[test]
    fn what_is_changed_taken_out_or_written_anew_is_told_with_its_line() {
        type Known<'a> = &'a dyn Fn(&[Link]) -> Vec<(u64, Link)>;
        let attempt = |change: &dyn Fn(&Path), known: Known<'_>| {
            let folder = tempfile::tempdir().unwrap();
            let links = written(folder.path());
            change(folder.path());
            outcome(folder.path(), &known(&links)).unwrap_err()
        };
        fn edit(first: u64, with: impl Fn(Vec<&str>) -> Vec<String>) -> impl Fn(&Path) {
            move |directory: &Path| {
                let path = directory.join(file_name(first));
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, with(text.lines().collect()).join("\n") + "\n").unwrap();
            }
        }
        fn texts(lines: Vec<&str>) -> Vec<String> {
            lines.into_iter().map(str::to_owned).collect()
        }
        let nothing = |_: &[Link]| Vec::new();
        let changed =
            edit(1, |lines| lines.iter().map(|line| line.replace("\"sequence\":2", "\"sequence\":3")).collect());
        assert!(attempt(&changed, &nothing).contains("line 3: this line or what was before it"));
        let taken = edit(4, |mut lines| {
            lines.remove(1);
            texts(lines)
        });
        assert!(attempt(&taken, &nothing).contains("line 2: this line"));
        let end = edit(1, |mut lines| {
            lines.pop();
            texts(lines)
        });
        assert!(attempt(&end, &nothing).contains("ends with number 2, and this one follows number 3"));
        let gone = |directory: &Path| fs::remove_file(directory.join(file_name(4))).unwrap();
        assert!(attempt(&gone, &|links| vec![(5, links[4])]).contains("ends with number 3, and number 5 is known"));
        assert!(attempt(&|_| (), &|links| vec![(5, links[3])]).contains("line 3: number 5 has another chain"));
        let renamed =
            |directory: &Path| fs::rename(directory.join(file_name(4)), directory.join(file_name(5))).unwrap();
        assert!(attempt(&renamed, &nothing).contains("another one's name"));
        let empty = |directory: &Path| fs::write(directory.join(file_name(4)), "").unwrap();
        assert!(attempt(&empty, &nothing).contains("no beginning"));
    }
}
